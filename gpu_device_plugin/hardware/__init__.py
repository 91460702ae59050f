"""Everything that touches the driver; outside this package a GPU is a value."""
