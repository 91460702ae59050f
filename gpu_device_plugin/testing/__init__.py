"""Supported test doubles that follow the real rules: a kubelet, an API server, and builders of pods and nodes."""
