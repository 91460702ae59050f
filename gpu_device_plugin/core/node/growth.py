"""Decide what each container of a node is guaranteed beyond its request, or say why it is not more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gpu_device_plugin.core.contract.elastic import (
    NO_WISH,
    Answer,
    Wish,
    answer_to,
    read_answer,
    read_wish,
    readable_answer,
)
from gpu_device_plugin.core.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_PROMISED,
    MalformedAnnotationError,
)
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.model.shares import parse_id
from gpu_device_plugin.core.node.holdings import elastic_gpu
from gpu_device_plugin.core.node.ledger import Growth, Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.contract.elastic import Allowance
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.core.node.ledger import ContainerKey
    from gpu_device_plugin.core.node.node import Node

_CONFIRMED = Hold()
UNDECIDED = "the scheduler has not decided on it yet"


@dataclass(frozen=True, slots=True)
class PodWish:
    """The guarantees that the annotations of a pod ask for, parsed once."""

    pod: Pod
    wish: Wish = NO_WISH
    malformed: str = ""
    """Why the wish cannot be read; then it counts as none."""
    promised: Answer | None = None
    """By the scheduler extender; None: there is none, and the node decides alone."""
    held: Answer = field(default_factory=Answer)
    """As the pod shows it, whoever wrote it."""

    @classmethod
    def of(cls, pod: Pod) -> PodWish:
        """Read the annotations of a pod."""
        annotations, wish, malformed = pod.annotations, NO_WISH, ""
        try:
            wish = read_wish(annotations, MEMORY_GUARANTEE)
        except MalformedAnnotationError as error:
            malformed = str(error)
        try:
            promised = read_answer(annotations, MEMORY_PROMISED)
        except MalformedAnnotationError:
            promised = Answer()
        return cls(pod, wish, malformed, promised, readable_answer(annotations, MEMORY_HELD))

    def beyond(self, container: str, request: int) -> int:
        """Return the shares beyond its request that a container is to be guaranteed: wished for, and promised."""
        wanted = self.wish.of(container) or request
        return max(0, min(wanted, self.promised_to(container, wanted, request)) - request)

    def promised_to(self, container: str, wanted: int, request: int) -> int:
        """Return the shares that a container was promised; without an extender those that its owner wants."""
        return wanted if self.promised is None else self.promised.guarantees.get(container, request)


class Elastic(NamedTuple):
    """A container with shares of one GPU, whose guarantee may change while it runs."""

    wish: PodWish
    container: str
    gpu: SharedGpu
    own: frozenset[str]
    """Its device IDs: its request."""

    @property
    def uuid(self) -> str:
        """Of its GPU."""
        return self.gpu.gpu.uuid

    @property
    def waits(self) -> bool:
        """Whether its owner wants more than the scheduler has promised."""
        request = len(self.own)
        wanted = self.wish.wish.of(self.container) or request
        return wanted > self.wish.promised_to(self.container, wanted, request)

    @property
    def key(self) -> ContainerKey:
        """The container, as the ledger knows it."""
        return self.wish.pod.kubelet_uid, self.container

    @property
    def beyond(self) -> int:
        """The shares beyond its request that it is to be guaranteed."""
        return self.wish.beyond(self.container, len(self.own))

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Who grows first: pods of a higher priority, then older ones."""
        pod = self.wish.pod
        return -pod.priority, pod.created, pod.uid, self.container


@dataclass(frozen=True, slots=True)
class Resize:
    """What the containers of a node are to be guaranteed beyond their requests."""

    grown: Mapping[ContainerKey, Growth]
    refused: Mapping[ContainerKey, str] = field(default_factory=dict)
    """Why a container is not guaranteed more, as a sentence."""
    unknown: frozenset[str] = frozenset()
    """The namespaces whose allowance has to be known before some containers can grow."""


