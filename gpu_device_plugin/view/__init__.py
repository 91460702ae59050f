"""The cluster as people's tools show it, read from objects of the Kubernetes API."""
