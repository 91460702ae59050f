"""What `core.fitting` and `core.scoring` say of thousands of nodes, in the time that a scheduler waits.

They look at node by node. Here, nodes of which all is the same that an answer depends on get one answer, and an answer
that depends on more is remembered for as long as the node stays as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from operator import ge
from typing import TYPE_CHECKING, Generic, TypeVar

from gpu_device_plugin.core.fitting import Unfit, fit, unfit
from gpu_device_plugin.core.policy import POLICIES
from gpu_device_plugin.core.resources import Kind
from gpu_device_plugin.core.scoring import points_for, score, simple, sparing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from gpu_device_plugin.core.asking import Ask
    from gpu_device_plugin.core.candidate import Candidate
    from gpu_device_plugin.core.placing import Demand

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

_MOST_ASKS = 32
"""So many different pods are remembered. At 5,000 nodes each takes half a megabyte."""
_MOST_ANSWERS = 50_000
"""So many answers of one kind are remembered; then all are forgotten."""


class Judge:
    """Judges nodes for pods. Whatever it remembers, it answers as the core does."""

    def __init__(self) -> None:
        self._verdicts: _Latest[Ask, Callable[[Candidate], Unfit | None]] = _Latest(_MOST_ASKS)
        self._scores: _Latest[tuple[Ask, str, str], Callable[[Candidate], int]] = _Latest(_MOST_ASKS)
        self._groups = _Groups()

    def __repr__(self) -> str:
        return f"<Judge: remembers {len(self._verdicts)} pods>"

    def verdict(self, ask: Ask) -> Callable[[Candidate], Unfit | None]:
        """Return `core.fitting.unfit` for one pod."""
        return self._verdicts.get(ask, lambda: _verdict(ask))

    def score(self, ask: Ask, node_policy: str, gpu_policy: str) -> Callable[[Candidate], int]:
        """Return `core.scoring.score` for one pod."""
        return self._scores.get(
            (ask, node_policy, gpu_policy), lambda: _scores(ask, node_policy, gpu_policy, self._groups)
        )

    def prepare(self, nodes: Iterable[Candidate]) -> None:
        """Look at nodes once, so that the first pod that wants whole GPUs need not wait for that."""
        for node in nodes:
            self._groups.unused(node)


# --- Remembering -----------------------------------------------------------------------------------------------------


class _Latest(Generic[K, V]):
    """The values that were used last, a bounded number of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, make: Callable[[], V]) -> V:
        value = self._values.pop(key, None)
        if value is None:
            value = make()
        self._values[key] = value
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


def _kept(answer: Callable[[Candidate], V]) -> Callable[[Candidate], V]:
    """Ask again only for a node that is not as it was. Candidates are replaced, never changed."""
    known: dict[str, tuple[Candidate, V]] = {}

    def kept(node: Candidate) -> V:
        found = known.get(node.name)
        if found is not None and found[0] is node:
            return found[1]
        if len(known) >= _MOST_ANSWERS:
            known.clear()
        value = answer(node)
        known[node.name] = (node, value)
        return value

    return kept


def _alike(answer: Callable[[Candidate], V]) -> Callable[[Hashable, Candidate], V]:
    """Ask once for all nodes that are equal in whatever the answer depends on, which is the key."""
    known: dict[Hashable, V | _Unknown] = {}

    def alike(key: Hashable, node: Candidate) -> V:
        found = known.get(key, _UNKNOWN)
        if isinstance(found, _Unknown):
            if len(known) >= _MOST_ANSWERS:
                known.clear()
            found = known[key] = answer(node)
        return found

    return alike


class _Unknown:
    """Stands for an answer, which may be None."""


_UNKNOWN = _Unknown()


# --- Does it fit? ----------------------------------------------------------------------------------------------------


