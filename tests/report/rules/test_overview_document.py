"""Nodes as JSON: in full for programs, and in brief for the page, under the same keys."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.model.contract.node_use import GpuUse, NodeReport
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.contract.nodelabels import NodeLimits
from gpu_device_plugin.model.gpus import Closeness, Links
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.overview_document import document, node_document, redacted
from gpu_device_plugin.scheduler.rules.candidate import candidate
from tests.claim_values import claim, part, serving, serving_view, whole
from tests.reports import ASKED, BORROWER, SINCE, report
from tests.reports import part as used
from tests.views import WHOLE, mig_view, node_view, pod_on, with_instances

LINKED = NodeGpus(
    (ListedGpu(0, 4, "GPU-0", "Tesla T4", 4096, numa=1), ListedGpu(1, 4, "GPU-1", "Tesla T4", 4096, unhealthy="hot")),
    share_mib=1024,
    policy="spread",
    driver="580.95",
    links=Links(((0, 1, Closeness.NVLINK, 4),)),
)
NO_USE: dict[str, Any] = dict.fromkeys(("usedMiB", "smPercent", "overSince", "idleSince", "enforcement", "held"))


def brief(node: NodeView) -> dict[str, Any]:
    return node_document(node, brief=True)


ENDING = {"code": "ending", "tone": "plain", "rank": 15, "text": "ending"}
HOT = {"code": "unhealthy", "tone": "bad", "rank": 3, "text": "unhealthy: hot", "parameters": {"why": "hot"}}


def trespass(mib: int, **more: str) -> dict[str, Any]:
    text = "this GPU is not assigned to it"
    return {"code": "trespass", "tone": "bad", "rank": 2, "text": text, "parameters": {"amountMiB": mib, **more}}


def brief_pods(node: NodeView) -> Any:
    return brief(node)["gpus"][0]["pods"]


def test_the_document_has_everything() -> None:
    web = pod_on("web", {0: 1}, unassigned_usage=2, priority=7, deleting=True)
    capacity, allocatable = {"aliyun.com/gpu-mem": 8}, {"aliyun.com/gpu-mem": 4}
    record = NodeRecord("a", "a", capacity=capacity, allocatable=allocatable, ready=True, address="10.0.0.7")
    view = NodeView(candidate("a", LINKED, [web.usage]), record, (web,))
    told = document([view])
    assert told.keys() == {"version", "nodes"}
    (node,) = json.loads(json.dumps(told["nodes"]))
    named = {"namespace": "default", "name": "web", "uid": "uid-web", "priority": 7, "deleting": True}
    card = {"model": "Tesla T4", "memoryMiB": 4096, "mig": None, "totalShares": 4, "whole": False, "strangers": []}
    card |= dict.fromkeys(("usedMiB", "unattributedMiB", "limits", "limitsReason", "refusal", "cordon")) | {
        "containers": []
    }
    assert node.pop("gpus") == [
        {"index": 0, "uuid": "GPU-0", "numa": 1, "healthy": True, "reason": None, "usedShares": 1, "freeShares": 1}
        | card
        | {"pods": [{**named, "shares": 1, "whole": False, **NO_USE, "states": [ENDING]}], "states": []},
        {"index": 1, "uuid": "GPU-1", "numa": None, "healthy": False, "reason": "hot", "usedShares": 0, "freeShares": 0}
        | card
        | {"pods": [], "states": [HOT]},
    ]
    assert node.pop("sums") == {
        "totalMiB": 8192,
        "givenMiB": 3072,
        "freeMiB": 1024,
        "largestMiB": 1024,
        "largestIndex": 0,
        "usedMiB": None,
        "measuredGpus": 0,
        "gpus": 2,
        "freeGpus": 0,
        "instances": 0,
        "freeInstances": 0,
    }
    assert node == {
        "name": "a",
        "address": "10.0.0.7",
        "ready": True,
        "unschedulable": False,
        "problem": None,
        "claims": False,
        "shareMiB": 1024,
        "policy": "spread",
        "driver": "580.95",
        "divided": False,
        "capacity": capacity,
        "allocatable": allocatable,
        "totalShares": 8,
        "usedShares": 3,
        "limits": None,
        "use": None,
        "instances": [],
        "links": [{"a": 0, "b": 1, "closeness": "nvlink", "nvlinks": 4}],
        "unplaced": [{**named, "shares": 2, "wholeGpus": 0}],
        "states": [
            {
                "code": "gpus-unknown",
                "tone": "plain",
                "rank": 14,
                "text": "2 GiB on GPUs not known yet",
                "parameters": {"shares": 2},
            }
        ],
    }


def test_the_document_has_every_figure() -> None:
    thief = replace(used("spy", granted=0, used=700), over_since=SINCE)
    differs = replace(
        used("web", 1), enforcement=Enforcement.DRIVER, held=LimitStatus.DIFFERS, found_mib=8192, why="its own env"
    )
    enforcements = {1: GpuEnforcement(Enforcement.DRIVER, "why", "refused")}
    gpus = {0: GpuUse(8320, 300)}
    read = report(thief, differs, gpus=gpus, enforcements=enforcements, blind="no hostPID", left_out=3)
    assert read.use is not None
    node = node_document(node_view("a", (15, 15), report=read))
    use = {"at": read.use.at, "live": False, "ageSeconds": 10, "blind": "no hostPID", "leftOut": 3}
    assert (node["limits"], node["use"]) == ("driver", use)
    first, second = node["gpus"]
    assert [first[key] for key in ("usedMiB", "unattributedMiB", "limits", "limitsReason")] == [8320, 300, None, None]
    assert [second[key] for key in ("limits", "limitsReason", "refusal")] == ["driver", "why", "refused"]
    unknown: dict[str, Any] = dict.fromkeys(("smPercent", "idleSince", "enforcement", "held", "foundMiB", "why"))
    spy = {"namespace": "default", "pod": "spy", "container": "main", "grantedMiB": 0, "usedMiB": 700}
    assert first["containers"] == [{**spy, "trespassing": True, "overSince": SINCE, **unknown}]
    assert first["strangers"] == [
        {"namespace": "default", "name": "spy", "trespassing": True, **NO_USE, "usedMiB": 700, "overSince": SINCE}
        | {"states": [trespass(700, since=SINCE)]}
    ]
    (held,) = second["containers"]
    assert [held[key] for key in ("enforcement", "held", "foundMiB", "why")] == [
        "driver",
        "differs",
        8192,
        "its own env",
    ]
    timeless = node_document(node_view("a", (15,), report=NodeReport(None, read.use, None)))
    assert (timeless["limits"], timeless["use"]["ageSeconds"], timeless["gpus"][0]["refusal"]) == (None, None, None)


def test_since_when_a_pod_is_idle_stands_with_its_use() -> None:
    parts = [replace(used("web", 0), idle_since=SINCE, container=name) for name in ("main", "side")]
    gpu = node_document(node_view("a", (15,), pod_on("web", {0: 4}), report=report(*parts)))["gpus"][0]
    assert [each["idleSince"] for each in (*gpu["pods"], *gpu["containers"])] == [SINCE, SINCE, SINCE]


def test_a_brief_document_has_no_field_that_says_nothing() -> None:
    card = {"index": 0, "uuid": "GPU-0", "model": "Tesla T4", "memoryMiB": 15360, "totalShares": 15, "freeShares": 15}
    sums = {"totalMiB": 15360, "freeMiB": 15360, "largestMiB": 15360, "largestIndex": 0, "gpus": 1, "freeGpus": 1}
    assert brief(node_view("a", (15,))) == {
        "name": "a",
        "ready": True,
        "address": "10.0.0.7",
        "shareMiB": 1024,
        "driver": "580.95",
        "policy": "binpack",
        "totalShares": 15,
        "sums": sums,
        "gpus": [card],
    }


@pytest.mark.parametrize(
    "node",
    [
        node_view("a", (15,), pod_on("web", {0: 5}), unhealthy={0: "XID 48"}, report=report(used("x", granted=0))),
        mig_view("b", with_instances("one", 1), shared=1, whole=1),
    ],
)
def test_a_brief_document_has_the_keys_and_values_of_the_full_one(node: NodeView) -> None:
    def check(short: Any, full: Any) -> None:
        if isinstance(short, dict):
            for key, value in short.items():
                check(value, full[key])
        elif isinstance(short, list):
            assert len(short) == len(full)
            for pair in zip(short, full, strict=True):
                check(*pair)
        else:
            assert short == full

    check(brief(node), node_document(node))


def test_pods_have_their_part_of_each_gpu_and_unknown_gpus_count_for_the_node() -> None:
    pods = (pod_on("web", {0: 5}), pod_on("ml/all", None, 1, deleting=True), pod_on("x", unassigned_usage=4))
    shown = brief(node_view("a", (15, 15), *pods))
    first, second = shown["gpus"]
    assert (first["usedShares"], first["pods"]) == (5, [{"namespace": "default", "name": "web", "shares": 5}])
    assert (second["usedShares"], second.get("freeShares")) == (15, None)
    assert second["pods"] == [
        {"namespace": "ml", "name": "all", "shares": 15, "whole": True, "deleting": True, "states": [ENDING]}
    ]
    assert (shown["usedShares"], shown["sums"]["givenMiB"]) == (24, 24 * 1024)


def test_use_of_all_containers_of_a_pod_is_added_up() -> None:
    parts = (
        replace(used("web", used=100), sm_percent=70, enforcement=Enforcement.DRIVER, held=LimitStatus.HELD),
        replace(
            used("web", used=50),
            container="b",
            sm_percent=50,
            enforcement=Enforcement.ADVISORY,
            held=LimitStatus.MISSING,
            over_since=SINCE,
        ),
    )
    (gpu,) = brief(node_view("a", (15,), pod_on("web", {0: 5}), report=report(*parts, gpus={0: GpuUse(170, 20)})))[
        "gpus"
    ]
    (web,) = gpu["pods"]
    assert [web[key] for key in ("usedMiB", "smPercent", "overSince", "enforcement", "held")] == [
        *(150, 100, SINCE, "advisory", "missing")
    ]
    assert (gpu["usedMiB"], gpu["unattributedMiB"]) == (170, 20)


@pytest.mark.parametrize(
    ("amounts", "percents", "shown"),
    [
        ((100, None), (0, 0), (None, 0)),
        ((0, 0), (0, None), (0, None)),
        ((1, 2), (5, None), (3, 5)),
        ((1,), (None,), (1, None)),
    ],
)
def test_what_one_container_lacks_is_unknown_of_its_pod_and_zero_is_known(
    amounts: tuple[int | None, ...], percents: tuple[int | None, ...], shown: tuple[int | None, int | None]
) -> None:
    parts = [
        replace(used("web", used=mib), container=f"c{mib}{percent}", sm_percent=percent)
        for mib, percent in zip(amounts, percents, strict=True)
    ]
    (web,) = brief_pods(node_view("n", (15,), pod_on("web", {0: 5}), report=report(*parts)))
    assert (web.get("usedMiB"), web.get("smPercent")) == shown


def test_a_pod_that_uses_a_gpu_that_it_was_not_given_is_a_stranger() -> None:
    parts = (used("thief", used=700, granted=0), used("idle", used=0, granted=0), used("gone", used=10))
    (gpu,) = brief(node_view("n", (15,), pod_on("web", {0: 5}), report=report(*parts)))["gpus"]
    assert gpu["strangers"] == [
        {"namespace": "default", "name": "thief", "trespassing": True, "usedMiB": 700, "states": [trespass(700)]}
    ]


def test_where_figures_and_limits_come_from() -> None:
    read = report(blind="no PIDs")
    assert read.use is not None
    shown = node_document(node_view("n", (15,), report=read), brief=True, live=True)
    assert shown["use"] == {"at": read.use.at, "blind": "no PIDs", "live": True}
    limits = NodeLimits(
        {0: GpuEnforcement(Enforcement.MPS, "chosen", "no daemon"), 1: GpuEnforcement(Enforcement.DRIVER, "r615")}
    )
    shown = brief(node_view("n", (15, 15), report=NodeReport(limits=limits)))
    limited = [(each.get("limits"), each.get("refusal")) for each in (shown, *shown["gpus"])]
    assert limited == [("mps", None), ("mps", "no daemon"), ("driver", None)]
    assert "use" not in shown


# --- MIG instances ----------------------------------------------------------------------------------------------------


def test_instances_have_their_place() -> None:
    card, instance = brief(mig_view("a", pod_on("web", {0: 4, 1: 3}), gpus=1, shared=1))["gpus"]
    place = {"parent": "GPU-m", "gpu": 0, "number": 0, "profile": "1g.10gb", "gi": 7}
    assert ("mig" in card, instance["mig"], instance["usedShares"], instance["freeShares"]) == (False, place, 3, 6)


def test_an_instance_that_is_given_whole_is_all_in_use_or_all_free() -> None:
    read = report(used("one", used=2048, granted=9728), gpus={0: GpuUse(2048)})
    unassigned_usage = replace(with_instances("x", asks=2), terminating=True)
    node = mig_view("a", with_instances("one", 0), unassigned_usage, whole=3, ill={2: "XID 94"}, report=read)
    (offer,) = node_document(node)["instances"]
    assert [offer[key] for key in ("resource", "profile", "total", "used", "free")] == [WHOLE, "1g.10gb", 3, 3, 0]
    named = {"namespace": "default", "name": "x", "uid": "uid-x", "priority": 0, "deleting": True}
    assert offer["unplaced"] == [{**named, "instances": 2}]
    held, free, ill = offer["instances"]
    assert [held[key] for key in ("totalShares", "usedShares", "freeShares", "whole")] == [9, 9, 0, True]
    assert [held["pods"][0][key] for key in ("name", "uid", "shares", "whole", "usedMiB")] == [
        *("one", "uid-one", 9, True, 2048)
    ]
    assert (free["freeShares"], free["pods"], ill["freeShares"], ill["healthy"], ill["reason"]) == (
        *(9, [], 0, False, "XID 94"),
    )
    shown = brief(node)
    assert shown["instances"][0]["unplaced"] == [{"instances": 2}]
    assert [shown["sums"].get(key) for key in ("totalMiB", "givenMiB", "freeMiB", "usedMiB", "gpus")] == [
        *(27 * 1024, 27 * 1024, None, 2048, 1)
    ]
    assert (shown["sums"]["instances"], shown["sums"].get("freeInstances")) == (3, None)


# --- ResourceClaims ---------------------------------------------------------------------------------------------------

TWO = serving(8, 8)


def test_claims_have_their_names_and_pods() -> None:
    now = report(used("a", used=1000), used("b", used=500))
    shared = claim("c", part(0, 4096), pods=("a", "b"))
    node = serving_view("n1", TWO, shared, claim("d", whole(1), pods=()), report=now)
    assert node_document(node)["claims"] is True
    first, second = brief(node)["gpus"]
    both = {"namespace": "default", "name": "a+b", "shares": 4, "usedMiB": 1500}
    assert first["pods"] == [{**both, "claims": ["c"], "pods": ["a", "b"]}]
    unused = {"namespace": "default", "name": "claim:d", "shares": 8, "whole": True}
    assert second["pods"] == [{**unused, "claims": ["d"], "pods": []}]


# --- For a reader who may not see all pods ----------------------------------------------------------------------------


def test_hidden_claims_and_holders_of_instances_have_no_names() -> None:
    there = serving_view("n1", TWO, claim("theirs/secret", part(0, 1024), pods=("hush",)))
    assert brief_pods(redacted(there, lambda _: False)) == [{"shares": 1}]
    told = node_document(redacted(there, lambda _: False))
    assert (told["gpus"][0]["pods"][0]["name"], "secret" in str(told)) == (None, False)
    mine, theirs = (replace(with_instances(name, n), namespace=name) for n, name in enumerate(("mine", "theirs")))
    (offer,) = brief(redacted(mig_view("n", mine, theirs, whole=2), "mine".__eq__))["instances"]
    assert [gpu["pods"][0].get("name") for gpu in offer["instances"]] == ["mine", None]


def test_a_borrower_has_its_limit_and_what_it_is_asked() -> None:
    """The second container of its pod may not borrow, and counts with its guarantee."""
    fixed = replace(BORROWER, container="fixed", limit_mib=None, used_mib=100)
    elastic = {
        "limitMiB": 12288,
        "borrowedMiB": 3072,
        "askedAt": SINCE,
        "returnBy": "2026-11-22T09:57:00Z",
        "neededBy": "ml/train",
    }
    view = node_view("a", (15,), pod_on("nb", {0: 8}), report=report(ASKED, fixed))
    (gpu,) = node_document(view)["gpus"]
    plain, borrower = gpu["containers"]
    assert elastic.items() <= borrower.items()
    assert elastic.keys().isdisjoint(plain)
    assert gpu["pods"][0].items() >= (elastic | {"limitMiB": 16384}).items()
    (pod,) = brief_pods(node_view("a", (15,), pod_on("nb", {0: 4}), report=report(replace(BORROWER, used_mib=None))))
    assert pod == {"namespace": "default", "name": "nb", "shares": 4, "limitMiB": 12288}
