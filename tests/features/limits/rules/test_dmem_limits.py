"""Limits by the kernel's dmem: where they can be, which are wanted, and what was read back of them."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.limits.contract import LimitKey, LimitOutcome, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.rules import dmem_limits as dmem
from gpu_device_plugin.features.limits.rules import helper_limits as helper
from gpu_device_plugin.features.limits.rules.enforcement import (
    Facts,
    enforcements,
    lack_of_dmem,
    lacks,
    wanted_enforcement,
)
from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, Part, limit_grant
from gpu_device_plugin.features.mps.rules.mps_admission import lack as lack_of_mps
from gpu_device_plugin.features.mps.rules.mps_admission import wanted_on
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.allocations import Allocation, Place
from gpu_device_plugin.model.gpus import Gpu
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import share_id
from gpu_device_plugin.node.rules.container_grants import GrantOwner

UID, OTHER = "0f0e0d0c-1111-2222-3333-0123456789ab", "a" * 32
C, D = "c" * 64, "d" * 64
A, B = "GPU-5B1E6A0C2F3D4E00", "PCI-0000:c1:00.0"
MI300X = Gpu(A, 0, "AMD Instinct MI300X OAM", 196_592, memory_limits=True, driver="amdgpu")
B580 = replace(MI300X, uuid=B, driver="xe", total_mib=12_216)
H200 = Gpu("GPU-n", 1, "NVIDIA H200", 143_771, memory_limits=True)
WELL = Facts(helper="")
SHARE = 1024


# --- Where it can be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "cgroup", "facts", "why"),
    [
        (MI300X, 2, WELL, ""),
        (B580, 2, WELL, ""),
        (H200, 2, WELL, "dmem is for GPUs of other drivers than NVIDIA's"),
        (replace(MI300X, uuid=f"{A}-p3"), 2, WELL, "counts the memory of a board, and this is a partition of one"),
        (MI300X, None, WELL, "cgroup version is unknown, and must be 2"),
        (MI300X, 1, WELL, "cgroup version is 1, and must be 2"),
        (MI300X, 2, Facts(), "the setting memory_dir names no directory"),
        (MI300X, 2, Facts(helper=dmem.NOT_THERE), "make deploy OVERLAY=amd WITH=limits"),
        (replace(MI300X, memory_limits=False), 2, Facts("CONFIG_CGROUP_DMEM", ""), "CONFIG_CGROUP_DMEM"),
        (replace(MI300X, memory_limits=False), 2, WELL, "no region of it, as amdgpu has from Linux 6.16 on"),
        (replace(B580, memory_limits=False), 2, WELL, "no region of it, as xe has from Linux 6.14 on"),
        (replace(MI300X, memory_limits=False, driver="nova"), 2, WELL, "as nova has from Linux a later version on"),
    ],
)
def test_what_dmem_lacks_is_said_exactly(gpu: Gpu, cgroup: int | None, facts: Facts, why: str) -> None:
    said = lack_of_dmem(cgroup, facts, gpu)
    assert why in said
    assert bool(why) is bool(said)


def chosen(limits: str, labels: Mapping[str, str] | None = None, facts: Facts = WELL) -> tuple[list[Enforcement], str]:
    want = wanted_enforcement(limits, labels or {})
    made, missing = enforcements({0: MI300X, 1: H200}, lacks(2, dmem=facts), want, refuse=True)
    return [made[at].enforcement for at in (0, 1)], missing


def test_each_gpu_gets_what_there_is_for_its_driver() -> None:
    driver, kernel, advisory = Enforcement.DRIVER, Enforcement.DMEM, Enforcement.ADVISORY
    assert chosen("auto") == ([kernel, driver], "")
    assert chosen("auto", facts=Facts()) == ([advisory, driver], "")
    assert chosen("auto", {"ack.node.gpu.schedule": "cgpu"}) == ([kernel, driver], "")
    kinds, missing = chosen("dmem")
    assert kinds == [kernel, advisory]
    assert "GPU 1: the setting limits=dmem asks for dmem: dmem is for GPUs of other drivers" in missing
    kinds, missing = chosen("driver")
    assert kinds == [advisory, driver]
    assert "asks for driver: the driver's limits are for GPUs of NVIDIA" in missing


def test_no_gpu_of_another_driver_is_run_by_mps() -> None:
    want = wanted_enforcement("mps", {})
    there = {gpu.uuid: GpuEnforcement(Enforcement.ADVISORY, "") for gpu in (MI300X, H200)}
    assert wanted_on([MI300X, H200], there, want) == {H200.uuid}
    assert lack_of_mps({}, MI300X) == "MPS is for GPUs of NVIDIA"


def test_a_container_is_told_by_whom_it_is_limited_and_its_framework_a_fraction_of_the_whole() -> None:
    plan = LimitPlan({A: GpuEnforcement(Enforcement.DMEM, "")}, soft_is_share=True)
    made = limit_grant([Part(A, 16_384, 196_592, 196_608)], plan, GrantOwner(frameworks=("pytorch", "jax")))
    assert made.envs == {
        "GPUSHARE_MEMORY_LIMIT_BY": "dmem",
        "PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.0833",
        "XLA_CLIENT_MEM_FRACTION": "0.0833",
    }
    assert made.mounts == ()


# --- What is wanted ---------------------------------------------------------------------------------------------------


def holds(container: str, *numbers: int, uid: str = UID, uuid: str = A, **more: object) -> Allocation:
    ids = frozenset(share_id(uuid, number) for number in numbers)
    given = {"kind": Kind.MEMORY, "enforcement": Enforcement.DMEM, **more}
    return Allocation(uid, container, device_ids=ids, **given)  # type: ignore[arg-type]


def holding(container: str, mib: int, container_id: str = "", **more: object) -> ContainerGpus:
    pod = Pod(UID, "ns", "p", container_ids={container: container_id} if container_id else {})
    made = ContainerGpus(UID, container, {A: mib}, enforcement=Enforcement.DMEM, pod=pod)
    return replace(made, **more)  # type: ignore[arg-type]


POD_KEY, MAIN, SIDE = LimitKey(UID, "", A), LimitKey(UID, C, A), LimitKey(UID, D, A)


def wanted(
    allocations: list[Allocation], holders: list[ContainerGpus], now: Mapping[Place, int] | None = None
) -> Mapping[LimitKey, int]:
    found = dmem.wanted_of_kernel(allocations, holders, now or {}, SHARE).values()
    return {key: limit.hard_mib for key, limit in found if limit == MemoryLimit(limit.hard_mib)}


def test_the_limit_of_a_pod_is_there_before_its_container() -> None:
    given = [holds("main", 1, 2, 3, 4)]
    assert wanted(given, [holding("main", 4096)]) == {POD_KEY: 4096}
    assert wanted(given, []) == {POD_KEY: 4096}, "an init container that does not run yet"
    assert wanted(given, [holding("main", 4096, C)]) == {POD_KEY: 4096, MAIN: 4096}


def test_a_pod_may_use_what_its_containers_may_together() -> None:
    given = [holds("main", 1, 2), holds("side", 3), holds("init", 1, 2, 3, 4)]
    assert wanted(given, [holding("main", 2048, C), holding("side", 1024, D)]) == {
        POD_KEY: 4096,
        MAIN: 2048,
        SIDE: 1024,
    }


def test_the_limit_follows_what_a_container_may_use_now() -> None:
    given, borrower = [holds("main", 1, 2)], holding("main", 2048, C, limits={A: 8192})
    assert wanted(given, [borrower]) == {POD_KEY: 8192, MAIN: 8192}
    assert wanted(given, [borrower], {(UID, "main", A): 3072}) == {POD_KEY: 3072, MAIN: 3072}
    # Also where it is guaranteed less than it holds.
    assert wanted(given, [borrower], {(UID, "main", A): 0}) == {POD_KEY: 2048, MAIN: 1}


def test_what_the_kernel_does_not_limit_is_not_wanted() -> None:
    others = [
        holds("main", 1, enforcement=Enforcement.DRIVER),
        holds("main", 1, enforcement=None),
        holds("main", 1, kind=Kind.COUNT),
        holds("main", 1, uid=""),
        holds("main", 1, uid="not a UID"),
    ]
    whole = holding("main", 196_592, C, whole=True)
    assert wanted(others, [whole, holding("side", 1024, D, enforcement=Enforcement.ADVISORY)]) == {}
    assert dmem.wanted_of_kernel([holds("main", 1)], [], {}, SHARE, {UID}) == {}


def test_the_limit_of_a_pod_has_room_for_its_containers_that_are_not_limited() -> None:
    """The helper may have come between the answers for two containers of a pod."""
    advisory = Enforcement.ADVISORY
    given = [holds("main", 1, 2, enforcement=advisory), holds("side", 3)]
    main = holding("main", 2048, C, enforcement=advisory, limits={A: 8192})
    assert wanted(given, [main, holding("side", 1024, D)]) == {POD_KEY: 9216, SIDE: 1024}


def test_the_limit_of_a_pod_is_not_lowered_before_the_api_tells_what_it_may_use() -> None:
    """As after the agent's restart, while the API does not answer."""
    given, before = [holds("main", 1, 2)], {POD_KEY: MemoryLimit(8192), MAIN: MemoryLimit(8192)}

    def limit(holder: ContainerGpus) -> int:
        found = dmem.wanted_of_kernel(given, [holder], {}, SHARE, before=before)
        return found[UID, "", A][1].hard_mib

    assert limit(holding("main", 2048, pod=None)) == 8192
    assert limit(holding("main", 16_384, pod=None)) == 16_384
    assert limit(holding("main", 2048)) == 2048
    assert wanted(given, [holding("main", 2048, pod=None)]) == {POD_KEY: 2048}


