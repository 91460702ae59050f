"""Keep the last hour of a node's GPUs and containers in a bounded amount of memory.

The ring is changed in place: an hour of 1,120 containers is 269,000 samples of three figures, which take 1 MiB as bytes
and 20 MiB as Python's numbers. It has no clock; callers give the time of each tick, in monotonic seconds. Time is cut
into steps, and a step without a tick has unknown values, so that all series stay aligned.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from gpu_device_plugin.core.contract.history import ContainerHistory, GpuHistory, NodeHistory
from gpu_device_plugin.core.model.times import rfc3339
from gpu_device_plugin.core.node.use.process_use import by_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.contract.history import Series
    from gpu_device_plugin.core.model.condition import GpuCondition
    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.core.node.use.process_use import AttributedUse, Place

K = TypeVar("K", bound="str | Place")
F = TypeVar("F")

STEP_S = 15.0
"""Seconds from one value to the next."""
STEPS = 240
"""Values of a series: an hour."""
ROOM = 1120
"""Containers, each once for every GPU that it holds: 140 on each of 8 GPUs."""
MOST_CONTAINER_BYTES = 4
"""Of one container in one step."""

_UNKNOWN_WIDE, _UNKNOWN = 0xFFFF, 0xFF
_WIDTHS, _MOST = {"H": 2, "B": 1}, {"H": _UNKNOWN_WIDE - 1, "B": _UNKNOWN - 1}
"""The bytes of a code, and its largest value, by the type of its column in `array`."""
_ROOM_OF_GPUS = 512
_GPU_COLUMNS, _CONTAINER_COLUMNS = "HHHHBBBB", "HBB"
"""The columns, wide ones first: memory, power, memory errors in two digits, SM, temperature, throttle reasons and PCIe;
memory, SM and CPU throttling."""
_GBYTES_PER_LANE = (0.25, 0.5, 0.985, 1.969, 3.938, 7.563)
"""What a lane of PCIe carries in one direction by the link's generation, in 10^9 bytes a second: its signalling rate
without what the encoding takes (PCI Express base specification)."""


def pcie_percent(before: GpuCondition, after: GpuCondition, seconds: float) -> int | None:
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
    condition: GpuCondition | None = None
    """Of a MIG instance that of its GPU, of which the instance has temperature and throttle reasons."""
    pcie_percent: int | None = None


@dataclass(frozen=True, slots=True)
class _GpuFacts:
    position: int
    total_mib: int
    unit_mib: int
    """The amount of memory that one more in the code stands for."""
    condition: GpuCondition | None


@dataclass(frozen=True, slots=True)
class _Facts:
    """One container on one GPU."""

    namespace: str
    pod: str
    granted_mib: int
    most_mib: int
    used_mib: int
    """As last known."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The values of one step: column after column, a code for each slot, the largest one for unknown."""

    step: int
    size: int
    """How many slots it has."""
    codes: bytes


@dataclass(slots=True)
class _Row(Generic[F]):
    """A GPU or container, and where its values are in the frames."""

    slot: int
    first: int
    """The first step in which it had the slot."""
    last: int
    facts: F

    def wide(self, frames: Iterable[_Frame | None], column: int, unit: int = 1) -> Series:
        """Return the values of a column of two bytes, in multiples of `unit`; these columns come first."""
        return tuple(
            None if at is None or (code := at[0][at[1]] | at[0][at[1] + 1] << 8) == _UNKNOWN_WIDE else code * unit
            for at in self._places(frames, 2 * column, 2)
        )

    def narrow(self, frames: Iterable[_Frame | None], column: int) -> Series:
        """Return the values of a column of one byte, which has the bytes of `column` of them before it."""
        return tuple(
            None if at is None or (code := at[0][at[1]]) == _UNKNOWN else code for at in self._places(frames, column, 1)
        )

    def _places(self, frames: Iterable[_Frame | None], before: int, width: int) -> Iterator[tuple[bytes, int] | None]:
        slot, first = self.slot, self.first
        for frame in frames:
            there = frame is not None and frame.step >= first
            yield (frame.codes, before * frame.size + width * slot) if there and frame is not None else None


