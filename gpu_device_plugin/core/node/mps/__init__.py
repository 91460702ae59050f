"""Decisions about the daemons of NVIDIA's MPS on a node."""
