"""All communication with the kubelet of this node: its gRPC services, sockets and checkpoint."""
