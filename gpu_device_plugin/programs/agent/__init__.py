"""The program of the node agent: its settings, the profile that its node's label names, signals."""
