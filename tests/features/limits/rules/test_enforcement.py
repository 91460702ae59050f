"""Which means keeps containers within their parts of each GPU, and why."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from gpu_device_plugin.features.limits.rules.enforcement import (
    Lacks,
    WantedEnforcement,
    enforcements,
    lacks,
    wanted_enforcement,
)
from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import NOT_THERE, lack
from gpu_device_plugin.model.gpus import Gpu
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, summary
from tests.mig import instance

GPU = Gpu("GPU-a", 0, "NVIDIA H200", 143_771, memory_limits=True)
OLD = replace(GPU, uuid="GPU-b", index=1, memory_limits=False)
MIG = replace(GPU, uuid="GPU-c", index=2, mig=True)
INSTANCE = replace(instance(0, 0), memory_limits=True)
NONE = "the driver has no memory limits, which come with r615"
IN_MIG = "the GPU is in MIG mode"
V1 = "the node's cgroup version is 1, and must be 2 for the driver's limits"
UNKNOWN = "the node's cgroup version is unknown, and must be 2 for the driver's limits"
NO_FILE = "the agent read no file of the setting extra_grant when it started: name one, and restart the agent"
FAILED = "the MPS daemon of the GPU is in the state failed (it has ended)"
FAULT = "the MPS daemon of the GPU is in the state fault"
DRIVER, MPS, CUSTOM, ADVISORY = Enforcement.DRIVER, Enforcement.MPS, Enforcement.CUSTOM, Enforcement.ADVISORY

TWO = lacks(2)


def beside(daemons: Mapping[str, MpsGpu] | str, cgroup: int | None = None) -> Lacks:
    return {**lacks(cgroup), MPS: partial(lack, daemons)}


ACKS_COMPUTE = {"compute": True, "required": False}


def daemon(status: MpsStatus, why: str = "", uuid: str = "GPU-b") -> Lacks:
    return beside({uuid: MpsGpu(status, why)}, 2)


@pytest.mark.parametrize(
    ("wants", "gpu", "means", "enforcement", "lack"),
    [
        # auto: the driver's limits where the driver answers for them, the node has cgroup v2, and there is no MIG
        ("auto", GPU, TWO, DRIVER, ""),
        ("auto", GPU, lacks(1), ADVISORY, V1),
        ("auto", GPU, lacks(), ADVISORY, UNKNOWN),
        ("auto", OLD, TWO, ADVISORY, NONE),
        ("auto", MIG, TWO, ADVISORY, IN_MIG),
        (
            "auto",
            INSTANCE,
            TWO,
            ADVISORY,
            "the driver's limits are not for MIG instances; ",
        ),
        # auto never joins failure domains, and trusts no library
        ("auto", OLD, daemon(MpsStatus.READY), ADVISORY, NONE),
        ("auto", OLD, lacks(2, extra_grant=True), ADVISORY, NONE),
        ("driver", GPU, TWO, DRIVER, ""),
        ("driver", GPU, lacks(1), None, V1),
        ("driver", OLD, TWO, None, NONE),
        ("mps", OLD, daemon(MpsStatus.READY), MPS, ""),
        ("mps", GPU, daemon(MpsStatus.READY, uuid="GPU-a"), MPS, ""),
        ("mps", OLD, daemon(MpsStatus.STOPPED), MPS, ""),
        ("mps", OLD, daemon(MpsStatus.STARTING), MPS, ""),
        ("mps", OLD, daemon(MpsStatus.STOPPING), MPS, ""),
        ("mps", OLD, beside({}), MPS, ""),
        ("mps", OLD, daemon(MpsStatus.FAILED, "it has ended"), None, FAILED),
        ("mps", OLD, daemon(MpsStatus.FAULT), None, FAULT),
        ("mps", OLD, beside(NOT_THERE, 2), None, NOT_THERE),
        ("mps", OLD, TWO, None, "this agent has no mps"),
        ("mps", OLD, beside("it has not written for 60 s"), None, "it has not written for 60 s"),
        ("mps", MIG, beside({}), None, IN_MIG),
        ("mps", INSTANCE, beside({}), None, "MPS is not run on MIG instances"),
        ("custom", INSTANCE, lacks(extra_grant=True), CUSTOM, ""),
        ("custom", OLD, lacks(extra_grant=True), CUSTOM, ""),
        ("custom", GPU, TWO, None, NO_FILE),
        ("advisory", GPU, TWO, ADVISORY, ""),
        ("cgpu", GPU, daemon(MpsStatus.READY, uuid="GPU-a"), DRIVER, ""),
        ("cgpu", OLD, daemon(MpsStatus.READY), MPS, ""),
        ("cgpu", OLD, beside(NOT_THERE, 2), None, f"{NONE}, and {NOT_THERE}"),
    ],
)
@pytest.mark.parametrize("refuse", [False, True])
def test_the_enforcement_of_a_gpu(
    wants: str, gpu: Gpu, means: Lacks, enforcement: Enforcement | None, lack: str, *, refuse: bool
) -> None:
    by_label = wants == "cgpu"
    want = wanted_enforcement("auto" if by_label else wants, {"ack.node.gpu.schedule": "cgpu"} if by_label else {})
    made, missing = enforcements({3: gpu}, means, want, refuse=refuse)
    (found,) = made.values()
    assert found.enforcement is (enforcement or ADVISORY)
    assert lack in found.why
    assert bool(found.refusal) == (enforcement is None and refuse and not by_label), "ACK's label requires nothing"
    assert bool(missing) == (enforcement is None)


@pytest.mark.parametrize(
    ("setting", "own", "acks", "enforcements", "expected"),
    [
        ("auto", "", "", (), ("the setting limits=auto", {})),
        (
            "mps",
            "",
            "cgpu",
            (DRIVER, Enforcement.DMEM, MPS),
            ("the node label ack.node.gpu.schedule=cgpu", {"required": False}),
        ),
        ("auto", "", "core_mem", (MPS,), ("the node label ack.node.gpu.schedule=core_mem", ACKS_COMPUTE)),
        ("driver", "", "mps", (MPS,), ("the node label ack.node.gpu.schedule=mps", {"required": False})),
        ("driver", "", "share", (ADVISORY,), ("the node label ack.node.gpu.schedule=share", {"required": False})),
        ("driver", "", "topology", (DRIVER,), ("the setting limits=driver", {})),
        ("driver", "custom", "core_mem", (CUSTOM,), ("the node label gpu-device-plugin/set-limits=custom", {})),
        ("driver", "auto", "", (), ("the node label gpu-device-plugin/set-limits=auto", {})),
        ("mps", "MPS", "share", (ADVISORY,), ("the node label ack.node.gpu.schedule=share", {"required": False})),
    ],
)
def test_labels_of_the_node_override_the_setting(
    setting: str, own: str, acks: str, enforcements: tuple[Enforcement, ...], expected: tuple[str, Mapping[str, bool]]
) -> None:
    source, more = expected
    labels = {"ack.node.gpu.schedule": acks, "gpu-device-plugin/set-limits": own}
    assert wanted_enforcement(setting, labels) == WantedEnforcement(enforcements, source, **more)


def test_a_reason_names_who_asked_and_what_is_missing() -> None:
    made, missing = enforcements({0: GPU, 1: OLD, 3: OLD}, TWO, wanted_enforcement("driver", {}), refuse=True)
    why = f"the setting limits=driver asks for driver: {NONE}"
    refusal = f"enforced memory limits are required here and not available: {why}"
    assert made == {
        0: GpuEnforcement(
            DRIVER,
            "the setting limits=driver asks for it, and the driver limits the memory of cgroups where "
            "nvidia-container-toolkit from 1.20.1 on asks it to",
        ),
        1: GpuEnforcement(ADVISORY, why, refusal),
        3: GpuEnforcement(ADVISORY, why, refusal),
    }
    assert missing == f"GPU 1, 3: {why}; containers are refused shares (limits_fallback: refuse)"
    advisory, missing = enforcements({0: GPU, 1: OLD, 3: OLD}, TWO, wanted_enforcement("driver", {}), refuse=False)
    assert advisory[1] == GpuEnforcement(ADVISORY, why)
    assert missing == f"GPU 1, 3: {why}; the limits are advisory there"


def test_a_node_tells_its_enforcements_in_a_sentence() -> None:
    assert summary({}) == ""
    assert (
        summary(enforcements({0: OLD, 1: OLD}, TWO, wanted_enforcement("auto", {}), refuse=True)[0])
        == f"advisory: {NONE}"
    )
    mixed = enforcements({0: GPU, 1: OLD, 3: OLD}, TWO, wanted_enforcement("driver", {}), refuse=True)[0]
    assert summary(mixed) == (
        "driver on GPU 0: the setting limits=driver asks for it, and the driver limits the memory of cgroups where "
        "nvidia-container-toolkit from 1.20.1 on asks it to; refused on GPU 1, 3: the setting limits=driver asks for "
        f"driver: {NONE}"
    )
