"""The ledger: the device IDs in use on one node, and the evidence by which an ID counts as free again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.model.mig import is_mig_resource, resource_name
from gpu_device_plugin.model.shares import SharedGpu, Shares, parse_id

if TYPE_CHECKING:
    from gpu_device_plugin.model.allocations import Allocation

SETTLING_S = 10.0
"""How long after our answer to Allocate the kubelet's own records may still lack the IDs. The kubelet adds them within
milliseconds, in the same goroutine; a kubelet frozen at that point would not answer List either."""

IN_USE_MIB = 100
"""A CUDA context takes more than this much memory, an idle GPU less."""


@dataclass(frozen=True, slots=True)
class IdState:
    """Why one device ID counts as in use."""

    granted_at: float | None = None
    """When we granted it, in monotonic seconds; None once the kubelet's records have shown it."""
    freed_at: float | None = None
    """When it was first proven free, in monotonic seconds, while a process may still be left on its GPU."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one GPU: the numbers of the shares in use, and whether it is in use as a whole."""

    shares: frozenset[int] = frozenset()
    whole: bool = False
    reserved: int = 0
    """Further shares, without numbers, that are reserved for its containers."""

    @property
    def taken(self) -> int:
        """The number of shares that nobody else can have."""
        return len(self.shares) + self.reserved


ContainerKey: TypeAlias = tuple[str, str]
"""A container: the UID of its pod as in the kubelet's records, and its name."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The shares that a container holds beyond its request, of the GPU that it has its other shares of.

    They have no device IDs: the kubelet cannot give more of them to a container that runs.
    """

    uuid: str
    """Of the GPU."""
    shares: int
    own: frozenset[str]
    """The device IDs of the container that are in use by it still. The reservation ends with the last of them."""

    def without(self, device_ids: Collection[str]) -> Reservation:
        """Return it once these IDs are free, or another container's."""
        return self if self.own.isdisjoint(device_ids) else replace(self, own=self.own.difference(device_ids))


Reservations: TypeAlias = "Mapping[ContainerKey, Reservation]"
"""What containers hold beyond their requests."""


@dataclass(frozen=True, slots=True)
class ReleaseEvidence:
    """The kubelet's two records, read one after the other. Neither suffices alone.

    PodResources answers successfully and without pods for about a second after a kubelet restart (longer while the API
    server is unreachable) and never lists ordinary init containers; the kubelet writes the checkpoint only when a
    device list arrives or a container is allocated, so an old one still shows ended pods. Both observed on 1.36.2.
    """

    listed: frozenset[str]
    """Device IDs in a successful answer to PodResources.List."""
    list_began: float
    """When that call was made, in monotonic seconds."""
    recorded: frozenset[str]
    """Device IDs in a checkpoint that was written after that answer came."""
    stale: frozenset[str] = frozenset()
    """Device IDs among both that are shown only for pods that have ended, see `node.rules.ended_pods`."""

    @property
    def held(self) -> frozenset[str]:
        """Device IDs that either record shows for a pod that may not have ended."""
        return (self.listed | self.recorded) - self.stale


@dataclass(frozen=True, slots=True)
class Reading:
    """The processes on a GPU at one moment, as the driver reports them."""

    processes: int | None
    """The number of compute processes on it; None if the driver does not report it."""
    began: float
    """When the driver was queried, in monotonic seconds."""

    @classmethod
    def of(cls, processes: int | None, used_mib: int | None, began: float) -> Reading:
        """Return the reading in which memory in use counts as one more process; None: the driver does not report it.

        NVML lists only processes of the caller's PID namespace: an agent whose pod lacks ``hostPID: true`` sees none.
        """
        if processes is None and used_mib is None:
            return cls(None, began)
        return cls((processes or 0) + ((used_mib or 0) >= IN_USE_MIB), began)


