"""Who takes what of the GPUs of every node."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import IDX
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.scheduler.cluster_state import Fleet, FleetEntry
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.resources import COUNT, MEM

VANISHED_GRACE_S = 30.0


def gpus(*sizes: int, policy: str | None = None, problem: str = "") -> NodeGpus:
    return NodeGpus(tuple(ListedGpu(n, size) for n, size in enumerate(sizes)), policy=policy, problem=problem)


def pod(name: str, mem: int = 4, node: str = "", gpu: int | None = None, **fields: Any) -> Pod:
    """A pod that asks for memory, and has a promise if `gpu` says where; its uid is its name in capitals."""
    return Pod(
        name.upper(),
        "default",
        name,
        node_name=node,
        annotations={} if gpu is None else {IDX: str(gpu)},
        containers=(Container("main", ContainerKind.APP, 0, {MEM.name: mem}),) if mem else (),
        **fields,
    )


def fleet(*pods: Pod, **nodes: NodeGpus) -> Fleet:
    there = Fleet((MEM, COUNT), vanished_grace_s=VANISHED_GRACE_S)
    for name, node in nodes.items():
        there.put_node(name, node)
    for each in pods:
        there.put_pod(each)
    return there


def free(there: Fleet, node: str = "a") -> list[int]:
    """Free shares of every GPU of a node."""
    return [room.free for room in there.candidates[node].rooms]


# --- nodes


def test_a_node_is_a_candidate_with_all_that_it_says() -> None:
    there = fleet(a=gpus(8, policy="spread"), b=gpus(problem="unreadable"))
    assert there.candidates == {
        "a": candidate("a", gpus(8, policy="spread"), []),
        "b": candidate("b", gpus(problem="unreadable"), []),
    }


def test_a_node_that_says_the_same_again_stays_as_it_is() -> None:
    there = fleet(a=gpus(8))
    before = there.candidates["a"]
    there.put_node("a", gpus(8))
    assert there.candidates["a"] is before
    there.put_node("a", gpus(9))
    assert free(there) == [9]
    assert free(fleet(a=gpus(8))) == [8]


def test_pods_of_a_node_that_is_not_there_wait_for_it() -> None:
    """E10 of the original: a pod on a vanished node kept it from starting."""
    there = fleet(pod("p", node="a", gpu=0))
    assert there.candidates == {}
    there.put_node("a", gpus(8))
    assert free(there) == [4]
    there.remove_node("a")
    assert there.candidates == {}
    assert set(there.entries) == {"P"}
    there.put_node("a", gpus(10))
    assert free(there) == [6]


def test_what_changed_since_is_told_by_name() -> None:
    """A pod changes its node, and a node itself; a node that went has changed, too."""
    there = fleet(a=gpus(8), b=gpus(8), c=gpus(8))
    mark, names = there.now.changed_since(0)
    assert names is not None
    assert sorted(names) == ["a", "b", "c"]
    assert there.now.changed_since(mark) == (mark, [])
    there.put_pod(pod("p", node="a", gpu=0))
    there.remove_node("b")
    there.put_node("c", gpus(8))
    later, names = there.now.changed_since(mark)
    assert names is not None
    assert sorted(names) == ["a", "b"]
    there.put_pod(pod("q", node="a", gpu=0))
    assert there.now.changed_since(later)[1] == ["a"]
    assert set(there.now.changed_since(mark)[1] or ()) == {"a", "b"}


def test_that_something_has_changed_is_told_once_until_somebody_looks() -> None:
    told: list[str] = []
    there = Fleet((MEM, COUNT), vanished_grace_s=VANISHED_GRACE_S, on_change=lambda: told.append("changed"))
    there.put_node("a", gpus(8))
    there.put_pod(pod("p", node="a", gpu=0))
    assert told == ["changed"]
    assert free(there) == [4]
    there.put_pod(pod("p", node="a", gpu=0))
    assert told == ["changed"]
    there.remove_node("a")
    assert told == ["changed", "changed"]


def test_what_a_list_of_all_nodes_tells_again_changes_nothing() -> None:
    there = fleet(pod("p", node="gone", gpu=0), a=gpus(8), b=gpus(8), c=gpus(8))
    before = there.candidates["a"]
    there.remove_node("c")
    for name, its_gpus in {"a": gpus(8), "b": gpus(9), "d": gpus(8)}.items():
        there.put_node(name, its_gpus)
    assert set(there.candidates) == {"a", "b", "d"}
    assert there.candidates["a"] is before
    assert free(there, "b") == [9]
    there.put_node("gone", gpus(8))
    assert free(there, "gone") == [4]


# --- pods


def test_a_bound_pod_takes_what_it_was_promised() -> None:
    """E5, E8 and E9 of the original: its own request counts, where it is promised, and anywhere if it is not."""
    there = fleet(pod("p", 4, "a", 1), pod("q", 3, "a"), a=gpus(8, 8))
    assert free(there) == [5, 1]
    assert there.entries == {
        "P": FleetEntry("P", "default", "p", "a", Usage(((1, 4),))),
        "Q": FleetEntry("Q", "default", "q", "a", Usage(unplaced_shares=3)),
    }


def test_the_pods_of_a_node_are_told_by_name() -> None:
    there = fleet(pod("q", node="a", gpu=0), pod("p", node="a", gpu=0), pod("r", node="b", gpu=0), a=gpus(16))
    there.put_pod(replace(pod("z", node="a", gpu=0), namespace="apps"))
    assert [(entry.namespace, entry.name) for entry in there.on_node("a")] == [
        ("apps", "z"),
        ("default", "p"),
        ("default", "q"),
    ]
    assert [entry.name for entry in there.on_node("b")] == ["r"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_takes_nothing(phase: str) -> None:
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8))
    there.put_pod(pod("p", node="a", gpu=0, phase=phase))
    there.put_pod(pod("q", node="a", gpu=0, phase=phase))
    assert (free(there), there.entries) == ([8], {})


def test_a_pod_that_is_being_deleted_counts_until_it_has_ended() -> None:
    """E6 of the original: its memory was given away at once, while its processes still used it."""
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8))
    there.put_pod(pod("p", node="a", gpu=0, deleting=True, priority=7))
    assert free(there) == [4]
    assert there.entries["P"] == FleetEntry("P", "default", "p", "a", Usage(((0, 4),)), priority=7, deleting=True)


def test_a_change_that_says_nothing_of_gpus_costs_nothing() -> None:
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8))
    before = there.candidates["a"]
    there.put_pod(pod("p", node="a", gpu=0, phase="Running", running=True, labels={"x": "y"}))
    there.put_pod(pod("p", node="a", gpu=0, deleting=True))
    assert there.candidates["a"] is before


def test_drift_is_told_and_taken_over() -> None:
    told: list[tuple[FleetEntry, FleetEntry]] = []
    there = Fleet([MEM], vanished_grace_s=VANISHED_GRACE_S, on_drift=lambda before, after: told.append((before, after)))
    there.put_node("a", gpus(8, 8))
    there.put_pod(pod("p", 4, "a"))
    there.put_pod(pod("p", 4, "a", 0))
    there.put_pod(pod("p", 4, "a", 0, running=True))
    assert told == []
    there.put_pod(pod("p", 4, "a", 1))
    assert [(before.usage, after.usage) for before, after in told] == [(Usage(((0, 4),)), Usage(((1, 4),)))]
    assert free(there) == [8, 4]


def test_a_pod_of_which_nobody_knows_where_it_is_is_told_once() -> None:
    told: list[str] = []
    there = Fleet((MEM, COUNT), vanished_grace_s=VANISHED_GRACE_S, on_unplaced=lambda pod: told.append(pod.name))
    there.put_pod(pod("p", node="a"))
    there.put_pod(pod("p", node="a", phase="Running"))
    there.put_pod(pod("q", node="a", gpu=0))
    assert told == ["p"]
    there.put_pod(pod("p", node="a", gpu=0))
    there.put_pod(pod("p", node="a"))
    assert told == ["p", "p"]
    there.put_pod(pod("r", node="a", phase="Failed"))
    assert told == ["p", "p"]


# --- pods that wait


def test_a_pod_that_waits_is_known_until_it_is_bound() -> None:
    there = fleet(pod("p"), a=gpus(8))
    assert there.pending.get("P") == pod("p")
    there.put_pod(pod("p", node="a", gpu=0))
    assert there.pending.get("P") is None


# --- pods that vanish

GOOD_END: dict[str, dict[str, Any]] = {
    "it had succeeded": {"phase": "Succeeded"},
    "it had failed": {"phase": "Failed", "running": True},
    "it was being deleted, and nothing of it ran any more": {"deleting": True, "phase": "Running"},
}
BAD_END: dict[str, dict[str, Any]] = {
    "nobody asked it to end": {},
    "it was running": {"running": True},
    "it was being deleted, and ran": {"deleting": True, "running": True},
}


@pytest.mark.parametrize("end", GOOD_END.values(), ids=GOOD_END)
def test_a_pod_that_was_seen_to_end_is_forgotten(end: dict[str, Any]) -> None:
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8))
    there.remove_pod(pod("p", node="a", gpu=0, **end), 100)
    assert (free(there), there.entries, there.on_node("a")) == ([8], {}, [])


@pytest.mark.parametrize("end", BAD_END.values(), ids=BAD_END)
def test_a_pod_that_vanished_counts_for_a_while(end: dict[str, Any]) -> None:
    """After a force delete its processes go on: 2 s were measured, a whole grace period is possible."""
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8))
    there.remove_pod(pod("p", node="a", gpu=0, **end), 100)
    assert there.entries["P"].until == 130
    there.expire(129.9)
    assert free(there) == [4]
    there.expire(130)
    assert (free(there), there.entries) == ([8], {})


# --- claims


def test_a_claim_counts_at_once() -> None:
    there = fleet(pod("p"), a=gpus(8))
    there.claim(pod("p", node="a", gpu=0, priority=5))
    assert free(there) == [4]
    assert there.entries["P"] == FleetEntry(
        "P", "default", "p", "a", Usage(((0, 4),)), priority=5, claimed=True, seen=False
    )


def test_a_confirmed_claim_is_not_given_back() -> None:
    there = fleet(pod("p"), a=gpus(8))
    there.claim(pod("p", node="a", gpu=0))
    before = there.candidates["a"]
    there.confirm("P")
    there.confirm("P")
    there.confirm("nobody")
    there.release("P")
    assert there.candidates["a"] is before
    assert there.entries["P"] == FleetEntry("P", "default", "p", "a", Usage(((0, 4),)), seen=False)
    assert there.pending.get("P") is None


def test_a_pod_that_is_known_to_be_bound_is_not_claimed_anew() -> None:
    """A scheduler that got no answer asks again; what the second call gives back is not what the first one bound."""
    for known in ("seen", "confirmed"):
        there = fleet(a=gpus(8), b=gpus(8))
        there.claim(pod("p", node="a", gpu=0))
        if known == "seen":
            there.put_pod(pod("p", node="a", gpu=0))
        else:
            there.confirm("P")
        there.claim(pod("p", node="b", gpu=0))
        there.release("P")
        assert (free(there, "a"), free(there, "b")) == ([4], [8])


def test_whatever_shows_the_pod_unbound_is_older_than_the_claim() -> None:
    there = fleet(a=gpus(8))
    there.claim(pod("p", node="a", gpu=0))
    there.put_pod(pod("p", labels={"x": "y"}))
    there.replace_pods([pod("p", labels={"x": "y"})], 100)
    assert free(there) == [4]
    assert there.pending.get("P") == pod("p", labels={"x": "y"})
    there.confirm("P")
    there.put_pod(pod("p"))
    assert free(there) == [4]
    assert there.pending.get("P") is None


def test_a_claim_is_over_once_the_pod_was_bound_and_is_gone() -> None:
    there = fleet(a=gpus(8))
    there.claim(pod("p", node="a", gpu=0))
    there.remove_pod(pod("p", node="a", gpu=0), 100)
    assert there.entries["P"] == FleetEntry("P", "default", "p", "a", Usage(((0, 4),)), seen=False, until=130)
    there.release("P")
    assert free(there) == [4]
    there.expire(130)
    assert free(there) == [8]


def test_a_claim_never_ends_by_time_alone() -> None:
    """A list that misses the pod may be older than it, or newer than its end: whoever claimed will know."""
    there = fleet(a=gpus(8))
    there.claim(pod("p", node="a", gpu=0))
    there.replace_pods([], 100)
    there.expire(1000)
    assert free(there) == [4]
    assert there.entries["P"].claimed


def test_a_pod_that_a_list_missed_while_it_was_being_bound_counts_until_the_next_list_misses_it() -> None:
    """The list may have been older than the pod, and the pod is bound: only another list tells that it has gone."""
    there = fleet(a=gpus(8))
    there.claim(pod("p", node="a", gpu=0))
    there.replace_pods([], 100)
    there.confirm("P")
    there.expire(1000)
    assert free(there) == [4]
    there.replace_pods([], 1000)
    there.expire(1030)
    assert (free(there), there.entries) == ([8], {})


# --- room that time alone makes


def soon(there: Fleet) -> dict[str, list[int]]:
    """Return what will be free on nodes where that is more than now."""
    return {name: [room.free for room in node.rooms] for name, node in there.soon.items()}


def test_what_a_claim_in_doubt_holds_may_be_free_by_time_alone() -> None:
    """A claim that is not in doubt ends by an answer of the API server, of which the scheduler is told."""
    there = fleet(a=gpus(8))
    there.claim(pod("p", node="a", gpu=0))
    assert soon(there) == {}
    there.doubt("P")
    assert (free(there), soon(there)) == ([4], {"a": [8]})
    there.claim(pod("p", node="a", gpu=0))
    assert soon(there) == {"a": [8]}, "asked for once more, it is in doubt as before"
    there.confirm("P")
    assert (free(there), soon(there)) == ([4], {})
    there.doubt("P")
    assert soon(there) == {}, "nobody doubts what is bound"


def test_room_that_comes_by_time_alone_is_that_of_its_own_nodes() -> None:
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8), b=gpus(8))
    assert soon(there) == {}
    there.remove_pod(pod("p", node="a", gpu=0), 100)
    assert soon(there) == {"a": [8]}
    there.expire(130)
    assert soon(there) == {}


# --- events that have nothing to do with each other


def test_the_order_of_independent_events_does_not_matter() -> None:
    events: list[Callable[[Fleet], None]] = [
        lambda there: there.put_node("a", gpus(8, 8)),
        lambda there: there.put_node("b", gpus(8)),
        lambda there: there.put_pod(pod("p", node="a", gpu=0)),
        lambda there: there.put_pod(pod("q", node="a")),
        lambda there: there.claim(pod("r", 2, "b", 0)),
        lambda there: there.put_pod(pod("s")),
    ]
    ends = []
    for order in permutations(events):
        there = fleet()
        for event in order:
            event(there)
        ends.append((dict(there.candidates), dict(there.entries), there.pending.get("S"), there.on_node("a")))
    assert all(end == ends[0] for end in ends)
    assert free(there, "a") == [0, 4]
    assert free(there, "b") == [6]


# --- A GPU changes between the resources


def settling(*pods: Pod) -> Fleet:
    there = Fleet((MEM, COUNT), vanished_grace_s=VANISHED_GRACE_S, settle_s=2.0)
    there.put_node("a", gpus(8, 8))
    for each in pods:
        there.put_pod(each)
    return there


def rooms(there: Fleet) -> list[tuple[int, bool]]:
    """Return what can be had now of each GPU."""
    closed = there.settling("a")
    node = there.candidates["a"] if closed is None else closed[0]
    return [(room.free, room.shared) for room in node.rooms]


OPEN = [(8, False), (8, False)]


def whole(name: str, gpu: int) -> Pod:
    return replace(pod(name, node="a", gpu=gpu), containers=(Container("main", ContainerKind.APP, 0, {COUNT.name: 1}),))


def test_shares_of_a_gpu_whose_whole_user_ended_can_be_had_a_moment_later() -> None:
    """Until then the node's agent still shows them as unhealthy, and the kubelet would refuse the pod for good."""
    there = settling(whole("p", 0))
    there.put_pod(replace(whole("p", 0), phase="Succeeded"), 100.0)
    closed = there.settling("a")
    assert closed is not None
    (room, _), opens = closed[0].rooms, closed[1]
    assert (room.free, room.shared, room.whole, opens) == (0, False, False, 102.0)
    there.expire(101.9)
    assert rooms(there)[0] == (0, False)
    there.expire(102.0)
    assert rooms(there) == OPEN
    assert there.entries == {}


