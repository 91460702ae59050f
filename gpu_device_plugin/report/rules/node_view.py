"""A node for display: its GPUs, the pods on each with what they use of it, their states, and the sums of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from gpu_device_plugin.model.contract.node_use import NO_REPORT, ContainerUse, NodeReport, trespasses
from gpu_device_plugin.model.contract.nodegpus import AWAY, NO_GPUS, ListedGpu, NodeGpus
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.placing import Room
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.finding import Finding, note
from gpu_device_plugin.report.rules.held_instances import InstancePod, Instances, whole_instances
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage


@dataclass(frozen=True, slots=True)
class PodShare:
    """The part of one GPU that one pod holds."""

    pod: GpuConsumer
    shares: int
    """All shares of the GPU where the pod holds it whole."""
    whole: bool = False
    use: tuple[ContainerUse, ...] = ()
    """What its containers use of the GPU, by figures of the present."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU or MIG instance, and the pods on it."""

    gpu: ListedGpu
    room: Room
    """The room for another pod; usage of an unknown GPU of the node is subtracted from every GPU."""
    held: tuple[PodShare, ...] = ()
    strangers: tuple[tuple[ContainerUse, ...], ...] = ()
    """The containers of each pod that uses the GPU and was not given it, by figures of the present."""

    @property
    def used(self) -> int:
        """Shares known to be in use; more than the GPU has where it is overcommitted."""
        shared = sum([held.shares for held in self.held if not held.whole])
        return max(shared, self.room.total) if self.whole else shared

    @property
    def free(self) -> int:
        """Shares that one demand could take."""
        return self.room.free if self.room.healthy and not self.room.whole else 0

    @property
    def whole(self) -> bool:
        """Whether a pod holds it whole."""
        return any(held.whole for held in self.held)


@dataclass(frozen=True, slots=True)
class StatePoints:
    """What features tell of a node, of a GPU, and of a pod's part of one by what its containers use there."""

    node_states: tuple[Callable[[NodeView], Iterable[State]], ...] = ()
    gpu_states: tuple[Callable[[NodeView, GpuView], Iterable[State]], ...] = ()
    part_states: tuple[Callable[[NodeView, Sequence[ContainerUse]], Iterable[State]], ...] = ()