def _verdict(ask: Ask) -> Callable[[Candidate], Unfit | None]:
    """Return `unfit` for one pod."""
    demands = [part.demand for part in ask.parts]
    if not demands:
        return lambda _node: None
    plain = _verdict_on_one(ask, demands[0]) if len(demands) == 1 else _verdict_on_several(ask, demands)
    if len(demands) == 1 and not ask.wishes.choosy:
        return plain
    none = _alike(lambda node: unfit(ask, node))
    return _kept(
        _by_wishes(
            ask,
            every=plain,
            some=lambda node: unfit(ask, node),
            none=lambda node: none((len(node.rooms), node.gpus.divided, node.problem), node),
        )
    )


def _verdict_on_one(ask: Ask, demand: Demand) -> Callable[[Candidate], Unfit | None]:
    whole = demand.kind is Kind.COUNT
    each, last = demand.amount // demand.gpus, demand.gpus - 1
    alike = _alike(lambda node: unfit(ask, node))

    def verdict(node: Candidate) -> Unfit | None:
        numbers, gpus = node.summary, node.gpus
        frees = numbers.frees
        fits = numbers.idle >= each if whole else last < len(frees) and frees[last] >= each
        if fits and not node.problem and not gpus.divided:
            return None
        sizes, rooms = numbers.sizes, len(node.rooms)
        return alike((fits, not frees, sizes, rooms, gpus.share_mib, gpus.divided, node.problem), node)

    return verdict


