"""Measure what MIG instances cost a node agent: ``python -m bench.mig``.

The same 8 invented H100, undivided and as 56 instances, shared and given whole. Instances may cost an agent at most
2 MiB, and a tenth of every time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench import memory
from bench.node_agent import MEMORY, Row, allocating, machine, parser_of, percentiles, running, show
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from bench.node_agent import Run

MODEL = "8xH100"
DIVIDED = f"{MODEL}:mig=1g.10gb*7"
WHOLE = "aliyun.com/mig-1g.10gb"
_MORE_MIB, _MORE = 2.0, 1.1


@dataclass(frozen=True, slots=True)
class Way:
    """One way of giving the GPUs."""

    name: str
    gpus: str
    resource: str
    amount: int
    """Devices of one container."""
    flags: tuple[str, ...] = ()


UNDIVIDED = Way("8 GPUs", MODEL, MEMORY, 8)
SERVING_MODES = (
    UNDIVIDED,
    Way("56 instances, shared", DIVIDED, MEMORY, 8, ("--mig=share",)),
    Way("56 instances, whole", DIVIDED, WHOLE, 1, ("--mig=whole",)),
)


@dataclass(slots=True)
class Figures:
    """What was measured of one way: times in ms, memory in MiB."""

    times: dict[str, float] = field(default_factory=dict)
    memory_mib: float = 0.0
    devices: int = 0


def measured(root: Path, options: argparse.Namespace) -> dict[str, Figures]:
    """Return the figures of each way, by its name: medians over agents that were started in turn.

    What the machine does meanwhile meets all ways alike.
    """
    samples: dict[str, dict[str, list[float]]] = {way.name: {} for way in SERVING_MODES}
    figures = {way.name: Figures() for way in SERVING_MODES}
    for _ in range(options.rounds):
        for way in SERVING_MODES:
            with started(root, way) as run:
                ids = _healthy(run, way.resource)
                figures[way.name].devices = len(ids)
                for what, value in _calls(run, way, ids, options):
                    samples[way.name].setdefault(what, []).append(value)
    for way in SERVING_MODES:
        found = figures[way.name]
        found.times = {what: statistics.median(values) for what, values in samples[way.name].items()}
        with started(root, way) as run:
            time.sleep(options.settle)
            found.memory_mib = memory.alone_mib(run.pids())
    return figures


def started(root: Path, way: Way) -> AbstractContextManager[Run]:
    """Start an agent that gives its GPUs in this way."""
    return running(root, *way.flags, gpus=f"fake:{way.gpus}", awaited=(way.resource,))


def _healthy(run: Run, resource: str) -> list[str]:
    _, message = run.kubelet.plugins[resource].lists.get(timeout=30)
    return [device.ID for device in pb.ListAndWatchResponse.FromString(message).devices]


def _calls(run: Run, way: Way, ids: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    yield "start to the registration", run.registered_s * 1000
    plugin = run.kubelet.plugins[way.resource]
    asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=way.amount)
    question = pb.PreferredAllocationRequest(container_requests=[asked])
    gpus: dict[str, list[str]] = {}
    for name in ids:
        gpus.setdefault(name.partition("::")[0], []).append(name)
    wanted = [shares[: way.amount] for shares in gpus.values() if len(shares) >= way.amount]
    calls = options.warm + options.calls
    for what, messages in (
        ("GetPreferredAllocation", [question] * calls),
        ("Allocate", [allocating(wanted[number % len(wanted)]) for number in range(calls)]),
        ("PreStartContainer", [pb.PreStartContainerRequest(devices_ids=wanted[0])] * calls),
    ):
        times = [plugin.call(what, message) for message in messages][options.warm :]
        yield from zip((f"{what}, p50", f"{what}, p99"), percentiles(times), strict=True)


def rows(root: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the figures of every way, those of instances with the bars that follow from the undivided GPUs."""
    figures = measured(root, options)
    base = figures[UNDIVIDED.name]
    for name, found in figures.items():
        note = f"{found.devices:,} devices"
        bar = name != UNDIVIDED.name
        for what, value in found.times.items():
            yield Row(f"{what}, {name}", value, "ms", round(base.times[what] * _MORE, 2) if bar else None, note)
        most_mib = round(base.memory_mib + _MORE_MIB, 1) if bar else None
        yield Row(f"memory, {name}, idle", found.memory_mib, "MiB", most_mib)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    options = parser_of("mig", __doc__).parse_args(argv)
    print(f"{machine(DIVIDED)}\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder, "node")
        with running(root, gpus=f"fake:{MODEL}"):
            pass  # whatever is compiled, or read from disk, for the first time
        show(rows(root, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
