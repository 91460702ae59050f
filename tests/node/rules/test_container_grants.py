"""What a container gets: its variables, device nodes and CDI names, and what its memory limit needs to hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.model.contract.mpsfiles import MpsGpu, MpsStatus
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.container_grants import (
    CONTROL_NODES,
    OPTIONAL_NODES,
    Delivery,
    Grant,
    framework_envs,
    grant,
    limit_grant,
    parts,
    read_frameworks,
    refusal,
)
from gpu_device_plugin.node.rules.extra_grant import ExtraGrant, GrantOwner, Mount, Part

if TYPE_CHECKING:
    from collections.abc import Mapping

# Two cards of 15 GiB whose minor numbers are 3 and 0.
CARDS = (Gpu("GPU-aaaa", 0, "Tesla T4", 15_360, minor=3), Gpu("GPU-bbbb", 1, "Tesla T4", 15_360, minor=0))
SHARES = Shares(1024).with_inventory(Inventory(CARDS))
THREE = Placement(Demand(Kind.MEMORY, 3), ((1, 3),))
"""Three shares of the second card."""
BOTH = Placement(Demand(Kind.COUNT, 2), ((0, 15), (1, 15)))


def test_a_container_gets_the_variables_of_gpushare_and_a_limit() -> None:
    """Gpushare on the same node: IDX 1, POD 3, CONTAINER 3, DEV 15. Its NVIDIA_VISIBLE_DEVICES was an index."""
    assert grant(THREE, SHARES, Delivery()) == Grant(
        {
            "NVIDIA_VISIBLE_DEVICES": "GPU-bbbb",
            "GPUSHARE_MEMORY_LIMIT_MIB": "3072",
            "GPUSHARE_MEMORY_GUARANTEED_MIB": "3072",
            "GPUSHARE_MEMORY_LIMIT_BY": "advisory",
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
        }
    )


def test_what_keeps_a_container_within_its_parts_is_added() -> None:
    """The GPUs are numbered as CUDA numbers them, by NVML's index and not by their positions."""
    cards = (replace(CARDS[0], index=1, reserved_mib=447), replace(CARDS[1], index=0))
    shares = Shares(1024).with_inventory(Inventory(cards))
    two = Placement(Demand(Kind.MEMORY, 6, gpus=2), ((0, 2), (1, 4)))
    assert parts(two.shares, shares) == (Part("GPU-bbbb", 4096, 15_360, 15_360), Part("GPU-aaaa", 2048, 15_360, 14_913))
    extra = ExtraGrant((("LIMIT_{ordinal}", "{limit_mib}"),), (Mount("/opt/{container}", "/lib"),))
    plan = Delivery({gpu.uuid: GpuEnforcement(Enforcement.CUSTOM, "") for gpu in cards}, extra=extra)
    given = grant(two, shares, plan, owner=GrantOwner("u", "main"))
    limited = limit_grant(parts(two.shares, shares), plan, GrantOwner("u", "main"))
    assert given.mounts == limited.mounts == (Mount("/opt/main", "/lib"),)
    assert limited.envs == {"LIMIT_0": "4096", "LIMIT_1": "2048", "GPUSHARE_MEMORY_LIMIT_BY": "custom"}
    assert given.envs.items() >= limited.envs.items()
    assert given.envs["GPUSHARE_MEMORY_LIMIT_MIB"] == "4096"


def test_a_whole_gpu_gets_nothing_that_limits_it() -> None:
    plan = Delivery({gpu.uuid: GpuEnforcement(Enforcement.DRIVER, "") for gpu in CARDS})
    assert grant(BOTH, SHARES, plan) == grant(BOTH, SHARES, Delivery())


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
    wsl = Shares(1024).with_inventory(Inventory((CARDS[0], replace(CARDS[1], minor=None))))
    nodes = grant(THREE, wsl, Delivery(methods=frozenset({"device-specs"}))).device_nodes
    assert nodes == (*CONTROL_NODES, *OPTIONAL_NODES)


