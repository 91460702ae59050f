"""What keeps containers within their parts: what it adds to their grants, and why they are refused."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpu_device_plugin.features.limits.rules.limit_grants import (
    ExtraGrant,
    LimitPlan,
    Part,
    framework_envs,
    limit_grant,
    parts,
    refusal,
    refuse_unlimited,
)
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import NOBODY, Delivery, Grant, GrantOwner, Mount, grant
from tests.limiting import granted
from tests.nodes import ids, node, uuid

# Two cards of 15 GiB whose minor numbers are 3 and 0.
CARDS = (
    Gpu("GPU-aaaa", 0, "Tesla T4", 15_360, device_paths=("/dev/nvidia3",)),
    Gpu("GPU-bbbb", 1, "Tesla T4", 15_360, device_paths=("/dev/nvidia0",)),
)
SHARES = Shares(1024).with_inventory(Inventory(CARDS))
THREE = Placement(Demand(Kind.MEMORY, 3), ((1, 3),))
"""Three shares of the second card."""
BOTH = Placement(Demand(Kind.COUNT, 2), ((0, 15), (1, 15)))


def test_a_container_gets_the_variables_of_gpushare_and_a_limit() -> None:
    """Gpushare on the same node: IDX 1, POD 3, CONTAINER 3, DEV 15. Its NVIDIA_VISIBLE_DEVICES was an index."""
    assert granted(THREE, SHARES) == Grant(
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
    plan = LimitPlan({gpu.uuid: GpuEnforcement(Enforcement.CUSTOM, "") for gpu in cards}, extra=extra)
    given = granted(two, shares, plan, owner=GrantOwner("u", "main"))
    limited = limit_grant(parts(two.shares, shares), plan, GrantOwner("u", "main"))
    assert given.mounts == limited.mounts == (Mount("/opt/main", "/lib"),)
    assert limited.envs == {"LIMIT_0": "4096", "LIMIT_1": "2048", "GPUSHARE_MEMORY_LIMIT_BY": "custom"}
    assert given.envs.items() >= limited.envs.items()
    assert given.envs["GPUSHARE_MEMORY_LIMIT_MIB"] == "4096"


def test_a_whole_gpu_gets_nothing_that_limits_it() -> None:
    plan = LimitPlan({gpu.uuid: GpuEnforcement(Enforcement.DRIVER, "") for gpu in CARDS})
    assert granted(BOTH, SHARES, plan) == grant(BOTH, SHARES, Delivery())


# --- What a memory limit needs, by the means that the GPUs have -------------------------------------------------------

A = Part("GPU-a", 4096, 143_771, 143_156)
B = replace(A, uuid="GPU-b", mib=2048)
BY = "GPUSHARE_MEMORY_LIMIT_BY"
POD = GrantOwner("0f6b8c1e-1b1c-4a55-9d1e-0a1b2c3d4e5f", "main")


def by(a: Enforcement, b: Enforcement = Enforcement.ADVISORY) -> Mapping[str, GpuEnforcement]:
    return {"GPU-a": GpuEnforcement(a, "why"), "GPU-b": GpuEnforcement(b, "why")}


ADVISORY = Grant({BY: "advisory"})


def test_without_any_enforcement_the_limit_is_advisory() -> None:
    assert limit_grant([A], LimitPlan()) == ADVISORY
    assert limit_grant([A], LimitPlan(by(Enforcement.ADVISORY))) == ADVISORY


@pytest.mark.parametrize(("soft_is_share", "request_mib"), [(False, "0"), (True, "4096")])
def test_the_driver_is_asked_for_a_hard_limit_and_no_soft_one_by_default(
    request_mib: str, *, soft_is_share: bool
) -> None:
    """Base-10 MiB; the soft limit would stay in the cgroups above. Of two GPUs the larger part counts."""
    pair = {"NVIDIA_GPU_MEMORY_REQUEST": request_mib, "NVIDIA_GPU_MEMORY_LIMIT": "4096", BY: "driver"}
    plan = LimitPlan(by(Enforcement.DRIVER, Enforcement.DRIVER), soft_is_share=soft_is_share)
    assert limit_grant([A], plan) == limit_grant([B, A], plan) == Grant(pair)


BORROWER = GrantOwner(frameworks=("pytorch",), limit_shares=12)


def test_who_may_borrow_is_told_its_limit_and_its_guarantee() -> None:
    made = granted(THREE, SHARES, owner=BORROWER)
    envs = made.envs
    assert (envs["GPUSHARE_MEMORY_LIMIT_MIB"], envs["GPUSHARE_MEMORY_GUARANTEED_MIB"]) == ("12288", "3072")
    assert envs["PYTORCH_CUDA_ALLOC_CONF"] == "per_process_memory_fraction:0.8000"
    assert envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
    assert made.limit_mib == 12288
    assert granted(BOTH, SHARES).limit_mib is None


@pytest.mark.parametrize(("limit_shares", "soft_mib"), [(12, "4096"), (2, "2048")])
def test_the_driver_holds_a_container_to_its_limit(limit_shares: int, soft_mib: str) -> None:
    """The toolkit takes no soft limit above the hard one."""
    four = parts([(1, 4)], SHARES, limit_shares)
    plan = LimitPlan({"GPU-bbbb": GpuEnforcement(Enforcement.DRIVER, "")}, soft_is_share=True)
    pair = {"NVIDIA_GPU_MEMORY_REQUEST": soft_mib, "NVIDIA_GPU_MEMORY_LIMIT": str(limit_shares * 1024), BY: "driver"}
    assert limit_grant(four, plan) == Grant(pair)


@pytest.mark.parametrize("weaker", [Enforcement.ADVISORY, Enforcement.CUSTOM])
def test_of_several_gpus_the_weakest_means_counts(weaker: Enforcement) -> None:
    """The toolkit's hook would fail on the GPU without the driver's limits."""
    made = limit_grant([A, B], LimitPlan(by(Enforcement.DRIVER, weaker), extra=ExtraGrant((("X", "1"),))))
    assert made.enforcement is weaker
    assert "NVIDIA_GPU_MEMORY_LIMIT" not in made.envs


EXTRA = ExtraGrant((("CACHE", "/cache/{pod_uid}"),), (Mount("/opt/{container}", "/opt/lib"),))
CUSTOM = LimitPlan(by(Enforcement.CUSTOM, Enforcement.CUSTOM), extra=EXTRA)


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
    plan = LimitPlan(
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
    assert limit_grant([A], LimitPlan(), owner).envs == {"XLA_CLIENT_MEM_FRACTION": "0.0286", BY: "advisory"}
    assert "XLA_CLIENT_MEM_FRACTION" not in limit_grant([A], LimitPlan(by(Enforcement.DRIVER)), owner).envs


# --- Memory limits that are required ----------------------------------------------------------------------------------

BARRED = LimitPlan({uuid(1): GpuEnforcement(Enforcement.ADVISORY, "why", "there is no daemon")})


def test_shares_of_a_gpu_without_the_required_limits_are_refused() -> None:
    """Also those that the kubelet put together at random; whole GPUs have no limits."""
    there = node(8, 8)
    refused = Refusal(RefusalCode.NO_LIMIT, "GPU 1: there is no daemon")
    for device_ids in (ids(1, [0, 1]), (*ids(0, [3]), *ids(1, [0]))):
        assert refuse_unlimited(there, Kind.MEMORY, device_ids, BARRED, NOBODY) == refused
    assert refuse_unlimited(there, Kind.MEMORY, ids(0, [0, 1]), BARRED, NOBODY) is None
    assert refuse_unlimited(there, Kind.COUNT, [uuid(1)], BARRED, NOBODY) is None
    assert refuse_unlimited(there, Kind.MEMORY, ids(1, [0]), LimitPlan(), NOBODY) is None
    assert refuse_unlimited(there, Kind.MEMORY, ["GPU-gone::1"], BARRED, NOBODY) is None


def test_a_refusal_names_the_gpus_that_it_is_true_of() -> None:
    """On a node with GPUs of two vendors each lacks something else."""
    whys = {uuid(0): "no helper", uuid(1): "another driver", uuid(2): "no helper"}
    plan = LimitPlan({each: GpuEnforcement(Enforcement.ADVISORY, "why", why) for each, why in whys.items()})
    scattered = [*ids(0, [0]), *ids(1, [0]), *ids(2, [0])]
    refused = Refusal(RefusalCode.NO_LIMIT, "GPU 0, GPU 2: no helper")
    assert refuse_unlimited(node(8, 8, 8), Kind.MEMORY, scattered, plan, NOBODY) == refused


def test_an_extra_grant_for_a_pod_that_is_not_known_is_refused_where_limits_are_required() -> None:
    there = node(8, 8)
    custom = LimitPlan(
        {uuid(0): GpuEnforcement(Enforcement.CUSTOM, "")}, extra=ExtraGrant((("X", "{pod_uid}"),)), refuse=True
    )
    refused = refuse_unlimited(there, Kind.MEMORY, ids(0, [0]), custom, NOBODY)
    assert refused is not None
    assert (refused.code, refused.sentence.partition(" {")[0]) == (
        RefusalCode.NO_LIMIT,
        "GPU 0: the node's extra_grant needs",
    )
    assert refuse_unlimited(there, Kind.MEMORY, ids(0, [0]), custom, GrantOwner("u", "main")) is None


# --- Frameworks, which keep their own caches within a part ------------------------------------------------------------

QUARTER = Part("GPU-a", 4096, 16_896, 16_384)


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
