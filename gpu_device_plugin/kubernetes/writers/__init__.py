"""Writes to the Kubernetes API: bindings, Events, evictions, annotations and slices."""
