"""The annotations and labels of pods and nodes and the variables of containers, each with one codec."""
