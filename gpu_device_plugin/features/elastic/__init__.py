"""Lets pods borrow memory that is free at present, and changes the guarantees of running pods."""
