"""The view of the GPUs: listings, readings and events update it, and every change is published as a new view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.messages import Listing
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.node.rules.gpu_health import (
    Cause,
    Cleared,
    Gone,
    GpuHealth,
    HealthRules,
    Observation,
    Probe,
    Unwatched,
    Xid,
    change,
    step,
)
from gpu_device_plugin.node.rules.ledger import Reading
from gpu_device_plugin.node.rules.positions import in_order


class State(StrEnum):
    """Whether the hardware can be watched, and if not, why not."""

    STARTING = "starting"
    WATCHING = "watching"
    """The driver answers. It may still list no GPUs."""
    PAUSED = "paused"
    NO_LIBRARY = driver.NO_LIBRARY
    UNUSABLE_LIBRARY = driver.UNUSABLE_LIBRARY
    NO_DRIVER = driver.NO_DRIVER
    VERSION_MISMATCH = driver.VERSION_MISMATCH
    NO_PERMISSION = driver.NO_PERMISSION
    CONTEXT_LOST = driver.CONTEXT_LOST
    HUNG = driver.HUNG
    CRASHED = driver.CRASHED
    OTHER = driver.OTHER


@dataclass(frozen=True, slots=True)
class HardwareView:
    """A snapshot of the known state of the hardware."""

    state: State = State.STARTING
    sentence: str = "the GPUs have not been listed yet"
    """Explains `state` to people, with its current cause."""
    inventory: Inventory = field(default_factory=Inventory)
    """Every GPU seen since the program started, or remembered from an earlier run. Only `restore_order` changes
    the order; new GPUs come last."""
    health_by_uuid: Mapping[str, GpuHealth] = field(default_factory=dict)
    """By UUID, for every GPU of the inventory."""
    child_restarts: int = 0
    """How often the driver process was replaced after a failure."""


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A GPU became healthy or unhealthy."""

    uuid: str
    healthy: bool
    reason: str
    """For people; begins with the new state of the GPU."""
    cause: Cause
    """The kind of the newest problem or, of a GPU that recovered, of the first problem that ended."""


