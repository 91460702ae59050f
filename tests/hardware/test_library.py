"""The same hardware, the same expectations: invented GPUs, and a real libnvidia-ml.so.1 where there is one.

NVML_LIB_DIR names the directory of the library: the driver's own, or NVIDIA's mock of it, see `tests.nvml_mock`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView, State
from gpu_device_plugin.hardware.monitor import MonitorTimings
from gpu_device_plugin.model.gpus import Closeness
from gpu_device_plugin.model.memory import shares_of
from gpu_device_plugin.model.telemetry import SLOWING, GpuTelemetry, TelemetryGroup, Throttle
from gpu_device_plugin.node.rules.gpu_health import Xid
from tests.hardware.conftest import Watching
from tests.nvml_mock import Mock, need_library
from tests.patience import eventually, stretched
from tests.programs.doctor.rules.test_node_checks import WELL
from tests.reporting import NODE_CHECKS as CHECKS

EVERY = [*TelemetryGroup]


def nvml() -> dict[str, Any]:
    return {"source": "nvml", "library_dir": need_library()}


def invented() -> dict[str, Any]:
    return {"source": "fake:8xH200"}


def divided() -> dict[str, Any]:
    return {"source": "fake:2xH200:mig=1g.18gb*7,6xH200"}


@pytest.fixture(params=[invented, divided, nvml])
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = request.param()
    return arguments


async def test_the_facts_about_the_gpus_make_sense(source: dict[str, Any], watched: Watching) -> None:
    async with watched(**source) as hardware:
        view = hardware.view.value
    gpus = view.inventory.gpus
    assert gpus
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    whole = [gpu for gpu in gpus if gpu.instance is None]
    assert [gpu.index for gpu in whole] == sorted({gpu.index for gpu in whole})
    assert {gpu.card for gpu in gpus} == {gpu.uuid for gpu in whole}
    for gpu in gpus:
        assert gpu.uuid.startswith("GPU-" if gpu.instance is None else "MIG-")
        assert len(gpu.uuid) == 40
        assert 0 <= gpu.reserved_mib < gpu.total_mib
        assert gpu.mig or shares_of(gpu, 256) > 0
        assert gpu.pci_bus_id is None or len(gpu.pci_bus_id.split(":")) == 3
    assert view.inventory.driver_version is not None
    assert view.inventory.driver_version[0].isdigit()


async def test_every_pair_of_gpus_is_linked_once(source: dict[str, Any], watched: Watching) -> None:
    async with watched(**source) as hardware:
        view = hardware.view.value
    uuids = sorted(gpu.uuid for gpu in view.inventory.gpus if gpu.instance is None)
    pairs = [(a, b) for a in uuids for b in uuids if a < b]
    assert sorted((link.a, link.b) for link in view.inventory.links) == pairs
    assert all((link.closeness is Closeness.NVLINK) == (link.nvlinks > 0) for link in view.inventory.links)


async def test_every_gpu_tells_its_condition_and_its_instances_none(source: dict[str, Any], watched: Watching) -> None:
    async with watched(**source) as hardware:
        telemetry = await hardware.condition(EVERY)
        none = await hardware.condition([])
        whole = [gpu.uuid for gpu in hardware.view.value.inventory.gpus if gpu.instance is None]
    assert telemetry is not None
    assert [condition.uuid for condition in telemetry] == whole
    assert none == tuple(map(GpuTelemetry, whole))
    for condition in telemetry:
        assert 0 < (condition.temperature_c or 0) < (condition.slowdown_c or 200)
        assert condition.power_mw
        assert condition.energy_mj is not None
        assert (condition.sm_clock_mhz or 0) <= (condition.sm_clock_max_mhz or 0)
        assert (condition.throttle or 0) & ~SLOWING == 0
        assert (condition.pcie_width or 0) <= (condition.pcie_width_max or 0)


async def test_a_second_process_sees_the_same_hardware(source: dict[str, Any], watching: Watching) -> None:
    async with watching(**source) as hardware:
        first = await hardware.until(lambda view: view.state is State.WATCHING)
        await hardware.pause()
        assert not any(health.healthy for health in hardware.view.value.health_by_uuid.values())
        hardware.resume()
        second = await hardware.until(lambda view: view.state is State.WATCHING)
    assert second.inventory == first.inventory
    assert all(second.health_by_uuid[uuid].healthy == health.healthy for uuid, health in first.health_by_uuid.items())


@pytest.fixture
def mock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    return Mock(tmp_path, monkeypatch)


def sick(view: HardwareView) -> list[int]:
    return [gpu.index for gpu in view.inventory.gpus if not view.health_by_uuid[gpu.uuid].healthy]


def reasons(view: HardwareView, position: int) -> tuple[str, ...]:
    return view.health_by_uuid[view.inventory.gpus[position].uuid].reasons


async def test_b7_b9_a_real_library_loses_a_gpu_and_finds_it_again(mock: Mock, watched: Watching) -> None:
    async with watched(**nvml()) as hardware:
        view = hardware.view.value
        mock.fails(3, "lost")
        await hardware.until(lambda view: sick(view) == [3])
        mock.heals()
        view = await hardware.until(lambda view: sick(view) == [])
    assert view.child_restarts == 0


async def test_b9_b15_an_xid_48_of_a_real_library_stays_although_the_gpu_can_be_read(
    mock: Mock, watched: Watching
) -> None:
    xids: list[Xid] = []
    async with watched(**nvml(), on_xid=xids.append) as hardware:
        mock.fails(2, "ecc_uncorrectable", xid=48)
        view = await hardware.until(lambda view: "XID 48" in " ".join(reasons(view, 2)))
        uuid = view.inventory.gpus[2].uuid
        errors = view.health_by_uuid[uuid].ecc_uncorrected
        later = await hardware.until(lambda view: view.health_by_uuid[uuid].ecc_uncorrected != errors)
        assert sick(later) == [2]
    assert {(xid.uuid, xid.code) for xid in xids} == {(uuid, 48)}


async def test_b2_a_real_library_hangs_and_is_left_behind(mock: Mock, watched: Watching, quick: MonitorTimings) -> None:
    async with watched(**nvml()) as hardware:
        view = hardware.view.value
        hardware.timings = replace(quick, answer_within_s=stretched(0.5), start_within_s=stretched(1))
        mock.hangs()
        view = await hardware.until(lambda view: len(sick(view)) == len(view.inventory.gpus))
        assert view.state is State.HUNG
        hardware.timings = quick
        mock.heals()
        view = await hardware.until(lambda view: sick(view) == [])
        assert view.state is State.WATCHING


async def test_a_real_library_tells_of_heat_slowed_clocks_a_narrow_link_and_errors(
    mock: Mock, watched: Watching
) -> None:
    async with watched(**nvml()) as hardware:
        before = await hardware.condition(EVERY)
        assert before is not None
        mock.say(
            "devices:\n"
            '  "3": {thermal: {temperature_gpu_c: 91}, clocks_throttle_reasons: {gpu_idle: true, hw_slowdown: true, '
            "hw_thermal_slowdown: true}, pcie: {current_link_width: 8}, power: {current_draw_mw: 650000}}\n"
            '  "5": {failure: {mode: ecc_uncorrectable}}\n'
            '  "6": {nvlink_error: {rate: 1000}}\n'
        )

        async def told() -> list[GpuTelemetry]:
            telemetry = [*(await hardware.condition(EVERY) or before)]
            told = telemetry[3].temperature_c == 91 and telemetry[5].ecc_uncorrected
            return telemetry if told and telemetry[6].nvlink_errors != 0 else []

        telemetry = await eventually(told, "what the mock was told", pause_s=0.1)
    hot, broken = telemetry[3], telemetry[5]
    assert hot == replace(
        before[3],
        temperature_c=91,
        throttle=Throttle.HARDWARE | Throttle.HARDWARE_HEAT,
        pcie_width=8,
        power_mw=650_000,
        energy_mj=hot.energy_mj,
    )
    assert broken.temperature_c == before[5].temperature_c
    expected = {"ecc-uncorrected", "pcie-narrow", "slowed-by-heat"}
    expected |= {"nvlink-errors"} if broken.nvlink_errors is not None else set()  # a T4 has no NVLinks
    codes = {finding.code for finding in CHECKS["GPU condition"](replace(WELL, telemetry=tuple(telemetry)))}
    assert codes >= expected


async def test_a_gpu_that_a_real_library_loses_has_no_condition_and_hides_no_other(
    mock: Mock, watched: Watching
) -> None:
    async with watched(**nvml()) as hardware:
        gpus = hardware.view.value.inventory.gpus
        mock.fails(3, "lost")
        await hardware.until(lambda view: sick(view) == [3])
        telemetry = await hardware.condition(EVERY)
    assert telemetry is not None
    assert [condition.uuid for condition in telemetry] == [gpu.uuid for gpu in gpus if gpu.index != 3]
