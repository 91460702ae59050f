"""Memory that changes while a container runs: what it is guaranteed, what it may borrow, and when it returns that."""
