"""A kubelet for development and tests that obeys the real rules."""
