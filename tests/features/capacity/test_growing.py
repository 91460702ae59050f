"""The active extender asks the cluster's autoscaler for the nodes that waiting pods need GPU by GPU, and no longer."""

import math
import time
from typing import Any

import pytest

from gpu_device_plugin.features.capacity.rules.node_requests import PRIORITY_CLASS, SCHEDULER
from gpu_device_plugin.features.capacity.scheduler import Capacity
from gpu_device_plugin.model.contract.keys import STAND_IN, STARTUP_TAINT, USE_MODEL, USE_UUID
from gpu_device_plugin.model.times import rfc3339
from tests import builders
from tests.builders import GPU_MEM
from tests.cluster_double.troubles import Answer
from tests.features.capacity.capacity_world import (
    GRANTED,
    NAMESPACE,
    capacity_world,
    cordon,
    node,
    nodes_left_out,
    pod,
    some_rounds,
    stand_ins,
)
from tests.patience import rounds
from tests.scheduler.harness import RIGHTS, ExtenderWorld

NOW = ""


def two_halves(w: ExtenderWorld, name: str = "a") -> None:
    """Add a node with two GPUs of 8, of which 5 and 5 are taken: by the sum 6 are free, on no GPU more than 3."""
    node(w, name, 8, 8)
    pod(w, f"{name}-0", 5, at=(name, 0))
    pod(w, f"{name}-1", 5, at=(name, 1))


SCARCE, PRODUCT = "example.com/scarce", "gpu-device-plugin/product"


def scarce(w: ExtenderWorld, name: str, amount: int) -> None:
    """Let a node offer so much of a resource that is not ours."""
    status = w.api.get("nodes", name)["status"]
    both = {each: {**status[each], SCARCE: str(amount)} for each in ("capacity", "allocatable")}
    w.api.patch("nodes", name, {"status": both}, subresource="status")


def wanted_for(stand_in: dict[str, Any]) -> str:
    """Return the pods for which a node is asked for."""
    return str(stand_in["metadata"]["annotations"]["gpu-device-plugin/wanted-for"])


async def fives_wait(w: ExtenderWorld, number: int) -> None:
    """Start with such a node and so many pods that ask for 5 on one GPU, and wait until nodes are asked for them."""
    two_halves(w)
    await w.start()
    for n in range(number):
        pod(w, f"p{n}", 5)
    await w.schedule()
    await w.until(lambda: len(stand_ins(w)) == math.ceil(number / 2))


async def lacking_room(w: ExtenderWorld) -> None:
    """Start with such a node and a pod, `p`, that asks for 4 on one GPU."""
    two_halves(w)
    await w.start()
    pod(w, "p", 4)
    await w.schedule()


