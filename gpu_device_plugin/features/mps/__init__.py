"""Limits memory by NVIDIA's MPS: which GPU gets a daemon, what its clients get, and who runs it."""
