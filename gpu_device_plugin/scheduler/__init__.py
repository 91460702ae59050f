"""The scheduler extender: it follows the cluster, and filters, ranks and binds the pods that ask for GPUs."""
