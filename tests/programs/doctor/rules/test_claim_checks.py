"""What keeps a node's ResourceClaims from being served: each case one symptom, and what the doctor finds."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.claims.contract import DeviceRequest
from gpu_device_plugin.features.claims.rules.pool import Present
from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms, ComponentStatus, NodeSeen
from gpu_device_plugin.report.rules.finding import Unknown
from tests.claim_values import claim, part, serving, whole, with_instances
from tests.findings import told
from tests.names import COUNT, MEM
from tests.programs.doctor.rules.test_cluster_checks import asking
from tests.reporting import CLUSTER_CHECKS as CHECKS

CLASSES = {"gpushare": "", "gpushare-whole": COUNT}
WITH_MIG = CLASSES | {"gpushare-mig": ""}


def slice_with(*devices: dict[str, Any], generation: int = 0, count: int = 1) -> Present:
    return Present("s", "1", generation, count, {"devices": [*devices]}, pool="n1")


SHARED = slice_with({"allowMultipleAllocations": True}, {}, generation=3, count=2)
MONITORS = slice_with({}, {}, generation=3, count=2)
SLICES = (MONITORS, SHARED)
SWITCHED_ON = {"gpushare": "true"}
SERVE = {"gpu-device-plugin/serve": "dra"}


def node(name: str = "n1", **changes: Any) -> NodeSeen:
    seen = NodeSeen(name=name, labels=SWITCHED_ON, annotated=True, gpus=serving(8, 8), runtime="containerd://2.1.9")
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
PLUGIN = replace(WELL, nodes=(NodeSeen(name="n1", labels=SWITCHED_ON, annotated=True),), claims=())
NEVER = Unknown("right-missing", "the right to list it is missing")
FINE = ["ok claims"]


def of(seen: ClusterSymptoms = WELL, check: str = "ResourceClaims", show: str = "", **changes: Any) -> list[str]:
    return told(CHECKS[check](replace(seen, **changes)), show)


def test_the_sentences_of_a_node_that_serves_claims() -> None:
    (well,) = CHECKS["ResourceClaims"](WELL)
    assert str(well) == "1 node serves claims, with complete ResourceSlices"
    (cut,) = CHECKS["ResourceClaims"](replace(WELL, slices=(SHARED,)))
    assert str(cut) == (
        "n1: 1 of 2 ResourceSlices of generation 3, and kube-scheduler allocates nothing of a pool that is not complete"
    )


def test_where_no_node_serves_claims_nothing_is_said() -> None:
    assert of(PLUGIN) == []
    assert of(PLUGIN, claims=NEVER, slices=NEVER, device_classes=NEVER) == []


def test_a_node_that_does_not_serve_claims_although_it_shall_says_so() -> None:
    """The label asks for claims, and a pod still holds a GPU by its limits."""
    waits = NodeSeen(name="n1", labels=SERVE, annotated=True)
    assert of(PLUGIN, show="nodes", nodes=(waits,)) == ["warning not-serving-yet nodes=n1"]
    assert of(nodes=(node(labels=SERVE),)) == FINE


@pytest.mark.parametrize("what", ["claims", "slices", "device_classes"])
def test_what_cannot_be_read_is_named(what: str) -> None:
    changes: dict[str, Any] = {what: NEVER}
    assert "unknown right-missing" in of(WELL, **changes)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ((), "error no-slices"),
        ((replace(SHARED, pool="n2"), MONITORS), "error slices-incomplete slices=1 of=2 generation=3"),
        ((SHARED,), "error slices-incomplete slices=1 of=2 generation=3"),
        ((*SLICES, replace(SHARED, generation=4)), "error slices-incomplete slices=1 of=2 generation=4"),
        ((*SLICES, SHARED), "error slices-incomplete slices=3 of=2 generation=3"),
        ((MONITORS, replace(SHARED, content=MONITORS.content)), "warning devices-not-shared"),
        ((*SLICES, replace(SHARED, generation=2)), "ok claims"),
        ((slice_with(),), "ok claims"),
    ],
)
def test_slices_that_are_missing_or_incomplete(slices: tuple[Present, ...], expected: str) -> None:
    assert of(show="slices of generation", slices=slices) == [expected]


@pytest.mark.parametrize(("version", "shown"), [("v1.34.1", "v1.34.1"), (NEVER, ""), ("", "")])
def test_the_version_of_an_api_server_that_drops_fields_is_named(version: str | Unknown, shown: str) -> None:
    cut = (slice_with({}, {}),)
    assert of(show="version", slices=cut, version=version) == [f"warning devices-not-shared version={shown}"]


MIG = with_instances(serving(8, 8), "1g.10gb")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"device_classes": {}}, "error no-device-class classes=gpushare, gpushare-whole"),
        ({"device_classes": {"gpushare-whole": COUNT}}, "error no-device-class classes=gpushare"),
        ({"device_classes": {"gpushare": "", "gpushare-whole": ""}}, "note class-without-resource"),
        ({"nodes": (node(gpus=MIG),)}, "error no-device-class classes=gpushare-mig"),
        ({"nodes": (node(gpus=MIG),), "device_classes": WITH_MIG}, "ok claims"),
        # All its instances are given whole, so that it has no devices to share.
        (
            {
                "nodes": (node(gpus=replace(MIG, gpus=())),),
                "slices": (slice_with({}, {}),),
                "device_classes": WITH_MIG,
            },
            "ok claims",
        ),
        *(({"nodes": (node(capacity=each),)}, "note kubelet-remembers-plugin") for each in ({COUNT: 0}, {MEM: 0})),
        *(
            ({"nodes": (node(runtime=runtime),)}, expected)
            for runtime, expected in (
                ("containerd://1.6.20", "error runtime-without-cdi"),
                ("containerd://1.7.1", "error runtime-without-cdi"),
                ("containerd://1.7.2", "note runtime-cdi-optional"),
                ("containerd://v1.7.30+ds", "note runtime-cdi-optional"),
                ("containerd://2.0.0", "ok claims"),
                ("cri-o://1.36.0", "ok claims"),
                ("", "ok claims"),
            )
        ),
    ],
)
def test_classes_runtimes_and_kubelets(changes: dict[str, Any], expected: str) -> None:
    assert of(show="classes", **changes) == [expected]


def test_claims_of_nodes_that_serve_none_are_left_alone_by_everybody() -> None:
    left = claim("a", whole(1, "n2")), claim("b", part(0, 1024, "n2")), claim("c", part(0, 1024, "n3"))
    expected = [
        "error claims-orphaned claims=default/a, default/b node=n2",
        "error claims-orphaned claims=default/c node=n3",
    ]
    assert of(show="claims node", claims=left)[:2] == expected
    assert of(PLUGIN, show="claims node", claims=left) == expected


def test_claims_that_wait_are_named() -> None:
    """Those of our DeviceClasses: what others select is not known."""
    kinds = (("a", "gpushare"), ("b", "gpushare-whole"), ("d", "gpushare-mig"), ("c", "nic"))
    waiting = tuple(claim(name, requests=(DeviceRequest("r", kind, 1024),)) for name, kind in kinds)
    assert of(show="claims", claims=waiting)[0] == "note claims-pending claims=default/a, default/b, default/d"
    assert of(PLUGIN, show="claims", claims=waiting[:1]) == ["note claims-pending claims=default/a"]


def test_what_the_other_checks_find_of_such_a_node() -> None:
    """That it offers its kubelet nothing is no fault; and pods that are served by claims need no promise."""
    agents = (ComponentStatus(name="gpushare/agent-n1", node="n1", ready=True),)
    by_claim = asking("train", "n1", scheduler="default-scheduler", promised=False)
    for check in ("allocatable", "capacity", "share size", "placement"):
        assert of(check=check, agents=agents, pods=(by_claim,)) == []
    assert of(check="GPUs", show="gpus nodes") == ["ok gpus-healthy gpus=2 nodes=1"]
