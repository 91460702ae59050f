"""Nodes and room for pods that wait: nodes are asked for, kept and filled up, pods moved, and room held for them."""
