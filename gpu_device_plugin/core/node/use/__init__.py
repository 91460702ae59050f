"""Decisions about the use of GPUs: whose it is, who exceeds a grant, who is evicted."""
