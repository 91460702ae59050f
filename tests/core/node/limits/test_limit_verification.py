"""What the driver reads back says whether a container's limit holds, and what to do if it does not."""

from __future__ import annotations

import re

import pytest

from gpu_device_plugin.core.model.limits import Enforcement, LimitStatus
from gpu_device_plugin.core.node.holdings import Holding
from gpu_device_plugin.core.node.limits.limit_verification import by_driver, by_kind, verified

LIMITED = Holding("u", "main", {"GPU-a": 4096}, enforcement=Enforcement.DRIVER)
UNEQUAL = Holding("u", "main", {"GPU-a": 4096, "GPU-b": 1024}, enforcement=Enforcement.DRIVER)


@pytest.mark.parametrize(
    ("holding", "uuid", "code", "hard_mib", "held", "why"),
    [
        (LIMITED, "GPU-a", 0, 4096, LimitStatus.HELD, ""),
        (UNEQUAL, "GPU-a", 0, 4096, LimitStatus.HELD, ""),
        (LIMITED, "GPU-a", 0, 8192, LimitStatus.DIFFERS, "8192 MiB .* granted 4096 MiB: .* NVIDIA_GPU_MEMORY_LIMIT"),
        (LIMITED, "GPU-a", 0, 4095, LimitStatus.DIFFERS, "4095 MiB .* granted 4096 MiB: .* NVIDIA_GPU_MEMORY_LIMIT"),
        (LIMITED, "GPU-a", 0, 0, LimitStatus.DIFFERS, "limits the container to 0 MiB"),
        (UNEQUAL, "GPU-b", 0, 4096, LimitStatus.DIFFERS, "4096 MiB .* granted 1024 MiB: .* give it equal parts$"),
        (UNEQUAL, "GPU-b", 0, 2048, LimitStatus.DIFFERS, "2048 MiB .* granted 1024 MiB: .* NVIDIA_GPU_MEMORY_LIMIT"),
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
    *, holding: Holding, uuid: str, code: int, hard_mib: int | None, held: LimitStatus, why: str
) -> None:
    found = verified(holding, uuid, code, hard_mib)
    assert (found.enforcement, found.held) == (Enforcement.DRIVER, held)
    assert re.search(why, found.why)
    assert found.found_mib == (hard_mib if held in {LimitStatus.HELD, LimitStatus.DIFFERS} else None)


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
    holding = Holding("u", "c", {"GPU-a": 4096}, whole=whole, enforcement=enforcement)
    state = by_kind(holding)
    assert by_driver(holding) is read
    assert (state is None) == (why is None)
    if state is not None and why is not None:
        assert (state.enforcement, state.held) == (enforcement, LimitStatus.UNVERIFIED)
        assert why in state.why
