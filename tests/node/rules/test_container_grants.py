"""What a container gets: its variables, device nodes and CDI names."""

import stat
from dataclasses import replace

import pytest

from gpu_device_plugin.model.gpus import Gpu, Inventory, MigInstance
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.container_grants import (
    CONTROL_NODES,
    OPTIONAL_NODES,
    Delivery,
    Grant,
    Mount,
    closed,
    grant,
)

# Two cards of 15 GiB whose minor numbers are 3 and 0.
CARDS = (
    Gpu("GPU-aaaa", 0, "Tesla T4", 15_360, device_paths=("/dev/nvidia3",)),
    Gpu("GPU-bbbb", 1, "Tesla T4", 15_360, device_paths=("/dev/nvidia0",)),
)
SHARES = Shares(1024).with_inventory(Inventory(CARDS))
THREE = Placement(Demand(Kind.MEMORY, 3), ((1, 3),))
"""Three shares of the second card."""
BOTH = Placement(Demand(Kind.COUNT, 2), ((0, 15), (1, 15)))


def test_a_container_gets_the_variables_of_gpushare_and_its_memory() -> None:
    """Gpushare on the same node: IDX 1, POD 3, CONTAINER 3, DEV 15. Its NVIDIA_VISIBLE_DEVICES was an index."""
    assert grant(THREE, SHARES, Delivery()) == Grant(
        {
            "NVIDIA_VISIBLE_DEVICES": "GPU-bbbb",
            "GPUSHARE_MEMORY_LIMIT_MIB": "3072",
            "GPUSHARE_MEMORY_GUARANTEED_MIB": "3072",
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
        }
    )


def test_the_shares_of_the_whole_pod_are_set_if_known() -> None:
    envs = grant(THREE, SHARES, Delivery(), pod_shares=5).envs
    assert (envs["ALIYUN_COM_GPU_MEM_POD"], envs["ALIYUN_COM_GPU_MEM_CONTAINER"]) == ("5", "3")


def test_cgpu_is_switched_off_where_the_node_asks_for_it() -> None:
    assert "CGPU_DISABLE" not in grant(THREE, SHARES, Delivery()).envs
    assert grant(THREE, SHARES, Delivery(cgpu_disable=True)).envs["CGPU_DISABLE"] == "true"
    assert "CGPU_DISABLE" not in grant(BOTH, SHARES, Delivery(cgpu_disable=True)).envs


def test_a_whole_gpu_is_made_visible_and_not_limited() -> None:
    assert grant(BOTH, SHARES, Delivery()) == Grant({"NVIDIA_VISIBLE_DEVICES": "GPU-aaaa,GPU-bbbb"})


