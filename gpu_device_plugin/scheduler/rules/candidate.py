"""A node as a candidate for a pod: the room on its GPUs beside the pods that count on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.model.contract.cordons import cordon_of, cordons_of
from gpu_device_plugin.model.contract.keys import NODE_GPUS, PLACEMENT_LABEL, MalformedAnnotationError
from gpu_device_plugin.model.contract.nodegpus import AWAY, BY_CLAIMS, NO_GPUS, ListedGpu, NodeGpus, read_node_gpus
from gpu_device_plugin.model.gpus import MOST_GPUS, Links
from gpu_device_plugin.model.placing import POLICIES, Room
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.scheduler.rules.usage import Usage


@dataclass(frozen=True, slots=True)
class Summary:
    """A node's free and used shares, in the few numbers that decide most requests."""

    frees: tuple[int, ...] = ()
    """Free shares of each GPU, or MIG instance, that gives shares, the most first."""
    sizes: tuple[int, ...] = ()
    """Shares of each healthy GPU or instance, the most first."""
    shared: tuple[int, ...] = ()
    """The `frees` of partly used GPUs, and of all instances, the most first: a pod that fits there leaves the unused
    GPUs unused."""
    unused: tuple[int, ...] = ()
    """Positions of the healthy GPUs that no pod uses. An instance is none of them: it cannot be taken as a GPU."""
    used: int = 0
    """Shares in use on the healthy GPUs and instances; a GPU in whole use counts in full."""
    total: int = 0
    """Shares of the healthy GPUs and instances."""
    failed: tuple[int, ...] = ()
    """Shares of each GPU or instance that is out of service, the most first."""
    of_gpus: Summary | None = None
    """The same numbers of the GPUs alone; None: there are no instances."""

    @property
    def gpus(self) -> Summary:
        """The numbers for a demand that no instance can serve: of the GPUs alone."""
        return self if self.of_gpus is None else self.of_gpus

    @property
    def best(self) -> int:
        """The most free shares on one GPU or instance."""
        return self.frees[0] if self.frees else 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that a pod may be placed on."""

    name: str
    gpus: NodeGpus = NO_GPUS
    rooms: tuple[Room, ...] = ()
    summary: Summary = Summary()
    allocatable: Amounts | None = None
    """The CPU and memory that pods may request in all; None if unknown."""
    left: Amounts | None = None
    """What no pod requests of it."""

    def occupied(self, usages: Iterable[Usage]) -> Candidate:
        """Return this node with the room that other pods leave on its GPUs, whatever CPU and memory they request."""
        rooms = rooms_of(self.gpus, usages)
        return replace(self, rooms=rooms, summary=summary(rooms))

    def opened(self) -> Candidate:
        """Return this node as if none of its GPUs were put aside."""
        healthy = {gpu.position for gpu in self.gpus.cordoned if not gpu.unhealthy}
        rooms = tuple(replace(room, healthy=room.healthy or room.position in healthy) for room in self.rooms)
        return replace(self, gpus=with_cordons(self.gpus, {}), rooms=rooms, summary=summary(rooms))

    def restricted(self, shares: Mapping[int, int]) -> Candidate:
        """Return this node with no more free than these shares by position; a GPU with all of them free is unused."""
        rooms = tuple(
            replace(
                room,
                free=min(room.free, shares.get(room.position, 0)),
                shared=room.shared or shares.get(room.position, 0) < room.total,
            )
            for room in self.rooms
        )
        return replace(self, rooms=rooms, summary=summary(rooms))


def candidate(
    name: str,
    gpus: NodeGpus,
    usages: Iterable[Usage],
    allocatable: Amounts | None = None,
    requested: Iterable[Amounts] = (),
) -> Candidate:
    """Return a node with the room that pods leave on it, which use its GPUs and request of its CPU and memory."""
    left = None if allocatable is None else allocatable.without(requested)
    return Candidate(name, gpus, allocatable=allocatable, left=left).occupied(usages)


def rooms_of(gpus: NodeGpus, usages: Iterable[Usage]) -> tuple[Room, ...]:
    """Return the room on every GPU, and on every MIG instance that is shared.

    Usage of an unknown GPU is subtracted from every GPU that it may be, so that no share is promised twice: unplaced
    shares from every GPU and instance, an unplaced whole GPU from every GPU that is not in shared use.
    """
    cards = gpus.cards
    used = dict.fromkeys([gpu.position for gpu in gpus.gpus], 0)
    whole: set[int] = set()
    settling_shares: set[int] = set()
    settling_whole: set[int] = set()
    unplaced_shares = unplaced_gpus = 0
    for usage in [each.within(gpus.sizes) if each.grown else each for each in usages]:
        for position, shares in usage.shares:
            used[position] = used.get(position, 0) + shares
        whole.update(usage.whole)
        settling_shares.update(usage.settling_shares)
        settling_whole.update(usage.settling_whole)
        unplaced_shares += usage.unplaced_shares
        unplaced_gpus += usage.unplaced_gpus
    if len(used) > len(gpus.gpus) or not whole <= used.keys():
        # Rare, so done once for the sum of all pods: to do it pod by pod makes a search for victims a fifth slower.
        together = Usage(tuple(used.items()), tuple(whole), unplaced_shares, unplaced_gpus)
        listed = together.as_listed(gpus.sizes, gpus.elsewhere)
        unplaced_shares, unplaced_gpus = listed.unplaced_shares, listed.unplaced_gpus
    return tuple(
        Room(
            position=gpu.position,
            total=gpu.shares,
            free=0 if gpu.position in settling_whole else max(0, gpu.shares - used[gpu.position] - unplaced_shares),
            healthy=not gpu.unhealthy and gpu.cordon is None,
            shared=bool(
                used[gpu.position] or gpu.position in settling_shares or (unplaced_shares and gpu.position not in whole)
            ),
            whole=bool(
                gpu.position in whole or (unplaced_gpus and not used[gpu.position] and gpu.position not in cards)
            ),
            card=cards.get(gpu.position),
        )
        for gpu in gpus.gpus
    )


def summary(rooms: Sequence[Room]) -> Summary:
    """Return the numbers that summarize `rooms`."""
    found = _numbers(rooms)
    gpus = [room for room in rooms if room.card is None]
    return found if len(gpus) == len(rooms) else replace(found, of_gpus=_numbers(gpus))


def _numbers(rooms: Sequence[Room]) -> Summary:
    healthy = [room for room in rooms if room.healthy]
    giving = [room for room in rooms if room.gives_shares]
    total = sum([room.total for room in healthy])
    return Summary(
        frees=_most_first([room.free for room in giving]),
        sizes=_most_first([room.total for room in healthy]),
        failed=_most_first([room.total for room in rooms if not room.healthy]),
        shared=_most_first([room.free for room in giving if room.shared or room.card is not None]),
        unused=tuple([room.position for room in giving if not room.shared and room.card is None]),
        used=total - sum([room.free for room in giving]),
        total=total,
    )


def _most_first(shares: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(shares, reverse=True))


# --- The GPUs of a node as the API shows them -------------------------------------------------------------------------


def gpus_of_node(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    memory: int,
    count: int,
    known: MutableMapping[str, Links] | None = None,
) -> NodeGpus:
    """Return the GPUs of a node by its annotations, its labels, and the shares and GPUs in its capacity.

    The agent's list takes precedence over the capacity, and the policy's label over the agent's list; `known` is that
    of `read_node_gpus`.
    """
    if NODE_GPUS in annotations:
        try:
            gpus = read_node_gpus(annotations[NODE_GPUS], known)
        except MalformedAnnotationError as error:
            gpus = NodeGpus(problem=str(error))
    else:
        gpus = by_division(memory, count)
    gpus = with_cordons(gpus, annotations, by_agent=True)
    policy = next((name for name in (labels.get(PLACEMENT_LABEL), gpus.policy) if name in POLICIES), None)
    problem = AWAY if gpus.away else BY_CLAIMS if gpus.claims else gpus.problem
    unchanged = (policy, problem) == (gpus.policy, gpus.problem)
    return gpus if unchanged else replace(gpus, policy=policy, problem=problem)


def with_cordons(node: NodeGpus, annotations: Mapping[str, str], *, by_agent: bool = False) -> NodeGpus:
    """Return the GPUs of a node with the cordons in its annotations; `by_agent`: and those that its agent keeps."""
    cordons, fault = cordons_of(annotations)
    listed = (*node.gpus, *node.instances)
    if not cordons and fault == node.cordons_fault and (by_agent or all(gpu.cordon is None for gpu in listed)):
        return node

    def marked(gpus: tuple[ListedGpu, ...]) -> tuple[ListedGpu, ...]:
        pairs = [(gpu, cordon_of(cordons, gpu.uuid, gpu.card)) for gpu in gpus]
        return tuple([replace(gpu, cordon=new or (gpu.cordon if by_agent else None)) for gpu, new in pairs])

    return replace(node, gpus=marked(node.gpus), instances=marked(node.instances), cordons_fault=fault)


def by_division(memory: int, count: int) -> NodeGpus:
    """Return the GPUs of a node that reports only their number and their total memory.

    Gpushare's device plugin reports no more, and treats all GPUs of a node as equal.
    """
    if not 0 < count <= min(memory, MOST_GPUS):
        return NO_GPUS
    return NodeGpus(tuple(ListedGpu(position, memory // count) for position in range(count)), divided=True)
