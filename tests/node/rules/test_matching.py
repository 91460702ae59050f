"""The container that a call of the kubelet belongs to."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.promises import Promise
from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.matching import Call, ContainerRequest, Match, Matched, WaitingPod, expected, match
from gpu_device_plugin.node.rules.preferred_allocation import PreferredAllocationRequest
from tests.nodes import node

MEMORY, COUNT = Kind.MEMORY, Kind.COUNT


def on(*shares: tuple[int, int]) -> Promise:
    """A promise of (position, shares)."""
    return Promise(shares)


def app(name: str, amount: int, promise: Promise | None = None, *, served: bool = False) -> ContainerRequest:
    return ContainerRequest(name, MEMORY, amount, promise=promise, served=served)


def init(name: str, amount: int, promise: Promise | None = None, *, served: bool = False) -> ContainerRequest:
    return ContainerRequest(name, MEMORY, amount, init=True, promise=promise, served=served)


def whole(name: str, amount: int, promise: Promise | None = None, *, served: bool = False) -> ContainerRequest:
    return ContainerRequest(name, COUNT, amount, promise=promise, served=served)


def pod(uid: str, *wanted: ContainerRequest) -> WaitingPod:
    return WaitingPod(uid, f"default/{uid}", wanted)


def asking(amount: int, *free: int, must: int | None = None) -> Call:
    """A call for shares; `free` by position."""
    return Call(MEMORY, amount, dict(enumerate(free)), frozenset() if must is None else frozenset({must}))


def choosy(wanted: ContainerRequest, *allowed: int) -> ContainerRequest:
    """The same container of a pod whose wishes allow only these GPUs."""
    return replace(wanted, allowed=frozenset(allowed))


def whose(found: Matched) -> tuple[str, str] | None:
    """The pod and the container."""
    return None if found.match is None else (found.match.pod.uid, found.match.request.container)


def one_each(*wanted: ContainerRequest) -> list[WaitingPod]:
    """Return the pods a, b and so on, each with one of these containers, in the order of their admission."""
    return [pod(name, container) for name, container in zip("abde", wanted, strict=False)]


def test_without_waiting_pods_there_is_no_match() -> None:
    assert match(asking(4, 8), []) == Matched(None, {})


AMOUNTS = one_each(app("c", 2), app("c", 4), whole("c", 4))
BEGUN = [pod("a", app("c", 4)), pod("b", app("first", 4, served=True), app("second", 4))]
CHAIN = [pod("a", init("setup", 2), app("c", 4)), pod("b", app("c", 4))]


@pytest.mark.parametrize(
    ("call", "waiting", "begun", "expected"),
    [
        # The container that requests the amount.
        (asking(4, 8), AMOUNTS, None, ("b", "c")),
        (Call(COUNT, 4, {0: 1}), AMOUNTS, None, ("d", "c")),
        (asking(3, 8), AMOUNTS, None, None),
        # Among equals that of the pod bound first.
        (asking(4, 8), [pod("z", app("c", 4)), pod("a", app("c", 4))], None, ("z", "c")),
        # A pod once begun is finished first: the kubelet calls for the containers of one pod consecutively.
        (asking(4, 8), BEGUN, "b", ("b", "second")),
        (asking(4, 8), BEGUN, "a", ("a", "c")),
        (asking(4, 8), BEGUN, None, ("a", "c")),
        (asking(4, 8), BEGUN, "an ended pod", ("a", "c")),
        # It is passed over if it needs another amount.
        (asking(4, 8), [BEGUN[0], pod("b", app("first", 4, served=True), app("second", 2))], "b", ("a", "c")),
        # The next container of a pod.
        (asking(4, 8), CHAIN, None, ("b", "c")),
        (asking(2, 8), CHAIN, None, ("a", "setup")),
        # No pod that is fully served.
        (asking(4, 8), one_each(app("c", 4, served=True), app("c", 4)), None, ("b", "c")),
    ],
)
def test_a_call_belongs_to_the_next_container_with_its_amount(
    call: Call, waiting: list[WaitingPod], begun: str | None, expected: tuple[str, str] | None
) -> None:
    assert whose(match(call, waiting, begun)) == expected


def test_the_resources_of_one_container_are_asked_for_in_any_order() -> None:
    both = (app("c", 4), whole("c", 1), app("d", 2))
    assert whose(match(asking(4, 8), [pod("a", *both)])) == ("a", "c")
    assert whose(match(Call(COUNT, 1, {0: 1}), [pod("a", *both)])) == ("a", "c")
    half = pod("a", replace(both[0], served=True), *both[1:])
    assert whose(match(Call(COUNT, 1, {0: 1}), [half])) == ("a", "c")
    assert whose(match(asking(4, 8), [half])) is None
    assert whose(match(asking(2, 8), [half])) is None


def test_a_match_shows_whether_its_container_requests_shares_and_whole_gpus() -> None:
    """Other containers of the pod may request the other resource."""
    one = pod("a", app("c", 4), app("d", 2), whole("d", 1))
    assert [Match(one, wanted).asks_both for wanted in one.requests] == [False, True, True]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((), False),
        ((init("setup", 4),), False),
        ((init("setup", 4, served=True),), True),
        ((app("d", 4, served=True),), False),
    ],
)
def test_a_match_shows_whether_an_init_container_of_its_pod_was_served_before(
    before: tuple[ContainerRequest, ...], *, expected: bool
) -> None:
    own = app("c", 4)
    assert Match(pod("a", *before, own), own).after_init is expected


# --- promises

OF_0, OF_1, OF_2 = (app("c", 4, on((position, 4))) for position in range(3))
OF_BOTH, OF_NEXT = app("c", 4, on((0, 2), (1, 2))), app("c", 4, on((1, 2), (2, 2)))
UNEVEN = app("c", 4, on((1, 3), (2, 1)))
WHOLE = one_each(whole("c", 2, on((0, 8), (1, 8))), whole("c", 2, on((1, 8), (2, 8))))
ONE_OF_0, ONE_OF_1 = (app("c", 1, on((position, 1))) for position in range(2))


@pytest.mark.parametrize(
    ("call", "waiting", "expected"),
    [
        # A fitting promise takes precedence over others.
        (asking(4, 3, 4), one_each(OF_0, OF_1), "b"),
        (asking(4, 4, 4), one_each(OF_0, OF_1), "a"),
        (asking(4, 4), one_each(OF_0, OF_1), "a"),
        # One without the GPU that must be used does not fit, nor one of a GPU that is not among those with room.
        (asking(4, 8, 8, must=1), one_each(OF_0, OF_1), "b"),
        (Call(MEMORY, 1, {1: 4}), one_each(ONE_OF_0, ONE_OF_1), "b"),
        (Call(MEMORY, 1, {1: 1}), one_each(ONE_OF_0, ONE_OF_1, ONE_OF_1), "b"),
        # One of several GPUs fits where all of them have room.
        (asking(4, 2, 8, 8), one_each(OF_BOTH, OF_NEXT), "a"),
        (asking(4, 1, 8, 8), one_each(OF_BOTH, OF_NEXT), "b"),
        (asking(4, 2, 8, 8, must=1), one_each(OF_BOTH, OF_NEXT), "a"),
        # One of two GPUs is not swapped with one of one: the same amount of one GPU is another request. Three quarters
        # of one and a quarter of another are one demand.
        (asking(4, 1, 3, 8), one_each(OF_BOTH, OF_1), "a"),
        (asking(4, 1, 3, 8), one_each(OF_1, OF_BOTH), "a"),
        (asking(4, 1, 3, 8), one_each(OF_1, UNEVEN), "b"),
        (asking(4, 1, 3, 8), one_each(OF_BOTH, app("c", 4)), "a"),
        # One of whole GPUs fits where they are there.
        (Call(COUNT, 2, {1: 1, 2: 1}), WHOLE, "b"),
        (Call(COUNT, 2, {0: 1, 1: 1, 2: 1}), WHOLE, "a"),
        (Call(COUNT, 2, {0: 1, 1: 1, 2: 1}, frozenset({2})), WHOLE, "b"),
        # Shares of GPU 0 were promised to the last one. That is the scheduler's contradiction, and not solved here.
        (
            Call(COUNT, 1, {0: 1, 1: 1}),
            one_each(whole("c", 1, on((0, 8))), whole("c", 1, on((1, 8))), whole("c", 1), OF_0),
            "a",
        ),
        # A call that fits no promise still belongs to a container; without a promise the order alone decides.
        (asking(4, 3, 8), one_each(OF_0, OF_0), "a"),
        (asking(4, 8), one_each(app("c", 4), OF_0), "a"),
        # The choice leaves every other promise satisfiable: of GPU 0 six shares are left, and three are promised.
        (asking(4, 6, 4), one_each(OF_0, OF_1, app("c", 3, on((0, 3)))), "b"),
        (asking(4, 7, 4), one_each(OF_0, OF_1, app("c", 3, on((0, 3)))), "a"),
        # One that is lost in any case is ignored; if no choice leaves all satisfiable the order decides.
        (asking(4, 4, 4, 0), one_each(OF_0, OF_1, app("c", 3, on((2, 3)))), "a"),
        (asking(4, 7), one_each(OF_0, OF_0), "a"),
        # A asks. It was promised GPU 0, which is full, and excludes GPU 1: it is not swapped for B.
        (asking(4, 0, 4, 4), one_each(choosy(OF_0, 0, 2), OF_1), "a"),
        # If A were chosen for B, B would inherit the promise of GPU 0, which its owner excludes.
        (asking(4, 0, 4), one_each(OF_0, choosy(OF_1, 1)), "a"),
        # Among several candidates one whose GPUs suit both is chosen.
        (asking(4, 0, 4, 4), one_each(choosy(OF_0, 0, 2), OF_1, OF_2), "d"),
        (asking(4, 4, 4), one_each(choosy(app("c", 4), 0), choosy(app("c", 4), 1)), "a"),
        # Wishes that both promises meet change nothing.
        (asking(4, 0, 4), one_each(choosy(OF_0, 0, 1), choosy(OF_1, 0, 1)), "b"),
    ],
)
def test_of_containers_with_one_amount_the_promises_and_wishes_decide(
    call: Call, waiting: list[WaitingPod], expected: str
) -> None:
    assert whose(match(call, waiting)) == (expected, "c")


def test_a_chain_of_init_containers_counts_in_full() -> None:
    """B will need 8 of GPU 0 in the end. With 8 free they are lost if the call is A's, and A's 4 if the call is B's."""
    chain = pod("b", init("setup", 4, on((0, 4))), app("c", 8, on((0, 8))))
    waiting = [pod("a", app("c", 4, on((0, 4)))), chain, pod("d", app("c", 4, on((1, 4))))]
    assert whose(match(asking(4, 8, 4), waiting)) == ("d", "c")
    assert whose(match(asking(4, 12, 4), waiting)) == ("a", "c")


