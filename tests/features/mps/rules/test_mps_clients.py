"""What clients of MPS are given."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, Part, limit_grant
from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import client_grant
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.node.rules.container_grants import Grant, GrantOwner, Mount

A = Part("GPU-a", 4096, 143_771, 143_156)
B = replace(A, uuid="GPU-b", mib=2048)
BY = "GPUSHARE_MEMORY_LIMIT_BY"
ADVISORY = Grant({BY: "advisory"})
READY = MpsGpu(MpsStatus.READY, pipe_directory="/run/gpushare/mps/GPU-a")


def client(daemons: Mapping[str, MpsGpu] | None = None, *, compute: bool = False) -> LimitPlan:
    """Return the plan of a node with MPS on both GPUs, and these daemons."""
    there = {"GPU-a": READY} if daemons is None else daemons
    clients = partial(client_grant, daemons=there, shm="/run/gpushare/mps/shm", compute=compute)
    by = {part.uuid: GpuEnforcement(Enforcement.MPS, "why") for part in (A, B)}
    return LimitPlan(by, others={Enforcement.MPS: clients})


def test_a_client_of_mps_gets_its_daemon_its_limit_and_the_memory_that_it_shares_with_the_server() -> None:
    assert limit_grant([A], client()) == Grant(
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
    envs = limit_grant([replace(A, mib=mib)], client(compute=True)).envs
    assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == percent


@pytest.mark.parametrize("plan", [client({}), client({"GPU-a": MpsGpu(MpsStatus.STOPPED)})], ids=["none", "stopped"])
def test_without_a_daemon_no_variable_of_mps_is_set(plan: LimitPlan) -> None:
    """A wrong directory would remove all limits in silence."""
    assert limit_grant([A], plan) == ADVISORY


def test_a_container_with_parts_of_two_gpus_cannot_have_two_daemons() -> None:
    assert limit_grant([A, B], client({"GPU-a": READY, "GPU-b": READY})) == ADVISORY


def test_frameworks_get_their_fraction_of_the_gpu_that_clients_see() -> None:
    owner = GrantOwner("0f6b8c1e-1b1c-4a55-9d1e-0a1b2c3d4e5f", "main", frameworks=("jax",))
    assert limit_grant([A], client(), owner).envs["XLA_CLIENT_MEM_FRACTION"] == "0.0286"


@pytest.mark.parametrize("limit_shares", [12, 2])
def test_mps_holds_a_container_to_its_limit(limit_shares: int) -> None:
    four = replace(A, mib=4096, whole_mib=15_360, most_mib=limit_shares * 1024)
    made = limit_grant([four], client(compute=True)).envs
    assert made["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={limit_shares * 1024}M"
    assert made["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "27"  # multiprocessors are not lent
