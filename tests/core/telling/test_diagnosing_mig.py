"""What the doctor says on a node of GPUs in MIG mode and their instances."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.core.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.core.model.gpus import Gpu, Inventory
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.telling.diagnosing import Unknown
from gpu_device_plugin.core.telling.diagnosing_node import CHECKS
from gpu_device_plugin.core.telling.node_symptoms import AgentSeen, ApiSeen, NodeSymptoms
from tests.mig_gpus import LARGE, MIDDLE, SMALL, in_mig_mode
from tests.names import COUNT, MEM
from tests.resources import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping

T4 = Gpu("GPU-t", 1, "Tesla T4", 15_360, minor=1, memory_limits=True)
PARTED = in_mig_mode(0, SMALL, SMALL, MIDDLE)
BOTH = Inventory((*PARTED, T4), driver_version="615.71.09", cgroup=2)
ONLY = replace(BOTH, gpus=PARTED)
THREE = "0:0 1g.10gb, 0:1 1g.10gb, 0:2 2g.20gb"
SMALL_ONES = "nvidia.com/mig-1g.10gb"


def node(inventory: Inventory, labels: Mapping[str, str] | None = None, **changes: Any) -> NodeSymptoms:
    known: dict[str, Any] = {
        "resources": RESOURCES,
        "memory_resource": MEM,
        "count_resource": COUNT,
        "toolkit": "1.20.1",
        "node_name": "a",
        "api": ApiSeen("https://10.96.0.1:443", labels=labels or {}),
    }
    return NodeSymptoms(share_mib=1024, inventory=inventory, **{**known, **changes})


def of(check: str, symptoms: NodeSymptoms) -> list[str]:
    """Return what one check says, as `severity: found -> advice`."""
    return [
        f"{each.severity}: {each.found}{f' -> {each.advice}' if each.advice else ''}"
        for each in CHECKS[check](symptoms)
    ]


def test_a_node_without_mig_is_told_nothing_of_it() -> None:
    assert of("MIG", node(replace(BOTH, gpus=(T4,)))) == []


def test_gpus_are_counted_apart_from_their_instances() -> None:
    assert of("driver", node(BOTH)) == ["ok: driver 615.71.09, 1 x NVIDIA H100 80GB HBM3, 1 x Tesla T4"]
    assert of("GPUs", node(BOTH)) == ["ok: 2 healthy, and 3 MIG instances"]


def test_an_instance_that_is_out_of_service_is_named_by_its_number() -> None:
    (told,) = of("GPUs", node(BOTH, unhealthy={"MIG-m1": "XID 94 (a contained memory error)"}))
    assert told.startswith("error: MIG instance 0:1 (MIG-m1) is out of service: XID 94 (a contained memory error) -> ")


def test_instances_that_no_pod_gets_are_noted_with_the_setting_that_would_give_them() -> None:
    assert of("MIG", node(BOTH)) == [
        (
            f"note: GPU 0 (GPU-m) is in MIG mode: {THREE}; no pod gets them, as mig is off -> the setting mig, or "
            "kubectl label node a gpu-device-plugin/mig=..., with whole (one by one, a resource for each profile) or "
            "share (their memory in shares)"
        )
    ]
    assert "kubectl label node NODE gpu-device-plugin/mig=" in of("MIG", node(BOTH, node_name=""))[0]


@pytest.mark.parametrize(
    ("mig", "labels", "told"),
    [
        ("whole", {}, "pods get them one by one, each profile by its own resource (the setting mig=whole)"),
        ("share", {}, "pods get their memory in shares (the setting mig=share)"),
        (
            "off",
            {"gpu-device-plugin/mig": "share"},
            "pods get their memory in shares (the node label gpu-device-plugin/mig=share)",
        ),
    ],
)
def test_the_way_in_which_pods_get_instances_is_told_with_what_sets_it(
    mig: str, labels: Mapping[str, str], told: str
) -> None:
    assert of("MIG", node(BOTH, labels, mig=mig)) == [f"ok: GPU 0 (GPU-m) is in MIG mode: {THREE}; {told}"]


def test_without_the_api_the_setting_counts() -> None:
    assert of("MIG", node(BOTH, mig="share", api=Unknown("off")))[0].endswith("in shares (the setting mig=share)")


def test_a_label_that_is_no_mode_is_told_and_ignored() -> None:
    told = of("MIG", node(BOTH, {"gpu-device-plugin/mig": "mixed"}, mig="whole"))
    assert told[0] == (
        "warning: the node label gpu-device-plugin/mig=mixed is ignored: its value is none of off, whole, share -> "
        "correct the label, or remove it"
    )
    assert told[1].endswith("(the setting mig=whole)")


def test_a_gpu_without_instances_is_of_no_use_to_anybody() -> None:
    (told,) = of("MIG", node(replace(BOTH, gpus=in_mig_mode(3)), mig="whole"))
    assert told == (
        "warning: GPU 3 (GPU-m) is in MIG mode, and no instance of it can be seen: no pod can use it -> create "
        "instances (nvidia-mig-parted, or nvidia-smi mig -cgi PROFILE -C), or end MIG mode (nvidia-smi -i 3 -mig 0); "
        "if nvidia-smi -L on the node lists some, deploy/patches/mig-agent.yaml (chart: agent.migMonitor) gives the "
        "agent NVIDIA_MIG_MONITOR_DEVICES=all and the capability SYS_ADMIN, without which the driver hides instances "
        "from a container"
    )


def test_instances_that_are_there_and_hidden_from_us_are_told_with_the_rights_that_show_them() -> None:
    (told,) = of("MIG", node(replace(BOTH, gpus=in_mig_mode(0)), mig_present={"GPU-m": 7}))
    assert told.startswith(
        "warning: GPU 0 (GPU-m) is in MIG mode, and none of its 7 GPU instances can be seen from here -> "
        "deploy/patches/mig-agent.yaml (chart: agent.migMonitor) gives the agent NVIDIA_MIG_MONITOR_DEVICES=all"
    )
    assert told.endswith("; and see whether they have compute instances: nvidia-smi -L on the node")


def test_compute_instances_that_share_memory_are_given_to_nobody() -> None:
    split = in_mig_mode(0, ("1c.2g.20gb", 19_968), alone=False)
    assert of("MIG", node(replace(BOTH, gpus=split), mig="whole")) == [
        (
            "note: MIG instance 0:0 (MIG-m0) is a compute instance, 1c.2g.20gb, which shares the memory of GPU "
            "instance 7 with others, and no pod gets it -> make one compute instance of each GPU instance (nvidia-smi "
            "mig -cgi PROFILE -C does)"
        )
    ]


# --- What is shared ---------------------------------------------------------------------------------------------------


def test_shares_are_counted_of_gpus_and_of_instances() -> None:
    """15 shares of the T4; 9, 9 and 19 of the instances."""
    assert of("shares", node(BOTH, mig="share")) == [
        "ok: 1 GPU and 3 MIG instances, 52 shares of 1 GiB (4000 are the most)"
    ]
    assert of("shares", node(BOTH, mig="whole")) == [
        "ok: 1 GPU, 15 shares of 1 GiB (4000 are the most)",
        "ok: 3 MIG instances one by one",
    ]
    assert of("shares", node(ONLY, mig="whole")) == ["ok: 3 MIG instances one by one"]
    assert of("shares", node(BOTH)) == ["ok: 1 GPU, 15 shares of 1 GiB (4000 are the most)"]


def test_an_instance_or_a_gpu_in_mig_mode_that_is_excluded_is_noted() -> None:
    told = of("shares", node(BOTH, mig="share", exclude_gpus=("0:1",)))
    assert told[0] == "note: MIG instance 0:1 (MIG-m1) is not shared: excluded by the configuration"
    told = of("shares", node(BOTH, mig="share", exclude_gpus=("GPU-m",)))
    assert told[0] == "note: GPU 0 (GPU-m) is not shared: excluded by the configuration"


def test_where_no_instance_is_given_and_there_is_nothing_else_no_gpu_is_shared() -> None:
    (told,) = of("shares", node(ONLY))
    assert told.startswith("error: no GPU is shared: in MIG mode, with 3 instances that --mig=whole or --mig=share")


# --- What containers need ---------------------------------------------------------------------------------------------


def test_cdi_names_are_wanted_of_instances_and_not_of_their_gpu() -> None:
    names = frozenset({"nvidia.com/gpu=GPU-t", *(f"nvidia.com/gpu=MIG-m{n}" for n in range(3))})
    assert of("CDI", node(BOTH, mig="whole", devices=("cdi",), cdi_devices=names, runtimes=Unknown("hidden"))) == [
        "ok: CDI files name all 4 GPUs and MIG instances by UUID"
    ]
    seen = node(ONLY, mig="whole", devices=("cdi",), cdi_devices=names - {"nvidia.com/gpu=MIG-m2"})
    assert of("CDI", seen)[0].startswith("error: no CDI file names nvidia.com/gpu=MIG-m2 -> ")


def test_the_memory_of_instances_that_are_given_whole_is_kept_apart_by_the_hardware() -> None:
    apart = "MIG instances are given whole here, and the hardware keeps their memory apart"
    assert of("memory limits", node(ONLY, mig="whole")) == [f"ok: partition: {apart}"]
    assert of("memory limits", node(BOTH, mig="whole")) == [
        "ok: cgroup: driver 615.71.09 and nvidia-container-toolkit 1.20.1 hold containers to their memory"
    ]


def test_nobody_is_advised_to_use_mps_on_instances() -> None:
    (told,) = of("memory limits", node(ONLY, mig="share"))
    assert told == (
        "note: advisory: the driver's limits are not for MIG instances; a container that asks for all of one has it to "
        "itself (driver 615.71.09) -> a container reads in GPUSHARE_MEMORY_LIMIT_MIB how much memory it may use, and "
        "nothing holds it to that"
    )
    old = replace(T4, memory_limits=False)
    (told,) = of("memory limits", node(replace(BOTH, gpus=(*PARTED, old)), mig="share"))
    assert told.endswith("limits: mps")


def test_a_container_on_a_whole_gpu_keeps_the_drivers_limit_beside_instances() -> None:
    given = ("uid/main",)
    assert len(of("memory limits", node(BOTH, mig="whole", with_driver_limits=given))) == 1
    _, left = of("memory limits", node(ONLY, mig="whole", with_driver_limits=given))
    assert left.startswith("warning: nvidia-container-toolkit 1.20.1 in its CDI modes does not start containers")


# --- The kubelet's amounts --------------------------------------------------------------------------------------------


def listed(position: int, number: int, shares: int, resource: str = "", profile: str = "1g.10gb") -> ListedGpu:
    place = ListedInstance("GPU-m", 0, number, profile, 7 + number, resource)
    return ListedGpu(position, shares, f"MIG-m{number}", instance=place)


def amounts(gpus: NodeGpus, capacity: Mapping[str, int]) -> list[str]:
    api = ApiSeen("https://10.96.0.1:443", capacity=capacity, gpus=gpus)
    return of("capacity", node(BOTH, api=api, agent=AgentSeen("here")))


def test_instances_are_no_whole_gpus_and_their_shares_count() -> None:
    gpus = NodeGpus((ListedGpu(0, 15), listed(1, 0, 9)), share_mib=1024)
    assert amounts(gpus, {MEM: 24, COUNT: 1}) == ["ok: matches the GPUs"]
    assert amounts(gpus, {MEM: 24, COUNT: 2})[0].startswith(
        "warning: a has 2 aliyun.com/gpu-count by its kubelet, but 1"
    )


def test_a_kubelet_that_knows_too_few_instances_is_told() -> None:
    gpus = NodeGpus((ListedGpu(0, 15),), instances=(listed(1, 0, 9, SMALL_ONES), listed(2, 1, 9, SMALL_ONES)))
    assert amounts(gpus, {MEM: 15, COUNT: 1, SMALL_ONES: 2}) == ["ok: matches the GPUs"]
    assert amounts(gpus, {MEM: 15, COUNT: 1, SMALL_ONES: 1}) == [
        (
            "warning: a has 1 nvidia.com/mig-1g.10gb by its kubelet, but 2 instances by its agent -> the kubelet "
            "updates its node every 10 seconds; if this persists, see the logs of both"
        )
    ]


def test_devices_of_instances_that_were_shared_before_may_stay_in_the_capacity() -> None:
    gpus = NodeGpus((ListedGpu(0, 15),), instances=(listed(1, 0, 9, SMALL_ONES),), gone=(listed(2, 1, 9),))
    assert amounts(gpus, {MEM: 33, COUNT: 1, SMALL_ONES: 1}) == ["ok: matches the GPUs"]
    assert amounts(gpus, {MEM: 34, COUNT: 1, SMALL_ONES: 1})[0].startswith("warning: a has 34 aliyun.com/gpu-mem")


def test_a_profile_of_which_nothing_can_be_allocated_is_noted() -> None:
    small = replace(RESOURCES[0], name=SMALL_ONES, kind=Kind.INSTANCE, profile="1g.10gb")
    api = ApiSeen("https://10.96.0.1:443", allocatable={SMALL_ONES: 0})
    assert of("allocatable", node(BOTH, mig="whole", resources=(small,), api=api)) == [
        (
            "note: no nvidia.com/mig-1g.10gb can be allocated: all instances of this profile are in shared use or out "
            "of service, or see above"
        )
    ]


def test_large_instances_have_their_own_number() -> None:
    assert "0:0 3g.40gb" in of("MIG", node(replace(BOTH, gpus=in_mig_mode(0, LARGE)), mig="share"))[0]
