"""Keep the last hour of a node's GPUs and containers in a bounded amount of memory.

The ring is changed in place: an hour of 1,120 containers is 269,000 samples of three figures, which take 1 MiB as bytes
and 20 MiB as Python's numbers. It has no clock; callers give the time of each tick, in monotonic seconds. Time is cut
into steps, and a step without a tick has unknown values, so that all series stay aligned.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeAlias, TypeVar

from gpu_device_plugin.features.history.contract import STEP_S, STEPS, ContainerHistory, GpuHistory, NodeHistory
from gpu_device_plugin.features.use.rules.process_use import AttributedUse
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.gauges import Gauge, Gauges
from gpu_device_plugin.model.shares import SharedGpu
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

_Values: TypeAlias = "Mapping[str, int | None]"
"""By the name of the column; what is not there is not known."""
K = TypeVar("K", bound="str | Place")
F = TypeVar("F", GpuHistory, ContainerHistory)

ROOM = 1120
"""Containers, each once for every GPU that it holds: 140 on each of 8 GPUs."""

_UNKNOWN: Mapping[str, int] = {"I": 0xFFFF_FFFF, "H": 0xFFFF, "B": 0xFF}
"""The code of a value that is not known, the largest one, by the type of its column in `array`."""
_ROOM_OF_GPUS = 512
_COUNTERS = ("ecc_errors", "nvlink_errors")
_TYPES: Mapping[str, str] = {"used_mib": "H", "power_w": "H", **dict.fromkeys(_COUNTERS, "I")}
"""Of the columns that need more than a byte."""
_GPU_COLUMNS = ("used_mib", "sm_percent", "power_w", "temperature_c", "throttle", "pcie_percent", *_COUNTERS)
_CONTAINER_COLUMNS = ("used_mib", "sm_percent", "cpu_throttled_percent")
"""The series of `GpuHistory` and `ContainerHistory`."""
_GBYTES_PER_LANE = (0.25, 0.5, 0.985, 1.969, 3.938, 7.563)
"""What a lane of PCIe carries in one direction by the link's generation, in 10^9 bytes a second: its signalling rate
without what the encoding takes (PCI Express base specification)."""


def pcie_percent(before: GpuTelemetry, after: GpuTelemetry, seconds: float) -> int | None:
    """Return the bytes over PCIe in the busier direction between two readings, in percent of what the link can carry.

    A counter that falls has begun anew with the driver. None: the counters or the link are not known.
    """
    generation, width = after.pcie_generation, after.pcie_width
    if generation is None or not 1 <= generation <= len(_GBYTES_PER_LANE) or not width or seconds <= 0:
        return None
    sent = _moved(before.pcie_sent_bytes, after.pcie_sent_bytes)
    received = _moved(before.pcie_received_bytes, after.pcie_received_bytes)
    if sent is None or received is None:
        return None
    return min(100, round(100 * max(sent, received) / (seconds * width * _GBYTES_PER_LANE[generation - 1] * 1e9)))


def _moved(before: int | None, after: int | None) -> int | None:
    if before is None or after is None:
        return None
    return after - before if after >= before else after


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one tick."""

    shared: SharedGpu
    used_mib: int | None = None
    condition: GpuTelemetry | None = None
    """Of a MIG instance that of its GPU, of which the instance has temperature and throttle reasons."""
    pcie_percent: int | None = None


@dataclass(slots=True)
class _Row(Generic[F]):
    """A GPU or container with its values."""

    columns: Mapping[str, array[int]]
    """By name a code for each of the last steps; that of step n is at n modulo their number."""
    facts: F
    """All but the series."""
    last: int
    """The newest step that has values."""
    used: int = 0
    """The code of the memory as last known."""

    def put(self, step: int, facts: F, values: _Values) -> None:
        """Add a step; the steps since the last one are unknown."""
        for name, codes in self.columns.items():
            size, unknown, value = len(codes), _UNKNOWN[codes.typecode], values.get(name)
            for missed in range(max(self.last + 1, step - size + 1), step):
                codes[missed % size] = unknown
            codes[step % size] = unknown if value is None else max(0, min(value, unknown - 1))
        self.last, self.facts = step, facts
        if (used := values.get("used_mib")) is not None:
            self.used = used

    def copy(self) -> _Row[F]:
        return replace(self, columns={name: codes[:] for name, codes in self.columns.items()})

    def history(self, steps: range, unit_mib: int) -> F:
        """Return it with the series of these steps; memory is kept in multiples of `unit_mib`."""
        found: dict[str, Any] = {}
        for name, codes in self.columns.items():
            size, unknown, unit = len(codes), _UNKNOWN[codes.typecode], unit_mib if name == "used_mib" else 1
            kept = (unknown if step > self.last else codes[step % size] for step in steps)
            found[name] = tuple([None if code == unknown else code * unit for code in kept])
        return replace(self.facts, **found)


