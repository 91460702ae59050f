"""Tells of containers whose MIG instances were destroyed."""
