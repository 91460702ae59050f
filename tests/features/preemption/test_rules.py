"""Whom to evict so that a pod fits on one GPU, and not on a node's sum."""

import random
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, repeat

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpu_device_plugin.features.preemption.rules import Preemptor, VictimChoice, choose_on_each, where_evicting_may_help
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.nodegpus import BY_CLAIMS, ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.packing import Effort, TooLongError
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage
from tests.features.preemption.occupants import occupants

IMPORTANT = 100
"""The priority of the pod that wants in."""


def memory(*shares: int, gpus: int = 1) -> GpuRequest:
    """One container for each of these amounts."""
    return GpuRequest(tuple(Part(Demand(Kind.MEMORY, amount, gpus)) for amount in shares))


def whole(gpus: int) -> GpuRequest:
    return GpuRequest((Part(Demand(Kind.COUNT, gpus)),))


def node(
    *shares: int,
    models: tuple[str, ...] = (),
    unhealthy: Container[int] = (),
    problem: str = "",
    instances: Container[int] = (),
) -> Candidate:
    """A node with GPUs of so many shares, or with MIG instances of one GPU."""
    listed = [
        ListedGpu(
            position,
            size,
            f"GPU-{position}",
            models[position] if models else "Tesla T4",
            unhealthy="too hot" if position in unhealthy else "",
            instance=ListedInstance("GPU-9", 9, position, "1g.10gb", position) if position in instances else None,
        )
        for position, size in enumerate(shares)
    ]
    return candidate("node-a", NodeGpus(tuple(listed), share_mib=1024, problem=problem), ())


def on(position: int, shares: int, uid: str, priority: int = 0) -> GpuConsumer:
    return GpuConsumer(uid, Usage(((position, shares),)), priority)


def choose(
    preemptor: Preemptor,
    there: Candidate,
    pods: Collection[GpuConsumer],
    victims: frozenset[str],
    effort: Effort | None = None,
) -> frozenset[str] | None:
    """Return whom to evict from a node; None: evicting does not help, or to find out takes too long."""
    try:
        return VictimChoice(preemptor, there, pods, victims, effort or Effort(3000)).choose()
    except TooLongError:
        return None


