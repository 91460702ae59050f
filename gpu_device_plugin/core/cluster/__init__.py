"""Scheduling decisions: one pod, many nodes."""