async def test_a_pod_that_no_gpu_has_room_for_has_one_node_asked_for_until_it_has_room() -> None:
    async with capacity_world(grow="stand-ins") as w:
        two_halves(w)
        await w.start()
        terms = {"nodeSelector": {"gpushare": "true"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
        pod(w, "p", 4, spec={**terms, "priority": 5})
        await w.schedule()
        await w.until(lambda: [each["status"].get("conditions") for each in stand_ins(w)] not in ([], [None]))

        (there,) = stand_ins(w)
        meta, spec = there["metadata"], there["spec"]
        assert meta["labels"] == {STAND_IN: "true"}
        assert meta["annotations"]["gpu-device-plugin/wanted-for"] == "default/p"
        assert not spec["containers"][0].get("resources"), "it takes nothing of what the pods themselves need"
        assert (spec["schedulerName"], spec["priorityClassName"]) == (SCHEDULER, PRIORITY_CLASS)
        assert {key: spec[key] for key in terms} == terms
        assert nodes_left_out(there) == sorted(each["metadata"]["name"] for each in w.api.all("nodes"))
        (condition,) = there["status"]["conditions"]
        assert {key: condition[key] for key in ("type", "status", "reason")} == {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
        }
        await some_rounds(w)
        assert [each["metadata"]["uid"] for each in stand_ins(w)] == [meta["uid"]], "one, and always the same"

        w.finish("a-0")
        await w.schedule()
        assert w.where("p") == "a"
        await w.until(lambda: not stand_ins(w))


async def test_what_is_asked_for_goes_with_the_pod_that_needs_it() -> None:
    async with capacity_world(grow="auto") as w:
        await lacking_room(w)
        await w.until(lambda: len(stand_ins(w)) == 1)
        w.force_delete("p")
        await w.until(lambda: not stand_ins(w))


async def test_as_many_nodes_are_asked_for_as_pods_fill() -> None:
    """Three of 5 shares fit onto two nodes with two GPUs of 8: two on one, one on the other."""
    async with capacity_world(grow="stand-ins") as w:
        await fives_wait(w, 3)
        await some_rounds(w)
        assert len(stand_ins(w)) == 2


async def test_each_node_names_the_pods_that_it_is_for_and_namespaces_take_turns() -> None:
    """Eight equal pods, two to a node; another namespace has two more."""
    async with capacity_world(grow="stand-ins") as w:
        two_halves(w)
        await w.start()
        for n in range(8):
            pod(w, f"p{n}", 5)
        for n in range(2):
            w.api.add(builders.pod(f"z{n}", builders.container(mem=5), namespace="z"))
        await w.schedule()
        capacity = w.only.extender.features.of(Capacity)
        await w.until(lambda: len(capacity.cache.waiters()) == 10)
        named = [each.pods for each in await capacity.grower.wanted()]
        assert [len(pods) for pods in named] == [2] * 5
        assert sorted(pod for pods in named for pod in pods) == [*(f"default/p{n}" for n in range(8)), "z/z0", "z/z1"]
        assert sum(pod.startswith("z/") for pods in named[:3] for pod in pods) == 2, "its turn comes early"


async def test_the_node_that_is_asked_for_is_of_the_kind_that_can_take_the_pod() -> None:
    """Of 12 shares only the large GPUs have room; the small nodes would be asked for in vain."""
    async with capacity_world(grow="stand-ins") as w:
        node(w, "small", 8, 8)
        node(w, "large", 16, 16, model="A100")
        pod(w, "l-0", 8, at=("large", 0))
        pod(w, "l-1", 8, at=("large", 1))
        await w.start()
        pod(w, "p", 12)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)

        (there,) = stand_ins(w)
        assert there["spec"]["nodeSelector"] == {"gpushare": "true"}
        assert nodes_left_out(there, "gpu-device-plugin/product") == ["Tesla-T4"]


async def test_a_new_node_counts_as_coming_until_its_time_to_start_is_over() -> None:
    """It offers nothing yet. Made a moment ago it is what the pod waits for; made long ago it is of no use."""
    async with capacity_world(grow="stand-ins", node_start="1h") as w:
        two_halves(w)
        await w.start()
        node(w, "new", created=NOW)
        pod(w, "p", 4)
        await w.schedule()
        await some_rounds(w)
        assert not stand_ins(w)

        w.api.delete("nodes", "new")
        await w.until(lambda: len(stand_ins(w)) == 1)
        node(w, "old")
        await some_rounds(w)
        assert len(stand_ins(w)) == 1


async def test_a_node_that_never_starts_counts_no_longer_once_its_time_is_over() -> None:
    async with capacity_world(grow="stand-ins", node_start="1s") as w:
        two_halves(w)
        await w.start()
        node(w, "new", created=NOW)
        pod(w, "p", 4)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)


async def test_a_node_that_does_not_help_is_not_asked_for_again_and_again() -> None:
    """Something that only kube-scheduler knows keeps the pod from every new node: there is too little of a resource."""
    async with capacity_world(grow="stand-ins", node_start="4s") as w:
        two_halves(w)
        scarce(w, "a", 2)
        await w.start()
        pod(w, "p", 4, spec={"containers": [builders.container(mem=4, limits={SCARCE: "2"})]})
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)
        node(w, "new", 8, 8, created=NOW)
        scarce(w, "new", 1)
        await w.until(lambda: any("did not help" in line for line in w.logs))
        began = time.monotonic()
        w.api.delete("nodes", "new")
        await w.until(lambda: not stand_ins(w))
        await w.until(lambda: len(stand_ins(w)) == 1)
        assert time.monotonic() - began > 7, "twice the time of a node"
        node(w, "new", 8, 8, created=NOW)
        pod(w, "q", 4, rs="other")
        assert (await w.schedule())["q"].node == "new"
        await w.until(lambda: any(each["reason"] == "GPUNodeDidNotHelp" for each in w.api.all("events")))
        (event,) = [each for each in w.api.all("events") if each["note"].startswith("node new was added for it; it ")]
        assert event["regarding"]["name"] == "p"


