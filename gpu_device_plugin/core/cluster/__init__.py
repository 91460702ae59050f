"""The decisions about many nodes and one pod."""
