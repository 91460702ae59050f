"""Which nodes the autoscaler is asked for: of each kind that helps, as many as are wanted, under names that stay."""

import json
import math
import time
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import HELD_ROOM, HOSTNAME
from tests.cluster_double.troubles import Answer
from tests.features.capacity.capacity_world import (
    KINDS,
    NAMESPACE,
    annotate,
    capacity_world,
    node,
    nodes_left_out,
    pod,
    some_rounds,
    stand_ins,
)
from tests.features.capacity.test_growing import (
    NOW,
    PRODUCT,
    fives_wait,
    lacking_room,
    two_halves,
    wanted_for,
)
from tests.patience import rounds
from tests.scheduler.harness import NODE_GPUS, gpus

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


async def test_all_kinds_of_nodes_that_fit_are_allowed_those_that_are_gone_too_after_a_restart() -> None:
    """Only the A100 has room for 20. It was there once; the small node is in use, and has a free sum of 22."""
    async with capacity_world(grow="stand-ins") as w:
        node(w, "a", 16, 16, labels={"pool": "small"})
        node(w, "b", 40, model="A100", labels={"pool": "large"})
        pod(w, "a-0", 5, at=("a", 0))
        pod(w, "a-1", 5, at=("a", 1))
        await w.start()
        await w.until(lambda: len(w.api.get("configmaps", KINDS, NAMESPACE).get("data", {})) == 2)
        w.api.delete("nodes", "b")
        await w.restart()
        pod(w, "p", 20, spec={"nodeSelector": {"pool": "large"}})
        pod(w, "q", 12)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)
        (there,) = stand_ins(w)
        assert nodes_left_out(there, PRODUCT) == ["Tesla-T4"]
        assert there["spec"]["nodeSelector"] == {"gpushare": "true", "pool": "large"}
        w.force_delete("p")
        await w.until(lambda: [wanted_for(each) for each in stand_ins(w)] == ["default/q"])
        (there,) = stand_ins(w)
        (term,) = there["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert [each["key"] for each in term["matchExpressions"]] == [HOSTNAME], "both kinds will do"


async def test_a_kind_of_node_that_nobody_has_seen_is_asked_for_where_sums_hide_that_the_pod_has_no_room() -> None:
    """The free sum of 22 would do for 20. A new node of the same kind is no reason to ask again at once."""
    async with capacity_world(grow="stand-ins", node_start="4s") as w:
        node(w, "a", 16, 16)
        pod(w, "a-0", 5, at=("a", 0))
        pod(w, "a-1", 5, at=("a", 1))
        await w.start()
        pod(w, "p", 20)
        pod(w, "beyond", 23)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)
        (there,) = stand_ins(w)
        assert wanted_for(there) == "default/p"
        assert nodes_left_out(there, PRODUCT) == ["Tesla-T4"]
        node(w, "new", 16, 16, created=NOW, model="A10")
        await w.until(lambda: any(each["reason"] == "GPUNodeDidNotHelp" for each in w.api.all("events")))
        await w.until(lambda: not stand_ins(w))


async def test_a_node_that_comes_uses_one_up_and_the_others_keep_their_names() -> None:
    """Its agent says nothing yet. Under the names that stay, the node that has come is left out."""
    async with capacity_world(grow="stand-ins", node_start="1h") as w:
        await fives_wait(w, 6)
        names = {each["metadata"]["name"] for each in stand_ins(w)}
        node(w, "new", created=NOW)
        await w.until(lambda: [nodes_left_out(each) for each in stand_ins(w)] == [["a", "new"]] * 2)
        await some_rounds(w)  # what the first extender has begun is over
        assert {each["metadata"]["name"] for each in stand_ins(w)} < names
        made = w.api.count("create", "pods")
        await w.restart()
        await some_rounds(w)
        assert len(stand_ins(w)) == 2
        assert w.api.count("create", "pods") == made, "another extender asks for the same"

        w.api.patch("nodes", "new", {"metadata": {"annotations": {NODE_GPUS: gpus("new", 8, 8)}}})
        await w.seen()
        await some_rounds(w)
        assert len(stand_ins(w)) == 2, "its kubelet offers nothing yet"
        assert w.api.count("create", "pods") == made


async def test_pods_with_different_terms_share_a_new_node_where_a_kind_meets_all_of_them() -> None:
    async with capacity_world(grow="stand-ins") as w:
        node(w, "a", 8, 8, labels={"pool": "gpus", "zone": "z"})
        pod(w, "a-0", 5, at=("a", 0))
        pod(w, "a-1", 5, at=("a", 1))
        await w.start()
        pod(w, "p", 5, spec={"nodeSelector": {"pool": "gpus"}})
        pod(w, "q", 5, spec={"nodeSelector": {"zone": "z"}})
        await w.schedule()
        await w.until(
            lambda: (
                [each["spec"]["nodeSelector"] for each in stand_ins(w)]
                == [{"gpushare": "true", "pool": "gpus", "zone": "z"}]
            )
        )