BOTH = GpuRequest((Part(Demand(Kind.COUNT, 1)), Part(Demand(Kind.MEMORY, 2))))
CHOICES: dict[str, tuple[GpuRequest, tuple[int, ...], str, str, str | None]] = {
    "victims that free one GPU are kept": (memory(8), (8, 8), "a4@0 b4@0 c8@1", "ab", "ab"),
    "a victim that does not help on the GPU stays": (memory(8), (8, 8), "a4@0 b4@0 c4@1 d4@1", "ac", "ab"),
    "the least important, even if they are more": (memory(8), (8, 8, 4), "a8@0/5 b4@1/1 c4@1/1", "x", "bcx"),
    "then the fewest": (memory(8), (8, 8, 4), "a4@0 b4@0 c8@1", "x", "cx"),
    "then those with less memory": (memory(6), (8, 8, 8, 2), "a4@0 b4@0 c6@1 d2@1 e7@2 f1@2", "x", "cx"),
    "of one GPU the smallest that suffices": (memory(3), (10, 2), "a5@0 b3@0 c2@0", "x", "bx"),
    "between equals the uid decides": (memory(8), (8, 8, 2), "b8@0 a8@1", "x", "ax"),
    "nobody as important": (memory(8), (8, 4), "a4@0/100 x4@1", "x", None),
    "nobody more important": (memory(8), (8, 4), "a4@0/101 x4@1", "x", None),
    "nobody where it could not help": (memory(9), (8, 8), "a8@0 b8@1", "ab", None),
    "nobody to evict": (memory(8), (8,), "", "", None),
    # An answer without victims is an error.
    "not who ends anyway, and one victim stays": (memory(8), (8, 8, 2), "a8@0- b8@1", "x", "x"),
    # They make room for the other requests of the pod; of them nothing is known here.
    "victims that take no GPU are kept": (memory(8), (8,), "a1@0", "y", "ay"),
    "a GPU in whole use is made free for shares": (memory(2), (8, 8), "a*@0 b8@1/100", "x", "ax"),
    "shares make way for a whole GPU": (whole(1), (8, 8), "a1@0 b1@0 c7@1", "x", "cx"),
    "several whole GPUs where it costs least": (whole(2), (8, 8, 8), "a1@0 b1@0 c7@1 d*@2", "x", "cdx"),
    "containers share the room on one GPU": (memory(6, 2), (8, 8), "a8@0 b4@1 c4@1", "x", "ax"),
    "containers go onto one GPU where that costs least": (memory(4, 4), (8, 8), "a4@0 b4@0 c5@1 d3@1", "x", "abx"),
    "a split pod gets a part of each GPU": (memory(8, gpus=2), (8, 8, 8), "a6@0 b6@1 c2@1 d8@2", "x", "abx"),
    "whole GPUs and shares of one pod do not meet": (BOTH, (8, 8), "a8@0 b4@1 c4@1", "x", "abx"),
    "shares on an unknown GPU are in the way on each": (memory(7), (8, 8), "a8@? b1@0", "x", "ax"),
    "and count where room is made": (memory(4), (8, 8), "a4@? b4@0 c8@1/100", "x", "ax"),
    "unlisted and unknown GPUs are in the way": (whole(1), (8, 8), "a*@7,*@? b8@0 c4@1 d4@1", "x", "abx"),
    # It is not GPU 0, which b shares; without b it might well be.
    "a whole GPU nobody knows which": (memory(8), (8, 8), "a*@? b8@0/1 c8@1/100", "x", "abx"),
    "such a pod that is too important": (memory(8), (8,), "a*@?/100 b8@0", "x", None),
    # Without b there are 7 and 4. The unknown GPU of a would be in the way on GPU 1 only if p went from there.
    "who stays on a GPU shows that it is not the unknown one": (
        memory(4, 4), (8, 8), "a*@? b*@0,2@? p4@1 s1@0/100", "x", "bx",
    ),
    "a GPU without its last sharer may be the unknown one": (
        memory(8, 7), (9, 8), "s8@0,1@1 t1@0/100 a*@?", "x", "asx",
    ),
    # For GPU 0 a has to go, which has 3 of GPU 1: there one of the others is enough.
    "of two that could stay the more important": (
        memory(8, gpus=2), (4, 7, 1), "a4@0,3@1/1 c2@1/1 d2@1", "x", "adx",
    ),
    "of two that could stay the larger": (memory(8, gpus=2), (4, 7, 1), "a4@0,3@1/1 c2@1,1@2 d2@1", "x", "adx"),
    # Alone, GPU 1 would be helped best by c; but a has to go for GPU 0, and is on both.
    "in the way only as long as another is": (memory(6, gpus=2), (3, 6), "a3@0,3@1 c3@1", "x", "ax"),
}  # fmt: skip
"""What a pod asks of which GPUs, the pods there, kube-scheduler's victims, and those who are evicted."""


@pytest.mark.parametrize(("ask", "sizes", "pods", "victims", "evicted"), CHOICES.values(), ids=CHOICES)
def test_pods_are_evicted_so_that_room_is_made_on_gpus(
    ask: GpuRequest, sizes: tuple[int, ...], pods: str, victims: str, evicted: str | None
) -> None:
    assert chosen(ask, node(*sizes), occupants(pods), *victims) == (None if evicted is None else set(evicted))


def chosen(ask: GpuRequest, there: Candidate, pods: list[GpuConsumer], *victims: str) -> set[str] | None:
    found = choose(Preemptor(ask, IMPORTANT), there, pods, frozenset(victims))
    return None if found is None else set(found)


def test_nobody_is_evicted_where_the_agent_is_away() -> None:
    """Its GPUs are known from before."""
    assert chosen(memory(8), node(8, problem="its agent has ended"), [on(0, 8, "a")], "a") is None


def test_only_gpus_that_the_pod_wants_are_emptied() -> None:
    ask = GpuRequest(memory(8).parts, GpuSelector(use_models=("a100",)))
    pods = [on(0, 8, "a"), on(1, 4, "b"), on(1, 4, "c")]
    assert chosen(ask, node(8, 8, models=("Tesla T4", "NVIDIA A100")), pods, "x") == {"b", "c", "x"}


FOUR_OF_SIXTEEN = {
    "by name": (GpuSelector(use_uuids=[f"GPU-{n}" for n in range(12, 16)]), "Tesla T4", ()),
    "by model": (GpuSelector(use_models=("a10",)), "NVIDIA A10", ()),
    "in service": (GpuSelector(), "Tesla T4", range(12)),
}


