"""All communication with the Kubernetes API; only this package knows HTTP status codes."""
