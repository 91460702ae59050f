"""Share the GPUs of a Kubernetes cluster between pods, by GPU memory."""

__version__ = "0.2.0"