@pytest.mark.parametrize(("preferences", "model", "unhealthy"), FOUR_OF_SIXTEEN.values(), ids=FOUR_OF_SIXTEEN)
def test_however_many_gpus_do_not_serve_the_others_are_looked_at(
    preferences: GpuSelector, model: str, unhealthy: Container[int]
) -> None:
    """4 shares of each of four GPUs. Those that may serve hold 4, 3 and 1: the 4 makes room there with the fewest pods.

    The other twelve are the emptier ones, and 1,820 groups are more than one can look at.
    """
    pods = [on(at, shares, f"{at}-{shares}") for at in range(12, 16) for shares in (4, 3, 1)]
    there = node(*(8,) * 16, models=("Tesla T4",) * 12 + (model,) * 4, unhealthy=unhealthy)
    others = [on(at, 8, f"{at}", IMPORTANT) for at in range(12)]
    ask = GpuRequest(memory(16, gpus=4).parts, preferences)
    assert chosen(ask, there, [*pods, *others], "x") == {"x", *(f"{at}-4" for at in range(12, 16))}


def test_of_many_gpus_those_with_the_fewest_pods_are_looked_at_first() -> None:
    """Four of nine are 126 groups. GPUs 5 to 8 have one pod each, the others three."""
    pods = [on(at, 1 + n, f"{at}-{n}") for at in range(9) for n in range(3 if at < 5 else 1)]
    assert chosen(whole(4), node(*(8,) * 9), pods, "x") == {"x", *(f"{at}-0" for at in range(5, 9))}


def test_on_a_crowded_gpu_the_largest_pods_are_looked_at() -> None:
    """64 of 64 shares are held by 64 pods, and 32 are wanted: as many sets as there are not seconds to compare them."""
    pods = [on(0, 1, f"{number:02}") for number in range(64)]
    assert chosen(memory(32), node(64, 1), pods, "x") == {"x", *(f"{number:02}" for number in range(32))}


def test_pods_of_one_size_are_not_compared_with_each_other() -> None:
    """17 of 58 are wanted, which five of ten pods of 4 and six of 3 give back: two of 4 and three of 3 do exactly.

    Each pod taken for itself these are 3,000 sets and more, of which the ones with two of 4 come late.
    """
    pods = [*(on(0, 4, f"four-{n}") for n in range(10)), *(on(0, 3, f"three-{n}") for n in range(6))]
    assert chosen(memory(17), node(58), pods, "x") == {"x", "four-0", "four-1", "three-0", "three-1", "three-2"}


# --- What else kube-scheduler evicts for ------------------------------------------------------------------------------


def chosen_beside(requests: dict[str, int] | None, pods: list[GpuConsumer], *victims: str) -> set[str] | None:
    """Whom to evict for 8 shares of one of two GPUs of 8, and for this besides."""
    found = choose(Preemptor(memory(8), IMPORTANT, requests), node(8, 8), pods, frozenset(victims))
    return None if found is None else set(found)


def test_whoever_is_evicted_gives_back_the_cpu_that_kube_scheduler_looked_for() -> None:
    """8 shares and 4 CPUs are wanted. kube-scheduler would evict a and c, and c alone has CPUs: so GPU 1 is emptied."""
    pods = [on(0, 4, "a"), on(0, 4, "b"), replace(on(1, 4, "c"), requests={"cpu": 8}), on(1, 4, "d")]
    assert chosen_beside({"cpu": 4}, pods, "a", "c") == {"c", "d"}
    assert chosen_beside({"cpu": 0}, pods, "a", "c") == {"a", "b"}
    assert chosen_beside(None, pods, "a", "c") == {"a", "b", "c"}


def test_a_victim_of_which_it_is_not_known_what_it_has_is_kept() -> None:
    pods = [on(0, 4, "a"), on(0, 4, "b"), replace(on(1, 4, "c"), requests=None), on(1, 4, "d", IMPORTANT)]
    assert chosen_beside({"cpu": 4}, pods, "a", "c") == {"a", "b", "c"}