@given(st.lists(st.sets(st.integers(0, 20), min_size=1), min_size=1, max_size=4), st.integers(0, 50_000))
def test_a_pods_limit_is_never_less_than_that_of_a_container_in_it(sizes: list[set[int]], now_mib: int) -> None:
    given = [holds(f"c{at}", *numbers) for at, numbers in enumerate(sizes)]
    holders = [holding(f"c{at}", len(numbers) * SHARE, f"{at:064x}") for at, numbers in enumerate(sizes)]
    found = wanted(given, holders, {(UID, "c0", A): now_mib})
    assert found[POD_KEY] >= max(mib for key, mib in found.items() if key.container_id)
    assert found[POD_KEY] <= sum(len(numbers) for numbers in sizes) * SHARE + now_mib


# --- Whether a pod may start ------------------------------------------------------------------------------------------


def test_a_pod_waits_for_its_own_limits() -> None:
    limit = MemoryLimit(4096)
    asked = {(UID, "", A): (POD_KEY, limit), (UID, "main", A): (MAIN, limit)}
    assert dmem.unlimited([UID], asked, {POD_KEY: LimitOutcome(limit)}) == ()
    assert dmem.unlimited([UID], asked, {}) == (dmem.NOT_YET,)
    assert dmem.unlimited([UID], asked, {POD_KEY: LimitOutcome(MemoryLimit(1))}) == (dmem.NOT_YET,)
    assert dmem.unlimited([UID], asked, {POD_KEY: LimitOutcome(limit, "no")}) == ("no",)
    assert dmem.unlimited([UID, OTHER], asked, {POD_KEY: LimitOutcome(limit)}) == (dmem.NOT_YET,), "not asked yet"
    assert dmem.unlimited([], asked, {}) == ()


