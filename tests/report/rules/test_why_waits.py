"""Why a pod waits and what would make room, in one sentence each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.report.rules.finding import Finding, note
from gpu_device_plugin.report.rules.node_answers import NodeAnswer, asked_amounts, what_makes_room, why_waits
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.pod_causes import Kept
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.settings.common import ResourceSettings
from tests.reporting import answers
from tests.views import node_view, pod_on

RESOURCES = ResourceSettings().offered
MEM, COUNT = (resource.name for resource in RESOURCES)
STATUS = SchedulingStatus(scheduler="gpushare-scheduler")
TAINTED = Kept(excluded=(note("taint", "it has the taint gpu:NoSchedule"),))


def wanting(mem: int = 0, count: int = 0) -> Pod:
    limits = {name: amount for name, amount in ((MEM, mem), (COUNT, count)) if amount}
    return Pod("u", "default", "w", containers=(Container("main", ContainerKind.APP, 0, limits),))


def found(mem: int, nodes: Sequence[NodeView], kept: Mapping[str, Kept] | None = None) -> list[NodeAnswer]:
    asked = ask(wanting(mem), RESOURCES)
    assert isinstance(asked, GpuRequest)
    return answers([(node, asked, (kept or {}).get(node.name, Kept())) for node in nodes], "binpack", 1)


def everyone(_namespace: str) -> bool:
    return True


def nobody(_namespace: str) -> bool:
    return False


def full(name: str, *more: str) -> NodeView:
    return node_view(name, (15,), pod_on(f"{name}-1", {0: 10}), *(pod_on(each, {0: 5}) for each in more))


def test_the_most_frequent_reasons_come_first_with_their_numbers() -> None:
    nodes = [full("a"), full("b"), node_view("c", (4,)), node_view("d", (15,), unhealthy={0: "XID 48"})]
    nodes += [node_view("e", (15,), problem="broken"), node_view("f", (15,), problem="odd")]
    said = told(why_waits, STATUS, (), found(8, nodes))
    assert said.startswith("Fits on none of 6 nodes: ")
    first, *_ = said.removeprefix("Fits on none of 6 nodes: ").split("; ")
    assert first.endswith("(2)")
    assert said.endswith("; other reasons (2).")


def told(say: Callable[..., Finding | None], *of: Any) -> str:
    """Return the words of a finding."""
    return str(say(*of))


def test_a_cluster_with_one_node_names_it() -> None:
    said = told(why_waits, STATUS, (), found(8, [full("a")]))
    assert said.startswith("Does not fit on a, the only node that shares GPUs: ")


def test_a_pod_that_fits_waits_for_its_scheduler() -> None:
    nodes = [node_view("a", (15,)), node_view("b", (15,)), full("c")]
    assert told(why_waits, STATUS, (), found(8, nodes)) == (
        "2 nodes have room for it now; gpushare-scheduler has not looked at it yet; if this persists, no scheduler of "
        "this name runs."
    )
    said = SchedulingStatus("s", condition_reason="Unschedulable", condition="x" * 1000)
    short = told(why_waits, said, (), found(8, nodes[:1]))
    assert short.startswith("1 node has room for it now; s says (Unschedulable): xxx")
    assert short.endswith("x...")
    silent = SchedulingStatus("s", condition_reason="Unschedulable")
    assert told(why_waits, silent, (), found(8, nodes[:1])).endswith("s says (Unschedulable): no message")
    worded = SchedulingStatus("s", condition="later")
    assert told(why_waits, worded, (), found(8, nodes[:1])).endswith("s says: later")


def test_a_pod_that_no_scheduler_looks_at_says_so() -> None:
    gated = SchedulingStatus("s", gates=("quota",))
    waits = note("gated", "No scheduler looks at it.")
    assert (
        told(why_waits, gated, (waits,), found(8, [full("a")])) == told(why_waits, STATUS, (waits,), ()) == str(waits)
    )
    assert told(why_waits, STATUS, (), ()) == "Why it is pending is not known yet."


def test_room_is_made_by_the_fewest_pods_of_the_nearest_node() -> None:
    room = told(what_makes_room, found(8, [full("a", "a-2"), full("b")]), everyone)
    assert room == "There would be room on b if this pod ended: default/b-1 (10 GiB, priority 0)."


def test_pods_that_the_reader_may_not_see_are_only_counted() -> None:
    assert told(what_makes_room, found(8, [full("b")]), nobody) == (
        "There would be room on b if this pod ended: 1 pod that you may not see."
    )
    mine = pod_on("mine/x", {0: 8}, deleting=True)
    two = node_view("b", (15,), mine, pod_on("theirs/y", {0: 7}))
    assert told(what_makes_room, found(15, [two]), "mine".__eq__) == (
        "There would be room on b if these 2 pods ended: mine/x (8 GiB, priority 0, being deleted), 1 other pod."
    )
    many = node_view("b", (15,), *(pod_on(f"p{n}", {0: 2}) for n in range(7)))
    room = told(what_makes_room, found(15, [many]), everyone)
    assert room.startswith("There would be room on b if these 7 pods ended: default/p0 (2 GiB, priority 0), ")
    assert room.endswith(", 2 other pods.")


@pytest.mark.parametrize("nodes", [[], [node_view("a", (15,)), full("b")]], ids=["no node", "a node with room"])
def test_nothing_makes_room_where_none_is_missing(nodes: list[NodeView]) -> None:
    assert what_makes_room(found(8, nodes), everyone) is None


def test_room_on_a_node_that_keeps_the_pod_away_is_told_with_the_reason() -> None:
    kept = {"a": TAINTED}
    assert told(what_makes_room, found(8, [node_view("a", (15,))], kept), everyone) == (
        "The GPUs of a have room, but it has the taint gpu:NoSchedule."
    )
    assert told(what_makes_room, found(8, [full("a")], kept), everyone).endswith(
        "(10 GiB, priority 0); however, it has the taint gpu:NoSchedule."
    )


def test_a_pod_that_fits_nowhere_even_on_empty_nodes_says_so() -> None:
    assert told(what_makes_room, found(40, [full("a"), full("b")]), everyone) == (
        "Even if all pods of the nodes ended, none would have room."
    )


def test_nodes_that_were_not_compared_are_left_to_the_reader() -> None:
    (answer,) = found(8, [full("a")])
    unweighed = NodeAnswer(answer.node, answer.ask, answer.found, answer.kept)
    assert told(what_makes_room, [unweighed], everyone) == "Pods would have to end; see the node's GPUs."


def test_a_demand_is_told_as_it_is_written() -> None:
    assert asked_amounts(wanting(5), RESOURCES) == (f"{MEM}: 5",)
    assert asked_amounts(wanting(5, 1), RESOURCES) == (f"{MEM}: 5", f"{COUNT}: 1")
    assert asked_amounts(Pod("u", "n", "w"), RESOURCES) == ()


def test_reasons_that_differ_in_numbers_alone_are_one_also_beside_others() -> None:
    nodes = [node_view("a", (4,)), node_view("b", (6,))]
    assert told(why_waits, STATUS, (), found(8, nodes, {"a": TAINTED, "b": TAINTED})) == (
        "Fits on none of 2 nodes: it has the taint gpu:NoSchedule; the largest GPU has only … GiB (2)."
    )


def test_of_many_reasons_the_most_frequent_are_told() -> None:
    nodes = [node_view(name, (4,)) for name in "aabcd"]
    kept = {
        name: Kept(excluded=(note("label", "the pod requires the node label {label}", label=name),)) for name in "abcd"
    }
    said = told(why_waits, STATUS, (), found(8, nodes, kept))
    assert said.startswith(
        "Fits on none of 5 nodes: the pod requires the node label a; the largest GPU has only 4 GiB (2); "
    )
    assert said.endswith("; other reasons (1).")
