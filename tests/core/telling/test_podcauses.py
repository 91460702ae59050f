"""What there is to know of a pod before one looks at any node."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.cluster.asking import Ask, Part
from gpu_device_plugin.core.cluster.instances import InstancePod
from gpu_device_plugin.core.contract.keys import ALLOCATION, ASSIGNED, ASSUME_TIME, IDX, USE_MODEL
from gpu_device_plugin.core.model.placing import Demand
from gpu_device_plugin.core.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.telling.podcauses import SchedulingStatus, causes
from tests.names import COUNT, MEM
from tests.resources import RESOURCES
from tests.views import WHOLE, mig_view, node_view

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = {"n": node_view("n", (15, 15))}
OURS = SchedulingStatus(
    scheduler="gpushare-scheduler", condition_reason="Unschedulable", condition="0/1 nodes are available"
)


def pod(limits: dict[str, int] | None = None, **more: object) -> Pod:
    container = Container("main", ContainerKind.APP, 0, {MEM: 4} if limits is None else limits)
    made = Pod("uid", "default", "web", containers=(container,))
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_pod_that_waits_is_looked_at_with_what_its_scheduler_says() -> None:
    lines, asked = causes(pod(), OURS, RESOURCES, NODES)
    assert lines == ["gpushare-scheduler says (Unschedulable): 0/1 nodes are available"]
    assert asked == Ask((Part(Demand(Kind.MEMORY, 4)),))


def test_a_scheduler_that_says_less() -> None:
    reason, text = replace(OURS, condition=""), replace(OURS, condition_reason="")
    assert causes(pod(), reason, RESOURCES, NODES)[0] == ["gpushare-scheduler says (Unschedulable): no message"]
    assert causes(pod(), text, RESOURCES, NODES)[0] == ["gpushare-scheduler says: 0/1 nodes are available"]
    assert causes(pod(), SchedulingStatus(scheduler="mine"), RESOURCES, NODES)[0] == [
        "mine has not looked at it yet; if this persists, no scheduler of this name runs."
    ]


def test_a_pod_behind_gates() -> None:
    lines, asked = causes(pod(), SchedulingStatus(scheduler="mine", gates=("quota", "license")), RESOURCES, NODES)
    assert lines == ["No scheduler looks at it before its scheduling gates are removed: quota, license."]
    assert asked is not None


def test_a_pod_of_the_clusters_own_scheduler() -> None:
    lines, asked = causes(pod(), replace(OURS, scheduler="default-scheduler"), RESOURCES, NODES)
    assert lines[1] == (
        "It will be placed by default-scheduler; if that scheduler does not call the extender, it knows only the sum "
        "of a node's free GPU memory. Set schedulerName: gpushare-scheduler."
    )
    assert asked is not None


def test_a_cluster_in_which_no_node_shares_gpus() -> None:
    lines, asked = causes(pod(), OURS, RESOURCES, {})
    assert lines[1] == (
        f"No node shares GPUs: none has GPUs written on it by an agent, nor {MEM} in its capacity. "
        "Label GPU nodes gpushare=true and see the agent's log there."
    )
    assert asked is None


def test_where_no_node_may_be_read_nothing_is_said_of_any() -> None:
    """What the pod asks is returned all the same, so that it can be told."""
    lines, asked = causes(pod(), OURS, RESOURCES, None)
    assert lines == ["gpushare-scheduler says (Unschedulable): 0/1 nodes are available"]
    assert asked == Ask((Part(Demand(Kind.MEMORY, 4)),))
    there = pod(node_name="n", annotations={IDX: "1"})
    assert causes(there, SchedulingStatus(), RESOURCES, None) == (
        ["default/web is on node n (Pending).", "  GPU 1: 4 units"],
        None,
    )


def test_what_kubernetes_said_of_it_comes_last() -> None:
    told = replace(OURS, events=("Event FailedMount: x",))
    assert causes(pod(), told, RESOURCES, NODES)[0][-1] == "Event FailedMount: x"
    assert causes(pod({}), told, RESOURCES, NODES)[0][-1] == "Event FailedMount: x"


def test_what_a_pod_seems_to_mean_is_told_whether_it_asks_for_gpus_or_not() -> None:
    told = replace(OURS, limits=("cpu", "aliyun.com/gpu-memory"))
    for each in (pod(), pod({})):
        assert any("did you mean aliyun.com/gpu-mem?" in line for line in causes(each, told, RESOURCES, NODES)[0])
    assert causes(pod({}), told, RESOURCES, NODES)[0][0] == f"default/web asks for neither {MEM} nor {COUNT}."
    lines, asked = causes(pod({MEM: 8000}), OURS, RESOURCES, NODES)
    assert "If 8000 MiB are meant, write aliyun.com/gpu-mem: 8." in lines[0]
    assert asked is not None


def test_a_pod_that_asks_for_no_gpu() -> None:
    assert causes(pod({}), OURS, RESOURCES, NODES) == (
        [
            f"default/web asks for neither {MEM} nor {COUNT}, so it is not waiting for GPUs.",
            "gpushare-scheduler says (Unschedulable): 0/1 nodes are available",
        ],
        None,
    )


def test_a_pod_that_asks_for_nothing_in_so_many_words() -> None:
    lines, asked = causes(pod({MEM: 0}), OURS, RESOURCES, NODES)
    assert lines == [
        (
            f"Container 'main' of default/web asks for 0 of {MEM}, which is nothing, so it is not waiting "
            "for GPUs. Write how much it needs, or remove the line."
        ),
        "gpushare-scheduler says (Unschedulable): 0/1 nodes are available",
    ]
    assert asked is None


def test_a_pod_that_asks_the_impossible() -> None:
    lines, asked = causes(pod({MEM: 1, COUNT: 1}), OURS, RESOURCES, NODES)
    assert lines[0].startswith("default/web asks for GPUs that no node can provide: container 'main' asks for ")
    assert asked is None
    (placed,), _ = causes(pod(annotations={USE_MODEL: ","}, node_name="n"), OURS, RESOURCES, NODES)
    assert placed.startswith("default/web (on node n) asks for GPUs that no node can provide: ")


def test_limits_that_make_no_sense_are_told() -> None:
    told = replace(OURS, ignored=("container 'main': the limit of x is not a whole number",))
    assert causes(pod(), told, RESOURCES, NODES)[0][0] == (
        "Ignored: container 'main': the limit of x is not a whole number."
    )


def test_a_pod_that_has_ended() -> None:
    refused = SchedulingStatus(reason="UnexpectedAdmissionError", message="no GPU has room")
    assert causes(pod(phase="Failed", node_name="n"), refused, RESOURCES, NODES)[0] == [
        "default/web has ended (Failed): UnexpectedAdmissionError: no GPU has room"
    ]
    assert causes(pod(phase="Succeeded"), SchedulingStatus(), RESOURCES, NODES)[0] == [
        "default/web has ended (Succeeded)."
    ]


def test_a_pod_that_is_being_deleted_before_it_has_a_node() -> None:
    assert causes(pod(deleting=True), OURS, RESOURCES, NODES) == (
        ["default/web is being deleted and will not be scheduled."],
        None,
    )


def test_a_pod_that_has_its_place() -> None:
    """1,700,000,000 seconds after 1970 it was 22:13:20 on 14 November 2023."""
    annotations = {IDX: "1", ASSIGNED: "true", ASSUME_TIME: "1700000000123456789"}
    lines, asked = causes(pod(node_name="n", phase="Running", annotations=annotations), OURS, RESOURCES, NODES)
    assert lines == [
        "default/web is on node n (Running).",
        "  GPU 1 (Tesla T4, GPU-1): 4 GiB",
        "Placed at 2023-11-14T22:13:20Z.",
    ]
    assert asked is None


@pytest.fixture
def eight_hours_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as there:
        there.setenv("TZ", "CST-8")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("eight_hours_east")
@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("0", "1970-01-01T00:00:00Z"),
        ("1699999999999999999", "2023-11-14T22:13:19Z"),
        ("9999999999999999999", "2286-11-20T17:46:39Z"),
    ],
)
def test_the_second_of_a_placement_is_told_in_utc_wherever_that_is(written: str, moment: str) -> None:
    """The last nanosecond before 1,700,000,000 seconds have passed; and before 10,000,000,000."""
    lines, _ = causes(pod(node_name="n", annotations={IDX: "1", ASSUME_TIME: written}), OURS, RESOURCES, NODES)
    assert lines[2] == f"Placed at {moment}."


@pytest.mark.parametrize("written", ["", "-1", "1e9", "²", "1" * 20, "1" * 5000])
def test_what_is_no_moment_is_not_told_as_one(written: str) -> None:
    annotations = {IDX: "1", ASSIGNED: "true", ASSUME_TIME: written}
    lines, _ = causes(pod(node_name="n", annotations=annotations), OURS, RESOURCES, NODES)
    assert lines == ["default/web is on node n (Pending).", "  GPU 1 (Tesla T4, GPU-1): 4 GiB"]


def test_a_pod_that_has_a_whole_gpu_of_a_node_that_is_gone() -> None:
    """Nobody else can say how large the GPU is; and what is written of the time is no time."""
    there = pod(
        {COUNT: 1},
        node_name="gone",
        annotations={ALLOCATION: '{"0":{"3":15}}', ASSIGNED: "false", ASSUME_TIME: "yesterday"},
        deleting=True,
    )
    assert causes(there, SchedulingStatus(message="the node was lost"), RESOURCES, NODES)[0] == [
        "default/web is being deleted from node gone (Pending).",
        "That node does not exist, or shares no GPUs.",
        "  GPU 3 (not listed by its node): all",
        "Its node has not allocated the GPU yet.",
        "Its status says: the node was lost",
    ]
    memory = pod(node_name="gone", annotations={IDX: "0"})
    assert causes(memory, SchedulingStatus(reason="NodeLost", message="x"), RESOURCES, NODES)[0][-2:] == [
        "  GPU 0 (not listed by its node): 4 units",
        "Its status says (NodeLost): x",
    ]


def test_a_pod_on_a_node_that_does_not_name_its_gpus() -> None:
    nodes = {"n": node_view("n", (15,), share_mib=None)}
    lines, _ = causes(pod(node_name="n", annotations={IDX: "0"}), OURS, RESOURCES, nodes)
    assert lines[1] == "  GPU 0: 4"


def test_a_pod_of_which_nobody_has_written_the_gpu() -> None:
    there = pod(node_name="n")
    assert causes(there, SchedulingStatus(), RESOURCES, NODES)[0][1] == (
        "Its annotations name no GPU: it was placed by default-scheduler; if that scheduler does not call the "
        "extender, set schedulerName: gpushare-scheduler."
    )
    assert causes(there, OURS, RESOURCES, NODES)[0][1] == (
        "Its annotations name no GPU: gpushare-scheduler did not call the extender, or the pod's nodeName was set by "
        "hand."
    )
    wrong = replace(there, annotations={ALLOCATION: "7"})
    assert causes(wrong, OURS, RESOURCES, NODES)[0][1].startswith(
        f"Its GPU annotations cannot be read: {ALLOCATION} is not of the form "
    )
    less = replace(there, annotations={ALLOCATION: '{"0":{"1":3}}'})
    assert causes(less, OURS, RESOURCES, NODES)[0][1] == (
        f"Its GPU annotations cannot be read: {ALLOCATION} promises 3 of gpu-mem to container 'main', which requests 4."
    )


# --- MIG instances ----------------------------------------------------------------------------------------------------

PARTED = {"n": mig_view("n", InstancePod("uid", "default", "web", {WHOLE: 1}, frozenset({"MIG-0"})), gpus=1, whole=1)}
HAS = "  GPU 1 (MIG 0:0 1g.10gb, MIG-0): the whole instance"


def test_a_pod_that_waits_for_instances_is_told_what_its_scheduler_says() -> None:
    """The nodes are told elsewhere."""
    assert causes(pod({WHOLE: 1}), OURS, RESOURCES, PARTED) == (
        ["gpushare-scheduler says (Unschedulable): 0/1 nodes are available"],
        None,
    )


def test_a_pod_with_instances_is_told_where_it_is() -> None:
    there = pod({WHOLE: 1}, node_name="n", phase="Running")
    assert causes(there, SchedulingStatus(), RESOURCES, PARTED)[0] == ["default/web is on node n (Running).", HAS]
    assert causes(there, SchedulingStatus(), RESOURCES, None)[0] == ["default/web is on node n (Running)."]
    refused = SchedulingStatus(reason="UnexpectedAdmissionError", message="Allocate failed")
    assert causes(replace(there, deleting=True), refused, RESOURCES, None)[0] == [
        "default/web is being deleted from node n (Running).",
        "Its status says (UnexpectedAdmissionError): Allocate failed",
    ]
    assert causes(pod({WHOLE: 1}, deleting=True), OURS, RESOURCES, PARTED)[0] == [
        "default/web is being deleted and will not be scheduled."
    ]


def test_a_pod_with_memory_and_instances_is_told_both_places() -> None:
    both = pod({MEM: 4, WHOLE: 1}, node_name="n", phase="Running", annotations={IDX: "0"})
    told, _ = causes(both, SchedulingStatus(), RESOURCES, PARTED)
    assert told[:3] == ["default/web is on node n (Running).", "  GPU 0 (Tesla T4, GPU-0): 4 GiB", HAS]
    part = {"n": mig_view("n", shared=1)}
    told, _ = causes(pod(node_name="n", annotations={IDX: "0"}), SchedulingStatus(), RESOURCES, part)
    assert told[1] == "  GPU 0 (MIG 0:0 1g.10gb, MIG-0): 4 GiB"
