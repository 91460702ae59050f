"""What room is worth, learned from the pods that come: the policy fit."""
