"""Finds pods that leave their GPUs idle, and says since when."""