def test_pods_on_a_gpu_that_is_out_of_service_go_if_the_sum_wants_it() -> None:
    """The kubelet offers 8, and 16 are in use: by the sum 16 have to go, though 8 of them would free GPU 1."""
    pods = [on(0, 4, "a"), on(0, 4, "b"), on(1, 4, "c"), on(1, 4, "d")]
    assert chosen(memory(8), node(8, 8, unhealthy=[0]), pods, "a", "b", "c", "d") == {"a", "b", "c", "d"}
    assert chosen(memory(4), node(8, 8, unhealthy=[0]), pods, "a", "b", "c") == {"a", "b", "c"}


# --- Many nodes -------------------------------------------------------------------------------------------------------


def test_every_node_has_its_answer() -> None:
    """On node-a pod a makes room, on the second nothing does, on the third the scheduler's victim is enough."""
    there = node(8, 8)
    cases = [
        (there, [on(0, 8, "a"), on(1, 8, "b", IMPORTANT)], frozenset({"x"})),
        (there, [on(0, 8, "a", IMPORTANT), on(1, 8, "b", IMPORTANT)], frozenset({"x"})),
        (there, [on(0, 4, "a"), on(1, 8, "b")], frozenset({"a"})),
    ]
    assert [found for _, found in choose_on_each(Preemptor(memory(8), IMPORTANT), cases)] == [{"a", "x"}, {"a"}]


