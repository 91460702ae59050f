"""The agent's side of ResourceClaims: slices, prepared claims and the change of the serving mode."""