def test_the_sequence_that_oldest_first_loses() -> None:
    """GPU 0 has 8 free and GPU 1 has 4. A is older and was promised GPU 0: init 4, then 8. B was promised 4 of GPU 1.

    B was bound first, so the kubelet calls for B first. If that call is matched with A's init container, B gets 4 of
    GPU 0, and A, whose init container then gets GPU 1, can never have 8 there.
    """
    a = pod("a", init("setup", 4, on((0, 4))), app("c", 8, on((0, 8))))
    b = pod("b", app("c", 4, on((1, 4))))

    first = match(asking(4, 8, 4), [b, a])
    assert whose(first) == ("b", "c")
    assert first.reserved == {0: 8}

    second = match(asking(4, 8), [a], begun="b")
    assert whose(second) == ("a", "setup")
    assert second.reserved == {0: 4}

    a = pod("a", init("setup", 4, on((0, 4)), served=True), app("c", 8, on((0, 8))))
    third = match(asking(8, 8, must=0), [a], begun="a")
    assert whose(third) == ("a", "c")
    assert third.reserved == {}


# --- reservations for others


def test_promises_to_others_are_reserved() -> None:
    waiting = [pod("a", app("c", 4, on((0, 4)))), pod("b", app("c", 2, on((0, 2)))), pod("d", app("c", 3, on((1, 3))))]
    assert match(asking(4, 8, 8), waiting).reserved == {0: 2, 1: 3}
    assert match(asking(9, 9, 9), waiting) == Matched(None, {0: 6, 1: 3})