def test_a_node_is_shown_as_it_will_be_in_a_moment() -> None:
    """Nothing may happen in the cluster when the moment is over that would make the scheduler ask again."""
    there = settling(whole("p", 0), pod("q", mem=8, node="a", gpu=1))
    for each in (whole("p", 0), pod("q", mem=8, node="a", gpu=1)):
        there.put_pod(replace(each, phase="Succeeded"), 100.0)
    assert rooms(there) == [(0, False), (8, True)]
    assert [(room.free, room.shared) for room in there.candidates["a"].rooms] == OPEN
    assert there.settling("b") is None


def test_a_gpu_whose_last_share_was_let_go_can_be_had_whole_a_moment_later_and_its_shares_at_once() -> None:
    there = settling(pod("p", mem=8, node="a", gpu=1))
    there.put_pod(pod("p", mem=8, node="a", gpu=1, phase="Failed"), 100.0)
    assert rooms(there)[1] == (8, True)
    there.expire(102.0)
    assert rooms(there) == OPEN


def test_the_moment_begins_when_the_pod_is_first_seen_to_have_ended() -> None:
    there = settling(whole("p", 0))
    there.put_pod(replace(whole("p", 0), phase="Succeeded"), 100.0)
    there.put_pod(replace(whole("p", 0), phase="Succeeded", labels={"a": "b"}), 101.0)
    there.remove_pod(replace(whole("p", 0), phase="Succeeded"), 101.5)
    there.replace_pods([], 101.8)
    there.expire(102.0)
    assert there.entries == {}


