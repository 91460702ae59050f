"""What the doctors say of memory limits, of the MPS supervisor and of real use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.core.contract.keys import SCHEDULE_LABEL, SET_LIMITS_LABEL
from gpu_device_plugin.core.contract.mpsfiles import MpsGpu, MpsStatus
from gpu_device_plugin.core.contract.nodereport import NO_REPORT
from gpu_device_plugin.core.model.limits import GpuRung, Held, Rung
from gpu_device_plugin.core.node.mps import NOT_THERE
from gpu_device_plugin.core.telling import diagnosing_node
from gpu_device_plugin.core.telling.cluster_symptoms import NodeSeen, PartSeen
from gpu_device_plugin.core.telling.diagnosing import Unknown
from gpu_device_plugin.core.telling.diagnosing_mps import asked_rung
from tests.core.telling import test_diagnosing_node
from tests.core.telling.test_diagnosing_cluster import agent, node, of
from tests.reports import NO_LIMITS, SINCE, part, report

GUIDE = "docs/guide.md says what each means needs (What holds on my node)"
ADVISORY = {0: GpuRung(Rung.ADVISORY, NO_LIMITS)}
DRIVER = {0: GpuRung(Rung.DRIVER, "the driver limits the memory of cgroups")}
MPS = {0: GpuRung(Rung.MPS, "the server of MPS limits each process")}
NO_MPS = GpuRung(Rung.ADVISORY, "the label asks for mps: no supervisor", refusal="MPS is required here and not there")


def reporting(name: str, *parts: Any, labels: dict[str, str] | None = None, profile: str = "", **more: Any) -> NodeSeen:
    return node(name, labels=labels or {}, profile=profile, report=report(*parts, **more))


# --- Which means ------------------------------------------------------------------------------------------------------


def test_each_means_is_told_with_its_reason_and_its_nodes() -> None:
    nodes = (
        reporting("c", rungs=ADVISORY),
        reporting("a", rungs=DRIVER),
        reporting("b", rungs=DRIVER),
        reporting("d", rungs={0: GpuRung(Rung.CUSTOM, "extra_grant adds a library")}),
        node("older"),
        replace(reporting("off", rungs=ADVISORY), switch="false"),
    )
    assert of("memory limits", nodes=nodes) == [
        f"note: advisory on c: {NO_LIMITS} -> {GUIDE}",
        f"note: custom on d: extra_grant adds a library -> {GUIDE}",
        "ok: driver on a, b: the driver limits the memory of cgroups",
    ]


def test_a_node_that_refuses_shares_is_an_error() -> None:
    nodes = (reporting("a", rungs={0: NO_MPS, 1: NO_MPS}, labels={SET_LIMITS_LABEL: "mps"}),)
    assert of("memory limits", nodes=nodes) == [
        (
            "error: a: its agent refuses shares of GPU 0, 1: MPS is required here and not there -> "
            f"{GUIDE}; with limits_fallback: advisory containers start without a limit instead"
        )
    ]


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
    nodes = (reporting("a", rungs=ADVISORY, labels=labels, profile=profile),)
    (said,) = of("memory limits", nodes=nodes, limits_by_profile={"default": "auto", "strict": "driver"})
    assert said == f"warning: a: its limits are advisory: {NO_LIMITS} -> {GUIDE}"


@pytest.mark.parametrize(
    ("labels", "setting", "asked"),
    [
        ({}, "", None),
        ({}, "auto", None),
        ({}, "driver", Rung.DRIVER),
        ({SET_LIMITS_LABEL: "auto"}, "driver", None),
        ({SET_LIMITS_LABEL: "custom", SCHEDULE_LABEL: "mps"}, "", Rung.CUSTOM),
        ({SCHEDULE_LABEL: "share"}, "driver", Rung.ADVISORY),
        ({SCHEDULE_LABEL: "topology"}, "driver", Rung.DRIVER),
        ({SCHEDULE_LABEL: "cgpu"}, "", Rung.MPS),
    ],
)
def test_labels_come_before_settings(labels: dict[str, str], setting: str, asked: Rung | None) -> None:
    assert asked_rung(labels, setting) is asked


# --- The MPS supervisor -----------------------------------------------------------------------------------------------


def test_a_node_that_wants_mps_needs_a_supervisor() -> None:
    wanting = (
        reporting("a", rungs=ADVISORY, labels={SET_LIMITS_LABEL: "mps"}),
        reporting("b", rungs=MPS),
        reporting("c", rungs=DRIVER, labels={SCHEDULE_LABEL: "cgpu"}),
        node("d", labels={SCHEDULE_LABEL: "cgpu"}),
        reporting("e", rungs=ADVISORY),
    )
    ready = [PartSeen(name=f"gpushare/mps-{name}", node=name, ready=True) for name in "abd"]
    assert of("MPS", nodes=wanting, supervisors=tuple(ready)) == ["ok: a supervisor is ready on 3 nodes"]
    ready[1] = replace(ready[1], ready=False)
    (said,) = of("MPS", nodes=wanting, supervisors=tuple(ready[:2]))
    assert said.startswith("error: no MPS supervisor is ready on b, d, whose limits are to be those of MPS -> kubectl ")
    assert of("MPS", nodes=wanting[4:]) == []


def on_node(**changes: Any) -> list[str]:
    return test_diagnosing_node.of("MPS", **changes)


def test_the_supervisor_of_a_node_is_examined_where_mps_is_wanted() -> None:
    daemons = {"GPU-a": MpsGpu(MpsStatus.READY), "GPU-b": MpsGpu(MpsStatus.STOPPED)}
    assert on_node(mps=daemons) == []
    assert on_node(limits="mps", api=Unknown("off"), mps=daemons) == ["ok: the supervisor runs, with 2 GPUs"]
    labels = test_diagnosing_node.api(labels={SET_LIMITS_LABEL: "mps"})
    (said,) = on_node(api=labels, mps=NOT_THERE)
    assert said.startswith(f"error: the limits are to be those of MPS, and {NOT_THERE} -> kubectl ")


def test_what_a_supervisor_that_is_gone_did_not_give_back_is_told_where_nobody_asks_for_mps() -> None:
    left = {"mps": "it does not run", "mps_left": ("GPU-b",), "mps_state_file": "/run/gpushare/mps/state.json"}
    (told,) = on_node(**left)
    assert told == (
        "warning: GPU 1 (GPU-b) was run by an MPS supervisor that is gone, and may still be in the compute mode "
        "EXCLUSIVE_PROCESS, in which a second program fails -> nvidia-smi -i GPU-b -c DEFAULT; then remove "
        "/run/gpushare/mps/state.json"
    )
    (said,) = on_node(limits="mps", **left)
    assert said.startswith("error: the limits are to be those of MPS, and it does not run -> ")


def test_a_file_of_extra_grants_that_cannot_be_used_is_why_the_agent_does_not_start() -> None:
    problem = "extra_grant: /x: No such file or directory; name a YAML or JSON file that is there"
    assert test_diagnosing_node.of("memory limits", limits="custom", extra_grant=True, extra_grant_problem=problem) == [
        f"error: the agent does not start: {problem} -> correct it, or empty extra_grant"
    ]


def test_what_only_acks_label_asks_for_is_a_warning() -> None:
    """It requires nothing, so that no container is refused."""
    labels = test_diagnosing_node.api(labels={"gpushare": "true", SCHEDULE_LABEL: "mps"})
    (said,) = test_diagnosing_node.of("memory limits", api=labels, mps=NOT_THERE)
    assert said.startswith("warning: ")
    assert "the limits are advisory there" in said


def test_a_daemon_in_trouble_is_named_with_its_gpu() -> None:
    daemons = {
        "GPU-b": MpsGpu(MpsStatus.FAULT),
        "GPU-x": MpsGpu(MpsStatus.FAILED, "no such program"),
        "GPU-a": MpsGpu(MpsStatus.READY),
    }
    advice = (
        "a daemon in FAULT serves again once its clients have ended, and one that failed is started again; see the "
        "supervisor's log"
    )
    assert on_node(limits="mps", mps=daemons) == [
        f"warning: the MPS daemon of GPU 1 (GPU-b) is in the state fault -> {advice}",
        f"warning: the MPS daemon of GPU ? (GPU-x) is in the state failed: no such program -> {advice}",
    ]


# --- Whether they hold ------------------------------------------------------------------------------------------------

DIFFERS = part("big", rung=Rung.DRIVER, held=Held.DIFFERS, found_mib=8192, why="its env names another")
MISSING = part("old", rung=Rung.DRIVER, held=Held.MISSING, why="install nvidia-container-toolkit 1.20.1")
UNVERIFIED = part("new", rung=Rung.DRIVER, held=Held.UNVERIFIED, why="it has just started")
HELD = part("good", rung=Rung.DRIVER, held=Held.HELD, found_mib=4096)
ADVICE = (
    "a container keeps the limit that it was started with: correct what the line names, and delete the pod; "
    "docs/guide.md has more (What holds on my node)"
)


def test_limits_that_do_not_hold_are_named_with_both_numbers() -> None:
    assert of("limits held", nodes=(reporting("a", DIFFERS, HELD, MISSING), node("b"))) == [
        (
            "warning: a: default/big/main is limited to 8,192 MiB of GPU 0 instead of 4,096 MiB: its env names "
            "another; default/old/main has no limit on GPU 0, where it was granted 4,096 MiB: install "
            f"nvidia-container-toolkit 1.20.1 -> {ADVICE}"
        )
    ]
    many = [replace(MISSING, pod=f"p{number}") for number in range(8)]
    (said,) = of("limits held", nodes=(reporting("a", *many),))
    assert f"1.20.1; and 3 more -> {ADVICE}" in said


def test_limits_that_hold_are_counted_and_those_that_nobody_read_are_named() -> None:
    assert of("limits held", nodes=(reporting("a", HELD), reporting("b", HELD))) == [
        "ok: the driver holds 2 containers to the granted memory"
    ]
    whole = part("whole", rung=Rung.PARTITION, held=Held.HELD)
    assert of("limits held", nodes=(reporting("a", HELD, whole),)) == [
        "ok: the driver holds 1 container to the granted memory",
        "ok: the hardware (MIG) holds 1 container to the granted memory",
    ]
    plain = replace(UNVERIFIED, pod="odd", why="")
    assert of("limits held", nodes=(reporting("a", HELD, UNVERIFIED, plain),)) == [
        "note: a: whether the limit holds is not known of default/odd/main",
        "note: a: whether the limit holds is not known of default/new/main: it has just started",
    ]
    assert of("limits held", nodes=(reporting("a", part("x", rung=Rung.ADVISORY, held=Held.UNVERIFIED)),)) == []


# --- Who uses what ----------------------------------------------------------------------------------------------------

HOG = part("hog", used=6120, over_since=SINCE)
SPY = part("spy", granted=0, used=700, over_since=SINCE)
DCGM = part("monitoring/dcgm", granted=0, used=3)
STRANGERS = "such a pod is privileged, or sets NVIDIA_VISIBLE_DEVICES itself; have it ask for its GPU memory"


def test_where_everybody_keeps_within_their_parts_nothing_is_wrong() -> None:
    nodes = (reporting("a", HELD), reporting("b"), node("older"))
    assert of("memory use", nodes=nodes) == ["ok: read on 2 nodes: every container keeps within its part"]
    assert of("memory use", nodes=(node("older"),)) == []


def test_over_use_and_trespassing_are_named() -> None:
    assert of("memory use", nodes=(reporting("a", HOG, SPY, DCGM),)) == [
        (
            "warning: a: default/spy/main uses 700 MiB of GPU 0, which it was not given -> "
            f"{STRANGERS}; deploy/policies.yaml refuses the variable"
        ),
        f"note: a: monitoring/dcgm/main uses 3 MiB of GPU 0, which it was not given -> {STRANGERS}",
        (
            f"warning: a: default/hog/main uses 6,120 MiB of GPU 0, was granted 4,096 MiB, since {SINCE} -> "
            "give its program less memory, or the pod more; with over_use: evict, or evict-when-short, the agent "
            "evicts such pods (docs/guide.md)"
        ),
    ]


def test_blind_nodes_are_told_apart_from_idle_ones() -> None:
    blind = "the agent sees no processes of other pods"
    nodes = (reporting("a", blind=blind), reporting("b", blind=blind), reporting("c"))
    first, second = of("memory use", nodes=nodes)
    assert first.startswith(
        f"note: which container uses how much GPU memory is not known on a, b: {blind} -> hostPID: true"
    )
    assert second == "ok: read on 1 node: every container keeps within its part"


def test_old_figures_are_a_warning_where_an_agent_is_ready() -> None:
    """Nothing that they show is told as if it were so now. A node without a ready agent is told of elsewhere."""
    old = reporting("a", HOG, DIFFERS, age_s=1200)
    (said,) = of("memory use", nodes=(old,), agents=(agent("a"),))
    assert said.startswith("warning: a: its agent read last 20 min ago who uses how much GPU memory -> see its log")
    assert of("memory use", nodes=(old,), agents=(agent("a", ready=False),)) == []
    well = reporting("b")
    assert of("memory use", nodes=(old, well)) == ["ok: read on 1 node: every container keeps within its part"]
    assert of("limits held", nodes=(old,)) == []


def test_a_report_that_cannot_be_read_is_told() -> None:
    broken = node("a", report_problems=("the annotation is of another version; upgrade the older",))
    assert of("memory use", nodes=(broken,)) == [
        "warning: a: the annotation is of another version -> upgrade the older"
    ]


def here(**changes: Any) -> list[str]:
    return test_diagnosing_node.of("memory use", api=test_diagnosing_node.api(**changes))


def test_a_node_tells_the_same_of_itself() -> None:
    assert here(report=NO_REPORT) == []
    assert test_diagnosing_node.of("memory use", api=Unknown("off")) == []
    assert here(report=report(HELD, HELD)) == ["ok: 2 containers on GPUs, each within its part"]
    assert here(report_problems=("it is no JSON; upgrade",)) == ["warning: it is no JSON -> upgrade"]
    assert [line.partition(":")[0] for line in here(report=report(HOG, MISSING))] == ["warning", "warning"]
    (blind,) = here(report=report(blind="no hostPID"))
    assert blind.startswith("note: which container uses how much GPU memory is not known here: no hostPID -> ")
    (old,) = here(report=report(HOG, age_s=1200))
    assert old.startswith("warning: node-a: its agent read last 20 min ago")
    assert diagnosing_node.CHECKS["memory use"] is not None