def elastics(
    holds: Iterable[DeviceHold], wishes: Mapping[str, PodWish], node: Node
) -> Mapping[str, tuple[Elastic, ...]]:
    """Return the containers that may grow or shrink by the UID of their pod, for pods with `wishes` that have devices.

    Pods with devices of which the ledger does not know, or which it may be about to free, are left out.
    """
    found: dict[str, tuple[Elastic, ...]] = {}
    uncertain: set[str] = set()
    for hold in holds:
        if (wish := wishes.get(hold.pod_uid)) is None:
            continue
        there = found.setdefault(hold.pod_uid, ())
        if (shared := elastic_gpu(hold, wish.pod, node.shares)) is not None:
            found[hold.pod_uid] = (*there, Elastic(wish, hold.container, shared, hold.device_ids))
            if any(node.ledger.holds.get(name) != _CONFIRMED for name in hold.device_ids):
                uncertain.add(hold.pod_uid)
    return {uid: containers for uid, containers in found.items() if uid not in uncertain}


def taken_over(saved: Mapping[ContainerKey, Growth], holds: Iterable[DeviceHold]) -> Mapping[ContainerKey, Growth]:
    """Return what a former agent has `saved` for the containers that still hold shares of their GPU."""
    own: dict[tuple[ContainerKey, str], frozenset[str]] = {}
    for hold in holds:
        for name in hold.device_ids:
            uuid, number = parse_id(name)
            if number is not None:
                at = (hold.pod_uid, hold.container), uuid
                own[at] = own.get(at, frozenset()) | {name}
    return {
        key: replace(growth, own=own[key, growth.uuid]) for key, growth in saved.items() if (key, growth.uuid) in own
    }


def owned(grown: Mapping[ContainerKey, Growth], holds: Iterable[DeviceHold]) -> Mapping[ContainerKey, Growth]:
    """Return guarantees beyond requests without the device IDs that the kubelet's records show for other pods alone.

    A container may have been found to grow by a record that was older than its end.
    """
    shown: dict[str, set[str]] = {}
    for hold in holds:
        for name in hold.device_ids:
            shown.setdefault(name, set()).add(hold.pod_uid)
    return {
        key: growth.without([name for name in growth.own if key[0] not in shown.get(name, {key[0]})])
        for key, growth in grown.items()
    }


def fitting(node: Node) -> Mapping[ContainerKey, Growth]:
    """Return the guarantees beyond requests without those for which their GPU has no room.

    It has none if an agent that did not know of them gave their shares to others. On a GPU that is excluded now, nobody
    else gets them.
    """
    grown = dict(node.ledger.grown)
    for shared in node.shares.gpus:
        excess = 0 if shared.vacant else node.use(shared).taken - len(shared.shares)
        for key in sorted(grown, reverse=True):
            if excess > 0 and grown[key].uuid == shared.gpu.uuid:
                less = min(excess, grown[key].shares)
                grown[key] = replace(grown[key], shares=grown[key].shares - less)
                excess -= less
    return {key: growth for key, growth in grown.items() if growth.shares > 0}


def resize(
    node: Node,
    containers: Sequence[Elastic],
    expected: tuple[Mapping[int, int], int],
    allowances: Mapping[str, Allowance | str],
) -> Resize:
    """Decide what each container is guaranteed beyond its request.

    Those that shrink give their shares back first; then as many grow as there is room for, each as far as it wants or
    not at all. What a container has stays if it is not among `containers`: its pod is not known.

    Args:
        node: the node with all that counts now.
        containers: of pods that have not ended.
        expected: the shares that waiting pods will get, see `matching.expected`.
        allowances: by namespace, without what is in use; or why it is not known, as a sentence.
    """
    grown = dict(fitting(node))
    for each in containers:
        held = grown.get(each.key)
        if held is not None and each.beyond < held.shares and held.uuid == each.uuid:
            grown[each.key] = replace(held, shares=each.beyond)
    room = _Room(node, grown, containers, expected)
    refused: dict[ContainerKey, str] = {}
    unknown: set[str] = set()
    for each in sorted(containers, key=lambda each: each.order):
        more = each.beyond - room.held(each)
        if more <= 0:
            continue
        namespace = each.wish.pod.namespace
        why = room.why_not(each, more)
        if not why and namespace not in allowances:
            unknown.add(namespace)
        elif why := why or room.not_allowed(allowances[namespace], more):
            refused[each.key] = why
        else:
            room.take(each, more)
    return Resize({key: growth for key, growth in room.grown.items() if growth.shares > 0}, refused, frozenset(unknown))


