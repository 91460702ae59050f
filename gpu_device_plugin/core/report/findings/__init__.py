"""The doctor's checks: symptoms in, findings out."""
