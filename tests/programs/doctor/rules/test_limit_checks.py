"""What the doctor of a cluster finds of memory limits, of the MPS supervisor and of real use."""

import time
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.limits.rules.enforcement import asked_enforcement
from gpu_device_plugin.model.contract.keys import ALLOCATION, RESIZE_BOUND, SCHEDULE_LABEL, SET_LIMITS_LABEL
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.programs.doctor.rules.symptoms import ComponentStatus, NodeSeen, PodSeen
from tests.names import MEM
from tests.programs.doctor.rules.test_cluster_checks import WELL, agent, asking, node, of
from tests.reporting import CLUSTER_CHECKS as CHECKS
from tests.reports import ASKED, NO_LIMITS, SINCE, part, report

ADVISORY = {0: GpuEnforcement(Enforcement.ADVISORY, NO_LIMITS)}
DRIVER = {0: GpuEnforcement(Enforcement.DRIVER, "the driver limits the memory of cgroups")}
MPS = {0: GpuEnforcement(Enforcement.MPS, "the server of MPS limits each process")}
CUSTOM = {0: GpuEnforcement(Enforcement.CUSTOM, "extra_grant adds a library")}
NO_MPS = GpuEnforcement(
    Enforcement.ADVISORY, "the label asks for mps: no supervisor", refusal="MPS is required here and not there"
)


def reporting(name: str, *parts: Any, labels: dict[str, str] | None = None, profile: str = "", **more: Any) -> NodeSeen:
    return node(name, labels=labels or {}, profile=profile, report=report(*parts, **more))


def test_each_means_is_told_with_its_nodes() -> None:
    nodes = (
        reporting("c", enforcements=ADVISORY),
        reporting("a", enforcements=DRIVER),
        reporting("b", enforcements=DRIVER),
        reporting("d", enforcements=CUSTOM),
        reporting("e", enforcements={0: GpuEnforcement(Enforcement.DMEM, "the limit helper has the kernel")}),
        node("older"),
        replace(reporting("off", enforcements=ADVISORY), labels={"gpushare": "false"}),
    )
    assert of("memory limits", "limits nodes", nodes=nodes) == [
        "note limits-soft limits=advisory nodes=c",
        "note limits-soft limits=custom nodes=d",
        "ok limits limits=dmem nodes=e",
        "ok limits limits=driver nodes=a, b",
    ]


def test_a_node_that_refuses_shares_is_an_error() -> None:
    nodes = (reporting("a", enforcements={0: NO_MPS, 1: NO_MPS}, labels={SET_LIMITS_LABEL: "mps"}),)
    expected = [f"error shares-refused node=a gpus=0, 1 why={NO_MPS.refusal}"]
    assert of("memory limits", "node gpus why", nodes=nodes) == expected


@pytest.mark.parametrize(
    ("labels", "profile"),
    [
        ({SET_LIMITS_LABEL: "mps"}, ""),
        ({SCHEDULE_LABEL: "core_mem"}, ""),
        ({}, "strict"),
        ({SET_LIMITS_LABEL: "nonsense"}, "strict"),
    ],
    ids=["our label", "ACK's label", "the settings", "the settings beside a label that means nothing"],
)
def test_limits_that_are_weaker_than_those_asked_for_are_a_warning(labels: dict[str, str], profile: str) -> None:
    nodes = (reporting("a", enforcements=ADVISORY, labels=labels, profile=profile),)
    limits = {"default": "auto", "strict": "driver"}
    expected = [f"warning limits-too-weak node=a limits=advisory why={NO_LIMITS}"]
    assert of("memory limits", "node limits why", nodes=nodes, limits_by_profile=limits) == expected


@pytest.mark.parametrize(
    ("labels", "setting", "asked"),
    [
        ({}, "", None),
        ({}, "auto", None),
        ({}, "driver", Enforcement.DRIVER),
        ({SET_LIMITS_LABEL: "auto"}, "driver", None),
        ({SET_LIMITS_LABEL: "custom", SCHEDULE_LABEL: "mps"}, "", Enforcement.CUSTOM),
        ({SCHEDULE_LABEL: "share"}, "driver", Enforcement.ADVISORY),
        ({SCHEDULE_LABEL: "topology"}, "driver", Enforcement.DRIVER),
        ({SCHEDULE_LABEL: "cgpu"}, "", Enforcement.MPS),
    ],
)
def test_labels_come_before_settings(labels: dict[str, str], setting: str, asked: Enforcement | None) -> None:
    assert asked_enforcement(labels, setting) is asked


