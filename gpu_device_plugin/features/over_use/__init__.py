"""Finds containers that use more GPU memory than they may, tells their owners, and chooses whom to evict."""
