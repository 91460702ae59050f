"""Other programs that hand out the GPUs of a node are named, with instructions; programs that do not are not."""

import pytest

from gpu_device_plugin.features.conflicts.rules import sightings

OURS = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")


def names(*plugins: str, drivers: tuple[str, ...] = (), **offered: int) -> list[str]:
    allocatable = {name.replace("__", "/"): amount for name, amount in offered.items()}
    return [sighting.other.name for sighting in sightings(plugins, drivers, allocatable, OURS)]


def test_nvidias_plugin_is_found_by_its_socket_and_named_with_the_label_that_disables_it() -> None:
    (found,) = sightings(["nvidia-gpu.sock"], [], {}, OURS)
    assert str(found) == (
        "NVIDIA's device plugin, or one derived from it (HAMi's is), hands out GPUs of this node too (a process "
        "listens on nvidia-gpu.sock); where the GPU Operator deploys it, label the node "
        "nvidia.com/gpu.deploy.device-plugin=false; else keep its DaemonSet off the node"
    )


def test_all_signs_of_one_program_are_listed_together() -> None:
    offered = {"nvidia.com/mig-1g.5gb": 7, "nvidia.com/gpu": 8, "cpu": 64}
    (found,) = sightings(["nvidia-mig-1g.5gb.sock", "nvidia-gpu.sock"], [], offered, OURS)
    assert found.signs == (
        "a process listens on nvidia-gpu.sock",
        "a process listens on nvidia-mig-1g.5gb.sock",
        "the node offers 8 nvidia.com/gpu",
        "the node offers 7 nvidia.com/mig-1g.5gb",
    )


@pytest.mark.parametrize(
    ("socket", "name"),
    [
        ("nvidia.sock", "NVIDIA's device plugin, or one derived from it (HAMi's is),"),
        ("nvidiaGPU-1606432800.sock", "GKE's device plugin"),
        ("aliyungpushare.sock", "gpushare's own device plugin"),
        # As their programs name them, AMD's without an ending.
        ("amd.com_gpu", "AMD's device plugin, or one derived from it,"),
        ("amd.com_cpx_nps4", "AMD's device plugin, or one derived from it,"),
        ("gpu.intel.com-xe.sock", "Intel's GPU device plugin"),
    ],
)
def test_a_device_plugin_is_known_by_the_name_of_its_socket(socket: str, name: str) -> None:
    assert names(socket) == [name]


def test_a_dra_driver_is_known_among_drivers_only_also_while_it_is_being_replaced() -> None:
    assert names(drivers=("gpu.nvidia.com-reg.sock",)) == ["NVIDIA's DRA driver for GPUs"]
    assert names(drivers=("gpu.nvidia.com-0f3c-reg.sock",)) == ["NVIDIA's DRA driver for GPUs"]
    assert names(drivers=("gpu.amd.com-reg.sock",)) == ["AMD's DRA driver for GPUs"]
    assert names(drivers=("gpu.intel.com-0f3c-reg.sock",)) == ["Intel's DRA driver for GPUs"]
    assert names("gpu.nvidia.com-reg.sock") == []


def test_programs_that_hand_out_no_gpus_are_not_found() -> None:
    """Network cards, IMEX channels, our own sockets; and resources of which the node offers none."""
    assert names("kubelet.sock", "gpushare-memory-7-a1b2c3.sock", "intel.com_gpu.sock") == []
    assert names(drivers=("compute-domain.nvidia.com-reg.sock",)) == []
    assert names(nvidia_com=3, nvidia__gpu=1) == []
    assert sightings([], [], {"nvidia.com/gpu": 0, "nvidia.com/rdma_shared": 63, **dict.fromkeys(OURS, 8)}, OURS) == ()


@pytest.mark.parametrize(
    ("drivers", "found"),
    [
        ({"nvidia"}, ["nvidia.com/gpu"]),
        ({"amdgpu"}, ["amd.com/gpu", "amd.com/cpx_nps4"]),
        ({"xe"}, ["gpu.intel.com/xe"]),
        ({"nvidia", "amdgpu"}, ["nvidia.com/gpu", "amd.com/gpu", "amd.com/cpx_nps4"]),
        (set(), ["nvidia.com/gpu", "amd.com/gpu", "amd.com/cpx_nps4", "gpu.intel.com/xe"]),
    ],
)
def test_only_a_program_for_gpus_of_the_nodes_drivers_hands_out_the_nodes_gpus(
    drivers: set[str], found: list[str]
) -> None:
    """Graphics beside the GPUs that are shared may be anybody's."""
    offered = dict.fromkeys(("nvidia.com/gpu", "amd.com/gpu", "amd.com/cpx_nps4", "gpu.intel.com/xe"), 8)
    offered |= {"gpu.intel.com/i915": 4, "gpu.intel.com/xe_monitoring": 1}
    signs = [sign for each in sightings([], [], offered, OURS, drivers=drivers) for sign in each.signs]
    assert sorted(signs) == sorted(f"the node offers 8 {name}" for name in found)


def test_our_resource_under_the_name_of_another_program_is_ours() -> None:
    assert sightings([], [], {"nvidia.com/gpu": 8}, ["nvidia.com/gpu"]) == ()


@pytest.mark.parametrize(
    "resource",
    [
        *("volcano.sh/vgpu-number", "volcano.sh/gpu-memory", "volcano.sh/gpu-mem.128Mi", "nvidia.com/vgpu-number"),
        *("tencent.com/vcuda-core", "tke.cloud.tencent.com/qgpu-core", "k8s.amazonaws.com/vgpu"),
        *("elasticgpu.io/gpu-memory", "baidu.com/v100_cgpu_memory", "virtaitech.com/gpu", "nvidia.com/gpu-10gb"),
    ],
)
def test_some_programs_are_known_by_the_nodes_resources_alone(resource: str) -> None:
    (found,) = sightings([], [], {resource: 10}, OURS)
    assert found.signs == (f"the node offers 10 {resource}",)


def test_whoever_has_given_a_container_gpus_hands_them_out_while_the_node_offers_its_resource() -> None:
    """Whatever it is called, and whatever its socket."""
    offered = {"example.com/slice": 8, "example.com/nic": 8, "nvidia.com/vgpu-number": 8}
    found = sightings([], [], offered, OURS, ["example.com/slice", "example.com/gone", "nvidia.com/vgpu-number"])
    assert [str(each) for each in found] == [
        f"{who} hands out GPUs of this node too ({sign}); keep its DaemonSet off the node"
        for who, sign in (
            ("vgpu-manager", "the node offers 8 nvidia.com/vgpu-number"),
            (
                "the device plugin of example.com/slice",
                "a container was allocated GPUs by example.com/slice, of which the node offers 8",
            ),
        )
    ]
    assert names("vgpu-number.sock") == ["vgpu-manager"]
