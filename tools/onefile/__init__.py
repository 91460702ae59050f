"""The kubectl plugin in one file: an archive of Python sources that any Python from 3.11 runs."""
