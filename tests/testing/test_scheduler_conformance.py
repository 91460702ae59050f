"""What kube-scheduler does with an extender: ours, and a real one where KUBE_BIN names a folder with it."""

import asyncio
from typing import Any

import pytest

from tests.builders import GPU_MEM, container
from tests.patience import eventually
from tests.testing.conftest import WEIGHT, SchedulerWorld, passing

HELP = "preemption: 0/{} nodes are available: {} {}."
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"


def scores(**by_node: int) -> list[dict[str, Any]]:
    return [{"Host": name, "Score": score} for name, score in by_node.items()]


def victims(**by_node: list[str]) -> dict[str, Any]:
    return {
        "NodeNameToMetaVictims": {
            name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in by_node.items()
        }
    }


def since(world: SchedulerWorld, minor: int, why: str) -> None:
    """Skip for an older kube-scheduler."""
    if world.minor < minor:
        pytest.skip(why)


# --- Who is asked, and about what ------------------------------------------------------------------------------------


async def test_the_extender_is_asked_about_the_nodes_whose_sum_suffices(world: SchedulerWorld) -> None:
    """Of a's 8 shares 5 are taken, of b's 8 none, c has 4: with 4 asked only b and c have enough in all."""
    await world.nodes(a=8, b=8, c=4)
    await world.placed("there", "a", mem=5)
    world.extender.said("filter", {"Error": "asked"})
    await world.refused("p")
    body = world.extender.bodies("filter")[0]
    assert (sorted(body["NodeNames"]), body["Nodes"], body["Pod"]["metadata"]["name"]) == (["b", "c"], None, "p")


async def test_nodes_are_sent_whole_to_an_extender_that_does_not_know_them(whole_nodes: SchedulerWorld) -> None:
    world = whole_nodes
    await world.nodes(a=8, b=8)
    world.extender.answers["filter"] = lambda body: {
        "Nodes": {"items": [one for one in body["Nodes"]["items"] if one["metadata"]["name"] == "b"]}
    }
    world.extender.said("bind", {"Error": "said of b"})
    assert await world.refused("p") == ("SchedulerError", "said of b")
    body = world.extender.bodies("filter")[0]
    assert body["NodeNames"] is None
    assert sorted(one["metadata"]["name"] for one in body["Nodes"]["items"]) == ["a", "b"]
    assert world.extender.bodies("bind")[0]["Node"] == "b"


