"""Which guarantee grows, and who returns borrowed memory: values in, values out."""
