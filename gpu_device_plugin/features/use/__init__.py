"""Reads which container uses how much of which GPU, and reports it."""
