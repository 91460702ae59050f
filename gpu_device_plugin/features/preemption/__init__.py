"""Which pods have to go for a more important one."""
