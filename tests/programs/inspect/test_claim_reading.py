"""`kubectl inspect gpushare` in a cluster where a node gives its GPUs to ResourceClaims and another one to limits."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.claim_values import UUIDS, claim_json, part_json, whole_json
from tests.programs.inspect.test_inspect_program import NO_AGENT, World, gpu, node, pod
from tests.programs.inspect.test_terminal import terminal

GROUP = "resource.k8s.io"
FORBIDDEN = [["list", "resourceclaims", ""]]
NOT_SHOWN = "warning: ResourceClaims are not shown, so GPU usage may be under-reported: "


def serving(name: str, *gpus: int, **more: Any) -> dict[str, Any]:
    """A node of this driver, whose kubelet knows neither of our resources; all GPUs have 15 shares."""
    found = node(name, *(gpu(index, uuid=UUIDS[index]) for index in gpus), **more)
    annotations = found["metadata"]["annotations"]
    said = json.loads(annotations["gpu-device-plugin/gpus"])
    annotations["gpu-device-plugin/gpus"] = json.dumps({**said, "claims": True})
    found["status"].update({"capacity": {}, "allocatable": {}})
    return found


@pytest.fixture
def both(tmp_path: Path) -> World:
    """Node `dra` with a part for one pod, a part that two pods share, a free part and a GPU in whole use."""
    world = World(tmp_path)
    world.has(
        serving("dra", 0, 1),
        node("plugin", gpu(0)),
        pod("web-0", 5, on="plugin", idx=0),
        claim_json("web-gpu", part_json(0, "4Gi", "dra"), pods=("web",)),
        claim_json("both-gpu", part_json(0, "3500Mi", "dra"), pods=("b", "a"), namespace="ml"),
        claim_json("spare", part_json(0, "1Gi", "dra")),
        claim_json("big", whole_json(1, "dra"), pods=("train",), device_class="gpushare-whole", memory=None),
        claim_json("waits"),
        groups=[GROUP],
    )
    return world


def test_the_overview_counts_each_claim_once(both: World, capsys: pytest.CaptureFixture[str]) -> None:
    """4, 4 for 3,500 MiB, and 1 of GPU 0; all of GPU 1."""
    assert both.inspect() == 0
    printed = capsys.readouterr()
    assert [line.split() for line in printed.out.splitlines()[1:3]] == [
        ["dra", "10.0.0.7", "9/15", "15/15", "24/30"],
        ["plugin", "10.0.0.7", "5/15", "0/0", "5/15"],
    ]
    assert printed.err == ""


def test_the_pods_of_a_namespace_have_their_claims(both: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert both.inspect("-n", "ml") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [["ml/a+b", "dra", "0", "4G", *"---"]]
    assert "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims?limit=500" in [call[-1] for call in both.calls]


def test_without_the_right_to_nodes_claims_have_a_node_and_an_amount(
    both: World, capsys: pytest.CaptureFixture[str]
) -> None:
    both.has(forbidden=[["list", "nodes", ""]])
    assert both.inspect("-n", "default") == 0
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["default/claim:spare", "dra", "?", "1G"],
        ["default/train", "dra", "?", "whole"],
        ["default/web", "dra", "?", "4G"],
        ["default/web-0", "plugin", "0", "5"],
    ]


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ({"groups": []}, "this cluster has none (resource.k8s.io/v1 comes with Kubernetes 1.34)"),
        ({"forbidden": FORBIDDEN}, "the right to list resourceclaims.resource.k8s.io in the whole cluster is missing"),
    ],
)
def test_without_claims_all_else_is_shown_with_one_sentence(
    both: World, capsys: pytest.CaptureFixture[str], behaviour: dict[str, Any], why: str
) -> None:
    both.has(**behaviour)
    assert both.inspect() == 0
    printed = capsys.readouterr()
    assert printed.err == f"{NOT_SHOWN}{why}\n"
    assert [line.split()[-1] for line in printed.out.splitlines()[1:3]] == ["0/30", "5/15"]


def test_claims_are_not_read_where_no_node_serves_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.has(node("plugin", gpu(0)), pod("web-0", 5, on="plugin", idx=0))
    assert world.inspect() == 0
    assert not [call for call in world.calls if "resourceclaims" in call[-1]]


def test_a_claim_that_is_none_is_left_out(both: World, capsys: pytest.CaptureFixture[str]) -> None:
    both.has({"kind": "ResourceClaim", "metadata": {"name": "", "namespace": "x", "uid": "u"}})
    assert both.inspect() == 0
    assert capsys.readouterr().err == (
        "warning: a ResourceClaim is left out: not a ResourceClaim: its uid or its name is missing\n"
    )


# --- Why --------------------------------------------------------------------------------------------------------------


def claiming(
    name: str, template: str = "gpu-mem-8gi", *, made: str = "", on: str = "", **status: Any
) -> dict[str, Any]:
    """A pod whose claim is made from a template; its status has the name once it was made."""
    statuses = [{"name": "gpu", "resourceClaimName": made}] if made else []
    entry = {"name": "gpu", "resourceClaimTemplateName": template}
    found = pod(name, on=on, spec={"resourceClaims": [entry], "schedulerName": "default-scheduler"}, **status)
    found["status"]["resourceClaimStatuses"] = statuses
    return found


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available: 2 cannot allocate all claims.",
}


def test_why_tells_of_a_claim_which_node_lacks_what(both: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 15 GiB 6 are free on GPU 0 of dra; fine has shares of 256 MiB, of which 32 are 8 GiB."""
    both.has(
        claiming("late", made="late-gpu", conditions=[UNSCHEDULABLE]),
        claim_json("late-gpu", memory="8Gi"),
        serving("fine", 2, share_mib=256),
    )
    assert both.inspect("why", "late") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "default/late waits for 8 GiB of one GPU, through ResourceClaims.",
        "ResourceClaim late-gpu is not allocated yet; it asks for 8 GiB of one GPU.",
        "default-scheduler says (Unschedulable): 0/2 nodes are available: 2 cannot allocate all claims.",
    ]
    assert [line for line in lines if line.startswith(("dra:", "fine:", "plugin:"))] == [
        "dra: no GPU has 8 GiB free",
        "plugin: its GPUs are allocated through limits of pods, not through ResourceClaims (DRA)",
        "fine: the largest GPU has only 3.75 GiB",
    ]
    (first,) = [line for line in lines if line.startswith("  0") and "too little free" in line]
    assert first.endswith("default/claim:spare (1 GiB), default/web (4 GiB), ml/a+b (4 GiB)")
    assert "  There would be room if this pod ended: default/web (4 GiB, priority 0)." in lines


