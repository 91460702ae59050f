"""Shows which MIG instances pods hold, and tells of those whose instances were destroyed."""