async def test_a_pod_that_waits_for_held_room_has_a_node_asked_for_and_the_one_that_it_is_held_for_has_not() -> None:
    """Both are told to try again: that is no refusal."""
    async with capacity_world(grow="stand-ins", keep_nodes="true") as w:
        two_halves(w)
        until = time.time() + 3600
        room = {"uid-gone": {"owner": "uid-web", "namespace": "default", "gpus": {"0": 4}, "until": until}}
        node(w, "b", 4)
        annotate(w, "b", **{HELD_ROOM: json.dumps(room)})
        await w.start()
        pod(w, "other", 4, rs="other")
        results = await w.schedule()
        assert results["other"].reason == "SchedulerError"
        await w.until(lambda: [wanted_for(each) for each in stand_ins(w)] == ["default/other"])


async def test_of_the_kind_that_came_last_as_many_are_asked_for_as_pods_fill_and_of_others_no_more_than_enough() -> (
    None
):
    """Twelve pods need one A100, or six T4, of which one has just come. Two of them are on that."""
    async with capacity_world(grow="stand-ins", node_start="1h") as w:
        node(w, "large", *[40] * 4, model="A100")
        for at in range(4):
            pod(w, f"large-{at}", 40, at=("large", at))
        two_halves(w)
        await w.start()
        for n in range(12):
            pod(w, f"p{n}", 5)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)
        node(w, "new", 8, 8, created=NOW)
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 5)
        await some_rounds(w)

        def allows_all(stand_in: dict[str, Any]) -> bool:
            affinity = stand_in["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            (term,) = affinity["nodeSelectorTerms"]
            return [each["key"] for each in term["matchExpressions"]] == [HOSTNAME]

        others = [each for each in stand_ins(w) if not allows_all(each)]
        assert [nodes_left_out(each, PRODUCT) for each in others] == [["A100"]] * 4


async def test_buffers_go_with_the_setting_though_the_api_server_failed_the_first_time() -> None:
    async with capacity_world(grow="buffers") as w:
        w.api.without.clear()
        await lacking_room(w)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        w.api.fail(Answer(500), verbs={"delete"}, resources={"capacitybuffers", "podtemplates"})
        await w.restart(grow="off")
        await w.until(lambda: any("the capacity controller failed; retrying" in line for line in w.logs))
        w.api.heal()
        await w.until(lambda: not w.api.all("capacitybuffers") and not w.api.all("podtemplates"))


async def test_a_pod_whose_terms_name_hosts_does_not_hide_kinds_of_nodes() -> None:
    """So many nodes of one kind, each with a host name of its own, that no place is left for another kind."""
    async with capacity_world(grow="stand-ins") as w:
        for n in range(70):
            node(w, f"small-{n:02}", 8)
            pod(w, f"s-{n}", 8, at=(f"small-{n:02}", 0))
        await w.start()
        not_there = {"key": HOSTNAME, "operator": "NotIn", "values": ["broken"]}
        affinity = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [not_there]}]}}
        pod(w, "p", 12, spec={"affinity": {"nodeAffinity": affinity}})
        await w.schedule()
        await some_rounds(w)
        node(w, "large", 16, model="A100")
        pod(w, "l-0", 16, at=("large", 0))
        await w.until(lambda: [nodes_left_out(each, PRODUCT) for each in stand_ins(w)] == [["Tesla-T4"]])


async def test_nothing_is_asked_for_pods_that_can_run_on_their_node_alone() -> None:
    """Autoscalers add no nodes for a DaemonSet's pods either: a new node has pods of its own."""
    async with capacity_world(grow="stand-ins") as w:
        two_halves(w)
        await w.start()
        named = {"key": "metadata.name", "operator": "In", "values": ["a"]}
        affinity = {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [named]}]}}
        pod(w, "d", 4, rs="daemons", kind="DaemonSet", spec={"affinity": {"nodeAffinity": affinity}})
        pod(w, "p", 4)
        await w.schedule()
        await w.until(lambda: bool(stand_ins(w)))
        await some_rounds(w)
        assert [wanted_for(each) for each in stand_ins(w)] == ["default/p"]