@pytest.mark.parametrize(
    "end",
    [
        lambda there, ended: there.put_pod(ended, 100.0),
        lambda there, ended: there.remove_pod(ended, 100.0),
        lambda there, ended: there.replace_pods([ended], 100.0),
    ],
    ids=["seen", "removed", "listed"],
)
def test_however_the_end_is_told_the_moment_is_as_long(end: Callable[[Fleet, Pod], None]) -> None:
    there = settling(whole("p", 0))
    end(there, replace(whole("p", 0), phase="Succeeded"))
    closed = there.settling("a")
    assert closed is not None
    assert closed[1] == 102.0


def test_a_node_of_which_something_is_closed_is_otherwise_as_it_was() -> None:
    there = settling(whole("p", 0))
    node = gpus(8, 8, policy="spread", problem="its agent has ended")
    there.put_node("a", node)
    there.put_pod(replace(whole("p", 0), phase="Succeeded"), 100.0)
    closed = there.settling("a")
    assert closed is not None
    assert closed[0] == candidate("a", node, [Usage(settling_whole=(0,))])
    there.remove_node("a")
    assert there.settling("a") is None


# --- What the API server says last


def test_a_bound_pod_that_a_list_shows_unbound_again_takes_nothing() -> None:
    """Etcd was put back to a backup from before the binding; a single late event would not be believed."""
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8))
    there.put_pod(pod("p"))
    assert free(there) == [4]
    there.replace_pods([pod("p")], 0.0)
    assert free(there) == [8]
    assert there.pending.get("P") is not None


