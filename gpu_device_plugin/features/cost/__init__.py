"""What the GPUs of each namespace cost."""
