"""Who uses the GPUs of this node, and what the agent does about over-use and failed GPUs."""
