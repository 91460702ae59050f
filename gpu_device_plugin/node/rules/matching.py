"""Find the waiting container that a call of the kubelet belongs to.

No call names a pod. But the kubelet admits pods one after the other, in the order in which they were bound to the node,
and calls for the containers of one pod consecutively, init containers first. A call therefore belongs to the pod whose
devices are partly allocated, or else to the pod bound first. Nothing else distinguishes two containers that request the
same amount. Of two that are told the same, each may get the answer for the other, unless one of them would get a GPU
that its owner excludes, or memory of another number of GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.model.contract.promises import Promise
from gpu_device_plugin.model.resources import Kind


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """The request of one container of a waiting pod for one resource."""

    container: str
    kind: Kind
    amount: int
    init: bool = False
    """An ordinary init container: the containers after it reuse its devices."""
    promise: Promise | None = None
    served: bool = False
    allowed: frozenset[int] | None = None
    """Positions of the GPUs that the pod's owner allows; None: any."""

    @property
    def split(self) -> int:
        """The number of GPUs with equal parts of its memory; more than one only where a scheduler promised it."""
        return self.promise.split(self.amount) if self.kind is Kind.MEMORY and self.promise is not None else 1


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod bound to this node, some of whose containers have no devices yet."""

    uid: str
    name: str
    """With its namespace, for people."""
    requests: tuple[ContainerRequest, ...]
    """In the order of the kubelet's calls."""
    total_shares: int = 0
    """gpu-mem of all its app containers."""
    policy: str | None = None
    """The owner's policy for the choice of a GPU, a key of `POLICIES`; None: the node's policy."""
    frameworks: tuple[str, ...] = ()
    """The frameworks that its owner names, see `model.contract.variables`."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those by which its owner wants other memory than it requests, see `features.elastic.contract`."""

    @property
    def namespace(self) -> str:
        """That in its name."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the kubelet."""

    kind: Kind
    amount: int
    free: Mapping[int, int]
    """The number of available device IDs by GPU position, those of `must` included."""
    must: frozenset[int] = frozenset()
    """GPUs on which devices of an init container of the same pod must be reused."""
    names_pod: bool = False
    """The answer has the name or UID of the pod in it, so that it is right for no other."""


@dataclass(frozen=True, slots=True)
class Match:
    """The container that a call belongs to."""

    pod: WaitingPod
    request: ContainerRequest

    @property
    def asks_both(self) -> bool:
        """Whether this container asks for shares and for whole GPUs, which it cannot have at once."""
        return any(w.container == self.request.container and w.kind is not self.request.kind for w in self.pod.requests)

    @property
    def after_init(self) -> bool:
        """Whether an init container of the same pod was served before."""
        return any(request.init and request.served for request in self.pod.requests)


@dataclass(frozen=True, slots=True)
class Matched:
    """The container that a call belongs to, as far as it is known, and the GPUs reserved for other containers."""

    match: Match | None
    """None if no waiting pod explains the call."""
    reserved: Mapping[int, int]
    """Shares by GPU position that are promised to other containers and not allocated yet."""
    whole: frozenset[int] = frozenset()
    """GPUs promised as a whole to other containers and not allocated yet."""


def match(call: Call, waiting: Sequence[WaitingPod], begun: str | None = None) -> Matched:
    """Find the container that a call belongs to.

    `waiting` are the pods in the order in which they were bound to the node; `begun` is the UID of the pod that last
    got devices and may still need more.
    """
    ordered = sorted(waiting, key=lambda pod: pod.uid != begun)
    candidates = [Match(pod, request) for pod in ordered if (request := _next(pod, call)) is not None]
    promised = _Promised(waiting)
    # In the right order the first candidate asks. A candidate chosen instead swaps its promise with that of the first.
    equal = candidates[:1]
    if not call.names_pod:
        equal += [c for c in candidates[1:] if _told_the_same(c, equal[0]) and _may_swap(c.request, equal[0].request)]
    fitting = [c for c in equal if c.request.promise is None or _fits(call, c.request.promise)]
    kept = (c for c in fitting if _others_keep(call, c, promised))
    chosen = next(kept, None) or next(iter(fitting or candidates), None)
    reserved, whole = promised.to_others_than(chosen)
    return Matched(chosen, reserved, whole)


def expected(waiting: Sequence[WaitingPod]) -> tuple[Mapping[int, int], int]:
    """Return the shares that waiting pods will get: by GPU position what they were promised, and what they were not."""
    promised, _ = _Promised(waiting).to_others_than(None)
    open_requests = (request for pod in waiting for request in pod.requests if not request.served)
    return promised, sum(r.amount for r in open_requests if r.kind is Kind.MEMORY and r.promise is None)