async def test_a_new_node_that_other_pods_fill_is_no_reason_to_ask_later() -> None:
    async with capacity_world(grow="stand-ins", node_start="2s") as w:
        two_halves(w)
        await w.start()
        pod(w, "p", 4)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)
        node(w, "new", 8, 8, created=NOW)
        for n in range(2):
            pod(w, f"first-{n}", 8, rs="first", at=("new", n))
        await w.until(lambda: len(stand_ins(w)) == 1)
        await rounds(3, 1)
        assert len(stand_ins(w)) == 1
        assert not any("did not help" in line for line in w.logs)


@pytest.mark.parametrize("fate", ["reclaimed", "cordoned", "never opened"])
async def test_a_new_node_that_no_pod_was_tried_on_is_replaced_at_once(fate: str) -> None:
    """Its machine is taken back, or somebody puts it aside, as soon as it is there; or its kubelet offers no GPUs."""
    async with capacity_world(grow="stand-ins", node_start="2s" if fate == "never opened" else "1h") as w:
        two_halves(w)
        await w.start()
        pod(w, "p", 4)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)
        node(w, "new", 8, 8, created=NOW)
        if fate == "never opened":
            nothing = {GPU_MEM: "0", builders.GPU_COUNT: "0"}
            w.api.patch("nodes", "new", {"status": {"allocatable": nothing}}, subresource="status")
        began = time.monotonic()
        await w.until(lambda: not stand_ins(w) or (fate == "never opened" and time.monotonic() > began + 3))
        if fate == "reclaimed":
            w.api.delete("nodes", "new")
        elif fate == "cordoned":
            cordon(w, "new")
        await w.until(lambda: len(stand_ins(w)) == 1)
        assert not any("did not help" in line for line in w.logs)


async def test_new_nodes_that_are_not_to_share_gpus_are_not_awaited() -> None:
    async with capacity_world(grow="stand-ins", node_start="1h") as w:
        two_halves(w)
        await w.start()
        w.api.add(builders.node("for-others"))
        pod(w, "p", 4)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)


async def test_a_pod_that_the_scheduler_never_asks_about_has_a_node_asked_for_as_well() -> None:
    """The sums decide against it, as those of the node that is the autoscaler's example may: it is in use."""
    async with capacity_world(grow="stand-ins") as w:
        two_halves(w)
        await w.start()
        pod(w, "p", 7)
        await w.schedule()
        assert 'pods_waiting{reason="not_asked"} 1.0' in await w.metrics()
        await w.until(lambda: len(stand_ins(w)) == 1)


@pytest.mark.parametrize(
    ("mem", "more"),
    [
        (4, {"spec": {"schedulingGates": [{"name": "later"}]}}),
        (4, {"spec": {"priority": -11}}),
        (9, {}),
        (7, {"annotations": {USE_UUID: "GPU-a-0"}}),
        (4, {"annotations": {USE_MODEL: "A100"}}),
        (4, {"spec": {"nodeSelector": {"pool": "elsewhere"}}}),
    ],
)
async def test_nothing_is_asked_for_a_pod_that_no_new_node_helps_nor_for_others_because_of_it(
    mem: int, more: dict[str, Any]
) -> None:
    """By a gate, a priority below which the autoscaler adds none, its size, and wishes that no kind of node meets."""
    async with capacity_world(grow="stand-ins") as w:
        two_halves(w)
        await w.start()
        pod(w, "p", mem, rs="impossible", **more)
        await w.schedule()
        await some_rounds(w)
        assert not [each for each in stand_ins(w) if not nodes_left_out(each, PRODUCT)]
        pod(w, "q", 5)
        await w.schedule()
        await w.until(lambda: "default/q" in map(wanted_for, stand_ins(w)))
        await some_rounds(w)
        assert len([each for each in stand_ins(w) if wanted_for(each) != "default/p"]) == 1


async def test_a_pod_for_which_others_are_evicted_has_no_node_asked_for() -> None:
    """The scheduler names `a`, on whose GPUs there is no room, and finds pods to evict on `b`."""
    async with capacity_world(grow="stand-ins") as w:
        two_halves(w)
        node(w, "b", 8)
        pod(w, "low", 6, at=("b", 0))
        await w.start()
        pod(w, "p", 4, spec={"priority": 10})
        await w.schedule()
        await some_rounds(w)
        assert w.get("p")["status"]["nominatedNodeName"] == "b"
        assert not stand_ins(w)
        await w.schedule()  # its victim has not ended: it is refused again
        await some_rounds(w)
        assert not stand_ins(w)


