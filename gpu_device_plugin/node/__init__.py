"""The node agent: finds GPUs, divides them into shares, advertises and allocates them."""
