"""The decisions about one node and its kubelet."""
