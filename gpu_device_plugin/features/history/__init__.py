"""Remembers the last hour of GPUs and containers, and records incidents."""
