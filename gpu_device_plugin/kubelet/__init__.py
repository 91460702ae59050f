"""Everything that speaks to the kubelet on this node."""
