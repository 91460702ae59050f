"""Objects of the Kubernetes API, decoded into the compact values that we keep."""
