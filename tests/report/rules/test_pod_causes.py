"""What there is to know of a pod before one looks at any node."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import ALLOCATION, ASSIGNED, ASSUME_TIME, IDX, SPLIT_LABEL, USE_MODEL
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.pod_causes import beyond_every_gpu
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.findings import facts
from tests.names import COUNT, MEM
from tests.reporting import causes
from tests.resources import RESOURCES
from tests.views import WHOLE, holder, mig_view, node_view

NODES = {"n": node_view("n", (15, 15))}
OURS = SchedulingStatus(
    scheduler="gpushare-scheduler", condition_reason="Unschedulable", condition="0/1 nodes are available"
)
NO_STATUS = SchedulingStatus()
MEMORY_ALONE = [resource for resource in RESOURCES if resource.kind is Kind.MEMORY]
ASKED = GpuRequest((Part(Demand(Kind.MEMORY, 4)),))


def pod(limits: dict[str, int] | None = None, **more: object) -> Pod:
    container = Container("main", ContainerKind.APP, 0, {MEM: 4} if limits is None else limits)
    made = Pod("uid", "default", "web", containers=(container,))
    return replace(made, **more)  # type: ignore[arg-type]


def of(
    asking: Pod, status: SchedulingStatus = OURS, nodes: dict[str, NodeView] | None = NODES, show: str = ""
) -> list[str]:
    return facts(causes(asking, status, RESOURCES, nodes)[0], show)


def test_the_sentences_of_a_pod_that_waits() -> None:
    default = replace(OURS, scheduler="default-scheduler", events=("Event FailedMount: x",))
    findings, asked = causes(pod(), default, RESOURCES, {})
    assert list(map(str, findings)) == [
        "default-scheduler says (Unschedulable): 0/1 nodes are available",
        (
            "It will be placed by default-scheduler; if that scheduler does not call the extender, it knows only the "
            "sum of a node's free GPU memory. Set schedulerName: gpushare-scheduler."
        ),
        (
            f"No node shares GPUs: no agent has published GPUs, and no node has {MEM} in its capacity. Label GPU "
            "nodes gpushare=true, then check the agent's log there."
        ),
        "Event FailedMount: x",
    ]
    assert asked is None


def test_the_sentences_of_a_pod_that_has_its_place() -> None:
    """1,700,000,000 seconds after 1970 it was 22:13:20 on 14 November 2023."""
    annotations = {IDX: "1", ASSIGNED: "true", ASSUME_TIME: "1700000000123456789"}
    placed = pod(node_name="n", phase="Running", annotations=annotations)
    findings, asked = causes(placed, OURS, RESOURCES, NODES)
    assert list(map(str, findings)) == [
        "default/web is on node n (Running).",
        "  GPU 1 (Tesla T4, GPU-1): 4 GiB",
        "Placed at 2023-11-14T22:13:20Z.",
    ]
    assert asked is None


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (None, []),
        (frozenset({993, 44}), []),
        (
            frozenset({1000}),
            [
                (
                    "Its containers do not run as root, and only group 993 of the node may open the device nodes of "
                    "its GPUs. Set spec.securityContext.supplementalGroups: [993]."
                )
            ],
        ),
    ],
)
def test_a_pod_that_is_not_root_learns_the_group_of_its_device_nodes(
    groups: frozenset[int] | None, said: list[str]
) -> None:
    view = NODES["n"]
    gpus = replace(view.candidate.gpus, gpus=tuple(replace(gpu, groups=(993,)) for gpu in view.candidate.gpus.gpus))
    there = {"n": replace(view, candidate=replace(view.candidate, gpus=gpus))}
    placed = pod(node_name="n", phase="Running", annotations={IDX: "1", ASSIGNED: "true"})
    found, _ = causes(placed, replace(OURS, groups=groups), RESOURCES, there)
    assert [str(each) for each in found if each.code == "device-group"] == said


SAYS = "scheduler-says scheduler=gpushare-scheduler reason=Unschedulable message=0/1 nodes are available"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (OURS, [SAYS]),
        (replace(OURS, condition=""), [SAYS.replace("0/1 nodes are available", "no message")]),
        (replace(OURS, condition_reason=""), [SAYS.replace("Unschedulable", "")]),
        (SchedulingStatus(scheduler="mine"), ["scheduler-silent scheduler=mine"]),
        (SchedulingStatus(scheduler="mine", gates=("quota", "license")), ["gated gates=quota, license"]),
        (replace(OURS, events=("x",)), [SAYS, "event event=x"]),
        (replace(OURS, ignored=("odd",)), ["ignored why=odd", SAYS]),
        (
            replace(OURS, limits=("cpu", "aliyun.com/gpu-memory")),
            ["mistyped-resource meant=aliyun.com/gpu-mem", SAYS],
        ),
    ],
)
def test_a_pod_that_waits_is_looked_at_with_what_its_scheduler_says(
    status: SchedulingStatus, expected: list[str]
) -> None:
    findings, asked = causes(pod(), status, RESOURCES, NODES)
    assert facts(findings, "scheduler reason message gates event why meant") == expected
    assert asked == ASKED
    unread = causes(pod(), status, RESOURCES, None)
    assert unread == (findings, ASKED), "where no node may be read, what it asks can be told all the same"


def test_annotations_of_other_systems_are_told_of_pods_with_and_without_shares() -> None:
    for limits in ({}, {MEM: 4}):
        status = SchedulingStatus(annotations=("gpu-fraction",))
        found, _ = causes(pod(limits), status, RESOURCES, None)
        assert "annotation-of-others" in [each.code for each in found], limits


def test_what_looks_like_mib_is_told_first() -> None:
    assert of(pod({MEM: 8000}))[0] == "asks-in-mib"


@pytest.mark.parametrize(
    ("amounts", "gpus", "resources", "nodes", "instead"),
    [
        ([15], 1, RESOURCES, [(15,)], None),
        ([60], 1, RESOURCES, [()], None),
        ([60], 1, RESOURCES, [], None),
        ([], 1, RESOURCES, [(15,)], None),
        ([60], 1, RESOURCES, [(15,), (10, 20)], "20 GiB on n1: MEM 20"),
        ([30], 1, RESOURCES, [(20, 20), (15, 15, 15)], "20 GiB on n0: MEM 20, COUNT 2, label 2"),
        ([25], 1, RESOURCES, [(15, 15)], "15 GiB on n0: MEM 15, COUNT 2"),  # which is no even number
        ([40], 1, RESOURCES, [(30, 10)], "30 GiB on n0: MEM 30, COUNT 2"),  # no two have 20 each
        ([40], 1, MEMORY_ALONE, [(20, 20)], "20 GiB on n0: MEM 20, label 2"),
        ([4, 30], 1, RESOURCES, [(20, 20)], "20 GiB on n0: MEM 20, COUNT 2"),  # of several containers none is split
        ([80], 2, RESOURCES, [(20, 20, 20, 20)], "20 GiB on n0: MEM 40, COUNT 4, label 4"),
    ],
)
def test_a_pod_that_is_larger_than_every_gpu_learns_what_it_can_ask_for(
    amounts: list[int], gpus: int, resources: Sequence[Resource], nodes: list[tuple[int, ...]], instead: str | None
) -> None:
    asked = GpuRequest(tuple(Part(Demand(Kind.MEMORY, amount, gpus)) for amount in amounts))
    there = [node_view(f"n{at}", sizes) for at, sizes in enumerate(nodes)]
    said = list(map(str, beyond_every_gpu(asked, resources, there)))
    if instead is None:
        assert said == []
        return
    (sentence,) = said
    has, _, options = instead.partition(": ")
    size, _, name = has.partition(" on ")
    words = {
        "MEM": f"{MEM}: {{}} or less",
        "COUNT": f"{COUNT}: {{}} for whole GPUs",
        "label": f'the same with the pod label {SPLIT_LABEL}: "{{0}}", for a program that uses {{0}} GPUs',
    }
    asks = "; or ".join(words[option.split()[0]].format(option.split()[1]) for option in options.split(", "))
    begin = f"No GPU is that large: the largest has {size}, on node {name}. Ask for "
    assert sentence == f"{begin}{asks}; or add a node with larger GPUs."


def test_a_pod_that_is_larger_than_every_gpu_is_not_advised_to_take_several_mig_instances() -> None:
    asked = GpuRequest((Part(Demand(Kind.MEMORY, 16)),))
    (sentence,) = map(str, beyond_every_gpu(asked, RESOURCES, [mig_view("n", shared=3, gpus=1)]))
    assert sentence.endswith(f". Ask for {MEM}: 15 or less; or add a node with larger GPUs.")
    (sentence,) = map(str, beyond_every_gpu(asked, RESOURCES, [mig_view("n", shared=3, gpus=2)]))
    assert f"{MEM}: 15 or less; or {COUNT}: 2 for whole GPUs; or the same with the pod label" in sentence


@pytest.mark.parametrize(
    ("limits", "status", "expected"),
    [
        ({}, OURS, ["asks-for-none", "scheduler-says"]),
        (
            {},
            replace(OURS, limits=("aliyun.com/gpu-memory",)),
            ["asks-for-none", "mistyped-resource", "scheduler-says"],
        ),
        (
            {},
            replace(OURS, annotations=("gpu-fraction", "hami.io/x")),
            ["asks-for-none", "annotation-of-others", "annotation-of-others", "scheduler-says"],
        ),
        ({}, replace(OURS, events=("x",)), ["asks-for-none", "scheduler-says", "event"]),
        ({MEM: 0}, OURS, ["asks-for-0", "scheduler-says"]),
        ({MEM: 1, COUNT: 1}, OURS, ["impossible"]),
    ],
)
def test_a_pod_that_no_node_can_serve_has_no_nodes_to_explain(
    limits: dict[str, int], status: SchedulingStatus, expected: list[str]
) -> None:
    findings, asked = causes(pod(limits), status, RESOURCES, NODES)
    assert facts(findings) == expected
    assert asked is None


def test_a_demand_that_is_impossible_is_told_of_a_placed_pod_too() -> None:
    (fact,) = of(pod(annotations={USE_MODEL: ","}, node_name="n"), show="where")
    assert fact == "impossible where= (on node n)"


@pytest.mark.parametrize(
    ("ended", "status", "expected"),
    [
        (
            pod(phase="Failed", node_name="n"),
            SchedulingStatus(reason="UnexpectedAdmissionError", message="no GPU has room"),
            "ended phase=Failed why=UnexpectedAdmissionError: no GPU has room",
        ),
        (pod(phase="Succeeded"), NO_STATUS, "ended phase=Succeeded why="),
        (pod(deleting=True), OURS, "deleted"),
        (pod({WHOLE: 1}, deleting=True), OURS, "deleted"),
    ],
)
def test_a_pod_that_has_ended_or_is_being_deleted(ended: Pod, status: SchedulingStatus, expected: str) -> None:
    assert of(ended, status, show="phase why") == [expected]


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
    placed = pod(node_name="n", annotations={IDX: "1", ASSUME_TIME: written})
    assert of(placed, show="time") == ["on-node", "has", f"placed time={moment}"]


@pytest.mark.parametrize("written", ["", "-1", "1e9", "²", "1" * 20, "1" * 5000])
def test_what_is_no_moment_is_not_told_as_one(written: str) -> None:
    annotations = {IDX: "1", ASSIGNED: "true", ASSUME_TIME: written}
    assert of(pod(node_name="n", annotations=annotations)) == ["on-node", "has"]


LOST: dict[str, Any] = {
    "node_name": "gone",
    "annotations": {ALLOCATION: '{"0":{"3":15}}', ASSIGNED: "false", ASSUME_TIME: "yesterday"},
    "deleting": True,
}
ON_N = "on-node node=n phase=Pending"


@pytest.mark.parametrize(
    ("placed", "status", "nodes", "expected"),
    [
        (pod(node_name="n", annotations={IDX: "1"}), NO_STATUS, None, [ON_N, "has gpu=1 facts= amount=4 shares"]),
        (
            pod({COUNT: 1}, **LOST),
            SchedulingStatus(message="the node was lost"),
            NODES,
            [
                "leaves-node node=gone phase=Pending",
                "node-shares-none",
                "has gpu=3 facts=not listed by its node amount=all",
                "not-allocated",
                "status reason= message=the node was lost",
            ],
        ),
        (
            pod(node_name="n", annotations={IDX: "0"}),
            SchedulingStatus(reason="NodeLost", message="x"),
            {"n": node_view("n", (15,), share_mib=None)},
            [ON_N, "has gpu=0 facts= amount=4", "status reason=NodeLost message=x"],
        ),
        (pod(node_name="n"), NO_STATUS, NODES, [ON_N, "not-promised-by-default"]),
        (pod(node_name="n"), OURS, NODES, [ON_N, "not-promised"]),
        (pod(node_name="n", annotations={ALLOCATION: "7"}), OURS, NODES, [ON_N, "annotations-malformed"]),
        # Less is promised than it requests.
        (pod(node_name="n", annotations={ALLOCATION: '{"0":{"1":3}}'}), OURS, NODES, [ON_N, "annotations-malformed"]),
    ],
)
def test_a_pod_on_a_node(
    placed: Pod, status: SchedulingStatus, nodes: dict[str, NodeView] | None, expected: list[str]
) -> None:
    found = of(placed, status, nodes, "node phase gpu facts amount reason message")
    assert [fact.removesuffix(" facts=") for fact in found] == expected


def test_who_did_not_ask_the_extender_is_told_by_the_scheduler() -> None:
    default = causes(pod(node_name="n"), NO_STATUS, RESOURCES, NODES)[0][1]
    ours = causes(pod(node_name="n"), OURS, RESOURCES, NODES)[0][1]
    assert "it was placed by default-scheduler" in str(default)
    assert "gpushare-scheduler did not call the extender" in str(ours)


# --- MIG instances ----------------------------------------------------------------------------------------------------

PARTED = {"n": mig_view("n", holder("uid", "default", "web", {WHOLE: 1}, frozenset({"MIG-0"})), gpus=1, whole=1)}
HAS = "has-instance gpu=1 instance=MIG 0:0 1g.10gb"
REFUSED = SchedulingStatus(reason="UnexpectedAdmissionError", message="Allocate failed")


@pytest.mark.parametrize(
    ("asking", "status", "nodes", "expected"),
    [
        (pod({WHOLE: 1}), OURS, PARTED, ["scheduler-says"]),  # the nodes are told elsewhere
        (pod({WHOLE: 1}, node_name="n"), NO_STATUS, PARTED, ["on-node", HAS]),
        (pod({WHOLE: 1}, node_name="n"), NO_STATUS, None, ["on-node"]),
        (pod({WHOLE: 1}, node_name="n", deleting=True), REFUSED, None, ["leaves-node", "status"]),
        (
            pod({MEM: 4, WHOLE: 1}, node_name="n", annotations={IDX: "0"}),
            NO_STATUS,
            PARTED,
            ["on-node", "has gpu=0 facts=Tesla T4, GPU-0", HAS],
        ),
        (
            pod(node_name="n", annotations={IDX: "0"}),
            NO_STATUS,
            {"n": mig_view("n", shared=1)},
            ["on-node", "has gpu=0 facts=MIG 0:0 1g.10gb, MIG-0"],
        ),
    ],
)
def test_a_pod_with_instances(
    asking: Pod, status: SchedulingStatus, nodes: dict[str, NodeView] | None, expected: list[str]
) -> None:
    assert of(asking, status, nodes, "gpu facts instance") == expected
