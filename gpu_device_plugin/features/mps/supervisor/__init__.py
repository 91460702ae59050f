"""The supervisor of NVIDIA's MPS on a node."""
