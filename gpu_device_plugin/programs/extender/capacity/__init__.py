"""The active extender's care for the cluster as a whole: nodes that it lacks, nodes that may go, pods that move."""