async def test_a_pod_that_names_no_managed_resource_is_none_of_the_extenders_business(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    await world.pod("p")
    assert await world.bound("p") == "a"
    assert world.extender.calls == []


async def test_a_pod_of_another_scheduler_is_left_alone(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    await world.pod("theirs", container(mem=4), schedulerName="another")
    await world.pod("ours")
    await world.bound("ours")
    assert world.extender.calls == []
    assert "nodeName" not in (await world.get("theirs"))["spec"]


async def test_a_quantity_of_zero_names_the_resource_too(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    world.extender.said("filter", {"Error": "asked"})
    assert await world.refused("p", mem=0) == ("SchedulerError", "asked")


async def test_an_init_container_names_a_resource_for_its_pod(world: SchedulerWorld) -> None:
    """The init container asks for 8, the other for none: the pod takes 8 at its peak, for which b is too small."""
    await world.nodes(a=8, b=7)
    world.extender.said("filter", {"Error": "asked"})
    await world.pod("p", container(), init=(container("i", mem=8),))
    await world.told("p")
    assert world.extender.names("filter")[0] == ["a"]


async def test_sidecars_run_beside_what_comes_after_them(world: SchedulerWorld) -> None:
    """A sidecar of 2, an init container of 6 after it, an app of 4: 8 at the peak."""
    await world.nodes(a=8, b=7)
    world.extender.said("filter", {"Error": "asked"})
    init = (container("s", mem=2, sidecar=True), container("i", mem=6))
    await world.pod("p", container(mem=4), init=init)
    await world.told("p")
    assert world.extender.names("filter")[0] == ["a"]


async def test_where_no_sum_suffices_nobody_is_asked(world: SchedulerWorld) -> None:
    """A pod of 9 could go nowhere even if all others went; one of 8 could, but there is nobody to evict."""
    await world.nodes(a=8, b=8)
    await world.placed("there", "a", mem=1)
    await world.placed("here", "b", mem=1)
    reason, message = await world.refused("large", mem=9)
    assert reason == "Unschedulable"
    # Up to 1.33 a node that is too small as a whole is thought to be one on which evictions might help.
    why = NOT_HELPFUL if world.minor >= 34 else NO_VICTIMS
    assert message == f"0/2 nodes are available: 2 Insufficient {GPU_MEM}. " + HELP.format(2, 2, why)
    reason, message = await world.refused("p", mem=8)
    assert message == f"0/2 nodes are available: 2 Insufficient {GPU_MEM}. " + HELP.format(2, 2, NO_VICTIMS)
    assert world.extender.calls == []


async def test_cordoned_nodes_and_those_without_a_label_are_not_shown_to_the_extender(world: SchedulerWorld) -> None:
    await world.nodes(a=8, b=8, c=8)
    await world.patch("nodes/b", {"spec": {"unschedulable": True}})
    await world.patch("nodes/c", {"metadata": {"labels": {"gpu": "no"}}})
    await world.patch("nodes/a", {"metadata": {"labels": {"gpu": "yes"}}})
    world.extender.said("filter", {"NodeNames": [], "FailedNodes": {"a": "it is full"}})
    await world.pod("p", container(mem=4), nodeSelector={"gpu": "yes"})
    _, message = await world.told("p")
    assert world.extender.names("filter")[0] == ["a"]
    # What stands on a cordoned node beside its cordon, nobody looks at.
    assert message.startswith(
        "0/3 nodes are available: 1 it is full, 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were"
        " unschedulable."
    )


# --- What filter may answer ------------------------------------------------------------------------------------------


async def test_reasons_are_added_up_where_they_are_the_same(world: SchedulerWorld) -> None:
    await world.nodes(a=8, b=8, c=8)
    unresolvable = {"c": "the largest GPU has only 5 GiB"}
    world.extender.said(
        "filter",
        {"NodeNames": [], "FailedNodes": dict.fromkeys("abc", "no GPU"), "FailedAndUnresolvableNodes": unresolvable},
    )
    reason, message = await world.refused("p")
    assert reason == "Unschedulable"
    assert message == (
        "0/3 nodes are available: 1 the largest GPU has only 5 GiB, 2 no GPU. "
        f"preemption: 0/3 nodes are available: 1 {NOT_HELPFUL}, 2 {NO_VICTIMS}."
    )


@pytest.mark.parametrize(
    "reasons",
    [None, {"a": "it is full", "b": "it is full, too"}],
    ids=["none", "also one against the node that passed"],
)
async def test_where_a_node_is_left_nobody_reads_what_is_said_against_nodes(
    world: SchedulerWorld, reasons: dict[str, str] | None
) -> None:
    """Nor do nodes matter of which nothing is said at all."""
    await world.nodes(a=8, b=8, c=8)
    world.extender.said(
        "filter", {"NodeNames": ["b"], "FailedNodes": reasons, "FailedAndUnresolvableNodes": reasons, "Error": ""}
    )
    world.extender.said("bind", {"Error": "said of b"})
    assert await world.refused("p") == ("SchedulerError", "said of b")
    assert world.extender.bodies("bind")[0]["Node"] == "b"
    assert not world.extender.bodies("preempt")


async def test_the_nodes_that_passed_keep_the_order_of_the_answer(world: SchedulerWorld) -> None:
    await world.nodes(a=8, b=8, c=8)
    world.extender.said("filter", {"NodeNames": ["c", "a"]})
    world.extender.said("prioritize", scores(a=10))
    world.extender.said("bind", {"Error": "asked"})
    await world.refused("p")
    assert world.extender.bodies("prioritize")[0]["NodeNames"] == ["c", "a"]
    assert world.extender.bodies("bind")[0]["Node"] == "a"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"Error": "the cluster is not known yet"}, "the cluster is not known yet"),
        (500, "failed filter with extender at URL {url}/filter, code 500"),
        (
            {"NodeNames": ["a", "z"]},
            'extender "{url}" claims a filtered node "z" which is not found in the input node list',
        ),
        (
            None,
            'Post "{url}/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)',
        ),
    ],
    ids=["an error", "another status, whose body is not read", "a node that was not asked about", "nothing"],
)
async def test_an_answer_that_is_an_error_is_shown(world: SchedulerWorld, answer: Any, message: str) -> None:
    await world.nodes(a=8)
    world.extender.said("filter", answer)
    assert await world.refused("p") == ("SchedulerError", message.format(url=world.extender.url))


