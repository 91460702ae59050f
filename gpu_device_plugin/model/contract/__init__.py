"""Documents on pods and nodes, and variables, that several programs read: one codec for each."""