def test_a_demand_without_a_promise_reserves_nothing() -> None:
    waiting = [pod("a", app("c", 4)), pod("b", app("c", 2)), pod("d", whole("c", 1))]
    assert match(asking(4, 8), waiting) == Matched(Match(waiting[0], waiting[0].requests[0]), {})


def test_what_waiting_pods_will_get_is_known_by_gpu_where_it_was_promised() -> None:
    waiting = [
        pod("a", app("one", 2, on((0, 2)), served=True), app("two", 3, on((1, 3)))),
        pod("b", app("one", 4), whole("two", 1)),
        pod("c", app("one", 1, served=True), app("two", 2)),
    ]
    assert expected(waiting) == ({1: 3}, 6)
    assert expected(()) == ({}, 0)


def test_whole_gpus_promised_to_others_are_kept_whole() -> None:
    waiting = [
        pod("a", whole("c", 2, on((0, 8), (1, 8)))),
        pod("b", whole("c", 1, on((2, 8))), whole("d", 1, on((3, 8)), served=True)),
        pod("d", app("c", 4, on((4, 4)))),
    ]
    assert match(asking(4, 0, 0, 0, 0, 8), waiting).whole == {0, 1, 2}
    assert match(asking(4, 0, 0, 0, 0, 8), waiting).reserved == {}
    found = match(Call(COUNT, 2, {0: 1, 1: 1}), waiting)
    assert whose(found) == ("a", "c")
    assert found.whole == {2}
    assert found.reserved == {4: 4}