def test_with_cdi_alone_the_runtime_is_disabled() -> None:
    """CUDA images set the variable to `all`, which NVIDIA's runtime would obey as well."""
    given = grant(BOTH, SHARES, Delivery(methods=frozenset({"cdi"})))
    assert given == Grant(
        {"NVIDIA_VISIBLE_DEVICES": "void"}, (), ("nvidia.com/gpu=GPU-aaaa", "nvidia.com/gpu=GPU-bbbb")
    )


# --- What a memory limit needs, by the means that the GPUs have -------------------------------------------------------

A = Part("GPU-a", 4096, 143_771, 143_156)
B = replace(A, uuid="GPU-b", mib=2048)
BY = "GPUSHARE_MEMORY_LIMIT_BY"
POD = GrantOwner("0f6b8c1e-1b1c-4a55-9d1e-0a1b2c3d4e5f", "main")


def by(a: Enforcement, b: Enforcement = Enforcement.ADVISORY) -> Mapping[str, GpuEnforcement]:
    return {"GPU-a": GpuEnforcement(a, "why"), "GPU-b": GpuEnforcement(b, "why")}


ADVISORY = Grant({BY: "advisory"})


def test_without_any_enforcement_the_limit_is_advisory() -> None:
    assert limit_grant([A], Delivery()) == ADVISORY
    assert limit_grant([A], Delivery(by(Enforcement.ADVISORY))) == ADVISORY


@pytest.mark.parametrize(("soft_is_share", "request_mib"), [(False, "0"), (True, "4096")])
def test_the_driver_is_asked_for_a_hard_limit_and_no_soft_one_by_default(
    request_mib: str, *, soft_is_share: bool
) -> None:
    """Base-10 MiB; the soft limit would stay in the cgroups above. Of two GPUs the larger part counts."""
    pair = {"NVIDIA_GPU_MEMORY_REQUEST": request_mib, "NVIDIA_GPU_MEMORY_LIMIT": "4096", BY: "driver"}
    plan = Delivery(by(Enforcement.DRIVER, Enforcement.DRIVER), soft_is_share=soft_is_share)
    assert limit_grant([A], plan) == limit_grant([B, A], plan) == Grant(pair)


BORROWER = GrantOwner(frameworks=("pytorch",), limit_shares=12)


def test_who_may_borrow_is_told_its_limit_and_its_guarantee() -> None:
    made = grant(THREE, SHARES, Delivery(), owner=BORROWER)
    envs = made.envs
    assert (envs["GPUSHARE_MEMORY_LIMIT_MIB"], envs["GPUSHARE_MEMORY_GUARANTEED_MIB"]) == ("12288", "3072")
    assert envs["PYTORCH_CUDA_ALLOC_CONF"] == "per_process_memory_fraction:0.8000"
    assert envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
    assert made.limit_mib == 12288
    assert grant(BOTH, SHARES, Delivery()).limit_mib is None


