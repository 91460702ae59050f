"""What a running pod is promised beyond its requests, and why it is not more."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.elastic.contract import Allowance
from gpu_device_plugin.features.elastic.rules.promising import Decision, Outcome, decides, resize, wants_more
from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    INIT_ALLOCATION,
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_PROMISED,
    RESIZE_BOUND,
)
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.contract.reservations import NO_ANSWER, Answer
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.usage import Usage, usage_of
from tests.resources import COUNT, MEM

RESOURCES = (MEM, COUNT)
NODE = NodeGpus(
    (
        ListedGpu(0, 12),
        ListedGpu(1, 12, unhealthy="XID 79"),
        ListedGpu(2, 12, instance=ListedInstance("GPU-2", 2, 0, "3g.20gb", 1)),
    ),
    share_mib=1024,
)
PLENTY = Allowance("team-a", 100)


def pod(
    wish: str | None = None,
    promised: Any = NO_ANSWER.guarantees,
    held: Any = None,
    *,
    places: dict[str, dict[str, int]] | None = None,
    answered: str = "",
    **mem: int,
) -> Pod:
    """A pod on GPU 0 whose containers, main unless others are named, have these requests; `answered` is what H says."""
    mem = mem or {"main": 4}
    places = places or {str(n): {"0": amount} for n, amount in enumerate(mem.values())}
    held_answer = None if held is None else {"guarantees": held} | ({"wish": answered} if answered else {})
    annotations = {
        ALLOCATION: json.dumps(places),
        **({} if wish is None else {MEMORY_GUARANTEE: wish}),
        **({} if promised is None else {MEMORY_PROMISED: json.dumps({"guarantees": promised})}),
        **({} if held_answer is None else {MEMORY_HELD: json.dumps(held_answer)}),
    }
    containers = tuple(
        Container(name, ContainerKind.APP, n, {MEM.name: amount}) for n, (name, amount) in enumerate(mem.items())
    )
    return Pod("u", "team-a", "a", "node-1", annotations=annotations, containers=containers)


def node(*others: Usage, gpus: NodeGpus = NODE, of: Pod | None = None) -> Candidate:
    return candidate("node-1", gpus, [*others, *([] if of is None else [usage_of(of, RESOURCES)])])


def decision(asked: Pod, *others: Usage, allowance: Allowance = PLENTY, gpus: NodeGpus = NODE) -> Decision:
    return resize(asked, RESOURCES, node(*others, gpus=gpus, of=asked), allowance)


def taken(shares: int) -> Usage:
    """What others have of GPU 0."""
    return Usage(((0, shares),))


FULFILLED: dict[str, tuple[Pod, Outcome, dict[str, int]]] = {
    "more": (pod("6"), Outcome.GROWN, {"main": 6}),
    "all of the GPU": (pod("12"), Outcome.GROWN, {"main": 12}),
    "more than was promised": (pod("8", {"main": 6}, {"main": 6}), Outcome.GROWN, {"main": 8}),
    "what is held already": (pod("6", {}, {"main": 6}), Outcome.GROWN, {"main": 6}),
    "one of two containers": (pod('{"a": 5}', a=4, b=2), Outcome.GROWN, {"a": 5}),
    "both": (pod("5", a=4, b=2), Outcome.GROWN, {"a": 5, "b": 5}),
    "no more than it has": (pod("4"), Outcome.KEPT, {}),
    "less than the request": (pod("2"), Outcome.KEPT, {}),
    "nothing": (pod(), Outcome.KEPT, {}),
    "the request again": (pod(None, {"main": 6}), Outcome.LOWERED, {}),
    "less, and the agent has done it": (pod("5", {"main": 6}, {"main": 5}, answered="5"), Outcome.LOWERED, {"main": 5}),
    "less of one comes before more of another": (
        pod('{"a": 4, "b": 3}', {"a": 6}, {}, answered='{"a": 4, "b": 3}', a=4, b=2),
        Outcome.LOWERED,
        {},
    ),
    "less of one that has not settled does not hold up the other": (
        pod('{"a": 4, "b": 3}', {"a": 6}, a=4, b=2),
        Outcome.GROWN,
        {"a": 6, "b": 3},
    ),
    "a promise that somebody forged": (pod(None, {"main": 12}), Outcome.LOWERED, {}),
}
"""What a pod wishes, has been promised and holds, and what it is promised then."""


@pytest.mark.parametrize(("asked", "outcome", "guarantees"), FULFILLED.values(), ids=FULFILLED)
def test_a_wish_is_fulfilled_where_the_gpu_has_room(asked: Pod, outcome: Outcome, guarantees: dict[str, int]) -> None:
    wish = asked.annotations.get(MEMORY_GUARANTEE, "")
    assert decision(asked) == Decision(outcome, Answer(guarantees, wish))


@pytest.mark.parametrize(
    ("held", "answered"),
    [(None, ""), ({"main": 4}, ""), ({"main": 5}, "6"), ({"main": 5}, ""), ({"main": 6}, "6"), ({"main": 6}, "5")],
)
def test_a_promise_is_not_lowered_while_the_agent_holds_it_or_may_be_about_to_take_it(held: Any, answered: str) -> None:
    """6 are promised and 5 wished for. The agent has said nothing, or something of a wish before, or holds 6 still."""
    asked = pod("5", {"main": 6}, held, answered=answered)
    assert decision(asked) == Decision(Outcome.KEPT, Answer({"main": 6}))


def test_an_agent_that_settles_before_the_promise_is_lowered_may_still_be_acting_on_an_earlier_wish() -> None:
    asked = pod("5", {"main": 6}, {"main": 5}, answered="5")
    found = resize(asked, RESOURCES, node(of=asked), PLENTY, quiet=False)
    assert found == Decision(Outcome.KEPT, Answer({"main": 6}))
    assert resize(asked, RESOURCES, node(of=asked), PLENTY, quiet=True).outcome is Outcome.LOWERED


def test_a_promise_that_the_agent_had_no_room_for_is_lowered_with_the_wish() -> None:
    """Otherwise it would count for nobody as long as the agent has none."""
    asked = pod("5", {"main": 8}, {}, answered="5")
    found = resize(asked, RESOURCES, node(of=asked), PLENTY)
    assert found == Decision(Outcome.LOWERED, Answer({"main": 5}, "5"))
    asked = pod("5", {"main": 8}, {}, answered="8")
    assert resize(asked, RESOURCES, node(of=asked), PLENTY).outcome is Outcome.KEPT


NO_LABEL = (
    f"namespace team-a has no label {RESIZE_BOUND}, and ResourceQuota does not see a guarantee that grows while a pod "
    "runs: ask an administrator to label it"
)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        (7, "GPU 0 of node-1 has 1 GiB that is not assigned to anyone"),
        (8, "GPU 0 of node-1 has 0 MiB that is not assigned to anyone"),
        (9, "GPU 0 of node-1 has 0 MiB that is not assigned to anyone"),
    ],
)
def test_without_room_the_promise_stays_and_says_how_much_there_is(others: int, why: str) -> None:
    asked = pod("7", {"main": 5}, {"main": 5})
    found = resize(asked, RESOURCES, node(taken(others - 1), of=asked), PLENTY)
    assert found == Decision(Outcome.REFUSED, Answer({"main": 5}, "7", why))


UNSUITABLE: dict[str, tuple[Pod, Candidate | None, str]] = {
    "an unknown node": (pod("6"), None, "its node does not list its GPU at the moment"),
    "a GPU that is not listed": (
        pod("6", places={"0": {"7": 4}}),
        node(),
        "its node does not list its GPU at the moment",
    ),
    "a GPU out of service": (pod("6", places={"0": {"1": 4}}), node(), "GPU 1 of node-1 is unhealthy or cordoned"),
    "a MIG instance": (
        pod("6", places={"0": {"2": 4}}),
        node(),
        "GPU 2 of node-1 is a MIG instance, on which no guarantee grows",
    ),
    "a GPU that is too small": (pod("13"), node(), "GPU 0 of node-1 has 12 GiB in all"),
    "shares of unknown size": (
        pod("6"),
        node(taken(11), gpus=NodeGpus((ListedGpu(0, 12),))),
        "GPU 0 of node-1 has 1 share that is not assigned to anyone",
    ),
    "a container on two GPUs": (
        pod('{"main": 6}', places={"0": {"0": 2, "1": 2}}),
        node(),
        "container 'main' has no shares of a single GPU, and only those can grow",
    ),
    "a container that does not exist": (
        pod('{"other": 6}'),
        node(),
        "container 'other' has no shares of a single GPU, and only those can grow",
    ),
    "a malformed wish": (
        pod("6 GiB"),
        node(),
        (
            f'the annotation {MEMORY_GUARANTEE} holds "6 GiB", which is not a whole number of shares of GPU memory; '
            'write it like 12, or {"main": 12}'
        ),
    ),
}
"""What a pod wishes, its node, and why it is promised no more."""


@pytest.mark.parametrize(("asked", "there", "why"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_a_wish_that_cannot_be_fulfilled_is_answered_by_a_sentence(
    asked: Pod, there: Candidate | None, why: str
) -> None:
    assert resize(asked, RESOURCES, there, PLENTY) == Decision(
        Outcome.REFUSED, Answer({}, asked.annotations[MEMORY_GUARANTEE], why)
    )


@pytest.mark.parametrize(
    ("labels", "used", "why"),
    [
        ({}, 0, NO_LABEL),
        ({RESIZE_BOUND: "many"}, 0, NO_LABEL),
        ({RESIZE_BOUND: "-1"}, 0, NO_LABEL),
        (
            {RESIZE_BOUND: "8"},
            7,
            f"the pods of namespace team-a may have 8 shares beyond their requests (label {RESIZE_BOUND}), and have 7",
        ),
        (
            {RESIZE_BOUND: "1"},
            0,
            f"the pods of namespace team-a may have 1 share beyond their requests (label {RESIZE_BOUND}), and have 0",
        ),
        ({RESIZE_BOUND: "8"}, 6, ""),
    ],
)
def test_the_namespace_bounds_what_its_pods_are_guaranteed_beyond_their_requests(
    labels: dict[str, str], used: int, why: str
) -> None:
    """2 more are wished for."""
    found = decision(pod("6"), allowance=Allowance.of("team-a", labels, used))
    assert (found.answer.why, found.by_bound) == (why, bool(why))
    assert found.answer.guarantees == ({} if why else {"main": 6})


def test_containers_of_one_pod_share_room_and_bound() -> None:
    """5 are free, and 3 allowed; the containers come in their order, and each gets all of its wish or nothing.

    What the one before has just got counts.
    """
    asked = pod('{"a": 4, "b": 6, "c": 2}', a=2, b=3, c=1)
    found = resize(asked, RESOURCES, node(taken(1), of=asked), Allowance("team-a", 3))
    assert found.answer.guarantees == {"a": 4, "c": 2}
    assert (
        found.answer.why
        == f"the pods of namespace team-a may have 3 shares beyond their requests (label {RESIZE_BOUND}), and have 2"
    )
    found = resize(asked, RESOURCES, node(taken(3), of=asked), PLENTY)
    assert found.answer.guarantees == {"a": 4, "c": 2}
    assert found.answer.why == "GPU 0 of node-1 has 1 GiB that is not assigned to anyone"


def test_an_init_container_keeps_to_its_request() -> None:
    annotations = {
        ALLOCATION: '{"0":{"0":4}}',
        INIT_ALLOCATION: '{"0":{"0":5}}',
        MEMORY_PROMISED: "{}",
        MEMORY_GUARANTEE: "6",
    }
    containers = (
        Container("setup", ContainerKind.INIT, 0, {MEM.name: 5}),
        Container("main", ContainerKind.APP, 0, {MEM.name: 4}),
    )
    asked = Pod("u", "team-a", "a", "node-1", annotations=annotations, containers=containers)
    assert decision(asked).answer.guarantees == {"main": 6}


def test_an_extender_decides_on_pods_that_one_has_bound_and_that_run() -> None:
    assert decides(pod("6"))
    assert not decides(pod("6", None))
    unbound = pod("6")
    assert not decides(Pod("u", "team-a", "a", annotations=unbound.annotations, containers=unbound.containers))
    for fields in ({"deleting": True}, {"phase": "Failed"}):
        gone = Pod("u", "team-a", "a", "n", annotations=unbound.annotations, **fields)
        assert not decides(gone)


def test_only_a_pod_that_wants_more_than_counts_needs_the_bound_of_its_namespace() -> None:
    assert wants_more(pod("6"), RESOURCES)
    assert not wants_more(pod("6", {"main": 6}), RESOURCES)
    assert wants_more(pod("6", {}, {"main": 6}), RESOURCES)  # what somebody wrote as held does not count
    assert not wants_more(pod("4"), RESOURCES)


@given(
    wish=st.integers(1, 14),
    promised=st.integers(1, 14),
    held=st.integers(1, 14),
    others=st.integers(0, 12),
    bound=st.integers(0, 12),
    answered=st.booleans(),
)
def test_whatever_is_decided_the_gpu_and_the_bound_are_kept_and_the_decision_stands(
    wish: int, promised: int, held: int, others: int, bound: int, *, answered: bool
) -> None:
    """If the GPU and the bound were kept before. Decided anew on the result, nothing changes."""
    before = pod(str(wish), {"main": promised}, {"main": held}, answered=str(wish) if answered else "")
    counted = usage_of(before, RESOURCES)
    if counted.all_shares + others > 12 or counted.growth > bound:
        return
    found = resize(before, RESOURCES, node(taken(others), of=before), Allowance("team-a", bound, counted.growth))
    assert found.answer.guarantees.get("main", 4) <= max(4, wish, promised)
    said = {"guarantees": dict(found.answer.guarantees), "wish": found.answer.wish, "why": found.answer.why}
    after = Pod(
        "u",
        "team-a",
        "a",
        "node-1",
        annotations={**before.annotations, MEMORY_PROMISED: json.dumps(said)},
        containers=before.containers,
    )
    counts = usage_of(after, RESOURCES)
    assert counts.all_shares + others <= 12
    assert counts.growth <= bound
    if found.outcome is not Outcome.LOWERED:
        again = resize(after, RESOURCES, node(taken(others), of=after), Allowance("team-a", bound, counts.growth))
        assert again.answer.guarantees == found.answer.guarantees
