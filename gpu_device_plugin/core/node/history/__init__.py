"""What happened on a node lately: the ring of the last hour, and which incidents are recorded."""
