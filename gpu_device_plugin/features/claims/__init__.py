"""Gives GPUs to ResourceClaims, as a DRA driver."""
