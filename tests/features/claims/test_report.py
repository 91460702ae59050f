"""Why a pod waits that gets its GPUs through ResourceClaims."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.claims.contract import Claim, Device, DeviceRequest
from gpu_device_plugin.features.claims.report import asked_by_claims, by_claim_instead, claim_causes
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod, PodClaim
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.claim_values import (
    INSTANCES,
    UUIDS,
    claim,
    part,
    serving,
    serving_view,
    whole,
    whole_instance,
    with_instances,
)
from tests.findings import facts
from tests.names import MEM
from tests.reporting import why
from tests.reports import ASKED, report
from tests.resources import RESOURCES
from tests.views import node_view

GIB = 1024
GPU = PodClaim("gpu", "c")
EIGHT = DeviceRequest("gpu", "gpushare", 8 * GIB)
NODES = {"n1": serving_view("n1", serving(8, 8))}
SHOW = "claim amount device entry template namespace instances gates node phase why"


def pod(node: str = "", phase: str = "Pending", **more: Any) -> Pod:
    return Pod("uid-web", "default", "web", node, phase, **more)


def status(*claims: PodClaim, **more: Any) -> SchedulingStatus:
    return SchedulingStatus(claims=claims or (GPU,), **more)


def of(
    claims: dict[str, Claim] | None,
    *,
    asking: Pod | None = None,
    told: SchedulingStatus | None = None,
    nodes: dict[str, NodeView] | None = NODES,
) -> list[str]:
    return facts(claim_causes(asking or pod(), told or status(), claims, nodes)[0], SHOW)


def test_the_sentences_of_a_claim_that_is_not_allocated() -> None:
    wants = claim("c", requests=(EIGHT,))
    said: dict[str, Any] = {"condition_reason": "Unschedulable", "condition": "0/2 nodes", "events": ("Event: x",)}
    findings, waiting = claim_causes(pod(), status(**said), {"c": wants}, NODES)
    assert list(map(str, findings)) == [
        "ResourceClaim c is not allocated yet; it asks for 8 GiB of one GPU.",
        "default-scheduler says (Unschedulable): 0/2 nodes",
        "Event: x",
    ]
    assert waiting == (wants,)
    assert str(asked_by_claims(waiting)) == "8 GiB of one GPU, through ResourceClaims"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (DeviceRequest("r", "gpushare", 3500), "3500 MiB of one GPU"),
        (DeviceRequest("r", "gpushare"), "the smallest amount of one GPU"),
        (DeviceRequest("r", "gpushare", 2048, count=2), "2 GiB of each of 2 GPUs"),
        (DeviceRequest("r", "gpushare", 2048, count=0), "2 GiB of every GPU that matches"),
        (DeviceRequest("r", "gpushare-whole"), "one whole GPU"),
        (DeviceRequest("r", "gpushare-whole", count=2), "2 whole GPUs"),
        (DeviceRequest("r", "gpushare-whole", count=0), "every GPU that matches"),
        (DeviceRequest("r", "gpushare", admin=True), "admin access to GPUs that others hold"),
        (
            DeviceRequest("r", "nic"),
            (
                "devices of the class nic, which is not one of ours (gpushare, gpushare-whole, gpushare-mig), so that "
                "its nodes are not explained here"
            ),
        ),
    ],
)
def test_what_a_claim_asks_for_in_words(request_: DeviceRequest, words: str) -> None:
    wants = {"c": claim("c", requests=(request_,))}
    assert of(wants) == [f"claim-not-allocated claim=c amount={words}"]
    assert bool(claim_causes(pod(), status(), wants, NODES)[1]) == (request_.device_class != "nic")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (PodClaim("gpu", "", "t"), "claim-not-made entry=gpu template=t namespace=default"),
        (PodClaim("gpu"), "entry-without-claim entry=gpu"),
        (PodClaim(""), "entry-without-claim entry=(extended resource)"),
        (PodClaim("gpu", "gone"), "no-such-claim claim=gone namespace=default"),
    ],
)
def test_a_claim_that_does_not_exist_is_said_to(entry: PodClaim, expected: str) -> None:
    assert of({}, told=status(entry)) == [expected]


def test_claims_that_are_not_known_or_ask_for_nothing() -> None:
    assert of(None, nodes=None) == ["claim-unknown claim=c"]
    assert of({"c": claim("c")}) == ["claim-not-allocated claim=c amount=nothing"]


def test_gates_come_before_the_scheduler() -> None:
    device = f"1 GiB of GPU gpu-{UUIDS[0][4:]} on node n1"
    expected = ["gated gates=a, b", f"claim-has claim=c device={device}"]
    assert of({"c": claim("c", part(0, GIB))}, told=status(gates=("a", "b")), nodes=None) == expected


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "one whole MIG instance"), (3, "3 whole MIG instances"), (0, "every MIG instance that matches")],
)
def test_a_claim_that_waits_for_instances_is_told_which_ones_are_free(count: int, words: str) -> None:
    wants = {"c": claim("c", requests=(DeviceRequest("r", "gpushare-mig", count=count),))}
    asks = f"claim-not-allocated claim=c amount={words}"
    taken = claim("d", whole_instance(1), pods=("other",))
    mig = with_instances(serving(8), "1g.10gb", "2g.20gb", "1g.10gb")
    two = {"n1": serving_view("n1", mig, taken), "n0": serving_view("n0", serving(8))}
    assert of(wants, nodes=two) == [asks, "instances-free instances=n1 has 1g.10gb (1), 2g.20gb (1)"]
    assert of(wants) == [asks, "no-instance-free"]
    assert of(wants, nodes={}) == of(wants, nodes=None) == [asks]


def test_of_many_nodes_with_free_instances_some_are_named() -> None:
    wants = {"c": claim("c", requests=(DeviceRequest("r", "gpushare-mig"),))}
    nodes = {f"n{n}": serving_view(f"n{n}", with_instances(serving(), "1g.10gb")) for n in range(7)}
    assert of(wants, nodes=nodes)[1].endswith("n4 has 1g.10gb (1) and 2 more")
    del nodes["n5"], nodes["n6"]
    assert of(wants, nodes=nodes)[1].endswith("n4 has 1g.10gb (1)")


def test_a_bound_pod_has_an_instance() -> None:
    nodes = {"n1": serving_view("n1", with_instances(serving(8), "1g.10gb"))}
    (_, fact) = of({"c": claim("c", whole_instance(1))}, asking=pod("n1", "Running"), nodes=nodes)
    assert fact == f"claim-has claim=c device=all of GPU 1 (NVIDIA H100 MIG 1g.10gb, {INSTANCES[1]}) on node n1"


def test_a_bound_pod_has_its_gpus_and_what_the_kubelet_says() -> None:
    """GPU 0 by its position, the whole GPU of a node that was not read by its name; then access of an administrator."""
    devices = part(0, 3500), whole(1, "n2"), part(1, None, admin=True)
    told = status(message="no CDI", reason="Failed", events=("Event FailedPrepareDynamicResources: no",))
    assert of({"c": claim("c", *devices)}, asking=pod("n1"), told=told) == [
        "on-node node=n1 phase=Pending",
        "status",
        f"claim-has claim=c device=3500 MiB of GPU 0 (NVIDIA H200, {UUIDS[0]}) on node n1",
        f"claim-has claim=c device=all of GPU gpu-{UUIDS[1][4:]} on node n2",
        "claim-has-access claim=c",
        "preparing-fails",
        "event",
    ]
    other = {"c": claim("c", Device("r", "nic", "p", "d"))}
    assert of(other, asking=pod("n1"))[1:] == ["claim-of-others claim=c", "preparing"]


@pytest.mark.parametrize(
    ("asking", "expected"),
    [
        (pod("n1", "Running", running=True), "on-node node=n1 phase=Running"),
        (pod("n1", "Pending", deleting=True), "leaves-node node=n1 phase=Pending"),
        (pod("n1", "Failed"), "ended phase=Failed why=Evicted: over use"),
        (pod("n1", "Succeeded"), "ended phase=Succeeded why=Evicted: over use"),
        (pod(deleting=True), "deleted"),
    ],
)
def test_a_pod_that_does_not_wait_has_no_nodes_to_explain(asking: Pod, expected: str) -> None:
    why = status(reason="Evicted", message="over use")
    findings, waiting = claim_causes(asking, why, {"c": claim("c", requests=(EIGHT,))}, NODES)
    assert (facts(findings[:1], SHOW), waiting) == ([expected], ())


def mem(shares: int, gpus: int = 1) -> GpuRequest:
    return GpuRequest((Part(Demand(Kind.MEMORY, shares, gpus)),))


@pytest.mark.parametrize(
    ("asked", "share_mib", "amount"),
    [
        (mem(8), [1024], "8Gi"),
        (mem(3), [512], "1536Mi"),
        (mem(8, 2), [1024], "4Gi"),
        (mem(8), [1024, 512], "the amount"),
    ],
)
def test_where_every_node_serves_claims_a_pod_is_told_how_to_ask(
    asked: GpuRequest, share_mib: list[int], amount: str
) -> None:
    nodes = [serving_view(f"n{at}", serving(8, share_mib=size)) for at, size in enumerate(share_mib)]
    assert facts(by_claim_instead(asked, nodes), "amount") == [f"ask-by-claim amount={amount}"]


def test_it_is_told_only_to_pods_that_ask_for_memory_and_have_no_other_node() -> None:
    serves = serving_view("n1", serving(8))
    assert not list(by_claim_instead(mem(8), [serves, node_view("n", (8,))]))
    assert not list(by_claim_instead(GpuRequest((Part(Demand(Kind.COUNT, 1)),)), [serves]))
    assert not list(by_claim_instead(mem(8), []))


def test_a_pod_whose_claim_waits_for_borrowed_memory_is_told_who_has_it() -> None:
    borrowed = report(replace(ASKED, needed_by="default/web"))
    lender = {"n1": replace(NODES["n1"], report=borrowed)}
    found, _ = claim_causes(pod("n1"), status(), {"c": claim("c", part(0, 4 * GIB))}, lender)
    assert "waits-for-lent-memory" in {finding.code for finding in found}
    assert claim_causes(pod("n2"), status(), None, lender)[0]


def test_a_pod_that_names_a_claim_is_explained_by_it_node_by_node() -> None:
    wants, nodes = claim("c", requests=(EIGHT,)), [*NODES.values()]
    found = why(pod(), status(), RESOURCES, nodes, most=5, claims=[wants, replace(wants, namespace="other", name="d")])
    assert " and ".join(map(str, found.asks)) == "8 GiB of one GPU, through ResourceClaims"
    assert [answer.node.name for answer in found.answers] == ["n1"]
    unread = why(pod(), status(), RESOURCES, None, most=5)
    assert (unread.asks, facts(unread.facts, "claim"), unread.answers) == (
        (),
        ["claim-unknown claim=c"],
        (),
    )


def test_a_pod_that_asks_by_limits_where_claims_alone_are_served_is_told_so() -> None:
    by_limits = pod(containers=(Container("main", ContainerKind.APP, 0, {MEM: 8}),))
    told = why(by_limits, SchedulingStatus(), RESOURCES, [*NODES.values()], most=5)
    assert "ask-by-claim" in {fact.code for fact in told.facts}