EASY = (memory(1), node(1), [on(0, 1, "b")])
"""The scheduler's victim x is on none of its GPUs; b is found at once."""
LADDER = (memory(10), node(10), [on(0, 1, f"{n}", n) for n in range(10)])
"""All ten have to go, of which each is more important than the one before."""
CROWD = (memory(60), node(80, 80, 80, 80), [on(n % 4, 2 + n // 4 % 7, f"{n:02}") for n in range(64)])
"""Each GPU has 16 pods of 2 to 8, and hundreds of ways to make room."""


@pytest.mark.parametrize(
    ("case", "least", "most"), [(EASY, 50, 200), (LADDER, 10, 30), (CROWD, 1, 10)], ids=["easy", "ladder", "crowd"]
)
def test_the_harder_nodes_are_the_fewer_are_looked_at(
    case: tuple[GpuRequest, Candidate, list[GpuConsumer]], least: int, most: int
) -> None:
    """Those that are have their best answer; what is left out is not even asked for."""
    ask, there, pods = case
    asked = 0

    def nodes() -> Iterator[tuple[Candidate, list[GpuConsumer], frozenset[str]]]:
        nonlocal asked
        for _ in range(10_000):
            asked += 1
            yield there, pods, frozenset({"x"})

    found = list(choose_on_each(Preemptor(ask, IMPORTANT), nodes()))
    assert least < len(found) == asked < most
    assert {victims for _, victims in found} == {choose(Preemptor(ask, IMPORTANT), there, pods, frozenset({"x"}))}


def test_where_it_takes_too_long_to_find_out_nobody_is_evicted() -> None:
    """7 and 6, seven times each, onto eight GPUs of 16: no GPU takes three, and there are many ways to try in vain."""
    pods = [on(n % 8, 1 + n % 3, f"{n:02}", n % 5) for n in range(48)]

    def found(*shares: int) -> frozenset[str] | None:
        preemptor = Preemptor(memory(*shares), IMPORTANT)
        return choose(preemptor, node(*[16] * 8), pods, frozenset({"x"}), Effort(1000))

    assert found(*[7, 6] * 7) is None
    assert found(7, 6) is not None


def test_for_a_whole_gpu_nobody_is_evicted_from_an_instance() -> None:
    there = node(8, 8, 8, instances={0, 1})
    assert chosen(whole(1), there, [on(0, 1, "small"), on(2, 8, "large")], "x") == {"x", "large"}
    assert chosen(whole(2), there, [on(0, 1, "small"), on(2, 8, "large")], "x") is None


def test_memory_of_several_gpus_is_made_free_on_gpus() -> None:
    there = node(8, 8, 8, 8, instances={0, 1})
    pods = [on(0, 8, "a"), on(1, 8, "b"), on(2, 8, "c", 1), on(3, 8, "d", 1)]
    assert chosen(memory(16, gpus=2), there, pods, "x") == {"x", "c", "d"}
    assert chosen(memory(8), there, pods, "x") == {"x", "a"}


# --- Against all sets of pods ----------------------------------------------------------------------------------------

priorities = st.sampled_from((0, 1, 2, IMPORTANT))
plain = st.builds(lambda at, shares: Usage(((at, shares),)), st.integers(0, 2), st.integers(1, 6)) | st.builds(
    lambda at: Usage(whole=(at,)), st.integers(0, 2)
)
odd = st.builds(
    Usage,
    shares=st.dictionaries(st.integers(0, 3), st.integers(1, 4), max_size=2).map(
        lambda used: tuple(sorted(used.items()))
    ),
    whole=st.sets(st.integers(0, 3), max_size=2).map(lambda taken: tuple(sorted(taken))),
    unplaced_shares=st.integers(0, 2),
    unplaced_gpus=st.integers(0, 1),
)
demands = (
    st.integers(1, 8).map(lambda shares: Demand(Kind.MEMORY, shares))
    | st.integers(1, 4).map(lambda each: Demand(Kind.MEMORY, each * 2, 2))
    | st.integers(1, 2).map(lambda gpus: Demand(Kind.COUNT, gpus))
)
asks = st.lists(demands, min_size=1, max_size=2).map(lambda parts: GpuRequest(tuple(map(Part, parts))))


def pods(usages: st.SearchStrategy[Usage]) -> st.SearchStrategy[list[GpuConsumer]]:
    each = st.lists(st.tuples(usages, priorities, st.integers(0, 5).map(lambda n: n == 0)), max_size=6)
    return each.map(lambda all_: [GpuConsumer(f"p{n}", usage, at, left) for n, (usage, at, left) in enumerate(all_)])


def fits(ask: GpuRequest, there: Candidate, left: list[GpuConsumer]) -> bool:
    return unfit(ask, candidate("n", there.gpus, [pod.usage for pod in left])) is None


def cost(there: Candidate, some: Collection[GpuConsumer], given: Collection[str] = ()) -> tuple[object, ...]:
    """In the documented order of preference."""
    sizes = {gpu.position: gpu.shares for gpu in there.gpus.gpus}
    held = [sum(shares for _, shares in pod.usage.shares) + sum(sizes[at] for at in pod.usage.whole) for pod in some]
    return (
        max((pod.priority for pod in some), default=-1),
        len(some),
        sum(pod.uid not in given for pod in some),
        sum(held),
        sorted(pod.uid for pod in some),
    )


def sets_of(pods: Sequence[GpuConsumer]) -> Iterator[tuple[GpuConsumer, ...]]:
    for number in range(len(pods) + 1):
        yield from combinations(pods, number)


places = st.sampled_from((node(8, 8, 4), node(8, 8, 4, instances={1, 2}), node(8, 8, 4, instances={0})))


@settings(max_examples=150)
@given(asks, pods(plain), places)
def test_no_other_set_of_pods_is_more_than_one_smaller(
    ask: GpuRequest, there: list[GpuConsumer], where: Candidate
) -> None:
    """Every set of up to six pods, each on one GPU, is tried: node-a has 8, 8 and 4 shares."""
    staying = [pod for pod in there if not pod.terminating]
    movable = [pod for pod in staying if pod.priority < IMPORTANT]
    ways = [some for some in sets_of(movable) if fits(ask, where, [pod for pod in staying if pod not in some])]
    best = min(ways, key=lambda some: cost(where, some), default=None)
    found = chosen(ask, where, there, "x")
    assert (found is None) == (best is None)
    if best:
        some = [pod for pod in there if pod.uid in (found or ())]
        assert max(pod.priority for pod in some) == max(pod.priority for pod in best)
        assert len(some) <= len(best) + 1


def by_the_sum(ask: GpuRequest, there: Candidate, left: list[GpuConsumer]) -> bool:
    """Whether kube-scheduler would find room: it adds up the shares of the node, and does not know its GPUs."""
    free = sum(gpu.shares for gpu in there.gpus.gpus) - sum(n for pod in left for _, n in pod.usage.shares)
    return free >= sum(part.demand.amount for part in ask.parts)


@st.composite
def crowded(draw: st.DrawFn) -> list[GpuConsumer]:
    """GPUs of 8, 8 and 4 shares, nearly full."""
    found: list[GpuConsumer] = []
    for at, size in enumerate((8, 8, 4)):
        while (left := size - sum(n for pod in found for where, n in pod.usage.shares if where == at)) > 0:
            shares = draw(st.integers(0, min(left, 4)))
            if not shares:
                break
            found.append(on(at, shares, f"p{len(found)}", draw(priorities)))
    return found


memory_only = st.lists(st.integers(1, 8).map(lambda shares: Demand(Kind.MEMORY, shares)), min_size=1, max_size=2).map(
    lambda parts: GpuRequest(tuple(map(Part, parts)))
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(memory_only, crowded(), st.randoms())
def test_no_set_is_more_than_one_smaller_wherever_kube_scheduler_would_evict(
    ask: GpuRequest, there: list[GpuConsumer], random: random.Random
) -> None:
    """kube-scheduler's victims are enough by the sum and no more than that, in whichever order it spares pods.

    Where they do not make room on GPUs, what is chosen is as unimportant as the best of all sets, and at most one pod
    larger, whether it has them in it or not.
    """
    where = node(8, 8, 4)
    victims = [pod for pod in there if pod.priority < IMPORTANT]
    assume(not by_the_sum(ask, where, there) and by_the_sum(ask, where, [p for p in there if p not in victims]))
    random.shuffle(victims)
    for pod in tuple(victims):
        if by_the_sum(ask, where, [one for one in there if one is pod or one not in victims]):
            victims.remove(pod)
    given = {pod.uid for pod in victims}
    found = chosen(ask, where, there, *given)
    if fits(ask, where, [pod for pod in there if pod.uid not in given]):
        assert found == given
        return
    movable = [pod for pod in there if pod.priority < IMPORTANT]
    ways = [some for some in sets_of(movable) if fits(ask, where, [pod for pod in there if pod not in some])]
    best = min(ways, key=lambda some: cost(where, some, given), default=None)
    assert (found is None) == (best is None)
    if best is not None:
        some = [pod for pod in there if pod.uid in (found or ())]
        assert max(pod.priority for pod in some) == max(pod.priority for pod in best)
        assert len(some) <= len(best) + 1


amounts = st.dictionaries(st.sampled_from(("cpu", "memory")), st.integers(0, 4))


@settings(max_examples=150)
@given(asks, pods(plain | odd), st.sets(st.sampled_from(("p0", "p1", "p2", "x"))), st.none() | amounts, st.data())
def test_evicting_helps_and_nobody_who_could_stay_is_evicted(
    ask: GpuRequest, there: list[GpuConsumer], victims: set[str], asked: dict[str, int] | None, data: st.DataObject
) -> None:
    """Pods on several GPUs, on unlisted ones and on unknown ones included, and such as take something else besides."""
    there = [replace(pod, requests=data.draw(st.none() | amounts)) for pod in there]
    where = data.draw(places)
    found = choose(Preemptor(ask, IMPORTANT, asked), where, there, frozenset(victims))
    given = [pod for pod in there if not pod.terminating and pod.uid in victims]
    free_to_stay = {pod.uid for pod in given if asked is not None and pod.requests is not None}
    free_to_stay -= {pod.uid for pod in given if pod.priority >= IMPORTANT}

    def enough(evicted: Container[str]) -> bool:
        """Whether GPUs have room, and as much of anything else is freed as by kube-scheduler, or as is asked."""
        freed, by_scheduler = Counter[str](), Counter[str]()
        for pod in (pod for pod in there if not pod.terminating):
            freed.update((pod.requests or {}) if pod.uid in evicted else {})
            by_scheduler.update((pod.requests or {}) if pod in given else {})
        left = [pod for pod in there if not pod.terminating and pod.uid not in evicted]
        sums = all(freed[name] >= min(by_scheduler[name], amount) for name, amount in (asked or {}).items())
        return fits(ask, where, left) and sums

    if found is None:
        everybody = [
            pod for pod in there if not pod.terminating and pod.uid not in victims and pod.priority >= IMPORTANT
        ]
        assert not victims or not fits(ask, where, everybody)
        return
    assert found
    assert found >= victims - free_to_stay
    assert enough(found)
    added = [pod for pod in there if pod.uid in found - victims]
    assert all(pod.priority < IMPORTANT and not pod.terminating for pod in added)
    for spared in () if found == victims else {pod.uid for pod in added} | (free_to_stay & found):
        assert not enough(found - {spared}) or not by_gpus(ask, where, there, found - {spared}, victims)


def by_gpus(
    ask: GpuRequest, where: Candidate, there: list[GpuConsumer], evicted: Container[str], victims: Container[str]
) -> bool:
    """Whether the sum of GPUs that are in service and of what pods have of them suffices, as for kube-scheduler."""
    staying = [pod for pod in there if not pod.terminating]
    rooms = candidate("n", where.gpus, [pod.usage for pod in staying]).rooms

    def shares(pods: Iterable[GpuConsumer]) -> int:
        return sum(pod.usage.unplaced_shares + sum(n for _, n in pod.usage.shares) for pod in pods)

    def whole(pods: Iterable[GpuConsumer]) -> int:
        return sum(pod.usage.unplaced_gpus + len(pod.usage.whole) for pod in pods)

    for kind, taken, offered in (
        (Kind.MEMORY, shares, sum(room.total for room in rooms if not room.whole)),
        (Kind.COUNT, whole, sum(not room.shared for room in rooms if room.card is None)),
    ):
        asked = sum(part.demand.amount for part in ask.parts if part.demand.kind is kind)
        lacking = min(taken([p for p in staying if p.uid in victims]), asked + taken(staying) - offered)
        if asked and taken([pod for pod in staying if pod.uid in evicted]) < lacking:
            return False
    return True


def test_where_kube_scheduler_allocates_its_victims_stay_as_they_are() -> None:
    """It knows which claims give back what; one of the victims is a pod that we know nothing of."""
    gpus = tuple(ListedGpu(n, 8, f"GPU-{n}") for n in range(2))
    there = candidate("node-a", NodeGpus(gpus, 1024, claims=True, problem=BY_CLAIMS), ())
    occupants = [GpuConsumer("known", Usage(unplaced_gpus=1)), GpuConsumer("other", Usage(unplaced_gpus=1))]
    proposed = frozenset({"known", "unknown"})
    assert choose(Preemptor(whole(1), IMPORTANT), there, occupants, proposed) == proposed
    assert choose(Preemptor(whole(1), IMPORTANT), there, occupants, frozenset()) is None
    assert choose(Preemptor(memory(1), IMPORTANT), there, occupants, proposed) is None


# --- Where evicting may help -----------------------------------------------------------------------------------------


def occupied_node(name: str, *pods: tuple[int, int, int]) -> tuple[Candidate, list[GpuConsumer]]:
    """Return two GPUs of 16 shares with pods: (priority, GPU, shares), or shares 0 for a GPU in whole use."""
    there = [
        GpuConsumer(f"u-{number}", Usage(((at, shares),)) if shares else Usage(whole=(at,)), priority)
        for number, (priority, at, shares) in enumerate(pods)
    ]
    return candidate(name, node(16, 16).gpus, [pod.usage for pod in there]), there


@pytest.mark.parametrize(
    ("asked", "pods", "lowest"),
    [
        pytest.param(memory(8), [(1, 0, 16), (5, 1, 16)], 1, id="both may end"),
        pytest.param(memory(8), [(200, 0, 16), (5, 1, 16)], 5, id="one may end"),
        pytest.param(memory(8), [(200, 0, 16), (100, 1, 16)], None, id="none may end"),
        pytest.param(memory(8), [(200, 0, 12), (200, 1, 10), (5, 1, 6)], None, id="its end is not enough"),
        pytest.param(memory(8), [(1, 0, 12), (1, 1, 12)], None, id="the sum suffices"),
        pytest.param(memory(8), [], None, id="nobody is there"),
        pytest.param(whole(2), [(1, 0, 0)], 1, id="whole GPUs"),
        pytest.param(whole(1), [(1, 0, 0)], None, id="a GPU is unused"),
    ],
)
def test_where_evicting_may_help(asked: GpuRequest, pods: list[tuple[int, int, int]], lowest: int | None) -> None:
    there, occupants = occupied_node("n", *pods)
    found = where_evicting_may_help(Preemptor(asked, IMPORTANT), [there], {"n": occupants}.__getitem__)
    assert [(node.name, priority) for node, priority in found] == ([] if lowest is None else [("n", lowest)])


def test_the_search_where_evicting_may_help_ends_early_where_it_takes_long() -> None:
    pod = GpuConsumer("u", Usage(tuple((gpu, 20) for gpu in range(16))))
    full = candidate("n", node(*[20] * 16).gpus, [pod.usage])
    found = list(where_evicting_may_help(Preemptor(memory(8), IMPORTANT), repeat(full, 2000), lambda _: [pod]))
    assert 0 < len(found) < 2000
