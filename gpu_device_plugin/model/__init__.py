"""The values: GPU, share, pod, placement."""
