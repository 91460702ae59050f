"""Everything that is written on pods and nodes and in containers' variables, each with one codec."""