async def test_room_of_a_pod_that_has_vanished_is_waited_for() -> None:
    """Its containers may still run; a node would take longer."""
    async with capacity_world(grow="stand-ins", vanished_grace="1h") as w:
        two_halves(w)
        await w.start()
        w.force_delete("a-0")
        await w.seen()
        pod(w, "p", 4)
        assert (await w.schedule())["p"].reason == "SchedulerError"
        await some_rounds(w)
        assert not stand_ins(w)


async def test_buffers_are_used_where_the_cluster_has_them_and_no_pods_beside() -> None:
    async with capacity_world(grow="auto") as w:
        w.api.without.clear()
        await lacking_room(w)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        (buffer,), (template,) = w.api.all("capacitybuffers"), w.api.all("podtemplates")
        assert buffer["spec"]["podTemplateRef"] == {"name": template["metadata"]["name"]}
        assert buffer["spec"]["replicas"] == 1
        assert {each["metadata"]["namespace"] for each in (buffer, template)} == {NAMESPACE}
        assert nodes_left_out(template["template"])
        await some_rounds(w)
        assert len(w.api.all("capacitybuffers")) == 1
        assert not stand_ins(w)

        w.force_delete("p")
        await w.until(lambda: not w.api.all("capacitybuffers") and not w.api.all("podtemplates"))


@pytest.mark.parametrize("grow", ["off", "stand-ins"])
async def test_buffers_go_with_the_setting(grow: str) -> None:
    async with capacity_world(grow="buffers") as w:
        w.api.without.clear()
        await lacking_room(w)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        await w.restart(grow=grow)
        await w.until(lambda: not w.api.all("capacitybuffers") and not w.api.all("podtemplates"))
        await w.schedule()
        await w.until(lambda: bool(stand_ins(w)) == (grow == "stand-ins"))


async def test_a_cluster_that_never_grew_is_asked_for_buffers_once_and_nothing_is_told_of_it() -> None:
    """Where nobody has applied the rights for it, there is nothing to clear."""
    async with capacity_world(grow="off", allowed=RIGHTS) as w:
        w.api.without.clear()
        await w.start()
        await w.until(lambda: w.api.count("list", "capacitybuffers") > 0)
        await some_rounds(w)
        assert w.api.count("list", "capacitybuffers") == 1
        assert not any("the capacity controller failed; retrying" in line for line in w.logs)


async def test_buffers_of_an_extender_that_is_gone_are_taken_over_and_removed_by_the_next() -> None:
    async with capacity_world(grow="buffers") as w:
        w.api.without.clear()
        await lacking_room(w)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        await w.stop()
        before = w.api.all("capacitybuffers")
        await w.start()
        await w.schedule()
        await some_rounds(w)
        assert w.api.all("capacitybuffers") == before
        w.force_delete("p")
        await w.until(lambda: not w.api.all("capacitybuffers") and not w.api.all("podtemplates"))


async def test_a_half_made_buffer_is_completed() -> None:
    async with capacity_world(grow="buffers") as w:
        w.api.without.clear()
        w.api.fail(Answer(503), verbs={"create"}, resources={"capacitybuffers"}, times=2)
        await lacking_room(w)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        assert len(w.api.all("podtemplates")) == 1


async def test_a_template_that_was_left_over_is_replaced() -> None:
    """It may leave out other nodes than those that are there."""
    async with capacity_world(grow="buffers") as w:
        w.api.without.clear()
        await lacking_room(w)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        await w.stop()
        w.api.delete("capacitybuffers", w.api.all("capacitybuffers")[0]["metadata"]["name"], NAMESPACE)
        two_halves(w, "b")
        await w.start()
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        (template,) = w.api.all("podtemplates")
        assert nodes_left_out(template["template"]) == ["a", "b"]


async def test_where_only_buffers_may_be_used_and_there_are_none_that_is_told_and_the_rest_goes_on() -> None:
    async with capacity_world(grow="buffers", keep_nodes="true") as w:
        await lacking_room(w)
        await w.until(lambda: any("the capacity controller failed; retrying" in line for line in w.logs))
        assert not stand_ins(w)
        await w.until(lambda: "gpu-device-plugin/kept-node" in w.api.get("nodes", "a")["metadata"]["annotations"])


