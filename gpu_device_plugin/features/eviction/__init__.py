"""Evicts pods from GPUs that have failed, and pods that exceed their part, one after the other."""