def test_a_pod_that_we_know_to_be_bound_stays_so_whatever_an_older_list_shows() -> None:
    there = fleet(pod("p"), a=gpus(8))
    there.claim(pod("p", node="a", gpu=0))
    there.confirm("P")
    there.replace_pods([pod("p")], 0.0)
    assert free(there) == [4]


def test_a_pod_that_was_deleted_before_its_kubelet_reported_on_it_may_be_starting() -> None:
    there = fleet(pod("p", node="a", gpu=0), a=gpus(8))
    there.remove_pod(pod("p", node="a", gpu=0, deleting=True), 100.0)
    assert free(there) == [4]
    there.expire(100.0 + VANISHED_GRACE_S)
    assert free(there) == [8]


# --- CPU and memory


def other(name: str, node: str, cpu: int, *, ended: bool = False) -> OtherPod:
    return OtherPod(name, "1", node, Amounts(cpu, 64), ended)


def test_a_node_has_left_what_no_pod_requests() -> None:
    """8 CPUs; a pod with GPUs requests 2, one without 0.5, another 0.25."""
    there = fleet(pod("p", node="a", gpu=0, amounts=Amounts(2000, 1024)))
    there.put_node("a", gpus(8), Amounts(8000, 4096))
    there.put_other(other("q", "a", 500))
    there.put_other(other("r", "a", 250))
    node = there.candidates["a"]
    assert (node.allocatable, node.left) == (Amounts(8000, 4096), Amounts(5250, 2944))
    there.remove_other(other("r", "a", 250))
    there.put_other(other("q", "a", 500, ended=True))
    assert there.candidates["a"].left == Amounts(6000, 3072)
    there.remove_pod(pod("p", node="a", gpu=0, phase="Succeeded"), 0.0)
    assert there.candidates["a"].left == Amounts(8000, 4096)
    there.replace_others([other("s", "a", 1000)])
    assert there.candidates["a"].left == Amounts(7000, 4032)


def test_pods_without_gpus_change_nothing_on_nodes_without_gpus() -> None:
    there = fleet(cpu=gpus(), a=gpus(8))
    assert there.candidates
    mark, _ = there.now.changed_since(0)
    there.put_other(other("q", "cpu", 500))
    there.put_other(other("r", "nowhere", 500))
    assert there.now.changed_since(mark) == (mark, [])
    there.put_other(other("s", "a", 500))
    assert there.now.changed_since(mark)[1] == ["a"]


# --- nodes that serve claims


def test_limits_take_nothing_of_gpus_that_kube_scheduler_allocates_but_cpu_and_memory() -> None:
    """When the node serves limits again, they count."""
    served = replace(gpus(8, 8), claims=True)
    p = replace(pod("p", node="a", gpu=0), amounts=Amounts(1000, 1024))
    there = fleet(p)
    there.put_node("a", served, Amounts(4000, 8192))
    assert (free(there), there.candidates["a"].left) == ([8, 8], Amounts(3000, 7168))
    assert [entry.name for entry in there.on_node("a")] == ["p"]
    there.put_node("a", gpus(8, 8), Amounts(4000, 8192))
    assert (free(there), there.candidates["a"].left) == ([4, 8], Amounts(3000, 7168))
