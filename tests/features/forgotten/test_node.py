"""Allocations that the kubelet has lost are in the log, in the metrics and in an Event, once."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_device_plugin import metrics as m
from gpu_device_plugin.features.forgotten.node import ForgottenPods
from gpu_device_plugin.kubelet.checkpoint import Checkpoint
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.resources import Kind
from tests.names import OURS
from tests.node.recorded_api import RecordedApi


class Api(RecordedApi):
    """An API that shows two of the pods, and not the processes of others."""

    def living(self) -> Mapping[str, str]:
        return {"a": "default/a", "e": "default/e"}


class Counted(m.Metrics):
    """What was counted."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, ...]] = []

    def count(self, what: m.Count, *labels: str, times: int = 1) -> None:
        self.counted += [(what.name.removeprefix("gpushare_"), *labels)] * times


async def test_devices_that_the_kubelet_has_forgotten_are_told_with_the_pods_that_have_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api, metrics = Api(), Counted()
    records = KubeletRecords(tmp_path, tmp_path / "pod-resources", OURS)
    known = SimpleNamespace(records=records, proc=tmp_path / "proc", api=api, cluster=api, metrics=metrics)
    feature = ForgottenPods(cast("Any", known))
    held = tuple(Allocation(uid, "main", Kind.MEMORY, frozenset({f"G::{uid}", f"G::{uid}2"})) for uid in "ae")
    feature.checkpoint_read(Checkpoint(held, stamp=(1, 1, 1)), its_own=True)
    (tmp_path / "kubelet.sock").touch()  # another kubelet
    for _ in range(2):
        feature.checkpoint_read(None, its_own=False)
        await feature.check_unrecorded()
    assert feature.unrecorded_ids() == {"G::a", "G::a2", "G::e", "G::e2"}
    assert metrics.counted == [("ledger_drift_total", "unknown_to_the_kubelet")] * 4
    ((reason, note, _, warning),) = api.events
    assert (reason, warning) == ("DevicesForgotten", True)
    assert note.startswith(
        "The kubelet has lost its record of 4 devices of default/a, default/e: its checkpoint was "
        "deleted or damaged before it started, or those pods were force-deleted"
    )
    assert [record.levelname for record in caplog.records] == ["ERROR"]
