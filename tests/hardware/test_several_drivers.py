"""GPUs of two vendors in one machine, watched by one process, as far as each vendor's driver works."""

import io
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.child import serve
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView, State
from gpu_device_plugin.hardware.messages import read
from gpu_device_plugin.hardware.monitor import MonitorTimings
from gpu_device_plugin.hardware.several_drivers import SeveralDrivers
from tests.hardware.conftest import Described, Watching

if TYPE_CHECKING:
    from gpu_device_plugin.hardware.driver import Driver, Record

BOTH = """
import sys
from gpu_device_plugin.hardware import child
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.several_drivers import SeveralDrivers
source, *times = sys.argv[1:]
origin_s, since_s = map(float, times)
child.open_driver = lambda *_: SeveralDrivers(
    lambda: Fake(source, origin_s, since_s), Fake(source.removesuffix("gpus.json") + "others.json", origin_s, since_s)
)
child.main(source, *times)
"""
"""A driver process that takes one description for NVML, and another for the kernel's drivers."""


class Machine:
    """The GPUs of a machine with two vendors."""

    def __init__(self, folder: Path) -> None:
        self.nvidia = Described(folder / "gpus.json", {"gpus": [{"model": "T4", "count": 2, "recovery_action": None}]})
        self.others = Described(folder / "others.json", {"gpus": "1xMI300X,1xB580"})
        self.command = (sys.executable, "-c", BOTH)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def products(view: HardwareView) -> list[str]:
    return [gpu.product for gpu in view.inventory.gpus]


def health(view: HardwareView) -> list[bool]:
    return [view.health_by_uuid[gpu.uuid].healthy for gpu in view.inventory.gpus]


OF_BOTH = ["Tesla T4", "Tesla T4", "AMD Instinct MI300X", "Intel GPU 8086:e20b"]


# --- In the agent ----------------------------------------------------------------------------------------------------


async def test_all_gpus_are_listed_and_numbered_and_events_of_both_drivers_arrive(
    watched: Watching, machine: Machine, quick: MonitorTimings
) -> None:
    """No reading tells of them."""
    seldom = replace(quick, probe_every_s=600, rescan_every_s=600, rescan_missing_every_s=600)
    async with watched(machine.nvidia.path, command=machine.command, timings=seldom) as hardware:
        view = await hardware.until(lambda view: view.state is State.WATCHING)
        assert (products(view), [gpu.index for gpu in view.inventory.gpus]) == (OF_BOTH, [0, 1, 2, 3])
        assert view.sentence == "4 GPUs, driver 580.65.06"
        ends = {frozenset((link.a, link.b)) for link in view.inventory.links}
        assert len(ends) == 2, "a link within each vendor"
        machine.nvidia.now(1, xid=48)
        await hardware.until(lambda view: health(view) == [True, False, True, True])
        machine.others.now(0, recovery_action="gpu-reset")
        await hardware.until(lambda view: health(view) == [True, False, False, True])
        assert view.child_restarts == 0


async def test_a_driver_that_cannot_be_used_is_told_while_the_others_gpus_are_served_and_is_tried_again(
    watched: Watching, machine: Machine
) -> None:
    machine.nvidia.now(failure="no-driver")
    async with watched(machine.nvidia.path, command=machine.command) as hardware:
        view = await hardware.until(lambda view: view.state is State.WATCHING)
        assert (products(view), health(view)) == (OF_BOTH[2:], [True, True])
        (told,) = view.inventory.unread
        assert told.startswith("GPUs of one driver are left out: ")
        assert told in view.sentence
        machine.nvidia.now(failure="none")
        view = await hardware.until(lambda view: sorted(products(view)) == sorted(OF_BOTH))
        assert (view.inventory.unread, health(view)) == ((), [True] * 4)


async def test_where_no_driver_works_the_error_is_that_of_nvml_as_if_it_were_alone(
    watching: Watching, machine: Machine
) -> None:
    machine.nvidia.now(failure="no-library")
    machine.others.now(failure="other")
    async with watching(machine.nvidia.path, command=machine.command) as hardware:
        view = await hardware.until(lambda view: view.state is not State.STARTING)
        assert (view.state, view.inventory.gpus) == (State("no-library"), ())
        machine.others.now(failure="none")
        view = await hardware.until(lambda view: view.inventory.gpus)
        assert products(view) == OF_BOTH[2:]


async def test_a_driver_that_fails_later_leaves_the_others_gpus_in_service(watched: Watching, machine: Machine) -> None:
    async with watched(machine.nvidia.path, command=machine.command) as hardware:
        await hardware.until(lambda view: health(view) == [True] * 4)
        machine.nvidia.now(failure="no-driver")
        view = await hardware.until(lambda view: view.inventory.unread and health(view)[2:] == [True, True])
        assert health(view)[:2] == [False, False]


async def test_a_driver_that_hangs_takes_all_gpus_out_of_service_until_it_answers(
    watched: Watching, machine: Machine, quick: MonitorTimings
) -> None:
    async with watched(machine.nvidia.path, command=machine.command) as hardware:
        await hardware.until(lambda view: health(view) == [True] * 4)
        hardware.timings = replace(quick, answer_within_s=0.2, start_within_s=0.2)
        machine.others.now(hang=True)
        view = await hardware.until(lambda view: not any(health(view)))
        assert view.state is State("hung")
        hardware.timings = quick
        machine.others.now(hang=False)
        await hardware.until(lambda view: health(view) == [True] * 4)


