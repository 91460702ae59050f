"""Decisions about the devices of one node's kubelet: what is offered, allocated, held and free."""
