"""The client of the Kubernetes API: connections, credentials, errors and answers."""
