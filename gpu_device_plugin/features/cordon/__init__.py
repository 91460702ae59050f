"""Puts GPUs aside: no new container gets them, and what runs there stays."""
