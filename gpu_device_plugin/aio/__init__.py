"""Small asyncio utilities, independent of GPUs and Kubernetes."""
