"""What is wrong with the condition of GPUs: now on their node, and in the last hour in a cluster."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.history.contract import GpuHistory, NodeHistory
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle
from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms
from gpu_device_plugin.report.rules.finding import Finding, Unknown, sentence
from tests.findings import told
from tests.names import COUNT, MEM
from tests.programs.doctor.rules.test_node_checks import WELL
from tests.reporting import CLUSTER_CHECKS, NODE_CHECKS

condition_here, condition_seen = NODE_CHECKS["GPU condition"], CLUSTER_CHECKS["GPU condition"]
GPU = GpuTelemetry(
    "GPU-a",
    temperature_c=64,
    slowdown_c=87,
    throttle=Throttle.POWER_CAP,  # a busy GPU is at its power limit
    sm_percent=95,
    pcie_generation=4,
    pcie_generation_max=4,
    pcie_width=16,
    pcie_width_max=16,
    nvlink_errors=0,
    ecc_corrected=2,
    ecc_uncorrected=0,
    repair_pending=False,
    repair_failed=False,
    persistence=True,
)
COOL = "check its cooling: fans, dust, the air or water that reaches it"
RESET = "drain the node and reset the GPU (docs/operations.md, A GPU is unhealthy)"


def words(findings: Iterable[Finding]) -> list[str]:
    """Return each finding and its advice."""
    return [f"{finding}: {finding.advice}" for finding in findings]


SHOWN = "temperature lanes most now errors limit gpus"


def here(*telemetry: GpuTelemetry, show: str = SHOWN) -> list[str]:
    return told(condition_here(replace(WELL, telemetry=telemetry)), show)


def test_gpus_that_are_well_are_counted() -> None:
    assert here(GPU, replace(GPU, uuid="GPU-b")) == ["ok condition gpus=2"]
    assert here() == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"throttle": Throttle.HEAT}, "warning slowed-by-heat temperature=64"),
        ({"throttle": Throttle.HARDWARE_HEAT | Throttle.HARDWARE}, "warning slowed-by-heat temperature=64"),
        ({"throttle": Throttle.HEAT | Throttle.POWER_BRAKE}, "warning slowed-by-heat temperature=64"),
        ({"throttle": Throttle.POWER_BRAKE | Throttle.HARDWARE}, "warning slowed-by-power-brake temperature=64"),
        ({"throttle": Throttle.HARDWARE}, "note slowed-by-hardware temperature=64"),  # perhaps a change of clocks
        ({"temperature_c": 87}, "warning too-hot temperature=87 limit=87"),
        ({"pcie_width": 8}, "warning pcie-narrow lanes=8 most=16"),
        ({"pcie_generation": 1}, "warning pcie-slow most=4 now=1"),
        ({"pcie_generation": 1, "sm_percent": 20}, "warning pcie-slow most=4 now=1"),
        ({"ecc_uncorrected": 1}, "warning ecc-uncorrected errors=1"),
        ({"repair_pending": True}, "warning memory-repair-pending"),
        ({"repair_pending": True, "repair_failed": True}, "warning memory-not-repaired"),
        ({"nvlink_errors": 3}, "note nvlink-errors errors=3"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_told(changes: dict[str, Any], expected: str) -> None:
    assert here(replace(GPU, **changes)) == [expected]


@pytest.mark.parametrize(
    "changes",
    [
        {"throttle": Throttle.SYNC | Throttle.POWER_CAP},
        {"temperature_c": 86},
        {"temperature_c": 99, "slowdown_c": None},
        {"temperature_c": None},
        {"pcie_width": 8, "pcie_width_max": 8},  # all that the slot has
        {"pcie_width": 8, "pcie_width_max": None},
        {"pcie_width": None},
        {"pcie_generation": 1, "sm_percent": 19},  # it saves power
        {"pcie_generation": 1, "sm_percent": None},
        {"ecc_corrected": 40},
    ],
)
def test_what_is_usual_is_no_fault(changes: dict[str, Any]) -> None:
    assert here(replace(GPU, **changes)) == ["ok condition gpus=1"]


def test_a_gpu_that_tells_nothing_has_no_fault() -> None:
    assert here(GpuTelemetry("GPU-a")) == ["ok condition gpus=1"]
    assert here(GpuTelemetry("GPU-a", throttle=Throttle.HEAT)) == ["warning slowed-by-heat temperature=0"]


def test_persistence_mode_is_a_matter_of_the_node() -> None:
    off = replace(GPU, persistence=False)
    found = here(off, replace(off, uuid="GPU-b"), replace(GPU, uuid="GPU-c"))
    assert found == ["note persistence-off gpus=GPU 0 (GPU-a), GPU 1 (GPU-b)", "ok condition gpus=3"]


def test_a_gpu_that_was_not_listed_is_named_by_its_uuid() -> None:
    assert here(replace(GPU, uuid="GPU-x", pcie_width=4), show="gpu") == ["warning pcie-narrow gpu=GPU-x"]


def test_the_sentences_of_a_node() -> None:
    ill = replace(GPU, throttle=Throttle.HEAT, pcie_width=8, nvlink_errors=1, persistence=False)
    cold = replace(GPU, uuid="GPU-b", temperature_c=None, throttle=Throttle.HARDWARE)
    worn = replace(GPU, uuid="GPU-c", temperature_c=90, pcie_generation=1, ecc_uncorrected=2, repair_failed=True)
    waiting = replace(GPU, uuid="GPU-d", throttle=Throttle.POWER_BRAKE, repair_pending=True)
    assert words(condition_here(replace(WELL, telemetry=(ill, cold, worn, waiting)))) == [
        f"GPU 0 (GPU-a) is slowed by heat (64 °C): {COOL}",
        (
            "GPU 0 (GPU-a) has 8 of the 16 PCIe lanes that it and its slot support: reseat it and its riser, and "
            "check the slot's firmware settings; copies to it are slower"
        ),
        (
            "GPU 0 (GPU-a) has counted 1 error on a link to another GPU since the driver was loaded: a few are "
            "harmless; if they grow (gpushare_gpu_nvlink_errors_total), see nvidia-smi nvlink -e (NVIDIA)"
        ),
        (
            "GPU 1 (GPU-b) is slowed by its own protection: see whether its power cables fit; for NVIDIA "
            "GPUs nvidia-smi -q -d PERFORMANCE,POWER says more"
        ),
        f"GPU-c is at 90 °C, and its hardware slows it at 87 °C: {COOL}",
        (
            "GPU-c is busy, and its PCIe link is of generation 1, where 4 is possible: check the slot's firmware "
            "settings, and lspci -vv for link errors"
        ),
        (
            f"GPU-c has had 2 uncorrected memory errors since the driver was loaded: {RESET}; if there are more "
            "afterwards, have it replaced"
        ),
        "GPU-c has no spare rows for damaged memory: have it replaced",
        (
            "GPU-d is slowed by the machine's power supply (64 °C): check the machine's power supplies (its "
            "management controller reports their state)"
        ),
        f"GPU-d needs a reset to replace damaged memory: {RESET}",
        (
            "persistence mode is off on 1 GPU: while neither agent nor pod uses them, the driver unloads: run "
            "nvidia-persistenced on the node (or nvidia-smi -pm 1)"
        ),
    ]
    assert words(condition_here(replace(WELL, telemetry=(GPU,)))) == ["1 GPU, none of them slowed or damaged: "]


# --- A cluster --------------------------------------------------------------------------------------------------------

HEAT, SYNC = int(Throttle.HEAT), int(Throttle.SYNC)
HOT = (0,) * 200 + (HEAT,) * 40


def history(*gpus: GpuHistory, step_s: float = 15.0) -> NodeHistory:
    return NodeHistory("2026-11-28T12:00:00Z", step_s, gpus)


def gpu(**more: Any) -> GpuHistory:
    return GpuHistory(0, "GPU-a", 15360, **more)


def seen(histories: dict[str, NodeHistory | str] | Unknown, show: str = "gpu nodes why errors findings") -> list[str]:
    return told(condition_seen(ClusterSymptoms(memory_resource=MEM, count_resource=COUNT, histories=histories)), show)


@pytest.mark.parametrize(
    ("throttle", "code"),
    [
        (HOT, "slowed-by-heat"),
        ((None,) * 200 + (HEAT, SYNC, HEAT, HEAT, HEAT) * 8, "slowed-by-heat"),  # the reasons come and go
        ((*(int(Throttle.POWER_BRAKE),) * 40,), "slowed-by-power-brake"),
        ((*(int(Throttle.HARDWARE),) * 40,), "slowed-by-hardware"),
        ((0,) * 9 + (HEAT,) * 31, None),
        ((HEAT,) * 31, None),  # read for less than ten minutes
        ((HEAT,) * 200 + (0,) * 40, None),  # long over
        ((SYNC,) * 40, None),
        ((None,) * 40, None),
        ((), None),
    ],
)
def test_a_gpu_that_was_slowed_for_most_of_ten_minutes_is_told(
    throttle: tuple[int | None, ...], code: str | None
) -> None:
    expected = "ok condition nodes=1" if code is None else f"warning {code} gpu=GPU 0 of node-a"
    assert seen({"node-a": history(gpu(throttle=throttle))}) == [expected]


@pytest.mark.parametrize(
    ("errors", "grown"),
    [
        ((3, 3, 5), 2),
        ((3, 4), 1),
        ((None, 1, None, 4, None), 3),
        ((3, 3), 0),
        ((9, 0), 0),
        ((7,), 0),
        ((None,), 0),
        ((), 0),
    ],
)
def test_memory_errors_that_grew_within_the_hour_are_told(errors: tuple[int | None, ...], grown: int) -> None:
    expected = f"warning ecc-growing gpu=GPU 0 of node-a errors={grown}" if grown else "ok condition nodes=1"
    assert seen({"node-a": history(gpu(ecc_errors=errors))}) == [expected]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ((3, 3, 5), "note nvlink-growing gpu=GPU 0 of node-a errors=2"),
        ((1, 6000), "note nvlink-growing gpu=GPU 0 of node-a errors=5999"),
        ((0, 6000), "warning nvlink-growing gpu=GPU 0 of node-a errors=6000"),
        ((3, 3), "ok condition nodes=1"),  # they are old
        ((None,), "ok condition nodes=1"),
        ((), "note nvlink-errors gpu=GPU 0 of node-a errors=3"),  # an older agent
    ],
)
def test_errors_of_nvlinks_are_told_by_their_growth_within_the_hour(errors: tuple[int | None, ...], told: str) -> None:
    now = replace(GPU, nvlink_errors=3)
    assert seen({"node-a": history(gpu(nvlink_errors=errors, condition=now))}) == [told]


def test_faults_of_the_newest_reading_are_told_and_what_is_momentary_is_not() -> None:
    telemetry = replace(GPU, pcie_width=8, throttle=Throttle.HEAT, temperature_c=99, persistence=False)
    assert seen({"node-a": history(gpu(condition=telemetry))}) == ["warning pcie-narrow gpu=GPU 0 of node-a"]


def test_all_that_a_gpu_shows_is_told_and_up_to_five_findings_are_told_in_full() -> None:
    ill = gpu(throttle=HOT, ecc_errors=(1, 2), condition=replace(GPU, repair_pending=True))
    linked = history(gpu(condition=replace(GPU, nvlink_errors=1, pcie_width=8)))
    assert seen({"node-a": history(ill), "node-b": linked}) == [
        "warning slowed-by-heat gpu=GPU 0 of node-a",
        "warning ecc-growing gpu=GPU 0 of node-a errors=1",
        "warning memory-repair-pending gpu=GPU 0 of node-a",
        "warning pcie-narrow gpu=GPU 0 of node-b",
        "note nvlink-errors gpu=GPU 0 of node-b errors=1",
    ]
    assert seen({"node-a": history(ill), "node-b": history(ill)})[-1] == "note more-conditions findings=1"


def test_the_sentences_of_a_cluster() -> None:
    def said(histories: dict[str, NodeHistory | str]) -> list[str]:
        return words(condition_seen(ClusterSymptoms(memory_resource=MEM, count_resource=COUNT, histories=histories)))

    ill = history(gpu(throttle=HOT, ecc_errors=(1, 2), condition=replace(GPU, repair_pending=True)))
    assert said({"a": ill, "b": ill, "c": "NotFound"}) == [
        f"GPU 0 of a was slowed by heat for most of the last 10 minutes: {COOL}",
        "GPU 0 of a had 1 memory error within the last hour: if this goes on, have the GPU replaced",
        f"GPU 0 of a needs a reset to replace damaged memory: {RESET}",
        f"GPU 0 of b was slowed by heat for most of the last 10 minutes: {COOL}",
        "GPU 0 of b had 1 memory error within the last hour: if this goes on, have the GPU replaced",
        "1 more finding about the condition of GPUs: begin with the first",
        "the history of the GPUs of 1 node cannot be read: NotFound: ",
    ]
    assert said({"a": history(gpu())}) == ["the GPUs of 1 node, none of them slowed or damaged: "]


def test_of_many_findings_the_worst_are_told_and_the_others_counted() -> None:
    linked = history(gpu(condition=replace(GPU, nvlink_errors=1)))
    nodes: dict[str, NodeHistory | str] = {f"node-{n}": linked for n in range(7)}
    nodes["node-z"] = history(gpu(throttle=HOT))
    assert seen(nodes) == [
        "warning slowed-by-heat gpu=GPU 0 of node-z",
        *(f"note nvlink-errors gpu=GPU 0 of node-{n} errors=1" for n in range(4)),
        "note more-conditions findings=3",
    ]


def test_nodes_whose_history_cannot_be_read_are_told_beside_the_others() -> None:
    nodes: dict[str, NodeHistory | str] = {"node-a": "NotFound", "node-b": history(gpu()), "node-c": "an older agent"}
    assert seen(nodes) == ["unknown no-history nodes=node-a, node-c why=NotFound", "ok condition nodes=1"]
    assert seen({"node-a": "NotFound"}) == ["unknown no-history nodes=node-a why=NotFound"]
    assert seen({}) == []
    assert seen(Unknown("right-missing", "may not")) == ["unknown right-missing"]


@given(
    st.floats(-1, 1e6, allow_nan=False),
    st.lists(st.none() | st.integers(0, 255), max_size=80),
    st.lists(st.none() | st.integers(0, 9), max_size=9),
)
def test_whatever_an_agent_remembers_can_be_put_in_words(
    step_s: float, throttle: list[int | None], errors: list[int | None]
) -> None:
    history_of = history(
        gpu(throttle=tuple(throttle), ecc_errors=tuple(errors), nvlink_errors=tuple(errors)), step_s=step_s
    )
    cluster = ClusterSymptoms(memory_resource=MEM, count_resource=COUNT, histories={"node-a": history_of})
    findings = [*condition_seen(cluster)]
    assert findings
    assert all("{" not in sentence(finding.text, finding.parameters) + finding.advice for finding in findings)
