"""Decisions by worth: what the room that a node has left is worth, learned from the pods that come."""
