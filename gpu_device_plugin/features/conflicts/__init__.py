"""Finds other plugins and drivers that offer the node's GPUs, and keeps the agent from registering beside them."""