def _verdict_on_several(ask: Ask, demands: Sequence[Demand]) -> Callable[[Candidate], Unfit | None]:
    ways = [(demand.kind is Kind.COUNT, demand.amount // demand.gpus, demand.gpus - 1) for demand in demands]
    # Containers each of which wants memory of one GPU, the largest first.
    single = all(demand.kind is Kind.MEMORY and demand.gpus == 1 for demand in demands)
    amounts = sorted((demand.amount for demand in demands), reverse=True)
    at_once = sum(amounts)
    alike = _alike(lambda node: unfit(ask, node))

    def verdict(node: Candidate) -> Unfit | None:
        numbers, gpus = node.summary, node.gpus
        frees = numbers.frees
        fits = single and bool(frees) and (frees[0] >= at_once or _each_its_own(amounts, frees))
        if fits and not node.problem and not gpus.divided:
            return None
        alone = [
            numbers.idle >= each if whole else last < len(frees) and frees[last] >= each for whole, each, last in ways
        ]
        # Two containers that fit alone, and neither on one GPU nor on two, fit nowhere. More have to be tried.
        if all(alone) and not fits and not (single and len(ways) == 2):
            return unfit(ask, node)
        key = (fits, *alone, not frees, numbers.sizes, len(node.rooms), gpus.share_mib, gpus.divided, node.problem)
        return alike(key, node)

    return verdict


def _each_its_own(amounts: Sequence[int], frees: Sequence[int]) -> bool:
    """Whether there is a GPU for each amount, both the most first.

    `fit` then finds a way, whatever it prefers: before it places the n-th amount it has used less than n GPUs, and any
    of the n emptiest would do.
    """
    return len(frees) >= len(amounts) and all(map(ge, frees, amounts))


def _by_wishes(
    ask: Ask, *, every: Callable[[Candidate], V], some: Callable[[Candidate], V], none: Callable[[Candidate], V]
) -> Callable[[Candidate], V]:
    """Answer by whether a pod's annotations allow every GPU of a node, some or none."""
    wishes = ask.wishes
    if not wishes.choosy:
        return every
    by_uuid = bool(wishes.use_uuids or wishes.avoid_uuids)
    models: dict[str, bool] = {}

    def model(name: str) -> bool:
        if name not in models:
            models[name] = wishes.allow_model(name)
        return models[name]

    def answer(node: Candidate) -> V:
        gpus = node.gpus.gpus
        allowed = {model(name) for name in {gpu.model for gpu in gpus}}
        if by_uuid and True in allowed:
            allowed = {model(gpu.model) and wishes.allow_uuid(gpu.uuid) for gpu in gpus}
        return (some if len(allowed) > 1 else none if False in allowed else every)(node)

    return answer


# --- How well? -------------------------------------------------------------------------------------------------------


def _scores(ask: Ask, node_policy: str, gpu_policy: str, groups: _Groups) -> Callable[[Candidate], int]:
    """Return `score` for one pod."""

    def exactly(node: Candidate) -> int:
        return score(ask, node, node_policy, gpu_policy)

    demands = [part.demand for part in ask.parts]
    if not demands:
        return lambda _node: 0
    if simple(ask):
        return _scores_of_one(demands[0].amount, _alike(exactly))
    if all(demand.kind is Kind.MEMORY for demand in demands):
        every = _scores_of_memory(ask, demands, node_policy, gpu_policy)
    elif len(demands) == 1:
        every = groups.scores(ask, ask.wishes.node_policy or node_policy)
    else:
        every = exactly
    return _kept(_by_wishes(ask, every=every, some=exactly, none=lambda _node: 0))


def _scores_of_one(wanted: int, alike: Callable[[Hashable, Candidate], int]) -> Callable[[Candidate], int]:
    def scores(node: Candidate) -> int:
        numbers = node.summary
        frees = numbers.frees
        fits, fits_shared = bool(frees) and frees[0] >= wanted, numbers.best_shared >= wanted
        return alike((numbers.used, numbers.total, fits, fits_shared, not numbers.idle, node.policy), node)

    return scores


def _scores_of_memory(
    ask: Ask, demands: Sequence[Demand], node_policy: str, gpu_policy: str
) -> Callable[[Candidate], int]:
    policy, wished = ask.wishes.node_policy or node_policy, ask.wishes.gpu_policy
    order = sorted(((demand.gpus, demand.amount // demand.gpus) for demand in demands), reverse=True)
    wanted, gpus_wanted = sum(demand.amount for demand in demands), sum(demand.gpus for demand in demands)

    def scores(node: Candidate) -> int:
        rank = POLICIES[wished or node.policy or gpu_policy]
        frees = {room.position: room.free for room in node.rooms if room.healthy and not room.whole}
        shared = {room.position for room in node.rooms if room.shared}
        opened = 0
        for number, each in order:
            fitting = sorted((rank(free), position) for position, free in frees.items() if free >= each)[:number]
            if len(fitting) < number or node.problem or node.gpus.divided:
                return score(ask, node, node_policy, gpu_policy)
            for _, position in fitting:
                frees[position] -= each
                opened += position in shared
        return points_for(policy, (node.summary.used + wanted) / node.summary.total, opened / gpus_wanted)

    return scores


class _Groups:
    """Which GPUs are unused, and which of them a pod would get whole."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[object, int]] = {}
        self._numbers = count()
        self._shape = _alike(lambda _node: next(self._numbers))
        self.unused = _kept(self._look)

    def scores(self, ask: Ask, policy: str) -> Callable[[Candidate], int]:
        amount = ask.parts[0].demand.amount

        def place(node: Candidate) -> tuple[int, float] | None:
            found = fit(ask, node, next(iter(POLICIES)))
            if isinstance(found, Unfit):
                return None
            return sum(shares for each in found.placements for _, shares in each.shares), sparing_of(found, node)

        alike = _alike(place)

        def scores(node: Candidate) -> int:
            numbers = node.summary
            if numbers.idle < amount:
                return 0
            found = alike((self.unused(node), node.problem), node)
            return 0 if found is None else points_for(policy, (numbers.used + found[0]) / numbers.total, found[1])

        return scores

    def _look(self, node: Candidate) -> Hashable:
        """Return all that decides which whole GPUs a pod gets."""
        gpus = node.gpus
        known = self._shapes.get(node.name)
        if known is None or known[0] is not gpus:
            if len(self._shapes) >= _MOST_ANSWERS:
                self._shapes.clear()
            like = (gpus.divided, gpus.links, tuple([(gpu.position, gpu.shares) for gpu in gpus.gpus]))
            known = self._shapes[node.name] = (gpus, self._shape(like, node))
        return known[1], tuple([r.position for r in node.rooms if r.healthy and not r.shared and not r.whole])