@pytest.mark.parametrize(
    ("wanted", "reserved"),
    [
        # Containers that run together need the sum, and less when some have theirs.
        ([app("a", 2, on((0, 2))), app("b", 3, on((0, 3)))], {0: 5}),
        ([app("a", 2, on((0, 2)), served=True), app("b", 3, on((0, 3)))], {0: 3}),
        ([app("a", 2, on((0, 2))), app("b", 3, on((1, 3)))], {0: 2, 1: 3}),
        ([app("a", 2, on((0, 2)), served=True), app("b", 3, on((0, 3)), served=True), app("c", 1, on((0, 1)))], {0: 1}),
        # An init container hands its shares on.
        ([init("i", 4, on((0, 4))), app("a", 3, on((0, 3)))], {0: 4}),
        ([init("i", 4, on((0, 4))), app("a", 8, on((0, 8)))], {0: 8}),
        ([init("i", 4, on((0, 4)), served=True), app("a", 8, on((0, 8)))], {0: 4}),
        ([init("i", 4, on((0, 4)), served=True), app("a", 3, on((0, 3)))], {}),
        ([init("i", 4, on((0, 4)), served=True), app("a", 3, on((0, 3))), app("b", 2, on((0, 2)))], {0: 1}),
        (
            [init("i", 4, on((0, 4)), served=True), app("a", 3, on((0, 3)), served=True), app("b", 2, on((0, 2)))],
            {0: 1},
        ),
        ([init("i", 2, on((0, 2)), served=True), init("j", 5, on((0, 5))), app("a", 1, on((0, 1)))], {0: 3}),
        (
            [init("i", 5, on((0, 5)), served=True), init("j", 2, on((0, 2)), served=True), app("a", 6, on((0, 6)))],
            {0: 1},
        ),
        # A sidecar keeps its shares while the init containers after it run.
        ([app("s", 2, on((0, 2))), init("i", 4, on((0, 4))), app("a", 3, on((0, 3)))], {0: 6}),
        ([app("s", 2, on((0, 2)), served=True), init("i", 4, on((0, 4))), app("a", 3, on((0, 3)))], {0: 4}),
        ([app("s", 2, on((0, 2)), served=True), init("i", 4, on((0, 4)), served=True), app("a", 3, on((0, 3)))], {}),
        (
            [app("s", 2, on((0, 2)), served=True), init("i", 4, on((0, 4)), served=True), app("a", 5, on((0, 5)))],
            {0: 1},
        ),
        # A sidecar after an init container takes over from it.
        (
            [init("i", 4, on((0, 4)), served=True), app("s", 2, on((0, 2)), served=True), app("a", 3, on((0, 3)))],
            {0: 1},
        ),
        # Requests without a promise are not counted, nor are whole GPUs.
        ([init("i", 4), app("a", 3, on((0, 3))), whole("b", 1, on((1, 8)))], {0: 3}),
        ([app("a", 4, on((0, 2), (1, 2))), app("b", 1, on((1, 1)))], {0: 2, 1: 3}),
    ],
)
def test_a_pod_reserves_what_its_containers_will_still_need(
    wanted: list[ContainerRequest], reserved: dict[int, int]
) -> None:
    """As the kubelet counts: it hands on the devices of init containers within their pod only."""
    assert match(asking(99, 99), [pod("a", *wanted)]).reserved == reserved


