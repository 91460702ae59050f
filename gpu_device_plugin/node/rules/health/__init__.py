"""Whether a GPU is healthy, and what an XID means."""
