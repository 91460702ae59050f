"""Which nodes to ask for, which to keep, and which pods to move where."""