# --- a scheduler, a node agent and a kubelet together


@dataclass
class World:
    """A node with promises, and the kubelet's part: in order, one container after the other, devices handed on."""

    gib: list[int]
    taken: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.node = node(*self.gib)

    def admit(
        self, pod: WaitingPod, waiting: list[WaitingPod], begun: str | None
    ) -> tuple[list[WaitingPod], list[bool]]:
        """Allocate for each container of `pod`; return who waits afterwards, and whether each got its promise."""
        reusable: set[str] = set()
        kept: list[bool] = []
        mine = self.taken.setdefault(pod.uid, set())
        for number, wanted in enumerate(pod.requests):
            taken = set().union(*self.taken.values())
            available = {name for shared in self.node.shares.gpus for name in shared.shares} - taken
            must = sorted(reusable)[: wanted.amount]
            question = PreferredAllocationRequest(self.node, MEMORY, [*available, *must], must, wanted.amount)
            matched = match(question.call, waiting, begun)
            given = (
                set(question.answer(self.node, POLICIES["binpack"], matched)) if len(must) < wanted.amount else {*must}
            )
            mine |= given
            reusable = reusable | given if wanted.init else reusable - given
            assert wanted.promise is not None
            kept.append(tuple(sorted(self.node.shares.spread(given).items())) == wanted.promise.shares)
            served = tuple(replace(w, served=True) if n <= number else w for n, w in enumerate(pod.requests))
            waiting = [replace(other, requests=served) if other.uid == pod.uid else other for other in waiting]
            begun = pod.uid
        return [other for other in waiting if other.uid != pod.uid], kept


@given(st.lists(st.integers(1, 8), min_size=1, max_size=3), st.data())
def test_every_promise_is_kept_when_pods_are_admitted_in_the_order_of_binding(
    gib: list[int], data: st.DataObject
) -> None:
    """Init containers, sidecars and several containers for each pod; the scheduler fills the node as far as it goes."""
    room = dict(enumerate(gib))
    pods: list[WaitingPod] = []
    for uid in "abcdef":
        position = data.draw(st.integers(0, len(gib) - 1))
        if room[position] == 0:
            continue
        wanted: list[ContainerRequest] = []
        running = peak = 0
        for name in "xyz"[: data.draw(st.integers(1, 3))]:
            first = data.draw(st.booleans())
            amount = data.draw(st.integers(0, room[position] - running))
            if amount:
                promise = on((position, amount))
                wanted.append(init(name, amount, promise) if first else app(name, amount, promise))
                peak = max(peak, running + amount)
                running += 0 if first else amount
        if wanted:
            room[position] -= peak
            pods.append(pod(uid, *wanted))
    world, waiting, begun = World(gib), pods, None
    for each in pods:
        waiting, kept = world.admit(each, waiting, begun)
        assert all(kept)
        begun = each.uid


