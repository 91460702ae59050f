"""Everything that a person may configure."""
