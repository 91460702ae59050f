"""What `core.fitting` and `core.scoring` say of thousands of nodes, in the time that a scheduler waits.

They look at node by node. Here, nodes of which all is the same that an answer depends on get one answer, an answer that
depends on more is remembered for as long as the node stays as it is, and one request tries only so much.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import count
from operator import ge
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from gpu_device_plugin.core.fitting import Packing, Unfit, fit, pack, unfit
from gpu_device_plugin.core.policy import POLICIES
from gpu_device_plugin.core.resources import Kind
from gpu_device_plugin.core.scoring import points_for, score, simple, sparing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from gpu_device_plugin.core.asking import Ask
    from gpu_device_plugin.core.candidate import Candidate
    from gpu_device_plugin.core.fitting import Pack
    from gpu_device_plugin.core.placing import Demand

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
_Begin: TypeAlias = "Callable[[], Callable[[Candidate], V]]"

_MOST_ASKS = 32
"""So many different pods are remembered. At 5,000 nodes each takes half a megabyte."""
_MOST_ANSWERS = 50_000
"""So many answers of one kind are remembered; then all are forgotten."""
_MOST_STEPS = 5000
"""So many steps one request may take to try how containers go together; a step takes some microseconds."""
_STEPS_AT_LEAST = 1
"""What a try takes that ends before its first step, in the same measure."""
_STEPS_OF_A_SCORE = 25
"""What a score takes for which the whole pod is placed, likewise."""
_MOST_PACKINGS = 10_000
"""So many tries are remembered for one pod."""

_SOME_WAY, _NO_WAY = Packing((), 0), Packing(None, 0)

UNTRIED = Unfit(
    "whether its GPUs have room for all containers of the pod together takes longer to find out", lasting=False
)


class Judge:
    """Judges nodes for pods.

    Whatever it remembers, it answers as the core does, with one exception: where a pod of several containers could go
    together in so many ways that one request cannot try them all, the nodes left over do not fit (`UNTRIED`), and are
    scored by how full they get. What was tried is remembered, so that the next request comes further.
    """

    def __init__(self) -> None:
        self._nodes = _Versions()
        self._verdicts: _LastUsed[Ask, _Begin[Unfit | None]] = _LastUsed(_MOST_ASKS)
        self._scores: _LastUsed[tuple[Ask, str, str], _Begin[int]] = _LastUsed(_MOST_ASKS)
        self._groups = _Groups(self._nodes)

    def __repr__(self) -> str:
        return f"<Judge: remembers {len(self._verdicts)} pods>"

    def verdict(self, ask: Ask) -> Callable[[Candidate], Unfit | None]:
        """Return `core.fitting.unfit` for one pod, to be asked by one request."""
        return self._verdicts.get(ask, lambda: _verdict(ask, self._nodes))()

    def score(self, ask: Ask, node_policy: str, gpu_policy: str) -> Callable[[Candidate], int]:
        """Return `core.scoring.score` for one pod, to be asked by one request."""
        return self._scores.get(
            (ask, node_policy, gpu_policy), lambda: _scores(ask, node_policy, gpu_policy, self._groups, self._nodes)
        )()

    def prepare(self, nodes: Iterable[Candidate]) -> None:
        """Look at nodes once, so that the first pod that wants whole GPUs need not wait for that."""
        for node in nodes:
            self._groups.unused(node)


# --- How much is tried ------------------------------------------------------------------------------------------------


class _TooLongError(Exception):
    """This request has no more steps; of this node nothing may be remembered."""


class _Effort:
    """The steps that one request has left."""

    def __init__(self) -> None:
        self._left = 0

    def spend(self, steps: int) -> None:
        self._left -= steps

    def check(self) -> None:
        if self._left <= 0:
            raise _TooLongError

    def bound(self, answer: Callable[[Candidate], V], otherwise: Callable[[Candidate], V]) -> _Begin[V]:
        """Return what gives a request its steps, and its way to ask: `otherwise` is the answer when none are left."""

        def bounded(node: Candidate) -> V:
            try:
                return answer(node)
            except _TooLongError:
                return otherwise(node)

        def begin() -> Callable[[Candidate], V]:
            self._left = _MOST_STEPS
            return bounded

        return begin


# --- Remembering -----------------------------------------------------------------------------------------------------


class _LastUsed(Generic[K, V]):
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


class _Versions:
    """A number for every state of a node, by which others remember it without holding it.

    Held is only the newest of each node, and no node that has not been asked about for long: it may be gone.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._recent: dict[str, tuple[object, int]] = {}
        self._older: dict[str, tuple[object, int]] = {}
        self._asked = 0

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def number(self, name: str, state: object) -> int:
        """Return the number of one state. States are replaced, never changed."""
        self._asked += 1
        found = self._recent.get(name)
        if found is None or found[0] is not state:
            found = self._older.pop(name, None)
            if found is None or found[0] is not state:
                found = state, next(self._numbers)
            self._recent[name] = found
            if self._asked > _MOST_ANSWERS:
                self._recent, self._older, self._asked = {}, self._recent, 0
        return found[1]


