"""The privileged helper that sets the memory limits of running containers."""
