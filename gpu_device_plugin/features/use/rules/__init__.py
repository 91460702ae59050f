"""Whose a process is, and the report of use: values in, values out."""
