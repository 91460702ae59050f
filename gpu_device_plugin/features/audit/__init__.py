"""Records who had which GPU from when until when, one line of the log for each change."""
