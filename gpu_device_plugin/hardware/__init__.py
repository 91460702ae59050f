"""All access to the GPU driver; outside this package a GPU is a value."""