class _Room:
    """The room of the GPUs, and the allowances of the namespaces, while one container after the other grows."""

    def __init__(
        self,
        node: Node,
        grown: dict[ContainerKey, Growth],
        containers: Iterable[Elastic],
        expected: tuple[Mapping[int, int], int],
    ) -> None:
        self.grown = grown
        self._node = node
        promised, anywhere = expected
        extra = Counter[str]()
        for growth in grown.values():
            extra[growth.uuid] += growth.shares
        self._free = {
            shared.gpu.uuid: len(shared.shares)
            - len(node.use(shared).shares)
            - extra[shared.gpu.uuid]
            - promised.get(shared.position, 0)
            - anywhere
            for shared in node.shares.gpus
        }
        self._used = Counter[str]()
        for each in containers:
            self._used[each.wish.pod.namespace] += self.held(each)

    def held(self, each: Elastic) -> int:
        """Return what a container has beyond its request."""
        growth = self.grown.get(each.key)
        return 0 if growth is None else growth.shares

    def why_not(self, each: Elastic, more: int) -> str:
        """Return why the GPU of a container has no room for so many more shares; empty if it has."""
        node, shared, uuid = self._node, each.gpu, each.uuid
        ledger, block, free = node.ledger, node.block(uuid), max(0, self._free[uuid])
        moved = each.key in self.grown and self.grown[each.key].uuid != uuid
        obstacles = (
            (each.wish.pod.deleting, "its pod is being deleted"),
            (bool(block.everyone), f"{shared.name} is out of service: {block.everyone}"),
            (bool(block.new_pods), f"{shared.name} is {block.new_pods}"),
            (
                moved or not ledger.certain or uuid in ledger.foreign or ledger.use(uuid).whole,
                f"it is not known yet what of {shared.name} is free",
            ),
            (
                len(each.own) + each.beyond > len(shared.shares),
                f"{shared.name} has {self._amount(len(shared.shares))} in all",
            ),
            (
                more > free,
                (
                    f"{shared.name} has {self._amount(free)} left that is promised to nobody, and {self._amount(more)} "
                    "more are asked for"
                ),
            ),
        )
        return next((why for true, why in obstacles if true), "")

    def _amount(self, shares: int) -> str:
        return format_mib(shares * self._node.shares.share_mib)

    def not_allowed(self, allowance: Allowance | str, more: int) -> str:
        """Return why the namespace of a container does not let it grow; empty if it does."""
        if isinstance(allowance, str):
            return allowance
        return replace(allowance, used=self._used[allowance.namespace]).refusal(more)

    def take(self, each: Elastic, more: int) -> None:
        """Let a container grow."""
        self.grown[each.key] = Growth(each.uuid, self.held(each) + more, each.own)
        self._free[each.uuid] -= more
        self._used[each.wish.pod.namespace] += more


def answer(
    wish: PodWish,
    containers: Sequence[Elastic],
    grown: Mapping[ContainerKey, Growth],
    refused: Mapping[ContainerKey, str],
) -> Answer | None:
    """Return what the agent has to say of the guarantees of a pod: `MEMORY_HELD`; None: nothing.

    Args:
        wish: that of the pod.
        containers: those of the pod that may grow.
        grown: what is held beyond requests now.
        refused: why containers are not guaranteed more.
    """
    pod, names = wish.pod, {each.container for each in containers}
    held = {
        each.container: len(each.own) + grown[each.key].shares
        for each in containers
        if each.key in grown and grown[each.key].uuid == each.uuid
    }
    if MEMORY_GUARANTEE not in pod.annotations and not held:
        return None
    decided = wish.promised is None or wish.promised.answers(pod.annotations)
    waits = not decided and any(each.waits for each in containers)
    if waits and held == wish.held.guarantees:
        # The extender is about to decide. What was said of the wish before stays meanwhile.
        return wish.held if MEMORY_HELD in pod.annotations else None
    why = [
        wish.malformed,
        *wish.wish.in_vain(names),
        "" if names or wish.wish.every is None else "no container has shares of one GPU, which alone can grow",
        wish.promised.why if wish.promised is not None and decided else "",
        UNDECIDED if waits else "",
        *(refused[each.key] for each in containers if each.key in refused),
    ]
    return answer_to(pod.annotations, held, "; ".join(dict.fromkeys(filter(None, why))))
