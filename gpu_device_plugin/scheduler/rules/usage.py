"""A pod's usage of its node's GPUs, by its limits and by the promise in its annotations; and that promise.

Annotations alone are not trusted: the amount comes from the pod's limits, and only the GPU from the annotation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.model.contract.keys import (
    ASSIGNED,
    ASSUME_TIME,
    DEV,
    MEMORY_HELD,
    MEMORY_PROMISED,
    PLACES,
    POD,
)
from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.model.contract.promises import PodAllocation, Promise, readable_promises, write_allocation
from gpu_device_plugin.model.contract.reservations import guarantees
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.sharing import Shared
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part, amount_of, parts_of

NO_GROWTH = "{}"
"""The value of `MEMORY_PROMISED` on a pod that is guaranteed its requests."""
_MOST_KNOWN, _MOST_BYTES, _MOST_CONTAINERS, _LONGEST = 10_000, 8 << 20, 8, 256
"""Of `Usages`: how many are remembered in how many bytes, with how many containers and how many characters of their
promises at most."""


@dataclass(frozen=True, slots=True)
class Usage:
    """GPU shares and whole GPUs in use, by GPU position where it is known."""

    shares: tuple[tuple[int, int], ...] = ()
    """(position, shares), by position."""
    whole: tuple[int, ...] = ()
    """Positions of GPUs taken whole."""
    unplaced_shares: int = 0
    """Shares on unknown GPUs: the scheduler that bound the pod wrote no promise on it."""
    unplaced_gpus: int = 0
    """Unknown whole GPUs, for the same reason."""
    settling_shares: tuple[int, ...] = ()
    """Positions of GPUs whose shares were in use until a moment ago: they are not available whole yet."""
    settling_whole: tuple[int, ...] = ()
    """Positions of GPUs that were in whole use until a moment ago: their shares are not available yet."""
    grown: tuple[tuple[int, int], ...] = ()
    """(position, shares), by position: those among `shares` that are guaranteed beyond the requests. An annotation may
    name more than the GPU has: see `within`."""

    @property
    def growth(self) -> int:
        """Shares that are guaranteed beyond the requests."""
        return sum(shares for _, shares in self.grown)

    @property
    def requested(self) -> Usage:
        """The same usage without what is guaranteed beyond the requests."""
        if not self.grown:
            return self
        grown = dict(self.grown)
        return replace(self, shares=tuple((at, shares - grown.get(at, 0)) for at, shares in self.shares), grown=())

    def within(self, sizes: Mapping[int, int]) -> Usage:
        """Return the usage on a node with GPUs of these sizes: what is beyond the requests never exceeds a GPU."""
        if not self.grown:
            return self
        largest = max(sizes.values(), default=0)
        grown = dict(self.grown)
        shares = (
            (at, max(amount - grown.get(at, 0), min(amount, sizes.get(at, largest)))) for at, amount in self.shares
        )
        return replace(self, shares=tuple(shares), grown=())

    @property
    def unplaced(self) -> bool:
        """Whether the GPU of some of it is unknown."""
        return bool(self.unplaced_shares or self.unplaced_gpus)

    @property
    def all_shares(self) -> int:
        """Shares on known and unknown GPUs, without those of GPUs taken whole."""
        return sum(shares for _, shares in self.shares) + self.unplaced_shares

    @property
    def all_gpus(self) -> int:
        """Whole GPUs, known and unknown."""
        return len(self.whole) + self.unplaced_gpus

    def as_listed(self, sizes: Mapping[int, int], elsewhere: Collection[int] = ()) -> Usage:
        """Return the same usage on a node that lists GPUs of these sizes by position, and no others.

        A GPU that the node does not list (any more) may be any of those that it lists: usage of it becomes unplaced.
        That of a position `elsewhere` is left out: it is a MIG instance of which is known that it is none of them.
        """
        if self.grown:
            return self.within(sizes).as_listed(sizes, elsewhere)
        if elsewhere and any(at in elsewhere for at in (*self.whole, *dict(self.shares))):
            shares = tuple(each for each in self.shares if each[0] not in elsewhere)
            whole = tuple(position for position in self.whole if position not in elsewhere)
            return replace(self, shares=shares, whole=whole).as_listed(sizes)
        unlisted = [shares for position, shares in self.shares if position not in sizes]
        unlisted_gpus = sum(position not in sizes for position in self.whole) if self.whole else 0
        if not unlisted and not unlisted_gpus:
            return self
        return replace(
            self,
            shares=tuple(each for each in self.shares if each[0] in sizes),
            whole=tuple(position for position in self.whole if position in sizes),
            unplaced_shares=self.unplaced_shares + sum(unlisted),
            unplaced_gpus=self.unplaced_gpus + unlisted_gpus,
        )

    def size(self, sizes: Mapping[int, int]) -> int:
        """Return the usage in shares, by the shares of each GPU of the node; an unknown GPU counts as the largest."""
        largest = max(sizes.values(), default=0)
        whole = sum(sizes.get(position, largest) for position in self.whole)
        return self.within(sizes).all_shares + whole + self.unplaced_gpus * largest

    @property
    def settling(self) -> Usage:
        """The usage that remains for a moment after its pod has ended.

        The node's agent has to see that end before it offers the GPU as the other resource, and the kubelet that offer.
        """
        return Usage(settling_shares=tuple(position for position, _ in self.shares), settling_whole=self.whole)


NOTHING = Usage()


@dataclass(frozen=True, slots=True, eq=False)
class GpuConsumer:
    """A pod that counts on a node, or the pods of a ResourceClaim. Compared by identity, which makes sets fast."""

    uid: str
    usage: Usage
    priority: int = 0
    terminating: bool = False
    """It is ending without an eviction; its room is about to become free."""
    requests: Mapping[str, int] | None = field(default_factory=dict)
    """Its requests for other resources, by name; None: unknown, and so is the amount that its eviction frees."""
    namespace: str = ""
    name: str = ""
    """Of the pod. `claimed` says what stands here for claims that several pods use, or none."""
    claims: tuple[str, ...] = ()
    """The names of the ResourceClaims through which it has its devices; none: it has them by its limits."""
    pods: tuple[str, ...] = ()
    """The names of the pods that use these claims."""

    @property
    def users(self) -> tuple[str, ...]:
        """The names of the pods that may use its devices."""
        return self.pods if self.claims else (self.name,)

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def usage_of(pod: Pod, resources: Iterable[Resource]) -> Usage:
    """Return the usage of a bound pod that has not ended; unplaced where no readable promise names its GPU."""
    resources = tuple(resources)
    asked = {resource.kind: amount for resource in resources if (amount := amount_of(pod, resource))}
    if not asked:
        return NOTHING
    promised = readable_promises(pod, resources)
    shares: dict[int, int] = defaultdict(int)
    whole: set[int] = set()
    for part in parts_of(pod, resources) if promised else ():
        held = _held(part, promised)
        if part.demand.kind is Kind.MEMORY:
            for position, amount in held.items():
                shares[position] += amount
        else:
            whole.update(held)
    unplaced = asked.get(Kind.MEMORY, 0) - sum(shares.values())
    grown: dict[int, int] = defaultdict(int)
    if counted := guarantees(pod.annotations):
        for name, (request, position) in growable(pod, resources).items():
            if position in shares and counted.get(name, 0) > request:
                grown[position] += counted[name] - request
    for position, amount in grown.items():
        shares[position] += amount
    return Usage(
        tuple(sorted(shares.items())),
        tuple(sorted(whole)),
        unplaced,
        asked.get(Kind.COUNT, 0) - len(whole),
        grown=tuple(sorted(grown.items())),
    )


def growable(pod: Pod, resources: Iterable[Resource]) -> Mapping[str, tuple[int, int]]:
    """Return the containers that may be guaranteed more than their request: by name, that and the GPU's position.

    They have shares of one GPU that a readable promise names. The kubelet gives the shares of an init container to the
    containers after it: it keeps to its request.
    """
    memory = [resource for resource in resources if resource.kind is Kind.MEMORY]
    promised = readable_promises(pod, memory)
    return {
        container.name: (container.limits[memory[0].name], promised[container.name, Kind.MEMORY].shares[0][0])
        for container in pod.containers
        if (container.name, Kind.MEMORY) in promised
        and len(promised[container.name, Kind.MEMORY].shares) == 1
        and not container.devices_reused_by_later
    }


class Usages:
    """The usage of the pods of a cluster, read once for those with equal containers and promises."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        """Read the usage of `resources`."""
        self._resources = tuple(resources)
        self._known: Shared[tuple[object, ...], Usage] = Shared(_MOST_KNOWN, _MOST_BYTES)

    def of(self, pod: Pod) -> Usage:
        """Return `usage_of`; equal usage is one object, but for that of the largest pods."""
        # The names of containers, which the API server keeps apart, matter only to what is beyond the requests.
        containers = [(each.kind, each.index, *each.limits.items()) for each in pod.containers]
        promised = [pod.annotations.get(key, "") for key in PLACES]
        growth = pod.annotations.get(MEMORY_PROMISED, NO_GROWTH)
        if growth != NO_GROWTH or MEMORY_HELD in pod.annotations:
            promised += [growth, pod.annotations.get(MEMORY_HELD, ""), *(each.name for each in pod.containers)]
        if len(containers) > _MOST_CONTAINERS or sum(map(len, promised)) > _LONGEST:
            return usage_of(pod, self._resources)
        return self._known.one((*containers, *promised), lambda: usage_of(pod, self._resources))


def _held(part: Part, promised: Mapping[tuple[str, Kind], Promise]) -> Mapping[int, int]:
    """Return the shares of a part by known GPU: those that its containers keep, or have left for reuse.

    The rule is that of the part's size (`pod_demand`). A promise of more than that size is discarded.
    """
    memory = part.demand.kind is Kind.MEMORY
    held: dict[int, tuple[int, int]] = {}  # the shares that containers keep, and those left for reuse
    for container, _ in part.members:
        promise = promised.get((container.name, part.demand.kind))
        for position, shares in () if promise is None else promise.shares:
            held[position] = container.allocated(*held.get(position, (0, 0)), shares if memory else 1)
    totals = {position: sum(amounts) for position, amounts in held.items()}
    return totals if sum(totals.values()) <= part.demand.amount else {}


# --- The promise, by which the node's agent allocates exactly the GPUs of a placement ---------------------------------


def promise(ask: GpuRequest, placements: Sequence[Placement], gpus: NodeGpus, now_ns: int) -> Mapping[str, str]:
    """Return the annotations that promise a pod its GPUs of a node at `now_ns`; none for a pod without a GPU limit."""
    if not ask.parts:
        return {}
    used: dict[int, int] = defaultdict(int)
    promised: list[Mapping[int, int]] = []
    for part, placement in zip(ask.parts, placements, strict=True):
        for position, shares in placement.shares:
            used[position] += shares
        promised += _promised(part, placement)
    containers = [container for part in ask.parts for container, _ in part.members]
    # Its presence tells the node's agent that an extender decides whether a guarantee may grow.
    memory = any(part.demand.kind is Kind.MEMORY for part in ask.parts)
    return {
        **({MEMORY_PROMISED: NO_GROWTH} if memory else {}),
        **write_allocation(PodAllocation.of(zip(containers, promised, strict=True), used)),
        POD: str(sum(used.values())),
        DEV: str(max(gpu.shares for gpu in gpus.gpus if gpu.position in used)),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
    }


def _promised(part: Part, placement: Placement) -> list[dict[int, int]]:
    """Return the promise to each container of a part: shares by GPU position."""
    if part.demand.kind is Kind.MEMORY:
        if part.demand.gpus > 1:
            return [dict(placement.shares)]
        (position,) = placement.positions
        return [{position: amount} for _, amount in part.members]
    promised: list[dict[int, int]] = []
    first = 0
    for container, amount in part.members:
        promised.append(dict(placement.shares[first : first + amount]))
        # The containers after an init container reuse its GPUs; any other container keeps its own.
        if not container.devices_reused_by_later:
            first += amount
    return promised
