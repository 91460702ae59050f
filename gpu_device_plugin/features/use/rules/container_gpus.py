"""What containers hold: the memory of each GPU that they are guaranteed, and how much of it they may use."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from gpu_device_plugin.model.allocations import Allocation, AllocationSource, Place
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares, parse_id
from gpu_device_plugin.node.rules.ledger import Reservation, Reservations

_NONE: Reservations = MappingProxyType({})

LimitsOf: TypeAlias = "Callable[[Allocation, Pod | None, Mapping[str, int]], Mapping[str, int]]"
"""Returns `ContainerGpus.limits` of a container, by its devices, its pod and what it is guaranteed of each GPU."""


def no_limits(*_: object) -> Mapping[str, int]:
    """Say that a container may use what it is guaranteed."""
    return {}


@dataclass(frozen=True, slots=True)
class ContainerGpus:
    """The GPUs of one container."""

    pod_uid: str
    """As the kubelet knows the pod, and as cgroups name it."""
    container: str
    granted: Mapping[str, int] = field(default_factory=dict)
    """MiB of each GPU that it is guaranteed, by UUID, what it has beyond its request included; of a whole GPU all of
    it."""
    pod_granted: Mapping[str, int] = field(default_factory=dict)
    """MiB of each of these GPUs that all containers of the pod have together. The device IDs that an ordinary init
    container hands on to a later container count once."""
    whole: bool = False
    """It was given whole GPUs, or MIG instances, which have no limit of ours."""
    enforcement: Enforcement | None = None
    """See `Allocation.enforcement`."""
    pod: Pod | None = None
    """The pod in the API; None: not known (yet), or the agent runs without the API."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """MiB of each GPU that it may use at most, where that is not what it is guaranteed."""
    started_mib: int | None = None
    """The limit that it was started with on its GPUs, see `Allocation.limit_mib`."""
    misdirected: bool = False
    """See `Allocation.misdirected`."""

    def limit_mib(self, uuid: str) -> int:
        """Return the MiB that it may use of a GPU at most: more than it is guaranteed if it may borrow."""
        return self.limits.get(uuid, self.granted.get(uuid, 0))

    def told_mib(self, uuid: str) -> int:
        """Return the MiB of a GPU that nobody may hold against it: another one's larger limit, if it was told that."""
        limit_mib = self.limit_mib(uuid)
        return max(limit_mib, self.started_mib or 0) if self.misdirected and not self.whole else limit_mib

    @property
    def container_id(self) -> str:
        """The ID of the running container, 64 hexadecimal digits; empty: not known, or it does not run."""
        return "" if self.pod is None else self.pod.container_ids.get(self.container, "")


def container_gpus(
    allocations: Iterable[Allocation],
    pods: Iterable[Pod],
    shares: Shares,
    ended: Collection[str] = frozenset(),
    reservations: Reservations = _NONE,
    *,
    limits: LimitsOf = no_limits,
) -> tuple[ContainerGpus, ...]:
    """Return the GPUs of each container that holds some, but for containers that have ended as far as is known.

    A GPU that a container was given through a resource that is not ours, of another plugin or of former settings,
    counts as given whole: the container has a right to it, and nothing that we granted limits it. Devices of GPUs that
    are not among `shares` (any more) are left out.

    `pods` are those of this node in the API; none without the API. The kubelet's checkpoint keeps what an ordinary init
    container was given as long as its pod, and may still show pods that have `ended` (UIDs). `reservations` are
    the ledger's; `limits` says what each container may use.
    """
    known = {pod.kubelet_uid: pod for pod in pods}
    kept = [
        allocation
        for allocation in allocations
        if allocation.pod_uid not in ended and not _over(allocation, known.get(allocation.pod_uid))
    ]
    ids: dict[tuple[str, str], set[str]] = defaultdict(set)
    extra = Counter[tuple[str, str]]()
    for allocation in kept:
        for name in allocation.device_ids:
            ids[allocation.pod_uid, parse_id(name)[0]].add(name)
        if (reservation := _reservation(allocation, reservations)) is not None:
            extra[allocation.pod_uid, reservation.uuid] += reservation.shares * shares.share_mib
    found = []
    for allocation in kept:
        reservation = _reservation(allocation, reservations)
        whole = allocation.kind is not Kind.MEMORY
        granted = {
            uuid: mib
            for uuid, count in Counter(
                parse_id(name)[0] for name in (*allocation.device_ids, *(allocation.gpus or ()))
            ).items()
            if (mib := _mib(shares, uuid, count, whole=whole))
        }
        if reservation is not None and reservation.uuid in granted:
            granted[reservation.uuid] += reservation.shares * shares.share_mib
        together = {
            uuid: _mib(shares, uuid, len(ids[allocation.pod_uid, uuid]), whole=whole)
            + (0 if whole else extra[allocation.pod_uid, uuid])
            for uuid in granted
        }
        if granted:
            pod = known.get(allocation.pod_uid)
            found.append(
                ContainerGpus(
                    allocation.pod_uid,
                    allocation.container,
                    granted,
                    together,
                    whole,
                    allocation.enforcement,
                    pod,
                    limits(allocation, pod, granted),
                    allocation.limit_mib,
                    allocation.misdirected,
                )
            )
    return tuple(found)


def _reservation(allocation: Allocation, reservations: Reservations) -> Reservation | None:
    """Return what a container is guaranteed beyond the shares that it holds, if these are the plugin's."""
    ours = allocation.kind is Kind.MEMORY and allocation.source is not AllocationSource.CLAIM
    return reservations.get((allocation.pod_uid, allocation.container)) if ours else None


def _over(allocation: Allocation, pod: Pod | None) -> bool:
    """Return whether a container has ended, or is an ordinary init container that does not run (yet)."""
    if pod is None:
        return False
    init = {container.name for container in pod.containers if container.devices_reused_by_later}
    return pod.ended or (allocation.container in init and allocation.container not in pod.container_ids)


def _mib(shares: Shares, uuid: str, count: int, *, whole: bool) -> int:
    """Return the memory of `count` devices of a GPU, in MiB; 0 for a GPU that is not known."""
    shared = shares.by_uuid(uuid)
    if shared is None:
        return 0
    return shared.gpu.total_mib if whole else count * shares.share_mib


def granted_by_place(holders: Iterable[ContainerGpus]) -> Mapping[Place, tuple[int, ContainerGpus]]:
    """Return the MiB of each container on each GPU, with its holding."""
    granted: dict[Place, tuple[int, ContainerGpus]] = {}
    for holder in holders:
        for uuid, mib in holder.granted.items():
            place = holder.pod_uid, holder.container, uuid
            # A device plugin of another vendor may have given a container the same GPU once more.
            if place not in granted or granted[place][0] < mib:
                granted[place] = mib, holder
    return granted
