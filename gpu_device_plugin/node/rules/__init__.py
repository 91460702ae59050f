"""The node agent's decisions: values in, values out."""