NO_STATES = StatePoints()


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that shares its GPUs, or advertises that it does."""

    candidate: Candidate
    record: NodeRecord
    pods: tuple[GpuConsumer, ...] = ()
    """By namespace and name."""
    report: NodeReport = NO_REPORT
    """What its agent reports of limits and of real use."""
    instance_pods: tuple[InstancePod, ...] = ()
    """The pods on it that ask for whole MIG instances, by namespace and name."""
    features: StatePoints = field(default=NO_STATES, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.candidate.name

    @property
    def takes_pods(self) -> bool:
        """Whether kube-scheduler may put a pod on it now."""
        return self.record.ready and not self.record.unschedulable

    @property
    def total(self) -> int:
        """Shares of all GPUs, healthy or not."""
        return sum(gpu.shares for gpu in self.candidate.gpus.gpus)

    @property
    def used(self) -> int:
        """Shares in use, on known and unknown GPUs."""
        return sum(view.used for view in self.gpus()) + self.unplaced

    @property
    def unplaced(self) -> int:
        """Shares in use on unknown GPUs."""
        sizes = self.candidate.gpus.sizes
        return sum(usage.size(sizes) for usage in self.unassigned_usage().values())

    def gpus(self) -> tuple[GpuView, ...]:
        """Return every GPU, and every MIG instance that is shared by memory, by position."""
        listed = self.candidate.gpus.gpus
        sizes = self.candidate.gpus.sizes
        held: dict[int, list[PodShare]] = {position: [] for position in sizes}
        for pod in self.pods:
            usage = pod.usage.as_listed(sizes, self.candidate.gpus.elsewhere)
            for position, shares in usage.shares:
                held[position].append(PodShare(pod, shares))
            for position in usage.whole:
                held[position].append(PodShare(pod, sizes[position], whole=True))
        rooms, use = {room.position: room for room in self.candidate.rooms}, self._use()
        return tuple(
            _with_use(gpu, rooms[gpu.position], held[gpu.position], use.get(gpu.position, ())) for gpu in listed
        )

    def instances(self) -> tuple[Instances, ...]:
        """Return the MIG instances that are handed out whole, by resource, with the pods that have them."""
        return whole_instances(self.candidate.gpus.instances, self.instance_pods)

    def instance_views(self, offer: Instances) -> tuple[GpuView, ...]:
        """Return those of one resource as GPUs that are all taken or all free, by position."""
        use = self._use()
        views = []
        for gpu in offer.instances:
            shares, healthy = max(1, gpu.shares), not gpu.closed
            held = [PodShare(pod, shares, whole=True) for pod in offer.holders.get(gpu.uuid, ())]
            room = Room(gpu.position, shares, 0 if held else shares, healthy, whole=bool(held))
            views.append(_with_use(gpu, room, held, use.get(gpu.position, ())))
        return tuple(views)

    def _use(self) -> Mapping[int, Sequence[ContainerUse]]:
        """Return the containers on each GPU, by figures of the present."""
        use: dict[int, list[ContainerUse]] = defaultdict(list)
        for part in self.report.current:
            use[part.gpu].append(part)
        return use

    def unassigned_usage(self) -> Mapping[GpuConsumer, Usage]:
        """Return by pod only its usage of unknown GPUs, or of GPUs that the node does not list."""
        sizes = self.candidate.gpus.sizes
        elsewhere = self.candidate.gpus.elsewhere
        found = ((pod, pod.usage.as_listed(sizes, elsewhere)) for pod in self.pods)
        return {
            pod: Usage(unplaced_shares=usage.unplaced_shares, unplaced_gpus=usage.unplaced_gpus)
            for pod, usage in found
            if usage.unplaced
        }

    def amount(self, shares: int) -> str:
        """Format shares of this node as memory, or as a bare number where their size is unknown."""
        share_mib = self.candidate.gpus.share_mib
        return str(shares) if share_mib is None else format_mib(shares * share_mib)

    def amounts(self, usage: Usage) -> tuple[str | Finding, ...]:
        """Return a pod's usage of this node in words: its shares, its whole GPUs, or both."""
        shares = (self.amount(usage.all_shares),) if usage.all_shares else ()
        return (*shares, note("whole", "{n} whole", n=usage.all_gpus)) if usage.all_gpus else shares

    def states(self, unplaced: int = 0) -> list[State]:
        """Return the states of a node itself, the worst first; `unplaced` are its shares on GPUs that are not known."""
        gpus = self.candidate.gpus
        unknown = sum(number for offer in self.instances() for _, number in offer.unassigned_usage)
        problem = "; ".join(gpus.unread) if gpus.away else gpus.fault
        found = [State(5, "node-problem", Tone.BAD, problem)] if problem else []
        if gpus.away:
            found.append(State(5, "agent-away", Tone.BAD, AWAY))
        if not self.record.ready:
            found.append(State(6, "not-ready", Tone.BAD, "not ready", word="not ready"))
        if self.record.unschedulable:
            found.append(State(8, "cordoned", Tone.WARNING, "cordoned", word="cordoned"))
        if unplaced:
            text = f"{self.amount(unplaced)} on GPUs not known yet"
            found.append(State(14, "gpus-unknown", Tone.PLAIN, text, {"shares": unplaced}))
        if unknown:
            text = f"{unknown} on instances not known yet"
            found.append(State(14, "instances-unknown", Tone.PLAIN, text, {"n": unknown}))
        for states in self.features.node_states:
            found += states(self)
        return sorted(found, key=_RANK)

    def gpu_states(self, view: GpuView) -> list[State]:
        """Return the states of a GPU itself, the worst first."""
        ill, cordon = view.gpu.unhealthy, view.gpu.cordon
        found = [State(3, "unhealthy", Tone.BAD, why := f"unhealthy: {ill}", {"why": ill}, why)] if ill else []
        if cordon is not None:
            said = {"by": cordon.by, "since": cordon.at, "why": cordon.why}
            found.append(State(8, "cordoned", Tone.WARNING, str(cordon), said, word=str(cordon)))
        for states in self.features.gpu_states:
            found += states(self, view)
        return sorted(found, key=_RANK)

    def part_states(self, parts: Sequence[ContainerUse], *, ending: bool = False) -> list[State]:
        """Return the states of a pod's part of a GPU by what its containers use there, the worst first."""
        found = [State(15, "ending", Tone.PLAIN, "ending", word="ending")] if ending else []
        if parts:
            for states in self.features.part_states:
                found += states(self, parts)
        return sorted(found, key=_RANK) if found else found


def _with_use(gpu: ListedGpu, room: Room, held: Sequence[PodShare], parts: Sequence[ContainerUse]) -> GpuView:
    """Return a GPU with the pods that hold it, each with its own containers among `parts`, and the other pods."""
    if not parts:
        return GpuView(gpu, room, tuple(held))
    by_pod: dict[tuple[str, str], list[ContainerUse]] = defaultdict(list)
    for part in parts:
        by_pod[part.namespace, part.pod].append(part)
    known = []
    for each in held:
        use = [part for user in each.pod.users for part in by_pod.pop((each.pod.namespace, user), ())]
        known.append(PodShare(each.pod, each.shares, each.whole, tuple(use)))
    strangers = (tuple(others) for _, others in sorted(by_pod.items()) if any(map(trespasses, others)))
    return GpuView(gpu, room, tuple(known), tuple(strangers))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedNode(NodeRecord):
    """A node with its GPUs, and with what its agent reports of limits and of real use."""

    uid: str = ""
    gpus: NodeGpus = NO_GPUS
    report: NodeReport = NO_REPORT
    report_problems: tuple[str, ...] = ()
    """Why a part of that cannot be read."""


