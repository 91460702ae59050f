"""What the doctor finds of an MPS supervisor that no longer runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.mpsfiles import STATE_FILE, MpsGpu, MpsState, MpsStatus, write_state
from gpu_device_plugin.programs.doctor.limiting import left_by_mps

if TYPE_CHECKING:
    from pathlib import Path

GPUS = {"GPU-b": MpsGpu(MpsStatus.FAILED), "GPU-a": MpsGpu(MpsStatus.READY), "GPU-c": MpsGpu(MpsStatus.STOPPED)}


def test_a_supervisor_that_no_longer_runs_leaves_the_gpus_that_it_did_not_give_back(tmp_path: Path) -> None:
    assert left_by_mps(tmp_path) == ()
    (tmp_path / STATE_FILE).write_text(write_state(MpsState(GPUS, beat_s=0.0)))
    assert left_by_mps(tmp_path) == ("GPU-a", "GPU-b")
    (tmp_path / STATE_FILE).write_text(write_state(MpsState(GPUS, time.clock_gettime(time.CLOCK_BOOTTIME))))
    assert left_by_mps(tmp_path) == (), "it runs, and gives back what is to be given back"
