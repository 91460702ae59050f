"""Who had the GPUs for how long, and what that cost."""