class _Table(Generic[K, F]):
    """Rows of one kind."""

    def __init__(self, columns: Sequence[str], steps: int, room: int) -> None:
        self._columns = columns
        self._steps = steps
        self._room = room
        self.rows: dict[K, _Row[F]] = {}

    def put(self, step: int, samples: Mapping[K, tuple[F, _Values]]) -> frozenset[K]:
        """Add a step, with facts and values of each row; return those for which there is no room, the last of them."""
        self.rows = rows = {key: row for key, row in self.rows.items() if row.last > step - self._steps}
        new = [key for key in samples if key not in rows]
        if (needed := len(rows) + len(new) - self._room) > 0:
            ended = sorted((row.last, key) for key, row in rows.items() if key not in samples)
            for _, key in ended[:needed]:
                del rows[key]
        free = self._room - len(rows)
        for key in new[:free]:
            types = {name: _TYPES.get(name, "B") for name in self._columns}
            columns = {name: array(kind, [_UNKNOWN[kind]]) * self._steps for name, kind in types.items()}
            rows[key] = _Row(columns, samples[key][0], step)
        for key, (facts, values) in samples.items():
            if (row := rows.get(key)) is not None:
                row.put(step, facts, values)
        return frozenset(new[free:])


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of the ring, as it was; another thread may read it."""

    _at: float
    _step_s: float
    _steps: range
    _gpus: Mapping[str, _Row[GpuHistory]]
    _rows: Mapping[Place, _Row[ContainerHistory]]
    """Those with the most use first."""
    _left_out: int

    def containers(self) -> Iterator[ContainerHistory]:
        """Yield the containers one by one, since all of a full node take 20 MiB; those with the most use first."""
        for (_, _, uuid), row in self._rows.items():
            gpu = self._gpus[uuid].facts
            yield replace(row.history(self._steps, _unit_mib(gpu)), gpu=gpu.gpu)

    def history(self, epoch: float, containers: Collection[ContainerHistory]) -> NodeHistory:
        """Return the document with those `containers` of the selection for which there is room.

        Monotonic time was 0 at `epoch`, in seconds since the epoch.
        """
        left_out = self._left_out + len(self._rows) - len(containers)
        rows = sorted(self._gpus.values(), key=lambda row: row.facts.gpu)
        gpus = tuple(row.history(self._steps, _unit_mib(row.facts)) for row in rows)
        return NodeHistory(rfc3339(epoch + self._at), self._step_s, gpus, tuple(containers), left_out)


class Ring:
    """The last `steps` steps of GPUs and containers, changed in place by `tick`.

    A container that ended keeps its series until they are too old, or its room is needed: that of the one that ended
    first. Containers for which there is no room are left out and counted.
    """

    def __init__(self, *, steps: int = STEPS, room: int = ROOM) -> None:
        """Begin empty. Memory is taken as containers come, for at most `room` of them."""
        self.step_s = STEP_S
        self._count = steps
        self._at = 0.0
        self._steps = range(0)
        """Those since the first tick, as far as they are kept."""
        self._gpus: _Table[str, GpuHistory] = _Table(_GPU_COLUMNS, steps, _ROOM_OF_GPUS)
        self._containers: _Table[Place, ContainerHistory] = _Table(_CONTAINER_COLUMNS, steps, room)
        self._left_out: Sequence[AttributedUse] = ()

    def tick(
        self,
        at: float,
        gpus: Iterable[GpuSample],
        uses: Iterable[AttributedUse],
        cpu_throttled: Mapping[tuple[str, str], int],
    ) -> None:
        """Take the values of a moment; a tick that is not in a later step than the last one is ignored.

        Args:
            at: monotonic seconds.
            gpus: those that are there now.
            uses: containers that hold or use GPUs; those on GPUs that are not there are ignored.
            cpu_throttled: percent, by UID of the pod and name of the container.
        """
        step = int(at // self.step_s)
        if self._steps and step < self._steps.stop:
            return
        first = self._steps.start if self._steps else step
        self._at, self._steps = at, range(max(first, step - self._count + 1), step + 1)
        samples = {sample.shared.gpu.uuid: _gpu_values(sample) for sample in gpus}
        self._gpus.put(step, samples)
        there = [use for use in uses if use.uuid in samples and use.uuid in self._gpus.rows]
        there.sort(key=lambda use: (-(use.used_mib or 0), use.place))
        missing = self._containers.put(step, {use.place: self._values(use, cpu_throttled) for use in there})
        self._left_out = [use for use in there if use.place in missing]

    def _values(
        self, use: AttributedUse, cpu_throttled: Mapping[tuple[str, str], int]
    ) -> tuple[ContainerHistory, _Values]:
        row, gpu = self._containers.rows.get(use.place), self._gpus.rows[use.uuid].facts
        named = ("", use.pod_uid) if row is None else (row.facts.namespace, row.facts.pod)
        if use.pod is not None:
            named = use.pod.namespace, use.pod.name
        return ContainerHistory(*named, use.container, gpu.gpu, use.granted_mib, use.allowed_mib), {
            "used_mib": _in(_unit_mib(gpu), use.used_mib),
            "sm_percent": use.sm_percent,
            "cpu_throttled_percent": cpu_throttled.get(use.place[:2]),
        }

    @property
    def places(self) -> Iterable[Place]:
        """The containers that are remembered, each with every GPU that it held."""
        return self._containers.rows.keys()

    def select(
        self, *, uuids: Collection[str] | None = None, namespace: str | None = None, last_s: float | None = None
    ) -> Selection | None:
        """Return all GPUs, or these GPUs with their containers, or the containers of a namespace with their GPUs.

        With `last_s` only the values of so many seconds until now. None: there is no such GPU, or nothing has been
        recorded.
        """
        rows: dict[Place, _Row[ContainerHistory]] = {}
        gpus = self._gpus.rows
        if uuids is not None:
            gpus = {uuid: row for uuid, row in gpus.items() if uuid in uuids}
            rows = {place: row for place, row in self._containers.rows.items() if place[2] in gpus}
        elif namespace is not None:
            # The row of a GPU may have made room for another GPU, before those of its containers are too old.
            of_known = {place: row for place, row in self._containers.rows.items() if place[2] in gpus}
            rows = {place: row for place, row in of_known.items() if row.facts.namespace == namespace}
            gpus = {uuid: gpus[uuid] for uuid in {place[2] for place in rows}}
        if not gpus and (namespace is None or not self._steps):
            return None
        left_out = [
            use
            for use in self._left_out
            if namespace is None or (use.pod is not None and use.pod.namespace == namespace)
            if uuids is None or use.uuid in uuids
        ]
        steps = len(self._steps) if last_s is None else max(1, round(last_s / self.step_s))
        by_use = sorted(rows, key=lambda place: (-rows[place].used * _unit_mib(gpus[place[2]].facts), place))
        return Selection(
            self._at,
            self.step_s,
            self._steps[-steps:],
            {uuid: row.copy() for uuid, row in gpus.items()},
            {place: rows[place].copy() for place in by_use},
            len(left_out),
        )


def _gpu_values(sample: GpuSample) -> tuple[GpuHistory, _Values]:
    gpu, now = sample.shared.gpu, sample.condition
    facts = GpuHistory(sample.shared.position, gpu.uuid, gpu.total_mib, condition=now)
    values = {"used_mib": _in(_unit_mib(facts), sample.used_mib), "pcie_percent": sample.pcie_percent}
    if now is not None:
        values |= {"temperature_c": now.temperature_c, "throttle": now.throttle, "nvlink_errors": now.nvlink_errors}
        if known := [errors for errors in (now.ecc_corrected, now.ecc_uncorrected) if errors is not None]:
            values["ecc_errors"] = sum(known)
        if gpu.instance is None:
            values |= {"power_w": _in(1000, now.power_mw), "sm_percent": now.sm_percent}
    return facts, values


def _unit_mib(gpu: GpuHistory) -> int:
    """Return the amount of memory that one more in the code of memory on a GPU stands for."""
    return max(1, -(-gpu.total_mib // (_UNKNOWN["H"] - 1)))


def _in(unit: int, value: int | None) -> int | None:
    """Return a value in multiples of `unit`, rounded."""
    return None if value is None else (value + unit // 2) // unit


_THROTTLED = Gauge(
    "gpushare_gpu_throttled", "1 while the clocks of the GPU are lowered for this reason.", ("gpu", "reason")
)


def condition_gauges(metrics: NodeMetrics, known: Mapping[str, GpuTelemetry]) -> Gauges:
    """Return the gauges of the condition of a node's GPUs, by UUID, as far as it is known."""
    cards = dict.fromkeys(shared.gpu.card for shared in metrics.gpus)
    telemetry = [known[card] for card in cards if card in known]
    for each in fields(GpuTelemetry):
        if shown := each.metadata.get("gauge"):
            name, meaning, unit = shown
            whole = f"gpushare_gpu_{name.removesuffix('_total')}"
            values = [((gpu.uuid,), getattr(gpu, each.name)) for gpu in telemetry]
            gauge = Gauge(whole, meaning, ("gpu",), grows=name.endswith("_total"))
            yield gauge, [(labels, value * unit) for labels, value in values if value is not None]
    told = [(gpu.uuid, gpu.throttle) for gpu in telemetry if gpu.throttle is not None]
    reasons = Throttle.__members__.items()
    yield _THROTTLED, [((uuid, name.lower()), bool(bits & bit)) for uuid, bits in told for name, bit in reasons]
