"""Memory that changes while a container runs, on the node."""
