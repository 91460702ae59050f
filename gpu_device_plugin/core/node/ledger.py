"""Who holds what on one node, and what it takes to believe that a device ID is free again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.shares import parse_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SETTLING_S = 10.0
"""How long after our answer to Allocate the kubelet's own records may still lack the IDs. It enters them within
milliseconds, in the same goroutine; a kubelet frozen at that point would not answer List either."""

_IN_USE_MIB = 100
"""A CUDA context takes more than this much memory, an idle GPU less."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why one device ID counts as taken."""

    granted_at: float | None = None
    """When we granted it, in monotonic seconds; None once the kubelet's records have shown it."""
    freed_at: float | None = None
    """When it was first proven free, while nothing showed yet that no process is left on its GPU."""


@dataclass(frozen=True, slots=True)
class Use:
    """What is taken of one GPU."""

    shares: frozenset[int] = frozenset()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the kubelet's two records said, one after the other. Neither suffices alone.

    PodResources answers successfully and without pods for about a second after a kubelet restart (longer while the API
    server is away) and never lists ordinary init containers; the checkpoint is only written when a device list arrives
    or a container is allocated, so an old one misses what ended since. Both observed on kubelet 1.36.2.
    """

    listed: frozenset[str]
    """Device IDs in a successful answer to PodResources.List."""
    list_began: float
    """When that call was made, in monotonic seconds."""
    recorded: frozenset[str]
    """Device IDs in a checkpoint that was written after that answer came."""
    stale: frozenset[str] = frozenset()
    """Those among them that are shown for pods only that have ended, see `core.node.ended_pods`."""

    @property
    def held(self) -> frozenset[str]:
        """Device IDs that either record shows for a pod that may not have ended."""
        return (self.listed | self.recorded) - self.stale


@dataclass(frozen=True, slots=True)
class Reading:
    """What the driver showed of a GPU at one moment."""

    processes: int | None
    """Compute processes on it; None where the driver does not say."""
    began: float
    """When the driver was asked, in monotonic seconds."""

    @classmethod
    def of(cls, processes: int | None, used_mib: int | None, began: float) -> Reading:
        """Return the reading where a process that only its memory betrays counts too; None: the driver does not say.

        NVML names only processes of the caller's PID namespace, and an agent has one of its own.
        """
        if processes is None and used_mib is None:
            return cls(None, began)
        return cls((processes or 0) + ((used_mib or 0) >= _IN_USE_MIB), began)


FREE = Use()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every device ID taken on this node. A change is a new ledger."""

    holds: Mapping[str, Hold] = field(default_factory=dict)
    certain: bool = True
    """False while the kubelet's checkpoint could not be read: then an ID that is not in here may be taken too."""
    foreign: Mapping[str, str] = field(default_factory=dict)
    """GPUs (by UUID) that containers hold through a resource that is not ours, or no longer, and its name. The kubelet
    does not know that it is the same hardware."""
    _uses: Mapping[str, Use] = field(default_factory=dict, repr=False, compare=False)

    def use(self, uuid: str) -> Use:
        """Return what is taken of one GPU."""
        return self._uses.get(uuid, FREE)

    def granted(self, device_ids: Iterable[str], now: float) -> Ledger:
        """Return the ledger after we granted these IDs at `now` (monotonic seconds). Held ones are held anew."""
        return self._with(dict.fromkeys(device_ids, Hold(granted_at=now)))

    def seen(self, device_ids: Iterable[str], *, certain: bool | None = None) -> Ledger:
        """Return the ledger after the kubelet's records showed these IDs as taken.

        `certain`: whether those records are complete; None: they say nothing of that.
        """
        confirmed = Hold()
        new = {name: confirmed for name in device_ids if self.holds.get(name) != confirmed}
        ledger = self._with(new) if new else self
        return ledger if certain is None or certain == self.certain else replace(ledger, certain=certain)

    def with_foreign(self, foreign: Mapping[str, str]) -> Ledger:
        """Return this ledger with other GPUs held through resources that are not ours."""
        return self if foreign == self.foreign else replace(self, foreign=foreign)

    def reconciled(
        self, evidence: Evidence, readings: Mapping[str, Reading], now: float, process_wait_s: float
    ) -> Ledger:
        """Return the ledger without the IDs that are proven free.

        An ID is free when no record shows it for a pod that may not have ended. When that would leave a GPU empty, its
        IDs stay until the driver, asked after that was known, shows no process on it, for up to `process_wait_s`: the
        kubelet frees the IDs of a force-deleted pod at once, its processes end later. A claim never ends by time alone.

        Args:
            evidence: the two records, read in the right order, both before `now`.
            readings: the newest reading by GPU UUID. A GPU without one, or of which the driver does not tell the
                processes, waits for none.
            now: monotonic seconds.
            process_wait_s: longest time to wait for processes of a GPU that the kubelet's records call free.
        """
        # Records that were read before we granted an ID can only show its holder before.
        held = evidence.held
        ledger = self.seen(
            name
            for name, hold in self.holds.items()
            if name in held and (hold.granted_at is None or evidence.list_began >= hold.granted_at)
        )
        proven = {
            name: replace(hold, freed_at=now)
            for name, hold in ledger.holds.items()
            if hold.freed_at is None
            and name not in held
            and (hold.granted_at is None or evidence.list_began >= hold.granted_at + SETTLING_S)
        }
        return (ledger._with(proven) if proven else ledger).released(readings, now, process_wait_s)

    def released(self, readings: Mapping[str, Reading], now: float, process_wait_s: float) -> Ledger:
        """Return the ledger without the IDs that were proven free and need wait no longer, see `reconciled`."""
        by_gpu: dict[str, dict[str, float]] = defaultdict(dict)
        for name, hold in self.holds.items():
            if hold.freed_at is not None:
                by_gpu[parse_id(name)[0]][name] = hold.freed_at
        drop: set[str] = set()
        for uuid, freed in by_gpu.items():
            use, since = self.use(uuid), max(freed.values())
            emptied = len(freed) == len(use.shares) + use.whole
            if not emptied or now - since >= process_wait_s or _quiet(readings.get(uuid), since):
                drop.update(freed)
        return self._without(drop) if drop else self

    def _with(self, new: Mapping[str, Hold]) -> Ledger:
        uses = dict(self._uses)
        by_gpu: dict[str, list[int | None]] = defaultdict(list)
        for name in new:
            uuid, number = parse_id(name)
            by_gpu[uuid].append(number)
        for uuid, numbers in by_gpu.items():
            use = uses.get(uuid, FREE)
            uses[uuid] = Use(
                use.shares.union(number for number in numbers if number is not None), use.whole or None in numbers
            )
        return replace(self, holds={**self.holds, **new}, _uses=uses)

    def _without(self, gone: set[str]) -> Ledger:
        left = {name: hold for name, hold in self.holds.items() if name not in gone}
        return replace(self, holds={}, _uses={})._with(left)


def _quiet(reading: Reading | None, since: float) -> bool:
    """Whether nothing can be running on a GPU, as far as the driver tells, of what was freed by `since`."""
    if reading is None or reading.processes is None:
        return True
    # A process that was started after the reading is not in it.
    return reading.began >= since and not reading.processes
