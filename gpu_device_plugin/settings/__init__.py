"""All settings, and the sources from which they are read."""