# --- In the process --------------------------------------------------------------------------------------------------


class Broken:
    """A driver of which one method raises an error."""

    def __init__(self, gpus: str, method: str, error: BaseException) -> None:
        self._gpus = Fake(gpus)
        self._method, self._error = method, error

    def __getattr__(self, name: str) -> Callable[..., "list[Record]"]:
        if name == self._method:
            return self._raise
        found: Callable[..., list[Record]] = getattr(self._gpus, name)
        return found

    def _raise(self, *_: object, **__: object) -> "list[Record]":
        raise self._error


class Listing(Fake):
    """A driver without GPUs, with troubles."""

    def __init__(self, left_out: int, *troubles: str) -> None:
        super().__init__("fake:1xT4")
        self._troubles = {"gpus": [], "links": [], "left_out": left_out, "troubles": list(troubles)}

    def inventory(self) -> "Record":
        return {**super().inventory(), **self._troubles}


LOST = HardwareError(driver.CONTEXT_LOST, "nothing answers")


def refused() -> "Driver":
    raise HardwareError(driver.NO_LIBRARY, "there is no libnvidia-ml.so.1")


def test_a_library_that_cannot_be_opened_leaves_the_others_gpus() -> None:
    inventory = SeveralDrivers(refused, Fake("fake:2xMI300X")).inventory()
    assert [gpu["index"] for gpu in inventory["gpus"]] == [0, 1]
    assert (inventory["left_out"], inventory["driver_version"]) == (1, "6.14.14")
    (told,) = inventory["troubles"]
    assert told.startswith("GPUs of one driver are left out: there is no libnvidia-ml.so.1; is the driver installed")


def test_a_machine_whose_other_gpus_are_none_after_all_has_the_error_of_nvml() -> None:
    """As an APU beside a GPU of NVIDIA's: it is bound to amdgpu, and not listed."""
    with pytest.raises(HardwareError, match="there is no libnvidia-ml"):
        SeveralDrivers(refused, Listing(0, "the APU 0000:c1:00.0 is left out")).inventory()


def test_what_is_left_out_comes_before_what_a_driver_lacks() -> None:
    lacking = Listing(1, "one is lost", "no processes are told")
    inventory = SeveralDrivers(lambda: lacking, lacking).inventory()
    assert inventory["left_out"] == 2
    assert inventory["troubles"] == ["one is lost"] * 2 + ["no processes are told"] * 2


def test_every_reading_is_of_all_gpus_and_each_limit_of_the_driver_that_has_its_gpu(tmp_path: Path) -> None:
    for name, model in (("gpus", "T4"), ("others", "MI300X")):
        text = json.dumps({"gpus": [{"model": model, "memory_limits": True}]})
        (tmp_path / f"{name}.json").write_text(text)
    both = SeveralDrivers(lambda: Fake(str(tmp_path / "gpus.json")), Fake(str(tmp_path / "others.json")))
    uuids = [gpu["uuid"] for gpu in both.inventory()["gpus"]]
    readings = (both.probe(), both.use(utilisation=True), both.condition(["power"]))
    assert [[each["uuid"] for each in records] for records in readings] == [uuids] * 3
    group = str(tmp_path)
    limits = both.set_limits([(uuid, group, 1024 * (n + 1), 0) for n, uuid in enumerate(uuids)])
    assert [(limit["uuid"], limit["hard_mib"]) for limit in limits] == [(uuids[0], 1024), (uuids[1], 2048)]
    assert both.limits([(uuid, group) for uuid in uuids]) == limits


@pytest.mark.parametrize("broken", ["nvidia", "others"])
def test_an_error_while_one_driver_waits_for_events_is_told_as_that_of_the_process(broken: str) -> None:
    nvidia: Driver = Fake("fake:1xT4")
    others: Driver = Fake("fake:1xMI300X")
    if broken == "nvidia":
        nvidia = Broken("fake:1xT4", "wait_events", LOST)  # type: ignore[assignment]
    else:
        others = Broken("fake:1xMI300X", "wait_events", LOST)  # type: ignore[assignment]
    answers, told = io.BytesIO(), threading.Event()

    class Answers(io.BytesIO):
        def write(self, line: Any) -> int:
            if b"error" in line:
                told.set()
            return answers.write(line)

    class Requests(io.BytesIO):
        def readline(self, _size: int | None = -1) -> bytes:
            assert told.wait(30)
            return b""

    serve(lambda: SeveralDrivers(lambda: nvidia, others), Requests(), Answers())
    first, second = map(read, answers.getvalue().splitlines())
    assert first.answer is not None
    assert second.error is not None
    assert (second.error.kind, second.error.what) == (driver.CONTEXT_LOST, "nothing answers")


def test_a_defect_in_a_waiting_thread_is_raised_where_the_process_ends_of_it() -> None:
    others: Any = Broken("fake:1xMI300X", "wait_events", RuntimeError("a defect of ours"))
    both = SeveralDrivers(lambda: Fake("fake:1xT4"), others)
    both.inventory()
    with pytest.raises(RuntimeError, match="a defect of ours"):
        both.wait_events(30)


def test_without_an_event_waiting_ends_in_time() -> None:
    both = SeveralDrivers(lambda: Fake("fake:1xT4"), Fake("fake:1xMI300X"))
    both.inventory()
    assert both.wait_events(0.01) == []