async def test_an_answer_that_says_nothing_is_no_node_at_all_and_no_reason(world: SchedulerWorld) -> None:
    await world.nodes(a=8, b=8)
    world.extender.said("filter", {})
    assert await world.refused("p") == (
        "Unschedulable",
        "0/2 nodes are available: " + HELP.format(2, 2, NOT_HELPFUL),
    )


async def test_keys_in_lower_case_are_understood(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    world.extender.said("filter", {"nodeNames": ["a"], "failedNodes": {}})
    world.extender.said("bind", {"error": "in lower case"})
    assert await world.refused("p") == ("SchedulerError", "in lower case")


# --- Prioritize ------------------------------------------------------------------------------------------------------


async def test_where_one_node_is_left_nobody_is_asked_for_a_score(world: SchedulerWorld) -> None:
    await world.nodes(a=8, b=8)
    world.extender.answers["filter"] = passing("b")
    world.extender.said("bind", {"Error": "asked"})
    await world.refused("p")
    assert [verb for verb, _ in world.extender.calls[:2]] == ["filter", "bind"]
    assert world.extender.bodies("bind")[0]["Node"] == "b"


async def test_the_highest_score_decides(world: SchedulerWorld) -> None:
    """With this weight a score of 10 counts for 500, and nothing that the scheduler itself thinks of equal nodes."""
    assert WEIGHT == 5
    await world.nodes(a=8, b=8, c=8)
    world.extender.answers["filter"] = passing("a", "b")
    world.extender.said("prioritize", scores(a=1, b=10, c=10))
    world.extender.said("bind", {"Error": "asked"})
    made = await world.pod("p", container(mem=4))
    await world.told("p")
    assert world.extender.names("prioritize")[0] == ["a", "b"]
    assert world.extender.bodies("bind")[0] == {
        "PodName": "p",
        "PodNamespace": "default",
        "PodUID": made["metadata"]["uid"],
        "Node": "b",
    }


async def test_without_scores_the_scheduler_goes_on(world: SchedulerWorld) -> None:
    await world.nodes(a=8, b=8)
    world.extender.answers["filter"] = passing()
    world.extender.said("prioritize", 500)
    world.extender.said("bind", {"Error": "asked"})
    assert await world.refused("p") == ("SchedulerError", "asked")


async def test_of_nodes_without_scores_the_first_of_the_answer_is_taken(world: SchedulerWorld) -> None:
    """Nodes that are equal to the scheduler; lots are drawn only among those that an extender has scored."""
    since(world, 35, "up to Kubernetes 1.34 lots are drawn among all nodes of the best score")
    await world.nodes(a=8, b=8, c=8)
    world.extender.said("filter", {"NodeNames": ["c", "a", "b"]})
    world.extender.said("prioritize", 500)
    world.extender.said("bind", {"Error": "asked"})
    await world.refused("p")
    await eventually(lambda: len(world.extender.bodies("bind")) == 3)
    assert {body["Node"] for body in world.extender.bodies("bind")} == {"c"}


# --- Bind ------------------------------------------------------------------------------------------------------------


async def test_a_pod_that_was_not_bound_is_tried_again(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    world.extender.answers["filter"] = passing()
    world.extender.said("bind", {"Error": "GPU 3 was taken by another pod"})
    assert await world.refused("p") == ("SchedulerError", "GPU 3 was taken by another pod")
    await eventually(lambda: len(world.extender.bodies("bind")) > 1)


async def test_a_node_on_which_a_pod_was_not_bound_is_named_again_like_the_others(world: SchedulerWorld) -> None:
    await world.nodes(a=8, b=8)
    world.extender.answers["filter"] = passing("b")
    world.extender.said("bind", {"Error": "GPU 3 was taken by another pod"})
    await world.refused("p")
    await eventually(lambda: len(world.extender.bodies("bind")) > 1)
    assert world.extender.names("filter")[:2] == [["a", "b"], ["a", "b"]]


async def test_what_is_being_bound_counts_already(world: SchedulerWorld) -> None:
    """Two of 5 on a node with 8: the second is looked at while the first is being bound, and finds too little."""
    await world.nodes(a=8)
    world.extender.answers["filter"] = passing()
    world.extender.said("bind", {"Error": ""})
    world.extender.held["bind"] = asyncio.Event()
    await world.pod("first", container(mem=5))
    await eventually(lambda: world.extender.bodies("bind"))
    _, message = await world.refused("second", mem=5)
    assert message.startswith(f"0/1 nodes are available: 1 Insufficient {GPU_MEM}.")
    assert len(world.extender.bodies("filter")) == 1
    world.extender.held["bind"].set()


async def test_filters_are_asked_one_after_the_other_and_bindings_side_by_side(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    world.extender.answers["filter"] = passing()
    world.extender.said("bind", {"Error": ""})
    world.extender.held["bind"] = asyncio.Event()
    for n in range(5):
        await world.pod(f"p{n}", container(mem=1))
    await eventually(lambda: len(world.extender.bodies("bind")) == 5)
    world.extender.held["bind"].set()


async def test_a_binding_that_was_made_but_not_answered_stands(world: SchedulerWorld) -> None:
    """The pod is bound, so nobody asks again, whatever the answer was."""
    await world.nodes(a=8)
    world.extender.answers["filter"] = passing()
    world.extender.said("bind", {"Error": "the answer was lost"})
    world.extender.held["bind"] = asyncio.Event()
    await world.pod("p", container(mem=4))
    await eventually(lambda: world.extender.bodies("bind"))
    await world.bind("p", "a")
    await world.pod("later", container())
    assert await world.bound("later") == "a"  # the scheduler's watch has shown it this one, and p before
    world.extender.held["bind"].set()
    await world.pod("next", container(mem=4))
    await eventually(lambda: len(world.extender.bodies("bind")) == 2)
    assert [body["PodName"] for body in world.extender.bodies("bind")] == ["p", "next"]


# --- Preemption ------------------------------------------------------------------------------------------------------


async def test_an_extender_without_room_is_not_asked_whom_to_evict(world: SchedulerWorld) -> None:
    """The sum suffices, so evicting nobody would do as far as the scheduler knows, which it takes for an error."""
    await world.nodes(a=8)
    await world.placed("low", "a", mem=4)
    world.extender.answers["filter"] = passing("nowhere")
    assert await world.refused("high", priority=1000) == (
        "Unschedulable",
        '0/1 nodes are available: 1 no GPU has room. preemption: expected at least one victim pod on node "a"',
    )
    assert world.extender.bodies("preempt") == []


async def test_where_the_sum_is_short_the_extender_says_whom_to_evict(world: SchedulerWorld) -> None:
    """The scheduler would evict the least important only, the extender wants the other one."""
    await world.nodes(a=8, b=4)
    low = await world.placed("low", "a", mem=4)
    middle = await world.placed("middle", "a", mem=4, priority=100)
    world.extender.answers["filter"] = passing("a")
    world.extender.said("preempt", victims(a=[middle["metadata"]["uid"]]))
    world.extender.said("bind", {"Error": "asked"})
    high = await world.pod("high", container(mem=3), container("c", mem=1), priority=1000)
    _, message = await world.told("high")
    assert message.startswith(f"0/2 nodes are available: 1 Insufficient {GPU_MEM}, 1 no GPU has room.")
    asked = world.extender.bodies("preempt")[0]
    assert asked["Pod"]["metadata"]["uid"] == high["metadata"]["uid"]
    assert asked["NodeNameToVictims"] is None
    assert asked["NodeNameToMetaVictims"] == victims(a=[low["metadata"]["uid"]])["NodeNameToMetaVictims"]
    assert await world.nominated("high") == "a"

    await eventually(lambda: world.evicted("middle"))
    conditions = (await world.get("middle"))["status"]["conditions"]
    assert [one["reason"] for one in conditions if one["type"] == "DisruptionTarget"] == ["PreemptionByScheduler"]
    assert not await world.evicted("low")
    # While it goes it counts; when it is gone, its node is asked about alone.
    before = len(world.extender.calls)
    await world.delete("middle")
    await eventually(lambda: world.extender.bodies("bind"))
    assert ("filter", ["a"]) in [(verb, body.get("NodeNames")) for verb, body in world.extender.calls[before:]]
    assert world.extender.bodies("bind")[0]["Node"] == "a"


async def test_an_extender_may_spare_victims_and_name_others(world: SchedulerWorld) -> None:
    """The scheduler would evict the two of low priority; the extender names one of them, and the one in the middle."""
    await world.nodes(a=12)
    low = [await world.placed(f"low{n}", "a", mem=4) for n in range(2)]
    middle = await world.placed("middle", "a", mem=4, priority=100)
    world.extender.answers["filter"] = passing("a")
    world.extender.said("preempt", victims(a=[middle["metadata"]["uid"], low[1]["metadata"]["uid"]]))
    await world.pod("high", container(mem=8), priority=1000)

    async def both() -> bool:
        return await world.evicted("low0", "low1", "middle") == {"low1", "middle"}

    await eventually(both)
    (asked,) = world.extender.bodies("preempt")
    uids = {each["UID"] for each in asked["NodeNameToMetaVictims"]["a"]["Pods"]}
    assert uids == {each["metadata"]["uid"] for each in low}
    assert await world.nominated("high") == "a"


async def test_fewer_victims_than_the_sum_wants_are_evicted_all_the_same(world: SchedulerWorld) -> None:
    """The scheduler does not try the pod again with the victims that are left; it finds out when they are gone."""
    await world.nodes(a=8)
    low = [await world.placed(f"low{n}", "a", mem=4) for n in range(2)]
    world.extender.answers["filter"] = passing("a")
    world.extender.said("preempt", victims(a=[low[0]["metadata"]["uid"]]))
    await world.pod("high", container(mem=8), priority=1000)

    await eventually(lambda: world.evicted("low0"))
    assert not await world.evicted("low1")
    assert await world.nominated("high") == "a"


async def test_an_extender_may_take_every_node_away(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    await world.placed("low", "a", mem=8)
    world.extender.said("preempt", victims())
    assert await world.refused("high", priority=1000) == (
        "Unschedulable",
        f"0/1 nodes are available: 1 Insufficient {GPU_MEM}. preemption: no candidate node for preemption",
    )
    assert not await world.evicted("low")


async def test_a_node_without_victims_is_an_error(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    await world.placed("low", "a", mem=8)
    world.extender.said("preempt", victims(a=[]))
    assert await world.refused("high", priority=1000) == (
        "Unschedulable",
        f'0/1 nodes are available: 1 Insufficient {GPU_MEM}. preemption: expected at least one victim pod on node "a"',
    )
    assert not await world.evicted("low")


async def test_a_victim_that_is_not_there_is_an_error(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    await world.placed("low", "a", mem=8)
    world.extender.said("preempt", victims(a=["nobody"]))
    _, message = await world.refused("high", priority=1000)
    assert message.endswith("on node: a, but the pod is not found on that node")
    assert not await world.evicted("low")


async def test_who_may_not_preempt_does_not(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    await world.placed("low", "a", mem=8)
    never = {"preemptionPolicy": "Never"}
    if world.real:
        await world.ask(
            "POST",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": "p2000"}, "value": 2000, "preemptionPolicy": "Never"},
        )
    await world.pod("high", container(mem=4), priority=2000, **never)
    _, message = await world.told("high")
    assert message.endswith("preemption: not eligible due to preemptionPolicy=Never.")
    assert world.extender.calls == []


async def test_the_node_whose_victims_matter_least_is_taken(world: SchedulerWorld) -> None:
    """On a somebody of 100 would have to go, on b two of 0: the least important ones go, however many."""
    await world.nodes(a=8, b=8)
    await world.placed("middle", "a", mem=8, priority=100)
    await world.placed("low", "b", mem=4)
    await world.placed("lower", "b", mem=4)
    world.extender.answers["preempt"] = lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
    await world.refused("high", mem=8, priority=1000)
    assert await world.nominated("high") == "b"


async def test_what_was_made_free_for_one_is_not_taken_by_a_lesser_one(world: SchedulerWorld) -> None:
    await world.nodes(a=8)
    await world.placed("low", "a", mem=8)
    world.extender.answers["preempt"] = lambda body: {"NodeNameToMetaVictims": body["NodeNameToMetaVictims"]}
    world.extender.said("filter", {"Error": "not yet"})
    await world.refused("high", mem=8, priority=1000)

    await eventually(lambda: world.nominated("high"))
    _, message = await world.refused("other", mem=1, priority=100)
    assert message.startswith(f"0/1 nodes are available: 1 Insufficient {GPU_MEM}.")


# --- When a pod that fitted nowhere is tried again --------------------------------------------------------------------


def asked_about(world: SchedulerWorld, name: str) -> int:
    """Return how often the extender was asked where a pod may go."""
    return sum(body["Pod"]["metadata"]["name"] == name for body in world.extender.bodies("filter"))


async def refused(world: SchedulerWorld, name: str) -> None:
    """Make a pod that the extender lets go nowhere. What is written on it makes the scheduler try it once more."""
    await world.pod(name, container(mem=4))
    await eventually(lambda: asked_about(world, name) == 2)


async def happens(world: SchedulerWorld, what: str) -> None:
    """Let something happen in the cluster of one node "a" on which a pod "there" is bound."""
    node, pod = "/api/v1/nodes/a", "/api/v1/namespaces/default/pods/there"
    ready = {"type": "Ready", "reason": "r", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patches: dict[str, tuple[str, Any]] = {
        "a node's annotation": (node, {"metadata": {"annotations": {"some": "note"}}}),
        "a node's label": (node, {"metadata": {"labels": {"some": "label"}}}),
        "a node's allocatable": (f"{node}/status", {"status": {"allocatable": {GPU_MEM: "7"}}}),
        "a node's condition": (f"{node}/status", {"status": {"conditions": [{**ready, "status": "False"}]}}),
        "what an agent writes on a pod": (pod, {"metadata": {"annotations": {"some": "note"}}}),
        "a node's heartbeat": (f"{node}/status", {"status": {"nodeInfo": {"bootID": "another"}}}),
    }
    if what == "a pod goes":
        await world.delete("there")
    elif what == "a pod is bound":
        await world.placed("another", "a", mem=1)
    elif what == "a lease is renewed":
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        made = await world.ask("POST", path, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "h"}})
        assert made["kind"] == "Lease", made
        await world.ask("DELETE", f"{path}/l")
    else:
        path, body = patches[what]
        made = await world.ask("PATCH", path, body, "application/merge-patch+json")
        assert made["kind"] in {"Node", "Pod"}, made


HELPFUL = (
    "a node's annotation",
    "a node's label",
    "a node's allocatable",
    "a node's condition",
    "what an agent writes on a pod",
    "a pod is bound",
    "a pod goes",
)
NO_HELP = ("a node's heartbeat", "a lease is renewed")


async def test_a_pod_that_an_extender_refused_is_tried_again_after_whatever_happens_to_nodes_and_bound_pods(
    world: SchedulerWorld,
) -> None:
    since(world, 32, "SchedulerQueueingHints, which take what happens to pods for a reason, are on from 1.32 on")
    await world.nodes(a=8)
    await world.placed("there", "a", mem=1)
    world.extender.answers["filter"] = passing("nowhere")
    await refused(world, "p")
    for times, what in enumerate(HELPFUL, 3):
        await happens(world, what)
        await eventually(lambda times=times: asked_about(world, "p") == times)  # type: ignore[misc]


async def test_a_pod_that_an_extender_refused_waits_while_nothing_happens_that_the_scheduler_hears(
    world: SchedulerWorld,
) -> None:
    """Two others come after it: whoever is asked about twice has waited for as long as a pod must at the most."""
    since(world, 32, "SchedulerQueueingHints, which take what happens to pods for a reason, are on from 1.32 on")
    await world.nodes(a=8)
    world.extender.answers["filter"] = passing("nowhere")
    await refused(world, "p")
    for what in NO_HELP:
        await happens(world, what)
    await refused(world, "q")
    await refused(world, "r")
    assert asked_about(world, "p") == 2


async def test_a_pod_of_which_an_extender_says_an_error_is_tried_again_though_nothing_happens(
    world: SchedulerWorld,
) -> None:
    """So it can wait for what comes about by time alone."""
    await world.nodes(a=8)
    world.extender.said("filter", {"Error": "there is room in a moment"})
    await world.pod("p", container(mem=4))
    await eventually(lambda: asked_about(world, "p") >= 4)
    assert await world.told("p") == ("SchedulerError", "there is room in a moment")


async def test_where_no_refusal_can_be_helped_a_pod_is_not_tried_in_vain(world: SchedulerWorld) -> None:
    """kube-scheduler finds no victims on nodes that its plugins pass. What it writes of that wakes the pod at once."""
    await world.nodes(**{f"n{at}": 8 for at in range(4)})
    for at in range(4):
        await world.placed(f"low{at}", f"n{at}", mem=1)
    nodes = {f"n{at}": "no GPU has room" for at in range(4)}
    world.extender.said("filter", {"NodeNames": [], "FailedNodes": {}, "FailedAndUnresolvableNodes": nodes})
    _, message = await world.refused("high", priority=100)
    assert message.endswith("preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.")
    await asyncio.sleep(2)
    assert asked_about(world, "high") <= 4
    assert not world.extender.bodies("preempt")


# --- Many nodes ------------------------------------------------------------------------------------------------------


async def many_nodes(world: SchedulerWorld) -> set[str]:
    """Make 130 nodes, and have a pod tried, which no node takes; return the nodes that were named."""
    await world.nodes(**{f"n{at:03}": 8 for at in range(130)})
    world.extender.said("filter", {"Error": "none of these"})
    await world.refused("first")
    return set(world.extender.names("filter")[0])


async def test_of_many_nodes_a_hundred_are_named_and_then_those_that_follow(world: SchedulerWorld) -> None:
    first = await many_nodes(world)
    assert len(first) == 100

    await eventually(lambda: len(world.extender.bodies("filter")) > 1)
    second = set(world.extender.names("filter")[1])
    assert len(second) == 100
    assert len(second - first) > 20


async def test_a_node_that_another_client_nominates_is_tried_alone_and_first(world: SchedulerWorld) -> None:
    """After an error of the extender, which keeps the scheduler from evicting anybody for the pod."""
    first = await many_nodes(world)
    outside = min({f"n{at:03}" for at in range(130)} - first)
    world.extender.answers["filter"] = lambda body: (
        passing()(body) if body["NodeNames"] == [outside] else {"Error": "none of these"}
    )
    await world.patch("namespaces/default/pods/first/status", {"status": {"nominatedNodeName": outside}})
    await eventually(lambda: world.extender.bodies("bind"))
    assert world.extender.bodies("bind")[0]["Node"] == outside
    assert world.extender.names("filter")[-1] == [outside]
    assert not world.extender.bodies("preempt")


async def test_a_nominated_node_that_is_refused_is_one_of_all_in_the_same_attempt(world: SchedulerWorld) -> None:
    first = await many_nodes(world)
    outside = min({f"n{at:03}" for at in range(130)} - first)
    world.extender.answers["filter"] = lambda body: (
        {"NodeNames": []} if body["NodeNames"] == [outside] else passing(max(body["NodeNames"]))(body)
    )
    await world.patch("namespaces/default/pods/first/status", {"status": {"nominatedNodeName": outside}})
    await eventually(lambda: world.extender.bodies("bind"))
    alone, all_ = world.extender.names("filter")[-2:]
    assert alone == [outside]
    assert len(all_) == 100
    assert world.extender.bodies("bind")[0]["Node"] == max(all_)
    assert not world.extender.bodies("preempt")
