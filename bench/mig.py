"""Measure what MIG instances cost a node agent: ``python -m bench.mig``.

The same 8 invented H100, undivided and as 56 instances, shared and given whole. Instances may cost an agent at most
2 MiB, and a tenth of every time.
"""

from __future__ import annotations

import compileall
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_device_plugin
from bench import memory
from bench.node_agent import MEMORY, Row, allocating, machine, parser_of, percentiles, running, show
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

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
WAYS = (
    Way("56 instances, shared", DIVIDED, MEMORY, 8, ("--mig=share",)),
    Way("56 instances, whole", DIVIDED, WHOLE, 1, ("--mig=whole",)),
)


@dataclass(slots=True)
class Figures:
    """What was measured of one way: times in ms, memory in MiB."""

    times: dict[str, float] = field(default_factory=dict)
    memory_mib: float = 0.0
    devices: int = 0


def measured(root: Path, way: Way, options: argparse.Namespace) -> Figures:
    """Start agents one after the other and return the medians over them."""
    samples: dict[str, list[float]] = {}
    found = Figures()
    for _ in range(options.rounds):
        with running(root, *way.flags, gpus=f"fake:{way.gpus}", awaited=(way.resource,)) as run:
            ids = _healthy(run, way.resource)
            found.devices = len(ids)
            for what, value in _calls(run, way, ids, options):
                samples.setdefault(what, []).append(value)
    found.times = {what: statistics.median(values) for what, values in samples.items()}
    with running(root, *way.flags, gpus=f"fake:{way.gpus}", awaited=(way.resource,)) as run:
        time.sleep(options.settle)
        found.memory_mib = memory.alone_mib(run.pids())
    return found


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
    """Yield the figures of the undivided GPUs, and those of instances with the bars that follow from them."""
    base = measured(root, UNDIVIDED, options)
    note = f"{base.devices:,} devices"
    for what, value in base.times.items():
        yield Row(f"{what}, {UNDIVIDED.name}", value, note=note)
    yield Row(f"memory, {UNDIVIDED.name}, idle", base.memory_mib, "MiB")
    for way in WAYS:
        found = measured(root, way, options)
        note = f"{found.devices:,} devices"
        for what, value in found.times.items():
            yield Row(f"{what}, {way.name}", value, "ms", round(base.times[what] * _MORE, 2), note)
        yield Row(f"memory, {way.name}, idle", found.memory_mib, "MiB", round(base.memory_mib + _MORE_MIB, 1))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    options = parser_of("mig", __doc__).parse_args(argv)
    compileall.compile_dir(Path(gpu_device_plugin.__file__).parent, quiet=1)
    print(f"{machine(DIVIDED)}\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder, "node")
        with running(root, gpus=f"fake:{MODEL}"):
            pass  # whatever is read from disk for the first time
        show(rows(root, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
