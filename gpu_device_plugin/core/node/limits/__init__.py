"""Decisions about memory limits: how they are enforced on each GPU, what containers receive, whether they hold."""
