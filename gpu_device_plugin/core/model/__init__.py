"""What a GPU, a share, a pod and a place on a GPU are."""
