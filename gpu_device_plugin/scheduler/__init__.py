"""Everything that speaks to kube-scheduler."""
