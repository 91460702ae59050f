"""Traces of Alibaba's GPU clusters of 2023 ("openb"), and what policies give out on them: ``python -m bench.openb``.

The files are in github.com/hkust-adsl/kubernetes-scheduler-simulator, in data/csv; OPENB names their folder. A GPU is
cut into 100 shares, so that the share of a GPU that a pod asks for, in thousandths, is rounded up to a hundredth; a
whole GPU, and several, are taken whole. A pod that asks for no CPU counts as asking for a tenth of one, as in the
published experiments. Pods come until they have asked for 130 % of the GPUs.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from bench.policies import placed
from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.programs.simulate.model import Workload, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TRACE_SHARES = 100
"""Of each GPU."""
_UNASKED_CPU = 100
_WHOLE = 1000


def trace(pods: str) -> tuple[tuple[Start, ...], Workload]:
    """Return the nodes, and a list of pods, as in openb_pod_list_PODS.csv."""
    folder = Path(os.environ["OPENB"])
    with (folder / "openb_node_list_gpu_node.csv").open() as file:
        nodes = nodes_in_trace(file)
    with (folder / f"openb_pod_list_{pods}.csv").open() as file:
        return nodes, pods_in_trace(file)


def nodes_in_trace(lines: Iterable[str]) -> tuple[Start, ...]:
    """Read a list of nodes."""
    return tuple(
        Start.empty(
            row["sn"],
            NodeType(
                (TRACE_SHARES,) * int(row["gpu"]),
                (row["model"],) * int(row["gpu"]),
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
            ),
        )
        for row in csv.DictReader(lines)
    )


def pods_in_trace(lines: Iterable[str]) -> Workload:
    """Read a list of pods."""
    kinds: dict[PodKind, int] = {}
    pods = [kinds.setdefault(_traced(row), len(kinds)) for row in csv.DictReader(lines)]
    return Workload(tuple(kinds), tuple(pods))


def _traced(row: Mapping[str, str]) -> PodKind:
    gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    return PodKind(
        -(-milli * TRACE_SHARES // _WHOLE) if gpus == 1 and milli < _WHOLE else 0,
        gpus,
        int(row["cpu_milli"]) or _UNASKED_CPU,
        int(row["memory_mib"]),
        GpuSelector(tuple(sorted(model for model in (row.get("gpu_spec") or "").split("|") if model))),
    )


WAYS = {
    "`fit`, mix known": ("fit", False, 100),
    "sampled": ("fit", False, 2),
    "`fit`, learning": ("fit", True, 100),
    "sampled, learning": ("fit", True, 2),
    "FGD": ("fgd", False, 100),
    "BestFit": ("bestfit", False, 100),
}
"""Columns of the table: the policy, whether it learns as pods come, and `percentageOfNodesToScore`."""


def allocated(pods: str, policy: str, seeds: Iterable[int], *, cold: bool = False, percentage: int = 100) -> float:
    """Return the part of the GPUs that is given out, in %, as a mean over orders of pods."""
    nodes, workload = trace(pods)
    outcomes = (
        placed(policy, nodes, workload, until(workload, nodes, seed), seed, cold=cold, percentage=percentage)
        for seed in seeds
    )
    return 100 * fmean(outcome.allocated for outcome, _ in outcomes)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.openb", description=__doc__)
    parser.add_argument("--traces", nargs="+", default=["default", "cpu250", "gpushare40", "gpushare100"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(200, 205)], help="of the orders of pods")
    options = parser.parse_args(argv)
    print(f"| GPU allocated, % | {' | '.join(WAYS)} |\n|{'---|' * (len(WAYS) + 1)}", flush=True)
    for pods in options.traces:
        print(f"| {pods} |", end="", flush=True)
        for policy, cold, percentage in WAYS.values():
            given = allocated(pods, policy, options.seeds, cold=cold, percentage=percentage)
            print(f" {given:.1f} |", end="", flush=True)
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
