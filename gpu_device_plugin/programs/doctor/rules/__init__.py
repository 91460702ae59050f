"""What each check of the doctor concludes from what was read."""
