"""Keeps the devices of running pods whose allocations the kubelet has lost, until the pods end."""
