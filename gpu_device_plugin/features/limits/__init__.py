"""Verifies the memory limits of containers, and sets those of running ones."""