def test_a_node_that_wants_mps_needs_a_supervisor() -> None:
    wanting = (
        reporting("a", enforcements=ADVISORY, labels={SET_LIMITS_LABEL: "mps"}),
        reporting("b", enforcements=MPS),
        reporting("c", enforcements=DRIVER, labels={SCHEDULE_LABEL: "cgpu"}),
        node("d", labels={SCHEDULE_LABEL: "cgpu"}),
        reporting("e", enforcements=ADVISORY),
    )
    ready = [ComponentStatus(name=f"gpushare/mps-{name}", node=name, ready=True) for name in "abd"]
    assert of("MPS", "nodes", nodes=wanting, supervisors=tuple(ready)) == ["ok supervisors nodes=3"]
    ready[1] = replace(ready[1], ready=False)
    (missing,) = CHECKS["MPS"](replace(WELL, nodes=wanting))
    assert missing.parameters["nodes"] == ("a", "b", "d")
    assert of("MPS", "nodes", nodes=wanting, supervisors=tuple(ready[:2])) == ["error no-supervisor nodes=b, d"]
    assert of("MPS", nodes=wanting[4:]) == []


# --- Whether they hold, and who uses what -----------------------------------------------------------------------------

DIFFERS = part(
    "big", enforcement=Enforcement.DRIVER, held=LimitStatus.DIFFERS, found_mib=8192, why="its env names another"
)
MISSING = part(
    "old", enforcement=Enforcement.DRIVER, held=LimitStatus.MISSING, why="install nvidia-container-toolkit 1.20.1"
)
UNVERIFIED = part("new", enforcement=Enforcement.DRIVER, held=LimitStatus.UNVERIFIED, why="it has just started")
HELD = part("good", enforcement=Enforcement.DRIVER, held=LimitStatus.HELD, found_mib=4096)
WHOLE = part("whole", enforcement=Enforcement.PARTITION, held=LimitStatus.HELD)
HOG = part("hog", used=6120, over_since=SINCE)
SPY = part("spy", granted=0, used=700, over_since=SINCE)
DCGM = part("monitoring/dcgm", granted=0, used=3)
BLIND = "the agent sees no processes of other pods"
OLD = reporting("a", HOG, DIFFERS, age_s=1200)


@pytest.mark.parametrize(
    ("check", "nodes", "expected"),
    [
        (
            "limits held",
            (reporting("a", DIFFERS, HELD, MISSING), node("b")),
            ["warning limits-not-held node=a containers=default/big/main, default/old/main"],
        ),
        ("limits held", (reporting("a", HELD), reporting("b", HELD)), ["ok limits-held containers=2 by=the driver"]),
        (
            "limits held",
            (reporting("a", HELD, WHOLE),),
            ["ok limits-held containers=1 by=the driver", "ok limits-held containers=1 by=the hardware (MIG)"],
        ),
        (
            "limits held",
            (reporting("a", HELD, replace(HELD, enforcement=Enforcement.DMEM)),),
            ["ok limits-held containers=1 by=the driver", "ok limits-held containers=1 by=the kernel (dmem)"],
        ),
        (
            "limits held",
            (reporting("a", HELD, UNVERIFIED, replace(UNVERIFIED, pod="odd", why="")),),
            [
                "note limits-unverified node=a containers=default/odd/main",
                "note limits-unverified node=a containers=default/new/main",
            ],
        ),
        (
            "limits held",
            (reporting("a", part("x", enforcement=Enforcement.ADVISORY, held=LimitStatus.UNVERIFIED)),),
            [],
        ),
        ("limits held", (OLD,), []),
        ("memory use", (reporting("a", HELD), reporting("b"), node("older")), ["ok use nodes=2"]),
        ("memory use", (node("older"),), []),
        (
            "memory use",
            (reporting("a", HOG, SPY, DCGM),),
            [
                "warning trespassing node=a containers=default/spy/main",
                "note trespassing-little node=a containers=monitoring/dcgm/main",
                "warning over-use node=a containers=default/hog/main",
            ],
        ),
        # Blind nodes are told apart from idle ones.
        (
            "memory use",
            (reporting("a", blind=BLIND), reporting("b", blind=BLIND), reporting("c")),
            ["note use-unknown nodes=a, b", "ok use nodes=1"],
        ),
        ("memory use", (node("a", report_problems=("it is no JSON",)),), ["warning report-unreadable node=a"]),
        # Nothing that old figures show is told as if it were so now; without a ready agent another check tells of it.
        ("memory use", (OLD, reporting("b")), ["ok use nodes=1"]),
    ],
)
def test_what_agents_report(check: str, nodes: tuple[NodeSeen, ...], expected: list[str]) -> None:
    assert of(check, "node nodes containers by", nodes=nodes, agents=()) == expected


