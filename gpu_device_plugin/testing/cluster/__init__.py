"""An API server for development and tests that obeys the real rules."""