FREE = Use()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every device ID in use on this node. A change is a new ledger."""

    id_states: Mapping[str, IdState] = field(default_factory=dict)
    certain: bool = True
    """False while the kubelet's checkpoint could not be read: then an ID without a hold may be in use too."""
    held_by_other_resource: Mapping[str, str] = field(default_factory=dict)
    """GPUs (by UUID) that containers hold through a resource that is not, or no longer, ours, with the resource's name.
    The kubelet does not know that it is the same hardware."""
    forgotten: frozenset[str] = frozenset()
    """Device IDs of running containers that the kubelet takes for free, as some feature knows."""
    reservations: Reservations = field(default_factory=dict)
    """What containers hold beyond their requests."""
    _uses: Mapping[str, Use] = field(default_factory=dict, repr=False, compare=False)

    def use(self, uuid: str) -> Use:
        """Return the use of one GPU."""
        return self._uses.get(uuid, FREE)

    def granted(self, device_ids: Iterable[str], now: float) -> Ledger:
        """Return the ledger after we granted these IDs at `now` (monotonic seconds). An ID in use gets a new hold."""
        new = dict.fromkeys(device_ids, IdState(granted_at=now))
        return self._with(new)._disowned(new)

    def seen(self, device_ids: Iterable[str], *, certain: bool | None = None) -> Ledger:
        """Return the ledger after the kubelet's records showed these IDs as in use.

        `certain`: whether those records are complete; None leaves the ledger's value.
        """
        confirmed = IdState()
        new = {name: confirmed for name in device_ids if self.id_states.get(name) != confirmed}
        ledger = self._with(new) if new else self
        return ledger if certain is None or certain == self.certain else replace(ledger, certain=certain)

    def with_held_by_other_resource(self, held: Mapping[str, str]) -> Ledger:
        """Return this ledger with these GPUs held through resources that are not ours."""
        return self if held == self.held_by_other_resource else replace(self, held_by_other_resource=held)

    def with_forgotten(self, device_ids: frozenset[str]) -> Ledger:
        """Return this ledger with these IDs in use unknown to the kubelet; others count by the kubelet's records."""
        return self if device_ids == self.forgotten else replace(self.seen(device_ids), forgotten=device_ids)

    def with_reservations(self, reservations: Reservations) -> Ledger:
        """Return this ledger with these reservations, but for those whose containers hold no ID."""
        kept = {key: each for key, each in reservations.items() if each.own and each.shares > 0}
        if kept == self.reservations:
            return self
        reserved = Counter[str]()
        for each in kept.values():
            reserved[each.uuid] += each.shares
        uses = dict(self._uses)
        for uuid in reserved.keys() | {each.uuid for each in self.reservations.values()}:
            uses[uuid] = replace(uses.get(uuid, FREE), reserved=reserved[uuid])
        return replace(self, reservations=kept, _uses=uses)

    def without(self, device_ids: Iterable[str]) -> Ledger:
        """Return the ledger without these IDs, whose holder is known to have given them back."""
        drop = {name for name in device_ids if name in self.id_states}
        return self._without(drop) if drop else self

    def reconciled(
        self, evidence: ReleaseEvidence, readings: Mapping[str, Reading], now: float, process_wait_s: float
    ) -> Ledger:
        """Return the ledger without the IDs that are proven free.

        An ID is free when no record shows it for a pod that may not have ended, and the kubelet has not forgotten it.
        When that would leave a GPU empty, its IDs stay until the driver, queried after that proof, shows no process on
        it, for up to `process_wait_s`: the kubelet frees the IDs of a force-deleted pod at once, its processes end
        later. A hold never ends by time alone.

        Args:
            evidence: the two records, read in the right order, both before `now`.
            readings: the newest reading by GPU UUID. IDs of a GPU without a reading, or whose processes the driver does
                not report, wait for no process.
            now: monotonic seconds.
            process_wait_s: longest time to wait for processes of a GPU that the kubelet's records call free.
        """
        # Records that were read before we granted an ID can only show its previous holder.
        held = evidence.held | self.forgotten
        ledger = self.seen(
            name
            for name, state in self.id_states.items()
            if name in held and (state.granted_at is None or evidence.list_began >= state.granted_at)
        )
        proven = {
            name: replace(state, freed_at=now)
            for name, state in ledger.id_states.items()
            if state.freed_at is None
            and name not in held
            and (state.granted_at is None or evidence.list_began >= state.granted_at + SETTLING_S)
        }
        return (ledger._with(proven) if proven else ledger).released(readings, now, process_wait_s)

    def released(self, readings: Mapping[str, Reading], now: float, process_wait_s: float) -> Ledger:
        """Return the ledger without the IDs that were proven free and need not wait any longer, see `reconciled`."""
        by_gpu: dict[str, dict[str, float]] = defaultdict(dict)
        for name, state in self.id_states.items():
            if state.freed_at is not None:
                by_gpu[parse_id(name)[0]][name] = state.freed_at
        drop: set[str] = set()
        for uuid, freed in by_gpu.items():
            use, since = self.use(uuid), max(freed.values())
            emptied = len(freed) == len(use.shares) + use.whole
            if not emptied or now - since >= process_wait_s or _quiet(readings.get(uuid), since):
                drop.update(freed)
        return self._without(drop) if drop else self

    def _with(self, new: Mapping[str, IdState]) -> Ledger:
        uses = dict(self._uses)
        by_gpu: dict[str, list[int | None]] = defaultdict(list)
        for name in new:
            uuid, number = parse_id(name)
            by_gpu[uuid].append(number)
        for uuid, numbers in by_gpu.items():
            use = uses.get(uuid, FREE)
            uses[uuid] = Use(
                use.shares.union(number for number in numbers if number is not None),
                use.whole or None in numbers,
                use.reserved,
            )
        return replace(self, id_states={**self.id_states, **new}, _uses=uses)

    def _without(self, freed: set[str]) -> Ledger:
        left = {name: state for name, state in self.id_states.items() if name not in freed}
        kept = self._disowned(freed).reservations
        return replace(self, id_states={}, reservations={}, _uses={})._with(left).with_reservations(kept)

    def _disowned(self, device_ids: Collection[str]) -> Ledger:
        """Return the ledger after these IDs were freed or given to another container."""
        return self.with_reservations({key: each.without(device_ids) for key, each in self.reservations.items()})


def _quiet(reading: Reading | None, since: float) -> bool:
    """Return whether no process of the holders freed by `since` can be left on a GPU, as far as the driver reports."""
    if reading is None or reading.processes is None:
        return True
    # A process that started after the reading is not in it.
    return reading.began >= since and not reading.processes


def held_through_others(allocations: Iterable[Allocation], shares: Shares) -> dict[str, str]:
    """Return the GPUs (by UUID) that containers hold through resources that are not ours, or not theirs any more.

    Each with the name of the resource. The driver may give a MIG instance of another profile the UUID of an earlier
    one, which a container may still hold: the kubelet counts the ID in each resource for itself.
    """
    held = (
        (shares.by_uuid(parse_id(name)[0]), allocation)
        for allocation in allocations
        for name in (*allocation.device_ids, *sorted(allocation.gpus or ()))
    )
    return {
        shared.gpu.uuid: allocation.through
        for shared, allocation in held
        if shared is not None and (allocation.kind is None or _is_of_another_profile(shared, allocation))
    }


def _is_of_another_profile(shared: SharedGpu, allocation: Allocation) -> bool:
    instance = shared.gpu.instance
    if instance is None or shared.gone or not is_mig_resource(allocation.through):
        return False
    return allocation.through.partition("/")[2] != resource_name(instance.profile)