def test_over_several_gpus_the_limit_is_that_of_one_gpu() -> None:
    """The driver holds each GPU to it."""
    envs = grant(Placement(Demand(Kind.MEMORY, 6, gpus=2), ((0, 2), (1, 4))), SHARES, Delivery()).envs
    assert envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-bbbb"
    assert envs["GPUSHARE_MEMORY_LIMIT_MIB"] == "4096"
    assert envs["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
    assert envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"
    assert envs["ALIYUN_COM_GPU_MEM_POD"] == "6"


def test_on_cards_of_different_sizes_the_first_one_counts_as_in_gpushare() -> None:
    mixed = Shares(1024).with_inventory(Inventory((CARDS[0], replace(CARDS[1], total_mib=8192))))
    envs = grant(Placement(Demand(Kind.MEMORY, 6, gpus=2), ((0, 3), (1, 3))), mixed, Delivery()).envs
    assert envs["ALIYUN_COM_GPU_MEM_DEV"] == "15"


def test_device_nodes_are_those_of_the_minor_number_and_of_the_driver() -> None:
    """They survive `systemctl daemon-reload`, which a runtime hook's do not."""
    given = grant(THREE, SHARES, Delivery(methods=frozenset({"device-specs"})))
    assert given.device_nodes == (*CONTROL_NODES, *OPTIONAL_NODES, "/dev/nvidia0")
    assert given.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-bbbb"
    assert given.cdi_devices == ()
    assert grant(BOTH, SHARES, Delivery(methods=frozenset({"device-specs"}))).device_nodes[-2:] == (
        "/dev/nvidia3",
        "/dev/nvidia0",
    )


def test_nodes_that_are_not_on_this_machine_are_left_out() -> None:
    """A container with a device node that does not exist would not start."""
    delivery = Delivery(methods=frozenset({"device-specs"}))
    given = grant(THREE, SHARES, delivery, present=["/dev/nvidia-modeset", "/dev/other"])
    assert given.device_nodes == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/nvidia0")


def test_a_gpu_without_a_minor_number_has_no_node_of_its_own() -> None:
    wsl = Shares(1024).with_inventory(Inventory((CARDS[0], replace(CARDS[1], device_paths=()))))
    nodes = grant(THREE, wsl, Delivery(methods=frozenset({"device-specs"}))).device_nodes
    assert nodes == (*CONTROL_NODES, *OPTIONAL_NODES)


def test_with_cdi_alone_the_runtime_is_disabled() -> None:
    """CUDA images set the variable to `all`, which NVIDIA's runtime would obey as well."""
    given = grant(BOTH, SHARES, Delivery(methods=frozenset({"cdi"})))
    assert given == Grant(
        {"NVIDIA_VISIBLE_DEVICES": "void"}, (), ("nvidia.com/gpu=GPU-aaaa", "nvidia.com/gpu=GPU-bbbb")
    )


def test_what_features_add_stands_beside_what_was_given_and_never_over_it() -> None:
    """Another limit in a variable of ours would be told to the container as its own."""
    mount = Mount("/opt/lib", "/lib")
    added = Grant({"X": "1", "GPUSHARE_MEMORY_LIMIT_MIB": "9"}, mounts=(mount,))
    made = grant(THREE, SHARES, Delivery(), added=added)
    assert made == replace(grant(THREE, SHARES, Delivery()), envs=made.envs, mounts=(mount,))
    assert made.envs == {**grant(THREE, SHARES, Delivery()).envs, "X": "1"}
    assert (made.enforcement, grant(BOTH, SHARES, Delivery(), added=added).envs["X"]) == (None, "1")


# --- GPUs of other drivers --------------------------------------------------------------------------------------------

BOARD = ("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128")
MIXED = Shares(1024).with_inventory(
    Inventory(
        (
            CARDS[0],
            Gpu("GPU-0123456789ABCDEF", 1, "AMD Instinct MI210", 8192, device_paths=BOARD, driver="amdgpu"),
            Gpu(
                "PCI-0000:03:00.0",
                2,
                "Intel Arc B580",
                8192,
                device_paths=("/dev/dri/card0", "/dev/dri/renderD129"),
                driver="xe",
            ),
            Gpu(
                "GPU-FEDCBA9876543210",
                3,
                "AMD Instinct MI210",
                8192,
                device_paths=("/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD130"),
                driver="amdgpu",
            ),
        )
    )
)
NVIDIA_NODES = (*CONTROL_NODES, *OPTIONAL_NODES, "/dev/nvidia3")
FIRST_BOARD = ("/dev/kfd", "/dev/dri/renderD128")


def taken(*positions: int) -> Placement:
    return Placement(
        Demand(Kind.COUNT, len(positions)), tuple((each, len(MIXED.gpus[each].shares)) for each in positions)
    )


@pytest.mark.parametrize(
    ("positions", "methods", "visible", "nodes", "names"),
    [
        # Of one vendor alone: nodes, whatever the way in which the node gives NVIDIA's.
        ((1,), "envvar", "void", FIRST_BOARD, ()),
        ((1,), "cdi", "void", FIRST_BOARD, ()),
        ((1,), "device-specs", "void", FIRST_BOARD, ()),
        ((1,), "card", "void", BOARD, ()),
        ((1,), "envvar card", "void", BOARD, ()),
        ((2,), "envvar", "void", ("/dev/dri/renderD129",), ()),
        ((2,), "cdi card", "void", ("/dev/dri/card0", "/dev/dri/renderD129"), ()),
        ((1, 3), "envvar", "void", (*FIRST_BOARD, "/dev/dri/renderD130"), ()),
        # Beside one of NVIDIA's.
        ((0, 1), "envvar", "GPU-aaaa", FIRST_BOARD, ()),
        ((0, 1), "device-specs", "GPU-aaaa", (*NVIDIA_NODES, *FIRST_BOARD), ()),
        ((0, 1), "cdi", "void", FIRST_BOARD, ("nvidia.com/gpu=GPU-aaaa",)),
        ((0, 1), "cdi card", "void", BOARD, ("nvidia.com/gpu=GPU-aaaa",)),
        ((0, 2), "envvar cdi", "GPU-aaaa", ("/dev/dri/renderD129",), ("nvidia.com/gpu=GPU-aaaa",)),
        # Those of NVIDIA's on the same node.
        ((0,), "envvar", "GPU-aaaa", (), ()),
        ((0,), "card", "GPU-aaaa", (), ()),
        ((0,), "device-specs card", "GPU-aaaa", NVIDIA_NODES, ()),
        ((0,), "cdi", "void", (), ("nvidia.com/gpu=GPU-aaaa",)),
    ],
)
def test_gpus_of_other_drivers_come_as_their_device_nodes_alone(
    positions: tuple[int, ...], methods: str, visible: str, nodes: tuple[str, ...], names: tuple[str, ...]
) -> None:
    given = grant(taken(*positions), MIXED, Delivery(frozenset(methods.split())))
    assert given == Grant({"NVIDIA_VISIBLE_DEVICES": visible}, nodes, names)


def test_shares_of_a_gpu_of_another_driver_are_told_by_the_same_variables() -> None:
    given = grant(Placement(Demand(Kind.MEMORY, 3), ((2, 3),)), MIXED, Delivery())
    assert given == Grant(
        {
            "NVIDIA_VISIBLE_DEVICES": "void",
            "GPUSHARE_MEMORY_LIMIT_MIB": "3072",
            "GPUSHARE_MEMORY_GUARANTEED_MIB": "3072",
            "ALIYUN_COM_GPU_MEM_IDX": "2",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "8",
        },
        ("/dev/dri/renderD129",),
    )


def test_only_a_gpu_of_nvidia_without_a_node_cannot_be_given_by_its_node() -> None:
    delivery = Delivery(frozenset({"device-specs"}))
    bare = [replace(shared.gpu, device_paths=()) for shared in MIXED.gpus]
    assert delivery.why_not(bare[1:]) == ""
    assert delivery.why_not(bare).startswith(
        "--devices=device-specs gives containers /dev/nvidiaN, and the driver tells no N of GPU-aaaa, as on WSL2"
    )
    assert Delivery(frozenset({"card"})).why_not(bare) == ""


@pytest.mark.parametrize(
    ("methods", "visible", "nodes", "names"),
    [
        ("envvar", "MIG-a", (), ()),
        (
            "device-specs",
            "MIG-a",
            (*NVIDIA_NODES, "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"),
            (),
        ),
        ("cdi", "void", (), ("nvidia.com/gpu=MIG-a",)),
        (
            "cdi device-specs envvar",
            "MIG-a",
            (*NVIDIA_NODES, "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"),
            ("nvidia.com/gpu=MIG-a",),
        ),
    ],
)
def test_a_mig_instance_comes_with_the_node_of_its_gpu_and_those_of_its_capabilities(
    methods: str, visible: str, nodes: tuple[str, ...], names: tuple[str, ...]
) -> None:
    instance = replace(CARDS[0], uuid="MIG-a", instance=MigInstance("GPU-aaaa", 0, "1g.10gb", 7, 0, caps=(12, 13)))
    card = replace(CARDS[0], mig=True)
    shares = Shares(1024).with_inventory(Inventory((card, instance)), mig=MigMode.SHARE)
    (position,) = (shared.position for shared in shares.gpus if shared.gpu.uuid == "MIG-a")
    placement = Placement(Demand(Kind.INSTANCE, 1), ((position, 15),))
    assert grant(placement, shares, Delivery(frozenset(methods.split()))) == Grant(
        {"NVIDIA_VISIBLE_DEVICES": visible}, nodes, names
    )


@pytest.mark.parametrize(("mode", "refused"), [(0o660, True), (0o666, False), (0o664, True), (0o600, True)])
def test_a_device_node_is_closed_unless_everybody_may_read_and_write_it(mode: int, *, refused: bool) -> None:
    assert closed(stat.S_IFCHR | mode) is refused