def _kept(
    answer: Callable[[Candidate], V],
    versions: _Versions,
    state: Callable[[Candidate], object] = lambda node: node,
) -> Callable[[Candidate], V]:
    """Ask again only for a node that is not as it was."""
    known: dict[str, tuple[int, V]] = {}

    def kept(node: Candidate) -> V:
        number = versions.number(node.name, state(node))
        found = known.get(node.name)
        if found is not None and found[0] == number:
            return found[1]
        if len(known) > 2 * len(versions):
            known.clear()
        value = answer(node)
        known[node.name] = number, value
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


def _verdict(ask: Ask, nodes: _Versions) -> _Begin[Unfit | None]:
    """Return `unfit` for one pod."""
    demands = tuple(part.demand for part in ask.parts)
    if not demands:
        return lambda: lambda _node: None
    if len(demands) == 1 and not ask.wishes.choosy:
        plain = _verdict_on_one(ask, demands[0])
        return lambda: plain
    effort = _Effort()
    packing = _packing(demands, effort)
    every = _verdict_on_one(ask, demands[0]) if len(demands) == 1 else _verdict_on_several(ask, demands, packing)
    none = _alike(lambda node: unfit(ask, node))
    answer = _by_wishes(
        ask,
        every=every,
        some=lambda node: unfit(ask, node, packing),
        none=lambda node: none((len(node.rooms), node.gpus.divided, node.problem), node),
    )
    return effort.bound(_kept(answer, nodes), lambda _node: UNTRIED)


def _packing(demands: tuple[Demand, ...], effort: _Effort) -> Pack:
    """Return `core.fitting.pack` for the demands of one pod, which tries GPUs with as much free only once."""
    known: dict[Hashable, Packing] = {}
    whole = any(demand.kind is Kind.COUNT for demand in demands)

    def packing(demands: tuple[Demand, ...], frees: tuple[int, ...], idle: tuple[int, ...]) -> Packing:
        key = tuple(sorted(frees)), tuple(sorted(idle)) if whole else ()
        found = known.get(key)
        if found is None:
            effort.check()
            if len(known) >= _MOST_PACKINGS:
                known.clear()
            tried = pack(demands, frees, idle)
            effort.spend(tried.steps + _STEPS_AT_LEAST)
            # Of a way only that there is one counts here.
            found = known[key] = _NO_WAY if tried.taken is None else _SOME_WAY
        return found

    return packing


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