@dataclass(eq=False, repr=False)
class GpuHealthTracker:
    """The inventory, empty at first, and a `GpuHealth` about each of its GPUs. `publish` makes changes visible."""

    _rules: Callable[[], HealthRules]
    """Returns the health rules for the next observation."""
    _on_change: Callable[[HealthChange], None]
    """Called for every change of a GPU's health, before the new view is published."""
    _on_xid: Callable[[Xid], None]
    """Called with every XID, of a GPU or of the MIG instance that the driver named, whether or not it changed the
    health. While a new driver process takes over from the old one, both report an XID."""

    def __post_init__(self) -> None:
        self.view = Observable(HardwareView())
        self.readings: Observable[Mapping[str, Reading]] = Observable({})
        """The processes on each GPU, by UUID. Set after every reading of all GPUs."""
        self._next = self.view.value
        self._left_out = False

    @property
    def complete(self) -> bool:
        """Whether there are GPUs, the last listing left none out, and all are healthy."""
        healths = self._next.health_by_uuid.values()
        return bool(healths) and not self._left_out and all(health.healthy for health in healths)

    def set_state(self, state: State, sentence: str) -> None:
        """Set the state of the hardware for the next `publish`."""
        self._next = replace(self._next, state=state, sentence=sentence)

    def count_restart(self) -> None:
        """Count a failed driver process, for the next `publish`."""
        self._next = replace(self._next, child_restarts=self._next.child_restarts + 1)

    def publish(self) -> None:
        """Publish the next view if it differs from the current one."""
        self.view.change(self._next)

    def restore_order(self, before: Sequence[Gpu]) -> None:
        """Put the GPUs in the order of `before`, the GPUs of the previous run; see `in_order`.

        GPUs of `before` that are not found are listed as lost; MIG instances are not, unless their GPU is. Call this
        only after GPUs are found and before any reader relies on their order.
        """
        inventory = self._next.inventory
        known = self._next.health_by_uuid
        names = {gpu.uuid for gpu in before}
        order = tuple(gpu for gpu in in_order(before, inventory.gpus) if not gpu.mig or gpu.uuid in names)
        there = {gpu.uuid for gpu in inventory.gpus}
        every = {gpu.uuid: gpu for gpu in (*order, *inventory.gpus)}.values()
        gpus = tuple(gpu for gpu in every if gpu.uuid in there or gpu.card not in there)
        self._list(replace(inventory, gpus=gpus, order=order))
        for uuid in self._next.health_by_uuid.keys() - known.keys():
            self._observe(Gone(uuid))
        self.publish()

    def adopt(self, listing: Listing) -> None:
        """Adopt a new inventory. GPUs missing from it stay listed as lost; MIG instances do only if their GPU does."""
        known, listed = self._next.inventory, {gpu.uuid: gpu for gpu in listing.gpus}
        links = {(link.a, link.b): link for link in (*known.links, *listing.links)}
        kept = (gpu for gpu in known.gpus if gpu.instance is None or gpu.uuid in listed or gpu.card not in listed)
        gpus = {gpu.uuid: gpu for gpu in kept} | listed
        version, cgroup = listing.driver_version, listing.cgroup
        unread = listing.troubles[: listing.left_out]
        self._list(Inventory(tuple(gpus.values()), tuple(links.values()), version, cgroup, known.order, unread))
        self._left_out = bool(listing.left_out)
        for uuid in self._next.health_by_uuid.keys() - listed.keys():
            self._observe(Gone(uuid))

    def take_readings(self, probes: Sequence[Probe], began: float) -> bool:
        """Record a reading of each GPU and publish; True if one of them shows that the inventory is outdated.

        They `began` at this time, in monotonic seconds.
        """
        for probe in probes:
            self._observe(probe)
        self.publish()
        # Readings that come with an event do not count: another thread takes them, at an unknown time.
        self.readings.set({probe.uuid: Reading.of(probe.processes, probe.used_mib, began) for probe in probes})
        return self._outdated(probes)

    def take_events(self, records: Iterable[Xid | Probe]) -> bool:
        """Record the events that the driver reported, and publish; True if one shows that the inventory is outdated."""
        readings = []
        for record in records:
            if isinstance(record, Probe):
                readings.append(record)
                self._observe(record)
                continue
            for uuid in self._concerned(record):
                xid = replace(record, uuid=uuid)
                self._on_xid(xid)
                self._observe(xid)
        self.publish()
        return self._outdated(readings)

    def unwatched(self, why: str) -> None:
        """Record that the health of every GPU is unknown, and publish."""
        for gpu in self._next.inventory.gpus:
            self._observe(Unwatched(gpu.uuid, why))
        self.publish()

    def cleared(self) -> None:
        """Record that an operator has serviced every GPU."""
        for gpu in self._next.inventory.gpus:
            self._observe(Cleared(gpu.uuid))

    def _outdated(self, probes: Sequence[Probe]) -> bool:
        """Return whether a reading shows another MIG mode or other MIG instances than the inventory has."""
        mig = {gpu.uuid: gpu.mig for gpu in self._next.inventory.gpus}
        instances: dict[str, set[str]] = {}
        for gpu in self._next.inventory.gpus:
            if gpu.instance is not None:
                instances.setdefault(gpu.card, set()).add(gpu.uuid)
        return any(
            probe.mig_changed
            or probe.mig not in {mig.get(probe.uuid), None}
            or (probe.instances is not None and {*probe.instances} != instances.get(probe.uuid, set()))
            for probe in probes
        )

    def _concerned(self, xid: Xid) -> Sequence[str]:
        """Return the UUIDs of the MIG instances that an XID names; that of the GPU if it names none that is known."""
        named = [
            gpu.uuid
            for gpu in self._next.inventory.gpus
            if (own := gpu.instance) is not None
            and (own.parent, own.gi) == (xid.uuid, xid.gi)
            and xid.ci in {None, own.ci}
        ]
        return named or (xid.uuid,)

    def _list(self, inventory: Inventory) -> None:
        health_by_uuid = {gpu.uuid: self._next.health_by_uuid.get(gpu.uuid, GpuHealth()) for gpu in inventory.gpus}
        self._next = replace(self._next, inventory=inventory, health_by_uuid=health_by_uuid)

    def _observe(self, observation: Observation) -> None:
        uuid = observation.uuid
        before = self._next.health_by_uuid.get(uuid)
        if before is None:
            return
        after = step(before, observation, self._rules())
        self._next = replace(self._next, health_by_uuid={**self._next.health_by_uuid, uuid: after})
        if reason := change(before, after):
            cause = before.problems[0].cause if after.healthy else after.problems[-1].cause
            self._on_change(HealthChange(uuid, after.healthy, reason, cause))
