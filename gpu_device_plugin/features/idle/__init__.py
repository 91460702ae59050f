"""Finds pods that leave their GPUs idle, says since when, and decides what becomes of them."""
