"""The price of room by the pods that came, and what a pod costs the rest of a node by it."""
