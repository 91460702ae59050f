"""Tables of the cluster for a terminal."""
