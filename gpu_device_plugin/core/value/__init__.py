"""The placement value of room: what the pods that usually come could still use of it."""
