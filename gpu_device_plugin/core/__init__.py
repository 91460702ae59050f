"""Every decision: values in, values out. No clock, environment, file, socket, lock or log."""