@pytest.mark.parametrize("missing", [("create", "pods"), ("patch", "nodes")])
async def test_without_a_right_it_is_told_what_grants_it_and_all_else_goes_on(missing: tuple[str, str]) -> None:
    async with capacity_world(grow="stand-ins", keep_nodes="true", allowed=(RIGHTS | GRANTED) - {missing}) as w:
        await lacking_room(w)
        await w.until(lambda: any("apply deploy/optional/capacity.yaml" in line for line in w.logs))
        if missing == ("create", "pods"):
            await w.until(lambda: "gpu-device-plugin/kept-node" in w.api.get("nodes", "a")["metadata"]["annotations"])
        else:
            await w.until(lambda: len(stand_ins(w)) == 1)
        told = {line for line in w.logs if "the capacity controller failed; retrying" in line}
        assert len(told) == 1, "always the same line, which the log writes once a minute"
        assert "once_per_s" in told.pop()


async def test_stand_ins_are_no_waiting_pods() -> None:
    async with capacity_world(grow="stand-ins") as w:
        await lacking_room(w)
        await w.until(lambda: len(stand_ins(w)) == 1)
        await some_rounds(w)

        assert list(w.only.extender.fleet.pending) == [w.get("p")["metadata"]["uid"]]
        page = await w.metrics()
        assert "\ngpushare_extender_pods_pending 1.0\n" in page
        assert 'gpushare_extender_pods_waiting{reason="not_asked"} 0.0' in page
        await w.restart()
        assert list(w.only.extender.fleet.pending) == [w.get("p")["metadata"]["uid"]]


async def test_what_calls_itself_a_stand_in_counts_once_it_is_bound() -> None:
    async with capacity_world(grow="stand-ins", keep_nodes="true") as w:
        node(w, "a", 8)
        await w.start()
        pod(w, "p", 4, labels={STAND_IN: "true"}, spec={"schedulerName": "nobody"})
        await w.seen()
        assert w.only.free("a") == [8]
        w.api.bind("p", "a", {"scheduler.framework.gpushare.allocation": '{"0": {"0": 4}}'})
        await w.seen()
        assert w.only.free("a") == [4]
        assert not w.only.extender.features.of(Capacity).cache.stand_ins
        pod(w, "q", 5)
        assert (await w.schedule())["q"].reason == "Unschedulable"


async def test_another_extender_takes_over_what_is_asked_for_and_doubles_nothing() -> None:
    async with capacity_world(grow="stand-ins") as w:
        await lacking_room(w)
        await w.until(lambda: len(stand_ins(w)) == 1)
        (before,) = stand_ins(w)
        await w.restart()
        await w.schedule()
        await some_rounds(w)
        assert [each["metadata"]["uid"] for each in stand_ins(w)] == [before["metadata"]["uid"]]
        w.force_delete("p")
        await w.until(lambda: not stand_ins(w))


async def test_many_kinds_of_waiting_pods_harm_nobody() -> None:
    """More than the nodes are remembered of: each asks for nodes by a label of its own."""
    async with capacity_world(grow="stand-ins", rebalance="5") as w:
        labels = {f"kind-{n}": "x" for n in range(70)}
        node(w, "a", 8, 8, labels=labels)
        pod(w, "a-0", 5, at=("a", 0))
        pod(w, "a-1", 5, at=("a", 1))
        await w.start()
        for n in range(70):
            pod(w, f"p{n}", 4, spec={"nodeSelector": {f"kind-{n}": "x"}})
        for _ in range(3):
            await w.schedule()
        await w.until(lambda: len(stand_ins(w)) > 1)
        await w.schedule()
        await some_rounds(w)
        assert not w.only.task.done()


async def test_a_new_node_is_opened_once_its_gpus_are_offered_and_other_taints_stay() -> None:
    """Its agent has told of the GPUs before its kubelet offers them; only then may pods come."""
    ours = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
    theirs = {"key": "team", "value": "a", "effect": "NoSchedule", "timeAdded": rfc3339(1_795_342_000)}

    def taints() -> list[dict[str, str]]:
        found: list[dict[str, str]] = w.api.get("nodes", "new")["spec"].get("taints", [])
        return found

    async with capacity_world() as w:
        node(w, "new", 8)
        w.api.patch("nodes", "new", {"spec": {"taints": [ours, theirs]}})
        nothing = {GPU_MEM: "0", builders.GPU_COUNT: "0"}
        w.api.patch("nodes", "new", {"status": {"allocatable": nothing}}, subresource="status")
        await w.start()
        await some_rounds(w)
        assert taints() == [ours, theirs]
        w.api.patch("nodes", "new", {"status": {"allocatable": {GPU_MEM: "8"}}}, subresource="status")
        await w.until(lambda: taints() == [theirs])
        await some_rounds(w)
        assert w.api.count("patch", "nodes") == 1
