"""Cordons GPUs: they get no new containers, and running ones stay."""