def test_a_helper_without_a_state_is_the_reason() -> None:
    assert dmem.pending("it is gone", MAIN, MemoryLimit(1)) == "it is gone"
    assert dmem.pending(LimitsState({MAIN: LimitOutcome(MemoryLimit(1))}), MAIN, MemoryLimit(1)) == ""


# --- Whether a limit holds --------------------------------------------------------------------------------------------

HELD, DIFFERS, MISSING, UNVERIFIED = LimitStatus.HELD, LimitStatus.DIFFERS, LimitStatus.MISSING, LimitStatus.UNVERIFIED


@pytest.mark.parametrize(
    ("read", "more", "held", "why"),
    [
        ((0, 4096, 100), {}, HELD, ""),
        ((0, 4096, None), {}, HELD, ""),
        ((0, 4096, 100), {"processes_mib": 164}, HELD, ""),
        ((0, 4096, 100), {"processes_mib": 165}, UNVERIFIED, "65 MiB have escaped the limit: its processes use 165"),
        ((0, 4096, 5000), {}, UNVERIFIED, "does not hold yet: the container uses 5000 MiB"),
        ((0, 8192, 100), {}, DIFFERS, "kernel limit 8192 MiB, granted 4096 MiB: somebody else has changed it"),
        ((0, 8192, 100), {"pending": "it uses more"}, DIFFERS, "granted 4096 MiB: it uses more"),
        ((0, 8192, 100), {"pending": dmem.NOT_YET}, UNVERIFIED, dmem.NOT_YET),
        ((0, 2048, 100), {"now_mib": 2048}, HELD, ""),
        ((0, 4096, 100), {"now_mib": 2048}, DIFFERS, "kernel limit 4096 MiB, granted 2048 MiB"),
        ((6, None, 100), {}, MISSING, "the kernel has no limit for this container's cgroup"),
        ((3, None, None), {"pending": "check its pod"}, MISSING, "check its pod"),
        ((6, None, 100), {"pending": dmem.NOT_YET}, UNVERIFIED, dmem.NOT_YET),
        ((4, None, None), {}, UNVERIFIED, "may not read"),
        ((999, None, None), {}, UNVERIFIED, "it may just have ended"),
    ],
)
def test_what_was_read_back_says_whether_the_limit_holds(
    read: tuple[int, int | None, int | None], more: dict[str, int | str], held: LimitStatus, why: str
) -> None:
    now_mib = more.pop("now_mib", None)
    state = dmem.verified_by_kernel(holding("main", 4096, C), A, read, now_mib, **more)  # type: ignore[arg-type]
    assert (state.enforcement, state.held) == (Enforcement.DMEM, held)
    assert why in state.why
    assert bool(why) is bool(state.why)
    assert state.found_mib == (read[1] if read[0] == 0 else None)


