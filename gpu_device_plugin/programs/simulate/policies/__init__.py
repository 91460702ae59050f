"""The policies that a simulation compares."""
