"""The wire format of kube-scheduler's extender protocol."""
