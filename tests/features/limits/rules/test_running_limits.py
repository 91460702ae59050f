"""What the driver reads back says whether a container's limit holds, and what to do if it does not."""

import re
from dataclasses import replace

import pytest

from gpu_device_plugin.features.limits.rules.running_limits import by_driver, by_kind, verified
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.contract.variables import DRIVER_LIMIT
from gpu_device_plugin.model.limits import Enforcement, LimitStatus

LIMITED = ContainerGpus("u", "main", {"GPU-a": 4096}, enforcement=Enforcement.DRIVER)
UNEQUAL = ContainerGpus("u", "main", {"GPU-a": 4096, "GPU-b": 1024}, enforcement=Enforcement.DRIVER)


@pytest.mark.parametrize(
    ("holder", "uuid", "code", "hard_mib", "held", "why"),
    [
        (LIMITED, "GPU-a", 0, 4096, LimitStatus.HELD, ""),
        (UNEQUAL, "GPU-a", 0, 4096, LimitStatus.HELD, ""),
        (LIMITED, "GPU-a", 0, 8192, LimitStatus.DIFFERS, f"driver limit 8192 MiB, granted 4096 MiB: .* {DRIVER_LIMIT}"),
        (LIMITED, "GPU-a", 0, 4095, LimitStatus.DIFFERS, f"driver limit 4095 MiB, granted 4096 MiB: .* {DRIVER_LIMIT}"),
        (LIMITED, "GPU-a", 0, 0, LimitStatus.DIFFERS, "driver limit 0 MiB, granted 4096 MiB"),
        (UNEQUAL, "GPU-b", 0, 4096, LimitStatus.DIFFERS, "driver limit 4096 MiB, granted 1024 MiB: .* equal amounts$"),
        (UNEQUAL, "GPU-b", 0, 2048, LimitStatus.DIFFERS, f"driver limit 2048 MiB, granted 1024 MiB: .* {DRIVER_LIMIT}"),
        (
            LIMITED,
            "GPU-a",
            0,
            None,
            LimitStatus.MISSING,
            "nvidia-container-toolkit 1.20.1 .* CDI .* legacy.* RmMemacctMode=0",
        ),
        (LIMITED, "GPU-a", 6, None, LimitStatus.MISSING, "the driver has no limit for this container"),
        (LIMITED, "GPU-a", 3, None, LimitStatus.MISSING, "restart the pod$"),
        (LIMITED, "GPU-a", 4, None, LimitStatus.UNVERIFIED, "no permission.*runtime class nvidia$"),
        (LIMITED, "GPU-a", 13, None, LimitStatus.UNVERIFIED, "r615: it was replaced by an older one"),
        (LIMITED, "GPU-a", 999, None, LimitStatus.UNVERIFIED, r"NVML: error 999\)$"),
        (LIMITED, "GPU-a", 6, 4096, LimitStatus.MISSING, "no limit"),
        (LIMITED, "GPU-a", 15, 4096, LimitStatus.UNVERIFIED, "error 15"),
    ],
)
def test_what_was_read_back_says_whether_the_limit_holds(
    *, holder: ContainerGpus, uuid: str, code: int, hard_mib: int | None, held: LimitStatus, why: str
) -> None:
    found = verified(holder, uuid, code, hard_mib)
    assert (found.enforcement, found.held) == (Enforcement.DRIVER, held)
    assert re.search(why, found.why)
    assert found.found_mib == (hard_mib if held in {LimitStatus.HELD, LimitStatus.DIFFERS} else None)


@pytest.mark.parametrize(
    ("started_mib", "now_mib", "hard_mib", "held", "why"),
    [
        (12288, 6144, 12288, LimitStatus.HELD, ""),  # as it was started
        (12288, 6144, 6144, LimitStatus.HELD, ""),  # as the helper has set it
        (None, 6144, 8192, LimitStatus.HELD, ""),  # an earlier agent did not tell it
        (12288, 6144, 5000, LimitStatus.UNVERIFIED, "5000 MiB .* may use 6144 MiB since a moment ago"),
        (12288, 6144, 4095, LimitStatus.DIFFERS, "4095 MiB .* started with 12288 MiB, and may use 6144 .* DRIVER"),
        (12288, 6144, 99999, LimitStatus.DIFFERS, "NVIDIA_GPU_MEMORY_LIMIT"),
        (4096, 2048, 4096, LimitStatus.HELD, ""),
    ],
)
def test_a_limit_that_may_change_is_as_it_started_or_as_it_is_now(
    started_mib: int | None, now_mib: int, hard_mib: int, held: LimitStatus, why: str
) -> None:
    holder = replace(LIMITED, limits={"GPU-a": 8192}, started_mib=started_mib)
    found = verified(holder, "GPU-a", 0, hard_mib, now_mib)
    assert (found.enforcement, found.held, found.found_mib) == (Enforcement.DRIVER, held, hard_mib)
    assert re.search(why.replace("DRIVER", "NVIDIA_GPU_MEMORY_LIMIT"), found.why)


@pytest.mark.parametrize(
    ("enforcement", "whole", "read", "why"),
    [
        (Enforcement.DRIVER, False, True, None),
        (Enforcement.DRIVER, True, False, None),
        (Enforcement.MPS, False, False, "MPS limits each process"),
        (Enforcement.MPS, True, False, None),
        (Enforcement.CUSTOM, False, False, "a library that the administrator added"),
        (Enforcement.ADVISORY, False, False, None),
        (None, False, False, None),
        (None, True, False, None),
    ],
)
def test_only_the_drivers_limits_of_shares_are_read_back(
    *, enforcement: Enforcement | None, whole: bool, read: bool, why: str | None
) -> None:
    """A whole GPU has no limit, and one that is only told to the container needs no state."""
    holder = ContainerGpus("u", "c", {"GPU-a": 4096}, whole=whole, enforcement=enforcement)
    state = by_kind(holder)
    assert by_driver(holder) is read
    assert (state is None) == (why is None)
    if state is not None and why is not None:
        assert (state.enforcement, state.held) == (enforcement, LimitStatus.UNVERIFIED)
        assert why in state.why
