"""Measure how long pods wait when the leader of several extenders is gone: ``python -m bench.failover``.

The replicas follow a synthetic cluster (bench.bigcluster). One leader ends as Kubernetes ends a pod, another is killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import synthetic
from bench.extender import cluster, readiness, running
from bench.node_agent import Row, machine, show
from bench.scheduler import PREFIX, Caller, arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.extender import Extender

ENDED_BAR_MS, KILLED_BAR_MS = 3_000.0, 18_000.0
"""A lease that is released is seen within 2.4 s; one that is not, 15 s after its last renewal."""


def failover(folder: Path, nodes: int) -> Iterator[Row]:
    """Measure from the signal to a leader until another replica answers filter."""
    with cluster(nodes) as api:
        for what, number, bar in (("ends", signal.SIGTERM, ENDED_BAR_MS), ("is killed", signal.SIGKILL, KILLED_BAR_MS)):
            name = ("--leader-election", "true", "--lease-name", f"lease-{int(number)}", "--lease-namespace", "default")
            with (
                running(folder, api, *name, "--identity", "first") as first,
                running(folder, api, *name, "--identity", "second", until="another extender leads: first") as second,
            ):
                began = time.monotonic()
                os.kill(first.pid, number)
                while readiness(second.probes):
                    time.sleep(0.01)
                _filter(second, nodes)
                took = (time.monotonic() - began) * 1000
            yield Row(f"the leader {what} until another answers, {nodes:,} nodes", took, bar=bar)


def _filter(extender: Extender, nodes: int) -> None:
    verbs = Caller(extender.url)
    names = [synthetic.node_name(node) for node in range(min(nodes, 100))]
    _, answer = verbs.post(f"{PREFIX}/filter", arguments(synthetic.new_pod(0, "gpu-mem 1"), names))
    assert b'"NodeNames":["' in answer, answer
    verbs.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table. The exit code says nothing of the verdicts: machines differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, help="size of the cluster")
    options = parser.parse_args(argv)
    print(machine(f"two extenders, {options.nodes:,} nodes") + "\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        show(failover(Path(name), options.nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