# --- In the limit helper ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "hard_mib", "used_mib", "why"),
    [
        (0, 4096, 8000, ""),
        (0, 8192, 5000, "does not hold yet, and it stays at 8192 MiB: 5000 MiB are in use, and kernels before 7.3"),
        (6, None, 5000, "does not hold yet, and there is none: 5000 MiB are in use"),
        (0, 8192, 100, "took a limit of 4096 MiB, and it stays at 8192 MiB"),
        (6, None, None, "took a limit of 4096 MiB, and there is none"),
        (3, None, None, "the controller dmem is not enabled in the cgroup"),
        (4, None, None, "as deploy/overlays/amd does"),
        (999, None, None, "it may just have ended"),
    ],
)
def test_why_the_kernel_has_no_such_limit(code: int, hard_mib: int | None, used_mib: int | None, why: str) -> None:
    said = helper.why_not_set_by_kernel(MemoryLimit(4096), code, hard_mib, used_mib)
    assert why in said
    assert bool(why) is bool(said)


def test_a_limit_of_the_kernels_is_looked_at_more_often_and_tried_again_sooner() -> None:
    attempt = helper.attempted(MemoryLimit(1), "", None, 0.0, helper.DMEM_CHECK_S)
    assert attempt.due_s == helper.DMEM_CHECK_S
    for _ in range(9):
        attempt = helper.attempted(MemoryLimit(1), "no", attempt, 0.0, helper.DMEM_CHECK_S)
    assert attempt.due_s == helper.DMEM_CHECK_S
