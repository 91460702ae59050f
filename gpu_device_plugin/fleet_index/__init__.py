"""Judge thousands of nodes for one pod in a few milliseconds: an index over the nodes of a fleet.

`table` keeps the nodes in columns; `verdicts` and `scores` compute by column the results that `core.cluster.fitting`
and `core.cluster.scoring` compute node by node; `judge` caches the results until a node changes. The rules are those of
the core, and tests compare the two; see docs/decisions/0021.
"""
