"""Which GPUs get an MPS daemon, and what happens with it: values in, values out."""
