"""Why a pod waits that gets its GPUs through ResourceClaims."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_device_plugin.core.cluster.asking import Ask, Part
from gpu_device_plugin.core.model.claims import Device, PodClaim, Request
from gpu_device_plugin.core.model.placing import Demand
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.telling.claimcauses import asked_by_claims, by_claim_instead, claim_causes
from gpu_device_plugin.core.telling.podcauses import SchedulingStatus
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
from tests.views import node_view

GIB = 1024
GPU = PodClaim("gpu", "c")
EIGHT = Request("gpu", "gpushare", 8 * GIB)
UNSCHEDULABLE: dict[str, Any] = {
    "condition_reason": "Unschedulable",
    "condition": "0/2 nodes are available: 2 cannot allocate all claims.",
}
SAID = "default-scheduler says (Unschedulable): 0/2 nodes are available: 2 cannot allocate all claims."
NODES = {"n1": serving_view("n1", serving(8, 8))}


def pod(node: str = "", phase: str = "Pending", **more: Any) -> Pod:
    return Pod("uid-web", "default", "web", node, phase, **more)


def status(*claims: PodClaim, **more: Any) -> SchedulingStatus:
    return SchedulingStatus(claims=claims or (GPU,), **more)


def test_a_claim_that_is_not_allocated_is_explained_by_nodes() -> None:
    wants = claim("c", requests=(EIGHT,))
    facts, waiting = claim_causes(pod(), status(**UNSCHEDULABLE, events=("Event: x",)), {"c": wants}, NODES)
    assert facts == ["ResourceClaim c is not allocated yet; it asks for 8 GiB of one GPU.", SAID, "Event: x"]
    assert waiting == (wants,)
    assert asked_by_claims(waiting) == "8 GiB of one GPU, through ResourceClaims"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("r", "gpushare", 3500), "3500 MiB of one GPU"),
        (Request("r", "gpushare"), "the smallest part of one GPU"),
        (Request("r", "gpushare", 2048, count=2), "2 GiB of each of 2 GPUs"),
        (Request("r", "gpushare", 2048, count=0), "2 GiB of every GPU that matches"),
        (Request("r", "gpushare-whole"), "one whole GPU"),
        (Request("r", "gpushare-whole", count=2), "2 whole GPUs"),
        (Request("r", "gpushare-whole", count=0), "every GPU that matches"),
        (Request("r", "gpushare", admin=True), "access beside those who have a GPU (admin)"),
        (
            Request("r", "nic"),
            (
                "devices of the class nic, which is none of ours (gpushare, gpushare-whole, gpushare-mig), so that its "
                "nodes are not explained here"
            ),
        ),
    ],
)
def test_what_a_claim_asks_for_in_words(request_: Request, words: str) -> None:
    facts, waiting = claim_causes(pod(), status(), {"c": claim("c", requests=(request_,))}, NODES)
    assert facts == [f"ResourceClaim c is not allocated yet; it asks for {words}."]
    assert bool(waiting) == (request_.device_class != "nic")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (
            PodClaim("gpu", "", "gpu-mem-4gi"),
            (
                "No ResourceClaim exists yet for its entry gpu: kube-controller-manager makes it from the template "
                "gpu-mem-4gi; see kubectl -n default get resourceclaimtemplate gpu-mem-4gi."
            ),
        ),
        (PodClaim("gpu"), "Its entry gpu has no ResourceClaim."),
        (PodClaim(""), "Its entry (extended resource) has no ResourceClaim."),
        (PodClaim("gpu", "gone"), "There is no ResourceClaim gone in the namespace default."),
    ],
)
def test_a_claim_that_does_not_exist_is_said_to(entry: PodClaim, sentence: str) -> None:
    assert claim_causes(pod(), status(entry), {}, NODES) == ([sentence], ())


def test_claims_that_are_not_known_are_said_to_be() -> None:
    assert claim_causes(pod(), status(), None, None) == (["ResourceClaim c is not known here."], ())


def test_a_claim_without_requests_asks_for_nothing() -> None:
    facts, waiting = claim_causes(pod(), status(), {"c": claim("c")}, NODES)
    assert (facts, waiting) == (["ResourceClaim c is not allocated yet; it asks for nothing."], ())


def test_gates_come_before_the_scheduler() -> None:
    facts, _ = claim_causes(pod(), status(gates=("a", "b")), {"c": claim("c", part(0, GIB))}, None)
    assert facts == [
        "No scheduler looks at it before its scheduling gates are removed: a, b.",
        f"ResourceClaim c has 1 GiB of GPU gpu-{UUIDS[0][4:]} on node n1.",
    ]


NO_INSTANCE = "No node that serves claims has a MIG instance, healthy, that no claim has."


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "one whole MIG instance"), (3, "3 whole MIG instances"), (0, "every MIG instance that matches")],
)
def test_a_claim_that_waits_for_instances_is_told_which_ones_are_free(count: int, words: str) -> None:
    wants = claim("c", requests=(Request("r", "gpushare-mig", count=count),))
    asks = f"ResourceClaim c is not allocated yet; it asks for {words}."
    taken = claim("d", whole_instance(1), pods=("other",))
    mig = with_instances(serving(8), "1g.10gb", "2g.20gb", "1g.10gb")
    n1 = serving_view("n1", mig, taken)
    for nodes, told in (
        (
            {"n1": n1, "n0": serving_view("n0", serving(8))},
            [
                (
                    "Whole MIG instances that no claim has: n1 has 1g.10gb (1), 2g.20gb (1). The selectors of the "
                    "request decide which of them will do."
                )
            ],
        ),
        (NODES, [NO_INSTANCE]),
        ({}, []),
        (None, []),
    ):
        assert claim_causes(pod(), status(), {"c": wants}, nodes) == ([asks, *told], (wants,))


def test_of_many_nodes_with_free_instances_some_are_named() -> None:
    wants = claim("c", requests=(Request("r", "gpushare-mig"),))
    nodes = {f"n{n}": serving_view(f"n{n}", with_instances(serving(), "1g.10gb")) for n in range(7)}
    told = claim_causes(pod(), status(), {"c": wants}, nodes)[0][1]
    assert "n4 has 1g.10gb (1); 2 more nodes have some. The selectors" in told
    del nodes["n5"], nodes["n6"]
    assert "more nodes" not in claim_causes(pod(), status(), {"c": wants}, nodes)[0][1]


def test_a_bound_pod_has_an_instance() -> None:
    nodes = {"n1": serving_view("n1", with_instances(serving(8), "1g.10gb"))}
    facts, _ = claim_causes(pod("n1", "Running"), status(), {"c": claim("c", whole_instance(1))}, nodes)
    assert facts[1] == f"ResourceClaim c has all of GPU 1 (NVIDIA H100 MIG 1g.10gb, {INSTANCES[1]}) on node n1."


def test_a_bound_pod_has_its_gpus_and_what_the_kubelet_says() -> None:
    """GPU 0 by its position, the whole GPU of a node that was not read by its name; then access of an administrator."""
    devices = part(0, 3500), whole(1, "n2"), part(1, None, admin=True)
    facts, waiting = claim_causes(
        pod("n1", "Pending"),
        status(message="no CDI", reason="Failed", events=("Event FailedPrepareDynamicResources: no",)),
        {"c": claim("c", *devices)},
        NODES,
    )
    assert facts == [
        "default/web is on node n1 (Pending).",
        "Its status says (Failed): no CDI",
        f"ResourceClaim c has 3500 MiB of GPU 0 (NVIDIA H200, {UUIDS[0]}) on node n1.",
        f"ResourceClaim c has all of GPU gpu-{UUIDS[1][4:]}-whole on node n2.",
        "ResourceClaim c has access to GPUs beside those who have them (admin).",
        "Its node prepares its claims before its containers start; its Events say what is in the way:",
        "Event FailedPrepareDynamicResources: no",
    ]
    assert waiting == ()


def test_a_pod_that_is_not_started_and_of_which_nothing_is_told_says_so() -> None:
    facts, _ = claim_causes(pod("n1"), status(message="x"), {"c": claim("c", Device("r", "nic", "p", "d"))}, NODES)
    assert facts[1:] == [
        "Its status says: x",
        "ResourceClaim c is allocated, with no device of gpu-device-plugin.",
        "Its node prepares its claims before its containers start, and no Event says that anything is in the way.",
    ]


@pytest.mark.parametrize(
    ("there", "facts"),
    [
        (pod("n1", "Running", running=True), ["default/web is on node n1 (Running)."]),
        (pod("n1", "Pending", deleting=True), ["default/web is being deleted from node n1 (Pending)."]),
        (pod("n1", "Failed"), ["default/web has ended (Failed): Evicted: over use"]),
        (pod("n1", "Succeeded"), ["default/web has ended (Succeeded): Evicted: over use"]),
        (pod(deleting=True), ["default/web is being deleted and will not be scheduled."]),
    ],
)
def test_a_pod_that_does_not_wait_has_no_nodes_to_explain(there: Pod, facts: list[str]) -> None:
    why = status(reason="Evicted", message="over use" if there.ended else "")
    found, waiting = claim_causes(there, why, {"c": claim("c", requests=(EIGHT,))}, NODES)
    assert (found[:1], waiting) == (facts, ())


def test_an_end_without_a_reason_is_an_end() -> None:
    assert claim_causes(pod("n1", "Succeeded"), status(), {}, NODES)[0] == ["default/web has ended (Succeeded)."]


def mem(shares: int, gpus: int = 1) -> Ask:
    return Ask((Part(Demand(Kind.MEMORY, shares, gpus)),))


@pytest.mark.parametrize(
    ("asked", "share_mib", "amount"),
    [
        (mem(8), [1024], "8Gi"),
        (mem(3), [512], "1536Mi"),
        (mem(8, 2), [1024], "4Gi"),
        (mem(8), [1024, 512], "the amount"),
    ],
)
def test_where_every_node_serves_claims_a_pod_is_told_how_to_ask(asked: Ask, share_mib: list[int], amount: str) -> None:
    nodes = [serving_view(f"n{at}", serving(8, share_mib=size)) for at, size in enumerate(share_mib)]
    (sentence,) = by_claim_instead(asked, nodes)
    assert sentence == (
        "Every node that shares GPUs gives them to ResourceClaims (DRA), and none to limits: let the pod name a "
        f"ResourceClaimTemplate of the DeviceClass gpushare with the capacity memory: {amount} (docs/dra.md)."
    )


def test_it_is_told_only_to_pods_that_ask_for_memory_and_have_no_other_node() -> None:
    serves = serving_view("n1", serving(8))
    assert not list(by_claim_instead(mem(8), [serves, node_view("n", (8,))]))
    assert not list(by_claim_instead(Ask((Part(Demand(Kind.COUNT, 1)),)), [serves]))
    assert not list(by_claim_instead(mem(8), []))