def test_why_tells_of_a_pod_whose_number_of_gpus_was_made_a_claim(
    both: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scheduler wrote the name of the claim into the pod's status."""
    made = {"resourceClaimName": "big", "requestMappings": []}
    both.has(pod("train", count=1, on="dra", extendedResourceClaimStatus=made))
    assert both.inspect("why", "train") == 0
    assert capsys.readouterr().out.splitlines() == [
        "default/train is on node dra (Running).",
        f"ResourceClaim big has all of GPU 1 (Tesla T4, {UUIDS[1]}) on node dra.",
        f"The explanation is incomplete: the agent of node dra cannot be asked: {NO_AGENT}",
    ]
    assert both.inspect("-o", "json", "dra") == 0
    (dra,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (dra["unplaced"], dra["usedShares"]) == ([], 24)


def test_why_without_the_right_to_claims_names_the_right(both: World, capsys: pytest.CaptureFixture[str]) -> None:
    both.has(claiming("late", made="late-gpu"), forbidden=[*FORBIDDEN, ["list", "resourceclaims", "default"]])
    assert both.inspect("why", "late") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ResourceClaim late-gpu is not known here."
    assert lines[1].startswith(
        "The explanation is incomplete: the right to list resourceclaims.resource.k8s.io in the namespace default is "
        "missing"
    )


def test_top_explains_the_pods_of_a_claim_and_says_how_one_without_pods_is_looked_at(both: World) -> None:
    """The row of a claim is no name of a pod: it has several, or none yet."""
    with terminal(both, "top", width=140) as shown:
        shown.until("default/claim:spare")
        shown.press("\r")
        shown.until("kubectl -n default describe resourceclaim spare")
        shown.press("\r")
        shown.until("default/claim:spare")
        shown.press("\x1b[F\r")
        said = shown.until("pod ml/b cannot be read")
        assert "pod ml/a cannot be read" in said
        shown.press("q")
        assert shown.end() == 0
