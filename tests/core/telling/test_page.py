"""The nodes as the page gets them."""

from __future__ import annotations

from dataclasses import replace

from gpu_device_plugin.core.contract.nodereport import NodeLimits, NodeReport, NodeUse, UsedGpu, UsedPart
from gpu_device_plugin.core.model.limits import GpuRung, Held, Rung
from gpu_device_plugin.core.telling.page import node_document
from tests.views import WHOLE, mig_view, node_view, pod_on, with_instances

AT = "2026-11-22T10:00:00Z"


def used(pod: str, mib: int | None, *, granted: int = 5120, container: str = "main", gpu: int = 0) -> UsedPart:
    namespace, _, name = pod.rpartition("/")
    return UsedPart(namespace or "default", name, container, gpu, granted, mib)


def report(*parts: UsedPart, age_s: float = 12.4, blind: str = "", **gpus: UsedGpu) -> NodeReport:
    by_position = {int(name.removeprefix("gpu")): gpu for name, gpu in gpus.items()}
    return NodeReport(use=NodeUse(AT, by_position, parts, blind), use_age_s=age_s)


def test_a_node_without_pods_has_only_its_gpus() -> None:
    assert node_document(node_view("a", (15,))) == {
        "name": "a",
        "ready": True,
        "address": "10.0.0.7",
        "shareMiB": 1024,
        "driver": "580.95",
        "policy": "binpack",
        "gpus": [{"i": 0, "shares": 15, "uuid": "GPU-0", "model": "Tesla T4", "free": 15, "memMiB": 15360}],
    }


def test_a_node_says_why_nothing_can_be_placed_there() -> None:
    shown = node_document(
        node_view("a", (15,), ready=False, unschedulable=True, problem="broken", unhealthy={0: "XID 48"})
    )
    assert (shown.get("ready"), shown["cordoned"], shown["problem"]) == (None, True, "broken")
    assert shown["gpus"][0]["bad"] == "XID 48"
    assert "free" not in shown["gpus"][0]


def test_pods_are_shown_with_their_part_of_each_gpu() -> None:
    shown = node_document(node_view("a", (15, 15), pod_on("web", {0: 5}), pod_on("ml/all", None, 1, deleting=True)))
    first, second = shown["gpus"]
    assert (first["taken"], first["free"], first["fenced"]) == (5, 10, "whole")
    assert first["pods"] == [{"ns": "default", "pod": "web", "shares": 5}]
    assert (second["taken"], second["whole"], second["fenced"]) == (15, True, "shares")
    assert second["pods"] == [{"ns": "ml", "pod": "all", "shares": 15, "whole": True, "deleting": True}]


def test_shares_on_an_unknown_gpu_are_summed_up() -> None:
    shown = node_document(node_view("a", (15, 15), pod_on("web", loose=4), pod_on("all", loose_gpus=1)))
    assert shown["loose"] == 19


def test_use_of_all_containers_of_a_pod_is_added_up() -> None:
    parts = (
        replace(used("web", 100), sm_percent=70, rung=Rung.DRIVER, held=Held.HELD),
        replace(
            used("web", 50, container="side"),
            sm_percent=50,
            rung=Rung.ADVISORY,
            held=Held.MISSING,
            over_since="2026-11-22T09:00:00Z",
        ),
    )
    view = node_view("a", (15,), pod_on("web", {0: 5}), report=report(*parts, gpu0=UsedGpu(170, 20)))
    (gpu,) = node_document(view)["gpus"]
    assert gpu["pods"] == [
        {
            "ns": "default",
            "pod": "web",
            "shares": 5,
            "usedMiB": 150,
            "sm": 100,
            "over": "2026-11-22T09:00:00Z",
            "rung": "advisory",
            "held": "missing",
        }
    ]
    assert (gpu["usedMiB"], gpu["otherMiB"]) == (170, 20)


def test_unknown_use_of_one_container_makes_that_of_the_pod_unknown_but_zero_is_known() -> None:
    pods = (pod_on("a", {0: 5}), pod_on("b", {0: 5}))
    parts = (used("a", 100), used("a", None, container="side"), used("b", 0))
    (gpu,) = node_document(node_view("n", (15,), *pods, report=report(*parts, gpu0=UsedGpu(0))))["gpus"]
    assert [pod.get("usedMiB") for pod in gpu["pods"]] == [None, 0]
    assert gpu["usedMiB"] == 0


def test_a_pod_that_uses_a_gpu_that_it_was_not_given_stands_after_the_others() -> None:
    parts = (used("thief", 700, granted=0), used("idle", 0, granted=0), used("gone", 10))
    view = node_view("n", (15,), pod_on("web", {0: 5}), report=report(*parts))
    (gpu,) = node_document(view)["gpus"]
    assert gpu["pods"][1:] == [{"ns": "default", "pod": "thief", "shares": 0, "trespass": True, "usedMiB": 700}]


