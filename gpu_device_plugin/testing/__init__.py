"""Doubles that obey the real rules, shipped and supported: a kubelet, an API server, builders of small worlds."""
