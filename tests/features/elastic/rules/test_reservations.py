"""What each container is guaranteed beyond its request. GPUs have so many shares of 1 GiB."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.elastic.contract import Allowance, PodGuarantees
from gpu_device_plugin.features.elastic.rules.reservations import (
    UNDECIDED,
    Elastic,
    Growth,
    answer,
    elastics,
    fitting,
    owned,
    resize,
    taken_over,
)
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_PROMISED, RESIZE_BOUND
from gpu_device_plugin.model.contract.reservations import Answer, write_answer
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.ledger import Reservation, Reservations
from gpu_device_plugin.node.rules.node import Block, Node
from tests.nodes import ids, inventory, node, uuid

NOTHING: tuple[Mapping[int, int], int] = ({}, 0)
FREELY = {"default": Allowance("default", 99)}


def pod(uid: str = "a", *, namespace: str = "default", init: Iterable[str] = (), **annotations: str) -> Pod:
    """Return a pod with the containers main and side; `annotations` are wish, promised and held."""
    keys = {"wish": MEMORY_GUARANTEE, "promised": MEMORY_PROMISED, "held": MEMORY_HELD}
    names = ("main", "side")
    return Pod(
        uid,
        namespace,
        f"name-of-{uid}",
        created=uid,
        annotations={keys[key]: text for key, text in annotations.items()},
        containers=(
            *(Container(name, ContainerKind.INIT, n) for n, name in enumerate(init)),
            *(Container(name, ContainerKind.APP, n) for n, name in enumerate(names)),
        ),
    )


def promised(wish: str, why: str = "", **guarantees: int) -> str:
    return write_answer(Answer(guarantees, wish, why))


def hold(numbers: Iterable[int], uid: str = "a", container: str = "main", gpu: int = 0) -> Allocation:
    return Allocation(uid, container, Kind.MEMORY, frozenset(ids(gpu, numbers)))


def found(there: Node, allocations: Iterable[Allocation], *pods: Pod) -> list[Elastic]:
    wishes = {each.kubelet_uid: PodGuarantees.of(each) for each in pods}
    return [each for some in elastics(allocations, wishes, there).values() for each in some]


def grown(there: Node, shares: int, numbers: Iterable[int], uid: str = "a", container: str = "main") -> Node:
    """Return a node on which a container has so much beyond its request."""
    new = {**there.ledger.reservations, (uid, container): Reservation(uuid(0), shares, frozenset(ids(0, numbers)))}
    return there.with_ledger(there.ledger.with_reservations(new))


def amounts(decided: tuple[Reservations, Growth]) -> dict[str, int]:
    return {"/".join(key): reservation.shares for key, reservation in decided[0].items()}


@pytest.mark.parametrize(
    ("annotations", "beyond"),
    [
        ({}, 0),
        ({"wish": "6"}, 2),
        ({"wish": "3"}, 0),
        ({"wish": '{"main": 5}'}, 1),
        ({"wish": '{"side": 9}'}, 0),
        ({"wish": "six"}, 0),
        ({"wish": "6", "promised": promised("6", main=5)}, 1),
        ({"wish": "6", "promised": promised("6", main=9)}, 2),
        ({"wish": "6", "promised": promised("6", main=1)}, 0),
        ({"wish": "6", "promised": "{}"}, 0),
        ({"wish": "6", "promised": "nothing"}, 0),
        ({"promised": promised("", main=9)}, 0),
        ({"held": promised("", main=9)}, 0),
    ],
)
def test_what_is_wished_and_promised_is_wanted(annotations: dict[str, str], beyond: int) -> None:
    (only,) = found(node(16, used={0: range(4)}), [hold(range(4))], pod(**annotations))
    assert (only.size.beyond, only.key, only.gpu.position) == (beyond, ("a", "main"), 0)


def test_containers_without_devices_that_are_certain_are_left_out() -> None:
    there = node(16, 16, used={0: range(4), 1: [0]})
    web = pod(init=["first"], wish="6")
    assert found(there, [hold(range(4))]) == []
    assert found(there, [hold([9])], web) == []
    assert found(there, [hold(range(2), container="first")], web) == []
    assert found(there.with_ledger(there.ledger.granted(ids(0, [1]), 5.0)), [hold(range(4))], web) == []
    both = Allocation("a", "main", Kind.MEMORY, frozenset((*ids(0, [0]), *ids(1, [0]))))
    assert elastics([both], {"a": PodGuarantees.of(web)}, there) == {"a": ()}


def test_a_container_grows_as_far_as_there_is_room_and_shrinks_at_once() -> None:
    there = node(16, used={0: range(10)})
    allocations = [hold(range(4)), hold(range(4, 10), "b")]
    decided = resize(there, found(there, allocations, pod(wish="9"), pod("b", wish="8")), NOTHING, FREELY)
    assert amounts(decided) == {"a/main": 5}
    why = "GPU 0 has 1 GiB left that is not assigned to anyone, and the request needs 2 GiB more"
    assert decided[1].refused == {("b", "main"): why}
    there = there.with_ledger(there.ledger.with_reservations(decided[0]))
    assert there.use(there.shares.gpus[0]).taken == 15
    decided = resize(there, found(there, allocations, pod(wish="7"), pod("b", wish="8")), NOTHING, FREELY)
    assert (amounts(decided), decided[1].refused) == ({"a/main": 3, "b/main": 2}, {})
    there = there.with_ledger(there.ledger.with_reservations(decided[0]))
    assert amounts(resize(there, found(there, allocations, pod(), pod("b", wish="1")), NOTHING, FREELY)) == {}


def test_what_a_pod_that_is_not_known_has_stays() -> None:
    there = grown(node(16, used={0: range(4)}), 3, range(4))
    assert amounts(resize(there, (), NOTHING, {})) == {"a/main": 3}


def test_pods_of_a_higher_priority_and_older_ones_come_first() -> None:
    there = node(16, used={0: range(12)})
    allocations = [hold(range(n * 4, n * 4 + 4), uid) for n, uid in enumerate("abc")]
    pods = [pod("a", wish="7"), pod("b", wish="7"), replace(pod("c", wish="6"), priority=5)]
    assert amounts(resize(there, found(there, allocations, *pods), NOTHING, FREELY)) == {"c/main": 2}
    pods[2] = pod("c", wish="5")
    assert amounts(resize(there, found(there, allocations, *pods), NOTHING, FREELY)) == {"a/main": 3, "c/main": 1}


def test_shares_that_waiting_pods_will_get_are_not_free() -> None:
    there = node(16, used={0: range(4)})
    only = found(there, [hold(range(4))], pod(wish="10"))
    assert amounts(resize(there, only, ({0: 6, 1: 9}, 0), FREELY)) == {"a/main": 6}
    assert amounts(resize(there, only, ({0: 7}, 0), FREELY)) == {}
    assert resize(there, only, ({0: 6}, 1), FREELY)[1].refused == {
        ("a", "main"): "GPU 0 has 5 GiB left that is not assigned to anyone, and the request needs 6 GiB more"
    }


def test_gpus_that_give_nothing_let_nobody_grow() -> None:
    there = node(16, used={0: range(4)})
    allocations = [hold(range(4))]

    def why(now: Node, web: Pod) -> str:
        (sentence,) = resize(now, found(now, allocations, web), NOTHING, FREELY)[1].refused.values()
        return sentence

    assert why(there, replace(pod(wish="6"), deleting=True)) == "its pod is being deleted"
    assert (
        why(replace(there, blocks={uuid(0): Block(new_pods="cordoned by x")}), pod(wish="6"))
        == "GPU 0 is cordoned by x"
    )
    assert why(replace(there, blocks={uuid(0): Block("XID 79")}), pod(wish="6")) == "GPU 0 is unhealthy: XID 79"
    assert why(there, pod(wish="17")) == "GPU 0 has 16 GiB in all"
    unknown = "it is not known yet what of GPU 0 is free"
    for ledger in (
        there.ledger.seen((), certain=False),
        there.ledger.with_held_by_other_resource({uuid(0): "nvidia.com/gpu"}),
        there.ledger.seen([uuid(0)]),
        there.ledger.with_reservations({("a", "main"): Reservation(uuid(1), 1, frozenset({"former"}))}),
    ):
        assert why(there.with_ledger(ledger), pod(wish="6")) == unknown


def test_the_allowance_of_its_namespace_has_to_be_known_and_large_enough() -> None:
    there = grown(node(32, used={0: range(8)}), 3, range(4))
    allocations = [hold(range(4)), hold(range(4, 8), "b"), hold(range(4), "b", "side", 1)]
    both = found(there, allocations, pod(wish="7"), pod("b", wish="6"))
    assert resize(there, both, NOTHING, {})[1].unknown == {"default"}
    assert amounts(resize(there, both, NOTHING, {"default": Allowance("default", 5)})) == {"a/main": 3, "b/main": 2}
    same, refused = resize(there, both, NOTHING, {"default": Allowance("default", 4)})
    why = f"the pods of namespace default may have 4 shares beyond their requests (label {RESIZE_BOUND}), and have 3"
    assert (same, refused.refused, refused.unknown) == (there.ledger.reservations, {("b", "main"): why}, frozenset())
    assert resize(there, both, NOTHING, {"default": "it is away"})[1].refused == {("b", "main"): "it is away"}


def test_the_bound_is_a_label_of_the_namespace() -> None:
    assert Allowance.of("web", {RESIZE_BOUND: "12"}) == Allowance("web", 12)
    assert Allowance.of("web", {RESIZE_BOUND: "-1"}) == Allowance("web", None)
    assert Allowance.of("web", {}).refusal(1) == (
        "namespace web has no label gpu-device-plugin/resize-bound, and ResourceQuota does not see a guarantee that "
        "grows while a pod runs: ask an administrator to label it"
    )
    assert (
        Allowance("web", 1, 1).refusal(1)
        == f"the pods of namespace web may have 1 share beyond their requests (label {RESIZE_BOUND}), and have 1"
    )
    assert Allowance("web", 2, 1).refusal(1) == ""


def test_guarantees_without_room_are_given_up() -> None:
    """An agent that did not know of them gave the shares to others."""
    there = grown(grown(node(16, 8, used={0: range(12)}), 3, range(4)), 3, range(4, 8), "b")
    assert {key[0]: reservation.shares for key, reservation in fitting(there).items()} == {"a": 3, "b": 1}
    full = there.with_ledger(there.ledger.seen(ids(0, range(12, 15))))
    assert {key[0]: reservation.shares for key, reservation in fitting(full).items()} == {"a": 1}


def test_what_is_guaranteed_on_a_gpu_that_is_excluded_now_stays() -> None:
    there = grown(node(16, 8, used={0: range(4)}), 3, range(4))
    excluding = replace(there, shares=Shares(1024).with_inventory(inventory(16, 8), [uuid(0)]))
    assert fitting(excluding) == there.ledger.reservations


def test_what_a_former_agent_saved_counts_for_containers_that_still_hold_shares_there() -> None:
    saved = {
        ("a", "main"): Reservation(uuid(0), 2, frozenset(ids(0, [0, 1]))),
        ("b", "main"): Reservation(uuid(0), 2, frozenset(ids(0, [2]))),
        ("c", "main"): Reservation(uuid(1), 2, frozenset(ids(1, [2]))),
    }
    whole = Allocation("d", "main", Kind.COUNT, frozenset({uuid(1)}))
    assert taken_over(saved, [hold([0, 1, 5]), hold([1], "c"), whole]) == {
        ("a", "main"): Reservation(uuid(0), 2, frozenset(ids(0, [0, 1, 5])))
    }


def test_ids_that_the_records_show_for_other_pods_are_not_its_own() -> None:
    mine = {("a", "main"): Reservation(uuid(0), 2, frozenset(ids(0, [0, 1])))}
    assert owned(mine, [hold([0, 1]), hold([1], container="first"), hold([1], "b")]) == mine
    assert owned(mine, []) == mine
    assert owned(mine, [hold([1], "b")]) == {("a", "main"): Reservation(uuid(0), 2, frozenset(ids(0, [0])))}


# --- what stands on the pod


def said(web: Pod, there: Node | None = None, *refused: str) -> Answer | None:
    """Return what the agent says of a pod whose container main holds shares 0 to 3."""
    there = there or node(16, used={0: range(4)})
    some = found(there, [hold(range(4))], web)
    return answer(
        PodGuarantees.of(web),
        some,
        there.ledger.reservations,
        dict.fromkeys([("a", "main")], *refused) if refused else {},
    )


def test_a_pod_shows_what_it_is_guaranteed_and_why_not_more() -> None:
    six = grown(node(16, used={0: range(4)}), 2, range(4))
    assert said(pod()) is None
    assert said(pod(held=promised("9", main=9))) is None
    assert said(pod(), six) == Answer({"main": 6})
    assert said(pod(wish="6"), six) == Answer({"main": 6}, "6")
    assert said(pod(wish="8"), six, "no room") == Answer({"main": 6}, "8", "no room")
    assert said(pod(wish="3")) == Answer({}, "3")
    assert said(pod(wish='{"main": 5, "other": 5}')) == Answer(
        {}, '{"main": 5, "other": 5}', "container 'other' has no shares of a single GPU, and only those can grow"
    )
    malformed = said(pod(wish="six"))
    assert malformed is not None
    assert "is not a whole number" in malformed.why
    moved = node(16, used={0: range(4)})
    moved = moved.with_ledger(
        moved.ledger.with_reservations({("a", "main"): Reservation(uuid(1), 2, frozenset({"former"}))})
    )
    assert said(pod(wish="6"), moved) == Answer({}, "6")


def test_a_pod_without_shares_of_one_gpu_is_told_so() -> None:
    web = pod(wish="6")
    assert answer(PodGuarantees.of(web), (), {}, {}) == Answer(
        {}, "6", "no container has shares of a single GPU, and only those can grow"
    )


def test_what_the_extender_says_stands_there_too() -> None:
    web = pod(wish="9", promised=promised("9", "GPU 0 of node has 1 GiB that is not assigned to anyone"))
    assert said(web) == Answer({}, "9", "GPU 0 of node has 1 GiB that is not assigned to anyone")


def test_nothing_is_said_while_the_extender_decides() -> None:
    six = grown(node(16, used={0: range(4)}), 2, range(4))
    assert said(pod(wish="6", promised="{}")) is None
    before = promised("6", main=6)
    assert said(pod(wish="9", promised=before, held=before), six) == Answer({"main": 6}, "6")
    assert said(pod(wish="9", promised=before), six) == Answer({"main": 6}, "9", UNDECIDED)
    # What was not promised needs no decision of the extender: it waits for the agent before it lowers the promise.
    assert said(pod(wish="5", promised=before), six) == Answer({"main": 6}, "5")


@given(st.data())
def test_the_guarantees_never_exceed_the_gpu_nor_what_is_wanted(data: st.DataObject) -> None:
    total = 12
    there = node(total)
    allocations, pods, at = [], [], 0
    for uid in data.draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        request = data.draw(st.integers(1, 4))
        numbers, at = range(at, min(total, at + request)), min(total, at + request)
        if not numbers:
            continue
        there = there.with_ledger(there.ledger.seen(ids(0, numbers)))
        there = grown(there, data.draw(st.integers(0, 3)), numbers, uid)
        allocations.append(hold(numbers, uid))
        wish = str(data.draw(st.integers(1, 14)))
        more = {"promised": promised(wish, main=data.draw(st.integers(1, 14)))} if data.draw(st.booleans()) else {}
        if data.draw(st.integers(0, 4)):
            pods.append(pod(uid, wish=wish, **more))
    bound, reserved = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 6))
    some = found(there, allocations, *pods)
    decided = resize(there, some, ({0: reserved}, 0), {"default": Allowance("default", bound)})
    before = fitting(there)
    after = there.with_ledger(there.ledger.with_reservations(decided[0]))
    assert after.use(after.shares.gpus[0]).taken <= total
    assert set(decided[0]) <= set(before) | {each.key for each in some}
    for each in some:
        was, now = (kept[each.key].shares if each.key in kept else 0 for kept in (before, decided[0]))
        assert now == each.size.beyond or (now == was < each.size.beyond and each.key in decided[1].refused)
    known = {each.key for each in some}
    assert all(decided[0][key] == reservation for key, reservation in before.items() if key not in known)
    extra = sum(reservation.shares for key, reservation in decided[0].items() if key in known)
    assert extra <= max(bound, sum(before[key].shares for key in known if key in before))
    if any(
        key in known and reservation.shares > before.get(key, replace(reservation, shares=0)).shares
        for key, reservation in decided[0].items()
    ):
        assert after.use(after.shares.gpus[0]).taken + reserved <= total
    again = resize(after, some, ({0: reserved}, 0), {"default": Allowance("default", bound)})
    assert again[0] == decided[0]
