"""What the doctor finds on nodes whose GPUs the kernel drives by itself: AMD's, and Intel's of xe."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.programs.doctor.rules.symptoms import KernelSeen
from gpu_device_plugin.report.rules.finding import examine
from tests.findings import told
from tests.programs.doctor.rules.test_node_checks import GPUS, HIDDEN, WELL, api, changed
from tests.reporting import NODE_CHECKS as CHECKS

PATHS = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card0")
AMD = Gpu(
    "GPU-1A2B3C4D5E6F7081",
    0,
    "AMD Instinct MI300X",
    196_592,
    device_paths=PATHS,
    pci_bus_id="0000:c1:00.0",
    driver="amdgpu",
)
KERNEL = KernelSeen("6.16.3-arch1-1", alone=True)
ALONE = replace(
    WELL,
    inventory=Inventory((AMD,), driver_version="6.16.3-arch1-1", cgroup=2),
    device_nodes=dict.fromkeys(PATHS, ""),
    runtimes=(replace(WELL.runtimes[0], handlers=()),),  # type: ignore[index]
    cdi_devices=frozenset(),
    toolkit="",
    obeys_images=HIDDEN,
    kernel=KERNEL,
    api=api(gpus=NodeGpus((ListedGpu(0, 191, AMD.uuid),), share_mib=1024)),
)


def of(check: str, show: str = "", **changes: Any) -> list[str]:
    """Return the findings of one check, with the parameters that `show` names."""
    return told(CHECKS[check](changed(ALONE, changes)), show)


def test_nothing_of_nvidias_is_missed_on_a_node_without_its_gpus() -> None:
    findings = [each for each in examine(CHECKS, ALONE) if each.check != "memory limits"]
    assert not [
        f"{each.check}: {each} {each.advice}" for each in findings if "nvidia" in f"{each} {each.advice}".lower()
    ]
    assert {"container runtime", "CDI", "images"}.isdisjoint(each.check for each in findings)
    assert str(findings[0]) == "driver 6.16.3-arch1-1, 1 x AMD Instinct MI300X"


@pytest.mark.parametrize(
    ("release", "limits", "said"),
    [
        ("6.16.3-arch1-1", False, "Linux 6.16.3-arch1-1"),
        (
            "6.16.3-arch1-1",
            True,
            "Linux 6.16.3-arch1-1; before 7.3 it ignores a memory limit that is below the use",
        ),
        ("7.3.0", True, "Linux 7.3.0"),
    ],
)
def test_a_kernel_that_lowers_limits_late_is_told(release: str, limits: bool, said: str) -> None:  # noqa: FBT001
    inventory = Inventory((replace(AMD, memory_limits=limits),), cgroup=2)
    (found,) = CHECKS["kernel"](replace(ALONE, inventory=inventory, kernel=replace(KERNEL, release=release)))
    assert str(found) == said


def test_both_vendors_in_one_node_are_examined() -> None:
    both = replace(WELL.inventory, gpus=(*GPUS, AMD))
    assert of("driver", "version", inventory=both) == ["ok driver version=615.71.09"]
    assert of("container runtime", inventory=both) == ["error no-nvidia-runtime"]


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        ("kernel", {"gpus": "fake:1xT4"}, []),
        ("kernel", {"inventory": WELL.inventory}, []),
        ("kernel", {}, ["ok kernel"]),
        (
            "kernel",
            {"kernel": replace(KERNEL, topology_hidden=True, traces=False)},
            ["ok kernel", "warning topology-hidden", "note use-hidden"],
        ),
        (
            "kernel",
            {"node_groups": {"/dev/kfd": 993, "/dev/dri/renderD128": 993, "/dev/dri/card0": 44}},
            ["ok kernel", "note device-group paths=3 groups=44 and 993"],
        ),
        (
            "device nodes",
            {"device_nodes": {"/dev/kfd": "is missing", "/dev/dri/renderD128": ""}},
            ["error no-device-node paths=/dev/kfd", "ok device-nodes paths=/dev/dri/renderD128"],
        ),
        (
            "device nodes",
            {"device_nodes": {"/dev/kfd": "is missing"}, "in_container": True},
            ["unknown nodes-hidden paths=/dev/kfd"],
        ),
        ("driver", {"inventory": Inventory()}, ["error no-gpu"]),
    ],
)
def test_what_the_kernel_has(check: str, changes: dict[str, Any], expected: list[str]) -> None:
    assert of(check, "paths groups", **changes) == expected


def test_the_group_is_written_as_a_pod_has_it() -> None:
    (_, found) = CHECKS["kernel"](replace(ALONE, node_groups={"/dev/kfd": 993}))
    assert "spec.securityContext.supplementalGroups: [993]" in found.advice


def test_a_gpu_that_the_nodes_list_lacks_is_not_counted_by_another_vendors_tool() -> None:
    listed = api(gpus=NodeGpus((ListedGpu(0, 191, "GPU-x"),), share_mib=1024))
    assert of("GPUs", "gpu", unhealthy={AMD.uuid: "lost"}, api=listed) == [
        f"error gpu-unhealthy gpu=the GPU {AMD.uuid}"
    ]