@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.lists(st.booleans(), min_size=6), st.data())
def test_a_pod_with_wishes_gets_a_wanted_gpu_where_the_order_is_right(
    positions: list[int], wishing: list[bool], data: st.DataObject
) -> None:
    """Equal pods, some with wishes that their promises meet; some room is lost to a pod without the scheduler."""
    gib = [2 * positions.count(position) + 2 for position in range(3)]
    pods = [
        pod(str(n), choosy(app("c", 2, on((position, 2))), position) if wishing[n] else app("c", 2, on((position, 2))))
        for n, position in enumerate(positions)
    ]
    world, waiting = World(gib), pods
    for each in pods:
        lost = data.draw(st.sampled_from([*sorted(free(world)), None]))
        world.taken.setdefault("stranger", set()).update({lost} if lost else ())
        question = PreferredAllocationRequest(world.node, MEMORY, free(world), [], 2)
        matched = match(question.call, waiting)
        assert matched.match is not None
        given = question.answer(world.node, POLICIES["binpack"], matched)
        allowed = each.requests[0].allowed
        if allowed is not None and any(question.call.free.get(position, 0) >= 2 for position in allowed):
            assert world.node.shares.spread(given).keys() <= allowed
        world.taken[each.uid] = set(given)
        # The records show that it was this one, and the pod chosen for it inherits its promise.
        heir, left = (
            matched.match.pod.uid,
            next(other for other in waiting if other.uid == each.uid).requests[0].promise,
        )
        waiting = [
            replace(other, requests=(replace(other.requests[0], promise=left),)) if other.uid == heir else other
            for other in waiting
            if other.uid != each.uid
        ]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.integers(1, 3), st.data())
def test_swapping_equals_costs_nothing(positions: list[int], amount: int, data: st.DataObject) -> None:
    """Equal pods, admitted in any order: some get each other's GPU, all get one, and all room is used."""
    gib = [amount * positions.count(position) or 1 for position in range(3)]
    pods = [pod(str(n), app("c", amount, on((position, amount)))) for n, position in enumerate(positions)]
    world, waiting = World(gib), pods
    for each in data.draw(st.permutations(pods)):
        question = PreferredAllocationRequest(world.node, MEMORY, free(world), [], amount)
        matched = match(question.call, waiting)
        assert matched.match is not None
        given = question.answer(world.node, POLICIES["binpack"], matched)
        assert len(world.node.shares.spread(given)) == 1
        world.taken[each.uid] = set(given)
        waiting = [other for other in waiting if other.uid != matched.match.pod.uid]
    assert world.node.shares.spread(set().union(*world.taken.values())) == {
        position: amount * positions.count(position) for position in set(positions)
    }


def free(world: World) -> set[str]:
    """The free shares."""
    every = {name for shared in world.node.shares.gpus for name in shared.shares}
    return every - set().union(*world.taken.values())


# --- who may get the answer for another


TOLD_APART: dict[str, dict[str, object]] = {
    "another limit": {"annotations": {"gpu-device-plugin/memory-limit": "10"}},
    "another namespace": {"name": "team/b"},
    "other frameworks": {"frameworks": ("jax",)},
    "another size": {"total_shares": 8},
}


@pytest.mark.parametrize("changed", TOLD_APART.values(), ids=TOLD_APART)
def test_a_pod_that_is_told_something_else_is_never_taken_for_the_first(changed: dict[str, object]) -> None:
    """The first one's GPU is full, and that of the other one has room."""
    one, other = one_each(OF_0, OF_1)
    call = asking(4, 0, 4, 4)
    assert whose(match(call, [one, other])) == ("b", "c")
    assert whose(match(call, [one, replace(other, **changed)])) == ("a", "c")  # type: ignore[arg-type]
    assert whose(match(replace(call, names_pod=True), [one, other])) == ("a", "c")


def test_containers_of_other_names_may_have_other_limits_by_the_same_annotation() -> None:
    limits = {"annotations": {"gpu-device-plugin/memory-limit": '{"c": 10}'}}
    one, other = (replace(each, **limits) for each in one_each(OF_0, OF_1))  # type: ignore[arg-type]
    assert whose(match(asking(4, 0, 4, 4), [one, other])) == ("b", "c")
    renamed = replace(other, requests=(replace(other.requests[0], container="d"),))
    assert whose(match(asking(4, 0, 4, 4), [one, renamed])) == ("a", "c")