def _next(pod: WaitingPod, call: Call) -> ContainerRequest | None:
    """Return the request of the pod's next unserved container that equals the call's.

    The kubelet calls for a container's resources in random order, hence all requests of that container are compared.
    """
    first = next((request.container for request in pod.requests if not request.served), None)
    return next(
        (
            request
            for request in pod.requests
            if request.container == first
            and not request.served
            and request.kind is call.kind
            and request.amount == call.amount
        ),
        None,
    )


def _told_the_same(one: Match, other: Match) -> bool:
    """Return whether the answers for two containers differ in nothing but their GPUs."""
    by_name = one.request.container == other.request.container or not one.pod.annotations
    return by_name and all(
        getattr(one.pod, name) == getattr(other.pod, name)
        for name in ("namespace", "total_shares", "frameworks", "annotations")
    )


def _may_swap(one: ContainerRequest, other: ContainerRequest) -> bool:
    """Return whether each of the two may have the GPUs that the other was promised."""
    return (
        one.split == other.split and names_only(one.promise, other.allowed) and names_only(other.promise, one.allowed)
    )


def names_only(promise: Promise | None, allowed: Collection[int] | None) -> bool:
    """Return whether a promise names only GPUs that are `allowed`; None allows all."""
    return promise is None or allowed is None or all(position in allowed for position, _ in promise.shares)


def _fits(call: Call, promise: Promise) -> bool:
    needed = {position: 1 if call.kind is Kind.COUNT else shares for position, shares in promise.shares}
    return call.must.issubset(needed) and all(call.free.get(position, 0) >= ids for position, ids in needed.items())


def _others_keep(call: Call, candidate: Match, promised: _Promised) -> bool:
    """Return whether every other promise can still be kept after `candidate` got its own."""
    if call.kind is Kind.COUNT or candidate.request.promise is None:
        return True
    reserved, _ = promised.to_others_than(candidate)
    return all(
        call.free.get(position, 0) - shares >= reserved.get(position, 0)
        for position, shares in candidate.request.promise.shares
    )


class _Promised:
    """The promises not yet kept, added up once over all waiting pods, however many candidates there are."""

    def __init__(self, waiting: Iterable[WaitingPod]) -> None:
        self._shares: Counter[int] = Counter()
        self._whole: Counter[int] = Counter()
        for pod in waiting:
            shares, whole = _outstanding(pod)
            self._shares.update(shares)
            self._whole.update(whole)

    def to_others_than(self, chosen: Match | None) -> tuple[dict[int, int], frozenset[int]]:
        """Return shares by GPU, and whole GPUs, without those that `chosen` gets now."""
        shares, whole = self._shares.copy(), self._whole.copy()
        if chosen is not None:
            before, after = _outstanding(chosen.pod), _outstanding(chosen.pod, chosen.request)
            shares.subtract(before[0])
            shares.update(after[0])
            whole.subtract(before[1])
            whole.update(after[1])
        return {position: count for position, count in shares.items() if count > 0}, frozenset(+whole)


def _outstanding(pod: WaitingPod, given: ContainerRequest | None = None) -> tuple[Mapping[int, int], Sequence[int]]:
    """Return the promises to a pod that remain once `given` is served: shares by GPU, and whole GPUs."""
    served = {(w.container, w.kind) for w in pod.requests if w.served or w is given}
    whole = [
        position
        for w in pod.requests
        if w.kind is Kind.COUNT and w.promise is not None and (w.container, w.kind) not in served
        for position, _ in w.promise.shares
    ]
    return _still_needed(pod, served), whole


def _still_needed(pod: WaitingPod, served: set[tuple[str, Kind]]) -> Mapping[int, int]:
    """Return the further shares by GPU that a pod's promises need beside those that its init containers hand on."""
    peak: Counter[int] = Counter()
    have: Counter[int] = Counter()
    handed_on: Counter[int] = Counter()
    running: Counter[int] = Counter()
    for request in pod.requests:
        if request.kind is not Kind.MEMORY or request.promise is None:
            continue
        for position, count in request.promise.shares:
            done = (request.container, request.kind) in served
            if request.init:
                peak[position] = max(peak[position], running[position] + count)
                if done:
                    handed_on[position] = max(handed_on[position], have[position] + count)
            else:
                running[position] += count
                peak[position] = max(peak[position], running[position])
                if done:
                    have[position] += count
    return {position: count - max(have[position], handed_on[position]) for position, count in peak.items()}
