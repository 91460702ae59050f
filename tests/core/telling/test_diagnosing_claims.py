"""What keeps a node's ResourceClaims from being served: each case one symptom, and what the doctor says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.core.model.claims import Request
from gpu_device_plugin.core.telling.cluster_symptoms import ClusterSymptoms, NodeSeen, PartSeen, PodSeen, SliceSeen
from gpu_device_plugin.core.telling.diagnosing import Unknown
from gpu_device_plugin.core.telling.diagnosing_cluster import CHECKS
from tests.claim_values import claim, part, serving, whole, with_instances
from tests.names import COUNT, MEM

CLASSES = {"gpushare": "", "gpushare-whole": COUNT}
SHARED = SliceSeen(pool="n1", generation=3, of=2, devices=4, shared=True)
COUNTERS = SliceSeen(pool="n1", generation=3, of=2, counters=True)
SLICES = (COUNTERS, SHARED)


def node(name: str = "n1", **changes: Any) -> NodeSeen:
    seen = NodeSeen(name=name, switch="true", annotated=True, gpus=serving(8, 8), runtime="containerd://2.1.9")
    return replace(seen, **changes)


WELL = ClusterSymptoms(
    memory_resource=MEM,
    count_resource=COUNT,
    version="v1.36.3",
    nodes=(node(),),
    claims=(claim("c", part(0, 1024), pods=("web",)), claim("waits"), claim("all", part(0, None, "n9", admin=True))),
    slices=SLICES,
    device_classes=CLASSES,
)
PLUGIN = replace(WELL, nodes=(NodeSeen(name="n1", switch="true", annotated=True),), claims=())
NEVER = Unknown("the right to list it is missing")


def of(seen: ClusterSymptoms = WELL, check: str = "ResourceClaims", **changes: Any) -> list[str]:
    found = CHECKS[check](replace(seen, **changes))
    return [f"{each.severity}: {each.found}{f' -> {each.advice}' if each.advice else ''}" for each in found]


def test_a_node_that_serves_claims_well_is_told() -> None:
    assert of() == ["ok: 1 node serves claims, with complete ResourceSlices"]


def test_where_no_node_serves_claims_nothing_is_said() -> None:
    assert of(PLUGIN) == []
    assert of(PLUGIN, claims=NEVER, slices=NEVER, device_classes=NEVER) == []


def test_a_node_that_does_not_serve_claims_although_it_shall_says_so() -> None:
    """The label asks for claims, and a pod still holds a GPU by its limits."""
    waits = NodeSeen(name="n1", switch="true", annotated=True, labels={"gpu-device-plugin/serve": "dra"})
    assert of(PLUGIN, nodes=(waits,)) == [
        (
            "warning: n1: labelled gpu-device-plugin/serve=dra, and no claims are served yet -> an agent changes over "
            "when no pod of its node holds a GPU by its limits; its log names those that do"
        )
    ]
    assert of(nodes=(node(labels={"gpu-device-plugin/serve": "dra"}),)) == of()


@pytest.mark.parametrize("what", ["claims", "slices", "device_classes"])
def test_what_cannot_be_read_is_named(what: str) -> None:
    changes: dict[str, Any] = {what: NEVER}
    assert "unknown: the right to list it is missing" in of(WELL, **changes)


@pytest.mark.parametrize(
    ("slices", "found"),
    [
        ((), "error: n1: no ResourceSlice of gpu-device-plugin, so kube-scheduler knows none of the GPUs"),
        ((replace(SHARED, pool="n2"), COUNTERS), "error: n1: 1 of 2 ResourceSlices of generation 3"),
        ((SHARED,), "error: n1: 1 of 2 ResourceSlices of generation 3"),
        ((*SLICES, replace(SHARED, generation=4)), "error: n1: 1 of 2 ResourceSlices of generation 4"),
        ((*SLICES, SHARED), "error: n1: 3 of 2 ResourceSlices of generation 3"),
        ((COUNTERS, replace(SHARED, shared=False)), "warning: n1: no ResourceSlice has devices that claims can share"),
    ],
)
def test_slices_that_are_missing_or_incomplete(slices: tuple[SliceSeen, ...], found: str) -> None:
    (said,) = of(slices=slices)
    assert said.startswith(found)


def test_slices_of_an_older_generation_and_pools_without_gpus_are_no_fault() -> None:
    assert of(slices=(*SLICES, replace(SHARED, generation=2))) == of()
    assert of(slices=(SliceSeen(pool="n1"),)) == of()


def test_the_version_of_an_api_server_that_drops_fields_is_named_where_it_is_known() -> None:
    cut = (SliceSeen(pool="n1", devices=2),)
    assert "drops what makes a device shared (this one is v1.34.1);" in of(slices=cut, version="v1.34.1")[0]
    assert "drops what makes a device shared;" in of(slices=cut, version=NEVER)[0]
    assert "drops what makes a device shared;" in of(slices=cut, version="")[0]


OFFERED = "n1: parts of GPUs and whole ones are offered, and the API server is"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("v1.36.0", f"error: {OFFERED} v1.36.0: a kube-scheduler before 1.36.2 gives out a GPU whole while claims "),
        ("v1.36.1+k3s1", f"error: {OFFERED} v1.36.1+k3s1: a kube-scheduler before 1.36.2 gives out a GPU whole"),
        ("v1.36.2-eks-1a2b3c", f"warning: {OFFERED} v1.36.2-eks-1a2b3c: kube-scheduler 1.36.2 may leave pods Pending "),
        ("v1.36.3", "ok: 1 node serves claims"),
        ("v1.37.0", "ok: 1 node serves claims"),
        ("v2.0.0", "ok: 1 node serves claims"),
        ("", "ok: 1 node serves claims"),
        ("main", "ok: 1 node serves claims"),
        (NEVER, "ok: 1 node serves claims"),
    ],
)
def test_parts_and_whole_gpus_on_one_counter_need_a_kube_scheduler_that_keeps_them_apart(
    version: str | Unknown, found: str
) -> None:
    (said,) = of(version=version)
    assert said.startswith(found)
    if not said.startswith("ok"):
        assert said.endswith("or let nodes offer one kind: the setting resources=memory or resources=count")
    parts_alone = (SliceSeen(pool="n1", devices=2, shared=True),)
    assert of(version=version, slices=parts_alone) == of(version="v1.36.3", slices=parts_alone)
    elsewhere = replace(COUNTERS, pool="n2", of=1)
    assert of(version=version, slices=(*parts_alone, elsewhere)) == of(slices=(*parts_alone, elsewhere))


@pytest.mark.parametrize(
    ("classes", "found"),
    [
        ({}, "error: the DeviceClasses gpushare, gpushare-whole are missing -> kubectl apply"),
        ({"gpushare-whole": COUNT}, "error: the DeviceClass gpushare is missing -> kubectl apply"),
        (
            {"gpushare": "", "gpushare-whole": ""},
            "note: the DeviceClass gpushare-whole does not serve aliyun.com/gpu-c",
        ),
    ],
)
def test_device_classes_that_are_missing(classes: dict[str, str], found: str) -> None:
    (said,) = of(device_classes=classes)
    assert said.startswith(found)


MIG = with_instances(serving(8, 8), "1g.10gb")


def test_the_class_of_instances_is_needed_where_there_are_some() -> None:
    (said,) = of(nodes=(node(gpus=MIG),))
    assert said == ("error: the DeviceClass gpushare-mig is missing -> kubectl apply -f deploy/optional/dra.yaml")
    assert of(nodes=(node(gpus=MIG),), device_classes=CLASSES | {"gpushare-mig": ""}) == of()


def test_a_node_that_gives_all_its_instances_whole_has_no_devices_to_share() -> None:
    whole_only = (node(gpus=replace(MIG, gpus=())),)
    found = of(
        nodes=whole_only, slices=(SliceSeen(pool="n1", devices=2),), device_classes=CLASSES | {"gpushare-mig": ""}
    )
    assert found == of()


@pytest.mark.parametrize(
    ("runtime", "found"),
    [
        ("containerd://1.6.20", "error: n1: containerd://1.6.20 knows no CDI"),
        ("containerd://1.7.1", "error: n1: containerd://1.7.1 knows no CDI"),
        ("containerd://1.7.2", "note: n1: containerd://1.7.2 has CDI only with enable_cdi = true"),
        ("containerd://v1.7.30+ds", "note: n1: containerd://v1.7.30+ds has CDI only with enable_cdi = true"),
        ("containerd://2.0.0", "ok: "),
        ("cri-o://1.36.0", "ok: "),
        ("", "ok: "),
    ],
)
def test_container_runtimes_without_cdi(runtime: str, found: str) -> None:
    (said,) = of(nodes=(node(runtime=runtime),))
    assert said.startswith(found)


@pytest.mark.parametrize("capacity", [{COUNT: 0}, {MEM: 0}, {MEM: 16, COUNT: 2}])
def test_a_kubelet_that_remembers_the_device_plugin(capacity: dict[str, int]) -> None:
    assert of(nodes=(node(capacity=capacity),)) == [
        (
            "note: n1: the kubelet has known aliyun.com/gpu-mem or aliyun.com/gpu-count of a device plugin: if "
            "containers with aliyun.com/gpu-count do not start there (no devices found allocated in local cache), it "
            "still does -> drain the node, and 5 minutes after the plugin has ended restart its kubelet (1.36.3 "
            "and older)"
        )
    ]


def test_claims_of_nodes_that_serve_none_are_left_alone_by_everybody() -> None:
    left = claim("a", whole(1, "n2")), claim("b", part(0, 1024, "n2")), claim("c", part(0, 1024, "n3"))
    found = of(claims=left)
    assert found[:2] == [
        (
            "error: 2 ResourceClaims have GPUs of n2, which serves no claims: default/a, default/b -> no other agent "
            "there can prepare or release them: end their pods, and delete claims that stay"
        ),
        (
            "error: 1 ResourceClaim has GPUs of n3, which serves no claims: default/c -> no other agent there "
            "can prepare or release them: end their pods, and delete claims that stay"
        ),
    ]
    assert of(PLUGIN, claims=left) == found[:2]


def test_claims_that_wait_are_named() -> None:
    """Those of our DeviceClasses: what others select is not known."""
    ours = (
        claim("a", requests=(Request("r", "gpushare", 1024),)),
        claim("b", requests=(Request("r", "gpushare-whole"),)),
        claim("d", requests=(Request("r", "gpushare-mig"),)),
    )
    other = claim("c", requests=(Request("r", "nic"),))
    assert of(claims=(*ours, other))[0].startswith(
        "note: 3 ResourceClaims wait for GPUs: default/a, default/b, default/d -> "
    )
    assert of(PLUGIN, claims=ours[:1])[0].startswith("note: 1 ResourceClaim waits for GPUs: default/a -> ")


# --- What the other checks say of such a node -------------------------------------------------------------------------


def test_that_a_node_offers_its_kubelet_nothing_is_no_fault() -> None:
    agents = (PartSeen(name="gpushare/agent-n1", node="n1", ready=True),)
    assert of(check="allocatable", agents=agents) == []
    assert of(check="capacity", agents=agents) == []
    assert of(check="share size") == []
    assert of(check="GPUs") == ["ok: 2 healthy on 1 node"]


def test_pods_that_kube_scheduler_serves_by_claims_need_no_promise() -> None:
    by_claim = PodSeen(name="default/train", node="n1", scheduler="default-scheduler")
    assert of(check="placement", pods=(by_claim,)) == []