async def test_nodes_that_come_and_go_while_one_is_asked_for_are_forgotten_in_the_end() -> None:
    """What is asked for names all of them, and grows with them: the API takes some 1.5 MB."""
    async with capacity_world(grow="stand-ins") as w:
        await lacking_room(w)
        await w.until(lambda: len(stand_ins(w)) == 1)
        for n in range(150):
            node(w, f"spot-{n}")
        await w.until(lambda: [len(nodes_left_out(each)) for each in stand_ins(w)] == [151])
        for n in range(150):
            w.api.delete("nodes", f"spot-{n}")
        await w.until(lambda: [nodes_left_out(each) for each in stand_ins(w)] == [["a"]])


async def test_buffers_that_go_with_the_pod_of_a_former_extender_are_soon_made_again() -> None:
    """This one has taken them over, and the garbage collector removes them a moment later."""
    async with capacity_world(grow="buffers") as w:
        w.api.without.clear()
        await lacking_room(w)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        made = w.api.count("create", "capacitybuffers")
        await w.restart()
        await some_rounds(w)
        for kind in ("capacitybuffers", "podtemplates"):
            w.api.delete(kind, w.api.all(kind)[0]["metadata"]["name"], NAMESPACE)
        await w.until(lambda: len(w.api.all("capacitybuffers")) == 1)
        assert w.api.count("create", "capacitybuffers") == made + 1


@pytest.mark.parametrize("trouble", [500, 403])
async def test_kinds_of_nodes_are_kept_though_the_api_server_failed_once_and_asked_for_where_it_forbids_it(
    trouble: int,
) -> None:
    async with capacity_world(grow="stand-ins") as w:
        times = 2 if trouble == 500 else math.inf
        w.api.fail(Answer(trouble), verbs={"patch"}, resources={"configmaps"}, times=times)
        await lacking_room(w)
        await w.until(lambda: len(stand_ins(w)) == 1)
        assert bool(w.api.get("configmaps", KINDS, NAMESPACE).get("data")) == (trouble == 500)


async def test_a_node_that_came_for_others_is_not_in_vain_for_a_pod_that_waits_for_another_kind() -> None:
    """The one that `p` waits for is of no kind that anybody has seen; small ones come and go all the time."""
    async with capacity_world(grow="stand-ins", node_start="6s") as w:
        node(w, "a", 16, 16)
        pod(w, "a-0", 5, at=("a", 0))
        pod(w, "a-1", 5, at=("a", 1))
        await w.start()
        pod(w, "p", 20)
        pod(w, "q", 12, rs="other")
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 2)
        node(w, "new", 16, 16, created=NOW)
        await w.seen()
        assert (await w.schedule())["q"].node == "new"
        await rounds(8, 1)
        assert [wanted_for(each) for each in stand_ins(w)] == ["default/p"]
        assert not any("did not help" in line for line in w.logs)
        node(w, "second", 16, 16, created=NOW)
        await w.until(
            lambda: any("second was added for it; it lacks the GPUs" in str(each) for each in w.api.all("events"))
        )


async def test_a_group_that_is_gone_is_remembered_beside_another_of_the_same_machines() -> None:
    """Users' labels tell them apart, and those of the cloud."""
    group = "cloud.google.com/gke-nodepool"
    async with capacity_world(grow="stand-ins") as w:
        node(w, "a", 8, 8, labels={group: "a"})
        node(w, "b", 8, 8, labels={group: "b", "team": "b"})
        pod(w, "a-0", 5, at=("a", 0))
        await w.start()
        await w.until(lambda: bool(w.api.get("configmaps", KINDS, NAMESPACE).get("data")))
        w.api.delete("nodes", "b")
        await w.restart()
        pod(w, "p", 4, spec={"nodeSelector": {"team": "b"}})
        await w.schedule()
        await w.until(lambda: len(stand_ins(w)) == 1)
        (there,) = stand_ins(w)
        terms = there["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert [each["key"] for term in terms for each in term["matchExpressions"]] == [HOSTNAME]


async def test_a_new_node_that_takes_some_of_the_pods_leaves_one_to_be_asked_for_the_others_all_the_time() -> None:
    """Each of the three has room on it, two of them at once; kube-scheduler has tried none at first."""
    async with capacity_world(grow="stand-ins", node_start="1h") as w:
        await fives_wait(w, 3)
        node(w, "new", 8, 8, created=NOW)
        # One goes, and the other is made anew without the node; in between, either may be there alone.
        await w.until(lambda: [nodes_left_out(each) for each in stand_ins(w)] == [["a", "new"]])
        (before,) = stand_ins(w)
        await w.schedule()
        await some_rounds(w)
        assert [each["metadata"]["name"] for each in stand_ins(w)] == [before["metadata"]["name"]]
        assert nodes_left_out(stand_ins(w)[0]) == ["a", "new"]
