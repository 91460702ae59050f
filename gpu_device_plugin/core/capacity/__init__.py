"""Decisions about the cluster as a whole: the nodes that it lacks, those that may go, and the pods that should move."""