def test_pods_of_namespaces_that_the_caller_may_not_see_have_no_names() -> None:
    parts = (used("secret/thief", 700, granted=0),)
    view = node_view("n", (15,), pod_on("secret/web", {0: 5}), pod_on("mine", {0: 1}), report=report(*parts))
    (gpu,) = node_document(view, lambda namespace: namespace == "default")["gpus"]
    assert gpu["pods"] == [
        {"ns": "default", "pod": "mine", "shares": 1},
        {"shares": 5},
        {"shares": 0, "trespass": True, "usedMiB": 700},
    ]


def test_stale_figures_accuse_nobody() -> None:
    parts = (replace(used("web", 9000), over_since=AT), used("thief", 700, granted=0))
    view = node_view("n", (15,), pod_on("web", {0: 5}), report=report(*parts, age_s=5000, gpu0=UsedGpu(9700, 5)))
    shown = node_document(view)
    assert shown["use"] == {"at": AT}
    assert shown["gpus"][0]["pods"] == [{"ns": "default", "pod": "web", "shares": 5}]
    assert not {"usedMiB", "otherMiB"} & shown["gpus"][0].keys()


def test_the_time_of_figures_their_source_and_blindness_are_told() -> None:
    def use(report: NodeReport, *, live: bool = False) -> object:
        return node_document(node_view("n", (15,), report=report), live=live).get("use")

    assert use(report(), live=True) == {"at": AT, "live": True}
    assert use(report(blind="no PIDs")) == {"at": AT, "blind": "no PIDs"}
    assert use(NodeReport()) is None


def test_the_means_of_limiting_are_shown_for_node_and_gpu() -> None:
    limits = NodeLimits({0: GpuRung(Rung.MPS, "chosen", "no daemon"), 1: GpuRung(Rung.DRIVER, "r615")})
    shown = node_document(node_view("n", (15, 15), report=NodeReport(limits=limits)))
    assert shown["rung"] == "mps"
    assert [(gpu.get("rung"), gpu.get("refusal")) for gpu in shown["gpus"]] == [
        ("mps", "no daemon"),
        ("driver", None),
    ]


def test_instances_are_among_the_gpus_with_their_place() -> None:
    node = mig_view("a", pod_on("web", {0: 4, 1: 3}), gpus=1, shared=1)
    card, instance = node_document(node)["gpus"]
    assert (card["fenced"], "mig" in card) == ("whole", False)
    assert instance == {
        "i": 1,
        "shares": 9,
        "uuid": "MIG-0",
        "model": "NVIDIA H100 MIG 1g.10gb",
        "mig": {"id": "0:0", "profile": "1g.10gb", "gpu": "GPU-m"},
        "taken": 3,
        "free": 6,
        "memMiB": 9728,
        "pods": [{"ns": "default", "pod": "web", "shares": 3}],
    }


def test_an_instance_that_is_given_whole_is_all_taken_or_all_free() -> None:
    reported = report(used("one", 2048, granted=9728), gpu0=UsedGpu(2048))
    pods = with_instances("one", 0), with_instances("x", asks=2)
    node = mig_view("a", *pods, whole=3, ill={2: "XID 94"}, report=reported)
    told = node_document(node)
    held, free, ill = told["gpus"]
    assert told["looseMig"] == 2
    assert {key: held[key] for key in ("resource", "taken", "whole", "usedMiB")} == {
        "resource": WHOLE,
        "taken": 9,
        "whole": True,
        "usedMiB": 2048,
    }
    assert held["pods"] == [{"ns": "default", "pod": "one", "shares": 9, "whole": True, "usedMiB": 2048}]
    assert (free["free"], free.get("taken"), free.get("pods")) == (9, None, None)
    assert (ill["bad"], ill.get("free")) == ("XID 94", None)
    stale = report(used("one", 2048), age_s=1e6)
    assert "usedMiB" not in node_document(replace(node, report=stale))["gpus"][0]["pods"][0]


def test_processors_that_do_nothing_are_said_where_all_containers_are_known() -> None:
    """0 is idle; what is not known of one container is not known of the pod."""

    def shown(*percents: int | None) -> object:
        parts = [replace(used("web", 10, container=f"c{n}"), sm_percent=each) for n, each in enumerate(percents)]
        (gpu,) = node_document(node_view("a", (15,), pod_on("web", {0: 5}), report=report(*parts)))["gpus"]
        return gpu["pods"][0].get("sm")

    assert shown(0, 0) == 0
    assert shown(0, None) is None
    assert shown(5, None) == 5
    assert shown(None) is None