def _verdict_on_several(ask: Ask, demands: tuple[Demand, ...], packing: Pack) -> Callable[[Candidate], Unfit | None]:
    ways = [(demand.kind is Kind.COUNT, demand.amount // demand.gpus, demand.gpus - 1) for demand in demands]
    whole = any(is_whole for is_whole, _, _ in ways)
    # Containers each of which wants memory of one GPU, the largest first.
    single = all(demand.kind is Kind.MEMORY and demand.gpus == 1 for demand in demands)
    amounts = sorted((demand.amount for demand in demands), reverse=True)
    ascending, at_once = amounts[::-1], sum(amounts)
    alike = _alike(lambda node: unfit(ask, node, packing))

    def verdict(node: Candidate) -> Unfit | None:
        numbers, gpus = node.summary, node.gpus
        frees = numbers.frees
        if single:
            fitting = bisect_right(ascending, frees[0] if frees else 0)
            alone, each_alone = [fitting], fitting == len(ascending)
        else:
            alone = [
                numbers.idle >= each if is_whole else last < len(frees) and frees[last] >= each
                for is_whole, each, last in ways
            ]
            each_alone = all(alone)
        fits = each_alone and (
            (single and (frees[0] >= at_once or _each_its_own(amounts, frees)))
            or packing(demands, frees, _unused(node) if whole else ()).taken is not None
        )
        if fits and not node.problem and not gpus.divided:
            return None
        key = (fits, *alone, not frees, numbers.sizes, len(node.rooms), gpus.share_mib, gpus.divided, node.problem)
        return alike(key, node)

    return verdict


def _unused(node: Candidate) -> tuple[int, ...]:
    return tuple(room.free for room in node.rooms if room.healthy and not room.shared and not room.whole)


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


def _scores(ask: Ask, node_policy: str, gpu_policy: str, groups: _Groups, nodes: _Versions) -> _Begin[int]:
    """Return `score` for one pod."""
    effort = _Effort()
    demands = tuple(part.demand for part in ask.parts)
    policy = ask.wishes.node_policy or node_policy
    packing = _packing(demands, effort)

    def exactly(node: Candidate) -> int:
        if unfit(ask, node, packing) is not None:
            return 0
        effort.check()
        effort.spend(_STEPS_OF_A_SCORE)
        return score(ask, node, node_policy, gpu_policy)

    def roughly(node: Candidate) -> int:
        numbers = node.summary
        wanted = sum(
            demand.amount * (1 if demand.kind is Kind.MEMORY else max(numbers.sizes, default=0)) for demand in demands
        )
        return points_for(policy, min(1.0, (numbers.used + wanted) / max(1, numbers.total)), 0.0)

    if not demands:
        return lambda: lambda _node: 0
    if simple(ask):
        plain = _scores_of_one(demands[0].amount, _alike(lambda node: score(ask, node, node_policy, gpu_policy)))
        return lambda: plain
    if all(demand.kind is Kind.MEMORY for demand in demands):
        every = _scores_of_memory(ask, demands, node_policy, gpu_policy, exactly)
    elif len(demands) == 1:
        every = groups.scores(ask, policy, effort)
    else:
        every = exactly
    return effort.bound(_kept(_by_wishes(ask, every=every, some=exactly, none=lambda _node: 0), nodes), roughly)


def _scores_of_one(wanted: int, alike: Callable[[Hashable, Candidate], int]) -> Callable[[Candidate], int]:
    def scores(node: Candidate) -> int:
        numbers = node.summary
        frees = numbers.frees
        fits, fits_shared = bool(frees) and frees[0] >= wanted, numbers.best_shared >= wanted
        return alike((numbers.used, numbers.total, fits, fits_shared, not numbers.idle, node.policy), node)

    return scores


def _scores_of_memory(
    ask: Ask, demands: Sequence[Demand], node_policy: str, gpu_policy: str, exactly: Callable[[Candidate], int]
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
                return exactly(node)
            for _, position in fitting:
                frees[position] -= each
                opened += position in shared
        return points_for(policy, (node.summary.used + wanted) / node.summary.total, opened / gpus_wanted)

    return scores


class _Groups:
    """Which GPUs are unused, and which of them a pod would get whole."""

    def __init__(self, nodes: _Versions) -> None:
        self._numbers = count()
        self._number = _alike(lambda _node: next(self._numbers))
        self._shape = _kept(self._look_at_gpus, _Versions(), lambda node: node.gpus)
        self.unused = _kept(self._look, nodes)

    def scores(self, ask: Ask, policy: str, effort: _Effort) -> Callable[[Candidate], int]:
        amount = ask.parts[0].demand.amount

        def place(node: Candidate) -> tuple[int, float] | None:
            if unfit(ask, node) is not None:
                return None
            effort.check()
            effort.spend(_STEPS_OF_A_SCORE)
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
        rooms = tuple([r.position for r in node.rooms if r.healthy and not r.shared and not r.whole])
        return self._shape(node), rooms

    def _look_at_gpus(self, node: Candidate) -> int:
        gpus = node.gpus
        like = (gpus.divided, gpus.links, tuple([(gpu.position, gpu.shares) for gpu in gpus.gpus]))
        return self._number(like, node)