@pytest.mark.parametrize(("limit_shares", "soft_mib"), [(12, "4096"), (2, "2048")])
def test_means_hold_a_container_to_its_limit(limit_shares: int, soft_mib: str) -> None:
    """The toolkit takes no soft limit above the hard one."""
    four = parts([(1, 4)], SHARES, limit_shares)
    plan = Delivery({"GPU-bbbb": GpuEnforcement(Enforcement.DRIVER, "")}, soft_is_share=True)
    pair = {"NVIDIA_GPU_MEMORY_REQUEST": soft_mib, "NVIDIA_GPU_MEMORY_LIMIT": str(limit_shares * 1024), BY: "driver"}
    assert limit_grant(four, plan) == Grant(pair)
    plan = Delivery({"GPU-bbbb": GpuEnforcement(Enforcement.MPS, "")}, {"GPU-bbbb": READY}, mps_compute=True)
    made = limit_grant(four, plan).envs
    assert made["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={limit_shares * 1024}M"
    assert made["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "27"  # multiprocessors are not lent


@pytest.mark.parametrize("weaker", [Enforcement.ADVISORY, Enforcement.CUSTOM])
def test_of_several_gpus_the_weakest_means_counts(weaker: Enforcement) -> None:
    """The toolkit's hook would fail on the GPU without the driver's limits."""
    made = limit_grant([A, B], Delivery(by(Enforcement.DRIVER, weaker), extra=ExtraGrant((("X", "1"),))))
    assert made.enforcement is weaker
    assert "NVIDIA_GPU_MEMORY_LIMIT" not in made.envs


READY = MpsGpu(MpsStatus.READY, pipe_directory="/run/gpushare/mps/GPU-a")
MPS = Delivery(by(Enforcement.MPS, Enforcement.MPS), {"GPU-a": READY}, "/run/gpushare/mps/shm")


def test_a_client_of_mps_gets_its_daemon_its_limit_and_the_memory_that_it_shares_with_the_server() -> None:
    assert limit_grant([A], MPS) == Grant(
        {
            "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps/GPU-a",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
            BY: "mps",
        },
        mounts=(
            Mount("/run/gpushare/mps/GPU-a", "/run/gpushare/mps/GPU-a", read_only=False),
            Mount("/run/gpushare/mps/shm", "/dev/shm", read_only=False),
        ),
    )


@pytest.mark.parametrize(
    ("mib", "percent"), [(4096, "3"), (71_886, "51"), (143_771, "100"), (1, "1"), (150_000, "100")]
)
def test_multiprocessors_are_limited_in_proportion_and_rounded_up(mib: int, percent: str) -> None:
    """4,096 of 143,771 MiB are 2.8 %."""
    envs = limit_grant([replace(A, mib=mib)], replace(MPS, mps_compute=True)).envs
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent


@pytest.mark.parametrize(
    "plan", [replace(MPS, mps={}), replace(MPS, mps={"GPU-a": MpsGpu(MpsStatus.STOPPED)})], ids=["none", "stopped"]
)
def test_without_a_daemon_no_variable_of_mps_is_set(plan: Delivery) -> None:
    """A wrong directory would remove all limits in silence."""
    assert limit_grant([A], plan) == ADVISORY


def test_a_container_with_parts_of_two_gpus_cannot_have_two_daemons() -> None:
    assert limit_grant([A, B], replace(MPS, mps={"GPU-a": READY, "GPU-b": READY})) == ADVISORY


EXTRA = ExtraGrant((("CACHE", "/cache/{pod_uid}"),), (Mount("/opt/{container}", "/opt/lib"),))
CUSTOM = Delivery(by(Enforcement.CUSTOM, Enforcement.CUSTOM), extra=EXTRA)


def test_a_plan_names_pods_where_a_library_in_force_is_told_the_pod_or_the_container() -> None:
    assert CUSTOM.names_pods
    assert not replace(CUSTOM, enforcements=by(Enforcement.ADVISORY)).names_pods
    assert not replace(CUSTOM, extra=None).names_pods
    assert not replace(CUSTOM, extra=ExtraGrant((("LIMIT", "{limit_mib}"),))).names_pods


def test_an_extra_grant_is_added_where_the_means_is_custom_and_nowhere_else() -> None:
    assert limit_grant([A], CUSTOM, POD) == Grant(
        {"CACHE": f"/cache/{POD.pod_uid}", BY: "custom"}, mounts=(Mount("/opt/main", "/opt/lib"),)
    )
    assert limit_grant([A], replace(CUSTOM, enforcements={}), POD) == ADVISORY
    assert limit_grant([A], replace(CUSTOM, extra=None), POD) == ADVISORY


def test_an_extra_grant_for_an_unknown_pod_is_left_out_as_a_whole_or_refused() -> None:
    """Half of what a library needs is worse than none."""
    assert limit_grant([A], CUSTOM) == ADVISORY
    assert refusal([A], CUSTOM) == ""
    strict = replace(CUSTOM, refuse=True)
    assert refusal([A], strict).startswith(
        "the node's extra_grant needs {container} and {pod_uid}, and the pod of this"
    )
    assert refusal([A], strict, POD) == ""
    assert refusal([A, B], replace(strict, enforcements=by(Enforcement.CUSTOM)), POD) == ""
    assert refusal([A], replace(strict, extra=ExtraGrant((("X", "{limit_mib}"),)))) == ""


def test_a_container_is_refused_by_the_gpu_that_refuses() -> None:
    plan = Delivery(
        {
            "GPU-b": GpuEnforcement(Enforcement.ADVISORY, "why", "there is no daemon"),
            "GPU-a": GpuEnforcement(Enforcement.ADVISORY, ""),
        }
    )
    assert plan.refusals == {"GPU-b": "there is no daemon"}
    assert refusal([A], plan) == ""
    assert refusal([A, B], plan) == "there is no daemon"


def test_frameworks_get_their_fraction_beside_the_limit() -> None:
    owner = replace(POD, frameworks=("jax",))
    assert limit_grant([A], Delivery(), owner).envs == {"XLA_CLIENT_MEM_FRACTION": "0.0286", BY: "advisory"}
    assert "XLA_CLIENT_MEM_FRACTION" not in limit_grant([A], Delivery(by(Enforcement.DRIVER)), owner).envs
    assert limit_grant([A], MPS, owner).envs["XLA_CLIENT_MEM_FRACTION"] == "0.0286"


# --- Frameworks, which keep their own caches within a part ------------------------------------------------------------

QUARTER = Part("GPU-a", 4096, 16_896, 16_384)


@pytest.mark.parametrize(
    ("text", "known", "ignored"),
    [
        ("pytorch,jax", ("pytorch", "jax"), False),
        (" JAX ,", ("jax",), False),
        ("", (), False),
        ("jax,tensorflow", ("jax",), True),
        ("jax," + " " * 300, ("jax",), True),
        ("x" * 1_000_000, (), True),
    ],
)
def test_a_pod_names_its_frameworks(text: str, known: tuple[str, ...], *, ignored: bool) -> None:
    found, sentence = read_frameworks(text)
    assert (found, bool(sentence)) == (known, ignored)
    assert not sentence or sentence.endswith("which is ignored; known are pytorch, jax")


@pytest.mark.parametrize(
    ("enforcement", "fraction"),
    [
        (Enforcement.ADVISORY, "0.2500"),
        (Enforcement.MPS, "0.2500"),
        (Enforcement.DRIVER, None),
        (Enforcement.CUSTOM, None),
    ],
)
def test_a_fraction_is_of_the_memory_that_the_framework_sees(enforcement: Enforcement, fraction: str | None) -> None:
    """Under the driver's limits it sees its part as all of it. The driver's own part is not seen by anyone."""
    assert framework_envs(["jax", "pytorch"], enforcement, [QUARTER]) == (
        {}
        if fraction is None
        else {
            "XLA_CLIENT_MEM_FRACTION": fraction,
            "PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{fraction}",
        }
    )
    assert framework_envs([], enforcement, [QUARTER]) == {}


@pytest.mark.parametrize(
    ("mib", "visible", "fraction"),
    [(1, 3, "0.3333"), (2, 3, "0.6666"), (3, 3, "1.0000"), (4, 3, "1.0000"), (1, 143_156, "0.0001"), (1, 0, "1.0000")],
)
def test_a_fraction_is_rounded_down_and_never_nothing(mib: int, visible: int, fraction: str) -> None:
    part = replace(QUARTER, mib=mib, visible_mib=visible)
    assert framework_envs(["jax"], Enforcement.ADVISORY, [part])["XLA_CLIENT_MEM_FRACTION"] == fraction


def test_of_several_gpus_the_smallest_fraction_counts() -> None:
    several = [QUARTER, replace(QUARTER, mib=1024), QUARTER]
    assert framework_envs(["jax"], Enforcement.MPS, several) == {"XLA_CLIENT_MEM_FRACTION": "0.0625"}
