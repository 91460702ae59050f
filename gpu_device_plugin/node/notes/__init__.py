"""What the agent writes on its node and on the node's pods, and how it removes it."""
