"""Judge thousands of nodes for one pod in a few milliseconds: an index over the nodes of a fleet.

`table` keeps the nodes in columns, `verdicts` and `scores` decide column by column what `core.cluster.fitting` and
`core.cluster.scoring` decide node by node, and `judge` remembers the answers for as long as a node stays as it is.
There is no rule here that is not in the core, and tests compare the two; see docs/decisions/0021.
"""
