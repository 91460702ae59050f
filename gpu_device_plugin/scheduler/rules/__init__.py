"""What fits where, which node is best, and what counts on a node."""
