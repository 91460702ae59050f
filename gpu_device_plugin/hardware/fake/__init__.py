"""The driver port over fake hardware."""
