"""`kubectl inspect gpushare`."""
