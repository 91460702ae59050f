"""The active extender's care for the cluster as a whole: nodes that it lacks or may lose, pods that move, idle pods."""
