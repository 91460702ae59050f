"""What stands on pods and nodes and in variables for several programs: one codec for each."""
