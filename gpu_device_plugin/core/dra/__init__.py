"""The decisions of the DRA driver: GPUs of one node, given to ResourceClaims."""