# --- States -----------------------------------------------------------------------------------------------------------

_RANK = attrgetter("rank")
_TONES = {Tone.BAD: "bad", Tone.WARNING: "warn", Tone.PLAIN: "plain"}


@dataclass(frozen=True, slots=True)
class State:
    """What somebody should know of a node, a GPU or a pod's part of one, decided once for terminal and page.

    The code and the parameters say all of it; the page has words of its own for those it knows.
    """

    rank: int
    """Lower for a worse one, of all that a node, a GPU or a part can have."""
    code: str
    tone: Tone
    """BAD: a problem; WARNING: worth a look; PLAIN: good to know."""
    text: str
    """It in words, as a clause about its subject."""
    parameters: Mapping[str, str | int | None] = field(default_factory=dict)
    """None: unknown. Amounts in MiB have names that end so; `since` and `until` are times in RFC 3339."""
    word: str = ""
    """It in a column of a table; empty: it does not stand there."""
    counted: str = ""
    """It after the number of containers in it, in the row of their GPU; empty: it does not stand there."""

    def message(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        known = {key: value for key, value in self.parameters.items() if value not in (None, "")}
        said = {"code": self.code, "tone": _TONES[self.tone], "rank": self.rank, "text": self.text}
        return said | ({"parameters": known} if known else {})


# --- Sums -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of some nodes; memory in MiB where the size of all their shares is known, else in shares."""

    sized: bool
    """Memory is in MiB."""
    nodes: int
    gpus: int
    """A GPU in MIG mode counts once."""
    total: int
    """Memory that is shared or given in whole MIG instances."""
    given: int
    """That of pods, those on unknown GPUs included."""
    used_mib: int | None
    """None: of no GPU is the use known."""
    measured: int
    """The GPUs and MIG instances whose use is known."""
    free: int
    """Memory that can be shared by pods that come now."""
    largest: int
    """The largest part of one GPU that a pod could get now."""
    largest_at: tuple[str, int] | None
    """The node and the position of that GPU."""
    whole: int
    """GPUs that a pod could get whole now."""
    instances: int
    """MIG instances that are given out whole."""
    free_instances: int
    """Those that a pod could get now."""

    @property
    def part(self) -> float:
        """The part of the memory that pods were given."""
        return self.given / self.total if self.total else 0.0


def sums_of(nodes: Iterable[NodeView], gpus: Mapping[str, Sequence[GpuView]] = MappingProxyType({})) -> Sums:
    """Return the sums of some nodes; `gpus` are, by name, those of nodes of which they have been made already."""
    listed = list(nodes)
    sized = all(node.candidate.gpus.share_mib is not None for node in listed)
    units = [(node, (node.candidate.gpus.share_mib or 1) if sized else 1) for node in listed]
    views = [(node, unit, view) for node, unit in units for view in gpus.get(node.name) or node.gpus()]
    offers = [(node, unit, offer) for node, unit in units for offer in node.instances()]
    instances = [(unit * max(1, gpu.shares), offer, gpu) for _, unit, offer in offers for gpu in offer.instances]
    open_now = [(node, unit * view.free, view) for node, unit, view in views if node.takes_pods]
    largest = max(open_now, key=lambda each: each[1], default=None)
    used = [
        used_mib
        for node in listed
        if not node.report.stale
        for gpu in node.candidate.gpus.all
        if (used_mib := node.report.used(gpu.position).used_mib) is not None
    ]
    return Sums(
        sized=sized,
        nodes=len(listed),
        gpus=sum(len({gpu.card or gpu.position for gpu in node.candidate.gpus.all}) for node in listed),
        total=sum(node.total * unit for node, unit in units) + sum(memory for memory, _, _ in instances),
        given=sum(view.used * unit for _, unit, view in views)
        + sum(node.unplaced * unit for node, unit in units)
        + sum(memory for memory, offer, gpu in instances if gpu.uuid in offer.holders)
        # Those of which is not known which, of those that there are.
        + sum(
            unit * max(1, each.instances[0].shares) * (min(each.used, len(each.instances)) - len(each.holders))
            for _, unit, each in offers
        ),
        used_mib=sum(used) if used else None,
        measured=len(used),
        free=sum(free for _, free, _ in open_now),
        largest=0 if largest is None else largest[1],
        largest_at=None if largest is None or not largest[1] else (largest[0].name, largest[2].gpu.position),
        whole=sum(view.room.unused and view.gpu.instance is None for _, _, view in open_now),
        instances=len(instances),
        free_instances=sum(offer.free for node, _, offer in offers if node.takes_pods),
    )


@dataclass(frozen=True, slots=True)
class Ends:
    """Pods that make room on a node if all of them end."""

    pods: tuple[GpuConsumer, ...]
    """By namespace and name."""
    shares: int = 0
    """The sum of their shares; an unknown whole GPU counts as the node's largest."""
    none: bool = False
    """Even the end of all makes no room."""
