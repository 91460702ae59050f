"""Everything that speaks to the Kubernetes API; only this package knows HTTP status codes."""
