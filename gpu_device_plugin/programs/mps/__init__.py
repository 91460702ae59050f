"""The MPS supervisor: a control daemon of NVIDIA's MPS on each GPU where the node agent wants one."""
