"""How memory limits are enforced on this node, kept up to date and verified."""
