"""The nodes of a fleet in columns, and the verdicts on them by kind of pod."""
