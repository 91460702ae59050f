"""Why a pod waits or runs where it does."""
