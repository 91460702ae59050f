"""The story: values in, values out. No clock, environment, file, socket, lock or log."""
