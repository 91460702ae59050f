"""Nodes and pods for a simulation, from files, words or a cluster."""