def test_old_figures_are_a_warning_where_an_agent_is_ready() -> None:
    assert of("memory use", "node age", nodes=(OLD,), agents=(agent("a"),)) == [
        "warning use-outdated node=a age=20 min ago"
    ]
    assert of("memory use", nodes=(OLD,), agents=(agent("a", ready=False),)) == []


def test_the_sentences_name_the_first_of_many_containers_with_both_numbers() -> None:
    many = [replace(MISSING, pod=f"p{number}") for number in range(8)]
    (finding,) = CHECKS["limits held"](replace(WELL, nodes=(reporting("a", DIFFERS, *many),)))
    assert str(finding).startswith(
        "a: default/big/main is limited to 8,192 MiB of GPU 0 instead of 4,096 MiB: its env names another; "
        "default/p0/main has no limit on GPU 0, where it was granted 4,096 MiB: install "
    )
    assert str(finding).endswith(" and 4 more")
    assert len(finding.parameters["containers"]) == 9  # type: ignore[arg-type]


# --- Memory that changes while pods run -------------------------------------------------------------------------------


def test_a_borrower_that_does_not_return_is_a_warning() -> None:
    """It was asked 2 minutes before the report was read, which was 10 s ago; the other one was asked just now."""
    moment = rfc3339(time.time() - 130)
    kept, fresh = replace(ASKED, asked_at=moment), replace(ASKED, pod="fresh", asked_at=rfc3339(time.time() - 5))
    nodes = (reporting("a", kept, fresh, replace(ASKED, pod="odd", asked_at="once")),)
    assert of("memory use", "node containers", nodes=nodes) == [
        "warning memory-not-returned node=a containers=default/nb/main"
    ]


def elastic(**annotations: str) -> PodSeen:
    texts = {f"gpu-device-plugin/memory-{key}": text for key, text in annotations.items()}
    place = {ALLOCATION: '{"0": {"0": 4}}'}
    containers = (Container("main", ContainerKind.APP, 0, {MEM: 4}),)
    pod = Pod("u", "ml", "nb", "a", "Running", running=True, annotations=place | texts, containers=containers)
    return asking("nb", pod=pod)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"promised": "{}"}, []),
        ({"limit": "12"}, ["ok wishes pods=1"]),
        ({"limit": "12Gi"}, ["warning wish-malformed pod=ml/nb"]),
        ({"limit": "12", "guarantee": "[]"}, ["warning wish-malformed pod=ml/nb"]),
        ({"limit": "40"}, ["warning wish-too-large pod=ml/nb wanted=40 most=15"]),
        (
            {"guarantee": "6"},
            ["note resize-waits pod=ml/nb held=4 target=6 why=the agent of its node has not answered yet"],
        ),
        (
            {"guarantee": "6", "promised": f'{{"wish":"6","why":"no {RESIZE_BOUND}"}}'},
            [f"note resize-waits pod=ml/nb held=4 target=6 why=the scheduler extender says: no {RESIZE_BOUND}"],
        ),
    ],
)
def test_wishes_that_cannot_be_met_are_told(annotations: dict[str, str], expected: list[str]) -> None:
    pods = (elastic(**annotations), asking("plain"))
    assert of("memory requests", "pods pod wanted most held target why", nodes=(node("a"),), pods=pods) == expected


def test_the_size_of_a_gpu_that_is_not_listed_is_no_obstacle() -> None:
    assert of("memory requests", "pods", nodes=(), pods=(elastic(limit="40"),)) == ["ok wishes pods=1"]


def test_a_bound_that_is_missing_is_told_with_the_command() -> None:
    pods = (elastic(guarantee="6", promised=f'{{"wish":"6","why":"no {RESIZE_BOUND}"}}'),)
    (finding,) = CHECKS["memory requests"](replace(WELL, nodes=(node("a"),), pods=pods))
    assert finding.advice.startswith(f"kubectl label namespace ml --overwrite {RESIZE_BOUND}=N, the total of shares")