class _Table(Generic[K, F]):
    """Rows of one kind, and the frames with their values."""

    def __init__(self, columns: str, steps: int, room: int) -> None:
        self._columns = columns
        self._steps = steps
        self._room = room
        self.rows: dict[K, _Row[F]] = {}
        self.frames: deque[_Frame] = deque()
        self.left_out: Sequence[K] = ()
        """Those of the newest step for which there was no room."""

    def put(self, step: int, samples: Mapping[K, tuple[F, Sequence[int | None]]]) -> None:
        """Add a step, with facts and values of each row; the first of them get room first."""
        while self.frames and self.frames[0].step <= step - self._steps:
            self.frames.popleft()
        rows = {key: row for key, row in self.rows.items() if row.last > step - self._steps}
        new = [key for key in samples if key not in rows]
        if (needed := len(rows) + len(new) - self._room) > 0:
            ended = sorted((row.last, key) for key, row in rows.items() if key not in samples)
            for _, key in ended[:needed]:
                del rows[key]
        taken = {row.slot for row in rows.values()}
        free = [slot for slot in range(min(self._room, len(rows) + len(new))) if slot not in taken] if new else []
        for key, slot in zip(new, free, strict=False):
            rows[key] = _Row(slot, step, step, samples[key][0])
        self.rows, self.left_out = rows, new[len(free) :]
        size = 1 + max((row.slot for row in rows.values()), default=-1)
        columns = [(array(kind, b"\xff" * (_WIDTHS[kind] * size)), _MOST[kind]) for kind in self._columns]
        for key, (facts, values) in samples.items():
            if (row := rows.get(key)) is not None:
                row.last, row.facts = step, facts
                for (codes, most), value in zip(columns, values, strict=True):
                    if value is not None:
                        codes[row.slot] = max(0, min(value, most))
        self.frames.append(_Frame(step, size, b"".join(codes.tobytes() for codes, _ in columns)))


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of the ring, as it was; another thread may read it."""

    _at: float
    _step_s: float
    _steps: range
    _gpus: Mapping[str, _Row[_GpuFacts]]
    _gpu_frames: Sequence[_Frame]
    _rows: Mapping[Place, _Row[_Facts]]
    """Those with the most use first."""
    _frames: Sequence[_Frame]
    _left_out: int

    def _gpu_histories(self) -> Iterator[GpuHistory]:
        frames = self._aligned(self._gpu_frames)
        for uuid, row in sorted(self._gpus.items(), key=lambda each: each[1].facts.position):
            facts = row.facts
            used, power_w = row.wide(frames, 0, facts.unit_mib), row.wide(frames, 1)
            low, high = row.wide(frames, 2), row.wide(frames, 3)
            sm, temperature, throttle, pcie = (row.narrow(frames, column) for column in range(8, 12))
            yield GpuHistory(
                facts.position,
                uuid,
                facts.total_mib,
                used_mib=used,
                sm_percent=sm,
                power_w=power_w,
                temperature_c=temperature,
                throttle=throttle,
                pcie_percent=pcie,
                ecc_errors=tuple(
                    None if a is None or b is None else a + b * _UNKNOWN_WIDE for a, b in zip(low, high, strict=True)
                ),
                condition=facts.condition,
            )

    def containers(self) -> Iterator[ContainerHistory]:
        """Yield the containers one by one, since all of a full node take 20 MiB; those with the most use first."""
        frames = self._aligned(self._frames)
        for (_, container, uuid), row in self._rows.items():
            facts, gpu = row.facts, self._gpus[uuid].facts
            yield ContainerHistory(
                facts.namespace,
                facts.pod,
                container,
                gpu.position,
                facts.granted_mib,
                facts.most_mib,
                row.wide(frames, 0, gpu.unit_mib),
                row.narrow(frames, 2),
                row.narrow(frames, 3),
            )

    def history(self, epoch: float, containers: Collection[ContainerHistory]) -> NodeHistory:
        """Return the document with those `containers` of the selection for which there is room.

        Monotonic time was 0 at `epoch`, in seconds since the epoch.
        """
        left_out = self._left_out + len(self._rows) - len(containers)
        at = rfc3339(epoch + self._at)
        return NodeHistory(at, self._step_s, tuple(self._gpu_histories()), tuple(containers), left_out)

    def _aligned(self, frames: Iterable[_Frame]) -> Sequence[_Frame | None]:
        by_step = {frame.step: frame for frame in frames}
        return [by_step.get(step) for step in self._steps]


class Ring:
    """The last `steps` steps of GPUs and containers, changed in place by `tick`.

    A container that ended keeps its series until they are too old, or its room is needed: that of the one that ended
    first. Containers for which there is no room are left out and counted.
    """

    def __init__(self, *, step_s: float = STEP_S, steps: int = STEPS, room: int = ROOM) -> None:
        """Begin empty. Memory is taken as containers come, for at most `room` of them."""
        self.step_s = step_s
        self._count = steps
        self._at = 0.0
        self._steps = range(0)
        """Those since the first tick, as far as they are kept."""
        self._gpus: _Table[str, _GpuFacts] = _Table(_GPU_COLUMNS, steps, _ROOM_OF_GPUS)
        self._containers: _Table[Place, _Facts] = _Table(_CONTAINER_COLUMNS, steps, room)
        self._left_out: Sequence[AttributedUse] = ()

    def __repr__(self) -> str:
        return f"<Ring: {len(self._gpus.rows)} GPUs, {len(self._containers.rows)} containers, {self.size} bytes>"

    @property
    def size(self) -> int:
        """The bytes of all values."""
        frames = (*self._gpus.frames, *self._containers.frames)
        return sum(len(frame.codes) for frame in frames)

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
        there = [use for use in by_place(uses).values() if use.uuid in samples and use.uuid in self._gpus.rows]
        there.sort(key=lambda use: (-(use.used_mib or 0), use.place))
        self._containers.put(step, {use.place: self._values(use, cpu_throttled) for use in there})
        missing = frozenset(self._containers.left_out)
        self._left_out = [use for use in there if use.place in missing]

    def _values(
        self, use: AttributedUse, cpu_throttled: Mapping[tuple[str, str], int]
    ) -> tuple[_Facts, Sequence[int | None]]:
        row = self._containers.rows.get(use.place)
        before = _Facts("", use.pod_uid, 0, 0, 0) if row is None else row.facts
        named = (before.namespace, before.pod) if use.pod is None else (use.pod.namespace, use.pod.name)
        used = before.used_mib if use.used_mib is None else use.used_mib
        facts = _Facts(*named, use.granted_mib, use.allowed_mib, used)
        memory = _in(self._gpus.rows[use.uuid].facts.unit_mib, use.used_mib)
        return before if facts == before else facts, (memory, use.sm_percent, cpu_throttled.get(use.place[:2]))

    def gpus_of(self, pod_uid: str, container: str) -> frozenset[str]:
        """Return the UUIDs of the GPUs on which a container is remembered."""
        return frozenset(place[2] for place in self._containers.rows if place[:2] == (pod_uid, container))

    def select(
        self, *, uuids: Collection[str] | None = None, namespace: str | None = None, last_s: float | None = None
    ) -> Selection | None:
        """Return all GPUs, or these GPUs with their containers, or the containers of a namespace with their GPUs.

        With `last_s` only the values of so many seconds until now. None: there is no such GPU or no such container.
        """
        rows: dict[Place, _Row[_Facts]] = {}
        gpus = self._gpus.rows
        if uuids is not None:
            gpus = {uuid: row for uuid, row in gpus.items() if uuid in uuids}
            rows = {place: row for place, row in self._containers.rows.items() if place[2] in gpus}
        elif namespace is not None:
            # The row of a GPU may have made room for another GPU, before those of its containers are too old.
            of_known = {place: row for place, row in self._containers.rows.items() if place[2] in gpus}
            rows = {place: row for place, row in of_known.items() if row.facts.namespace == namespace}
            gpus = {uuid: gpus[uuid] for uuid in {place[2] for place in rows}}
        if not gpus:
            return None
        left_out = [
            use
            for use in self._left_out
            if namespace is None or (use.pod is not None and use.pod.namespace == namespace)
            if uuids is None or use.uuid in uuids
        ]
        steps = len(self._steps) if last_s is None else max(1, round(last_s / self.step_s))
        by_use = sorted(rows, key=lambda place: (-rows[place].facts.used_mib, place))
        return Selection(
            self._at,
            self.step_s,
            self._steps[-steps:],
            {uuid: replace(row) for uuid, row in gpus.items()},
            tuple(self._gpus.frames),
            {place: replace(rows[place]) for place in by_use},
            tuple(self._containers.frames),
            len(left_out),
        )


def _gpu_values(sample: GpuSample) -> tuple[_GpuFacts, Sequence[int | None]]:
    gpu, now = sample.shared.gpu, sample.condition
    unit = max(1, -(-gpu.total_mib // _MOST["H"]))
    facts = _GpuFacts(sample.shared.position, gpu.total_mib, unit, now)
    used = _in(unit, sample.used_mib)
    if now is None:
        return facts, (used, *[None] * 6, sample.pcie_percent)
    known = [errors for errors in (now.ecc_corrected, now.ecc_uncorrected) if errors is not None]
    high, low = divmod(sum(known), _UNKNOWN_WIDE) if known else (None, None)
    power_w, sm = (_in(1000, now.power_mw), now.sm_percent) if gpu.instance is None else (None, None)
    return facts, (used, power_w, low, high, sm, now.temperature_c, now.throttle, sample.pcie_percent)


def _in(unit: int, value: int | None) -> int | None:
    """Return a value in multiples of `unit`, rounded."""
    return None if value is None else (value + unit // 2) // unit
