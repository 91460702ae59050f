"""The limit helper, which changes the memory limits of running containers."""
