"""Pods that kube-scheduler refused because it did not ask about the node that fits."""
