"""Decisions about the health of GPUs."""
