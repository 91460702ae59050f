"""The hardware as the rest of the program sees it, watched through real child processes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView, HealthChange, State
from gpu_device_plugin.hardware.messages import MOST_BYTES, CgroupLimit
from gpu_device_plugin.hardware.monitor import Hardware, HardwareContextLost, MonitorTimings
from gpu_device_plugin.model.gpus import Closeness
from gpu_device_plugin.model.telemetry import GpuReading
from gpu_device_plugin.node.rules.gpu_health import GpuHealth, HealthRules, Xid
from tests.hardware.conftest import Describe, Watching
from tests.patience import eventually, patience, stretched


def believed(view: HardwareView) -> list[GpuHealth]:
    return [view.health_by_uuid[gpu.uuid] for gpu in view.inventory.gpus]


def healthy(view: HardwareView) -> list[bool]:
    return [health.healthy for health in believed(view)]


def child_of(hardware: Hardware) -> int:
    assert hardware.child is not None
    return hardware.child.pid


async def test_the_view_shows_every_gpu_and_how_they_are_connected(watching: Watching) -> None:
    async with watching("fake:1xT4,2xH200-141GiB") as hardware:
        assert hardware.view.value.state is State.STARTING
        view = await hardware.until(lambda view: view.state is State.WATCHING)
    t4, one, other = view.inventory.gpus
    assert (t4.product, t4.total_mib, t4.index, t4.numa_node) == ("Tesla T4", 15360, 0, 0)
    assert (one.product, one.total_mib) == ("NVIDIA H200", 141 * 1024)
    assert (t4.architecture, one.architecture) == ("Turing", "Hopper")
    closeness = {frozenset((link.a, link.b)): link.closeness for link in view.inventory.links}
    assert closeness[frozenset((one.uuid, other.uuid))] is Closeness.NVLINK
    assert healthy(view) == [True, True, True]
    assert view.sentence == "3 GPUs, driver 580.65.06"


async def test_b10_a_fatal_xid_takes_one_gpu_away_and_is_told_with_its_reason(
    watched: Watching, described: Describe
) -> None:
    changes: list[HealthChange] = []
    xids: list[Xid] = []
    gpus = described([{"model": "T4", "count": 2, "recovery_action": None}])
    async with watched(gpus.path, on_change=changes.append, on_xid=xids.append) as hardware:
        view = hardware.view.value
        gpus.now(1, xid=48)
        await hardware.until(lambda view: healthy(view) == [True, False])
    uuid = view.inventory.gpus[1].uuid
    (xid,) = xids
    assert xid == Xid(uuid, 48)
    (change,) = changes
    assert (change.uuid, change.healthy) == (uuid, False)
    assert change.reason.startswith("unhealthy: XID 48 (uncorrectable (double bit) memory error); ")


async def test_b9_a_gpu_that_was_lost_and_is_back_is_offered_again(watched: Watching, described: Describe) -> None:
    changes: list[HealthChange] = []
    gpus = described()
    async with watched(gpus.path, on_change=changes.append) as hardware:
        gpus.now(0, lost=True)
        view = await hardware.until(lambda view: healthy(view) == [False, True] and "left out" in view.sentence)
        assert view.state is State.WATCHING
        gpus.now(0, lost=False)
        view = await hardware.until(lambda view: healthy(view) == [True, True])
    assert [change.healthy for change in changes] == [False, True]
    assert [gpu.index for gpu in view.inventory.gpus] == [0, 1]  # in the order in which they were first seen
    assert view.child_restarts == 0


async def test_b7_a_gpu_lost_without_any_event_is_found_by_its_reading(
    watched: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described()
    timings = replace(quick, rescan_every_s=60, rescan_missing_every_s=60)
    async with watched(gpus.path, timings=timings) as hardware:
        gpus.now(1, lost=True)
        view = await hardware.until(lambda view: healthy(view) == [True, False])
    assert believed(view)[1].reasons == (
        "the driver cannot read it: GPU is lost (15); it returns to service once it answers reliably",
    )


async def test_b2_a_hang_is_noticed_after_two_deadlines_and_ends_with_the_first_reading(
    watched: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described()
    async with watched(gpus.path) as hardware:
        start_within_s = stretched(0.5)
        hardware.timings = replace(quick, answer_within_s=stretched(0.2), start_within_s=start_within_s)
        await hardware.read_again()  # from here on every question has that long
        gpus.now(hang=True)
        view = await hardware.until(lambda view: healthy(view) == [False, False])
        assert view.state is State.HUNG
        assert believed(view)[0].reasons[0].startswith(f"the driver did not answer within {start_within_s:g} s; ")
        assert view.child_restarts == 1
        hardware.timings = quick
        gpus.now(hang=False)
        view = await hardware.until(lambda view: healthy(view) == [True, True])
        assert view.state is State.WATCHING


async def test_b2_a_child_that_cannot_be_killed_is_left_behind_and_replaced(
    watched: Watching, quick: MonitorTimings
) -> None:
    """A process in an uninterruptible call outlives SIGKILL; here there is simply no time to see it end."""
    async with watched("fake:1xT4", timings=replace(quick, end_within_s=0, rescan_every_s=60)) as hardware:
        os.kill(child_of(hardware), signal.SIGKILL)
        view = await hardware.until(lambda view: view.child_restarts == 1 and view.state is State.WATCHING)
        assert healthy(view) == [True]


@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGKILL])
async def test_b3_a_child_that_crashes_is_replaced_and_no_gpu_is_blamed(
    watched: Watching, quick: MonitorTimings, end: signal.Signals
) -> None:
    changes: list[HealthChange] = []
    timings = replace(quick, rescan_every_s=60)
    async with watched("fake:2xT4", on_change=changes.append, timings=timings) as hardware:
        os.kill(child_of(hardware), end)
        crashed = await hardware.until(lambda view: view.state is State.CRASHED)
        assert f"the process that calls the driver was ended by {end.name}" in crashed.sentence
        view = await hardware.until(lambda view: view.state is State.WATCHING)
    assert (healthy(view), view.child_restarts, changes) == ([True, True], 1, [])


async def test_a_script_goes_on_in_the_next_child_where_it_was(watched: Watching, described: Describe) -> None:
    """The crash and the XID before it are history for the second child; what it finds is the memory in use."""
    xids: list[Xid] = []
    gpus = described()
    async with watched(gpus.path, on_xid=xids.append) as hardware:
        gpus.now(0, xid=31, used="3GiB", processes=2)
        uuid = hardware.view.value.inventory.gpus[0].uuid
        while not xids or hardware.readings.value[uuid].processes != 3:
            await hardware.read_again()
        gpus.now(crash=True)
        view = await hardware.until(lambda view: view.child_restarts == 1 and view.state is State.WATCHING)
        await hardware.read_again()
    assert len(xids) == 1
    assert view.inventory.gpus[0].uuid == uuid
    assert hardware.readings.value[uuid].processes == 3  # memory in use counts as one


async def test_a_reading_that_is_asked_for_begins_afterwards(
    watched: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described()
    timings = replace(quick, probe_every_s=3600, rescan_every_s=3600)
    async with watched(gpus.path, timings=timings) as hardware:
        view = hardware.view.value
        gpus.now(0, processes=2)
        asked = time.monotonic()
        await hardware.read_again()
        reading = hardware.readings.value[view.inventory.gpus[0].uuid]
        assert reading.began >= asked
        assert reading.processes == 2


async def test_a_reading_that_nobody_can_take_is_not_waited_for(watched: Watching, described: Describe) -> None:
    async with watched(described().path) as hardware:
        await hardware.pause()
        before = hardware.readings.value
        await hardware.read_again()
        assert hardware.readings.value is before


async def test_a_reading_that_hangs_is_waited_for_as_long_as_any(
    watched: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described()
    timings = replace(quick, probe_every_s=3600, rescan_every_s=3600)
    async with watched(gpus.path, timings=timings) as hardware:
        hardware.timings = replace(timings, answer_within_s=0.5)
        asked = time.monotonic()
        gpus.now(hang="1h")
        await hardware.read_again()
        assert all(reading.began < asked for reading in hardware.readings.value.values())


async def test_b11_gpus_that_nobody_could_read_for_long_are_not_offered(
    watched: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described()
    async with watched(gpus.path, timings=replace(quick, blind_after_s=0.5)) as hardware:
        gpus.now(failure="no-driver")
        view = await hardware.until(lambda view: view.state is State.NO_DRIVER and healthy(view) == [False, False])
        assert believed(view)[0].reasons[0].startswith("it could not be read for 0.5 s, because of the driver: ")
        gpus.now(failure="none")
        await hardware.until(lambda view: healthy(view) == [True, True])


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ("no-library", "runtime class nvidia"),
        ("no-driver", "load the NVIDIA kernel module"),
        ("no-permission", "NVIDIA_VISIBLE_DEVICES=all"),
        ("version-mismatch", "restart it, and reboot the node"),
    ],
)
async def test_b1_a_driver_that_is_missing_is_told_with_advice_and_found_when_it_comes(
    watching: Watching, described: Describe, failure: str, advice: str
) -> None:
    gpus = described(events=[{"at": 0, "failure": failure}])
    async with watching(gpus.path) as hardware:
        view = await hardware.until(lambda view: view.state is not State.STARTING)
        assert view.state == failure
        assert advice in view.sentence
        assert view.inventory.gpus == ()
        gpus.now(failure="none")
        view = await hardware.until(lambda view: view.state is State.WATCHING)
    assert healthy(view) == [True, True]


async def test_b5_a_driver_changed_underneath_is_opened_anew(
    watched: Watching, tmp_path: Path, quick: MonitorTimings
) -> None:
    changes: list[HealthChange] = []
    version = tmp_path / "sys/module/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("580.65.06\n")
    timings = replace(quick, rescan_every_s=60)
    async with watched("fake:1xT4", timings=timings, on_change=changes.append) as hardware:
        version.write_text("580.95.05\n")
        await hardware.until(lambda view: healthy(view) == [False])
        view = await hardware.until(lambda view: healthy(view) == [True])
        assert (view.state, view.child_restarts) == (State.WATCHING, 1)
    assert "the kernel's driver was changed from 580.65.06 to 580.95.05" in changes[0].reason


async def test_b5_the_version_is_also_read_from_proc(watched: Watching, tmp_path: Path, quick: MonitorTimings) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    line = (
        "NVRM version: NVIDIA UNIX {} Kernel Module{}  {}  Release Build  (dvs-builder@U22)  Mon\nGCC version: 12.3.0"
    )
    version.write_text(line.format("x86_64", "", "535.183.01"))
    async with watched("fake:1xT4", timings=replace(quick, rescan_every_s=60)) as hardware:
        version.write_text(line.format("Open", " for x86_64", "580.65.06"))
        view = await hardware.until(lambda view: healthy(view) == [False])
    assert "from 535.183.01 to 580.65.06" in believed(view)[0].reasons[0]


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ("context-lost", "systemctl daemon-reload"),
        # An upgrade has left the old library behind, and a new container gets the new one: the old one had fitted.
        ("version-mismatch", "restart it, and reboot the node"),
    ],
)
async def test_f6_lost_device_access_that_two_restarts_do_not_cure_ends_the_agent_and_blames_no_gpu(
    described: Describe, quick: MonitorTimings, failure: str, advice: str
) -> None:
    changes: list[HealthChange] = []
    gpus = described()
    hardware = Hardware(str(gpus.path), timings=quick, on_change=changes.append)
    run = asyncio.create_task(hardware.run())
    await hardware.view.after(0)
    gpus.now(failure=failure)
    async with patience(hardware):
        with pytest.raises(HardwareContextLost, match=advice):
            await run
    assert healthy(hardware.view.value) == [True, True]
    assert changes == []


async def test_f6_lost_device_access_that_comes_back_is_no_reason_to_end(
    watched: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described()
    async with watched(gpus.path, timings=replace(quick, retry_from_s=stretched(2))) as hardware:
        gpus.now(failure="context-lost")
        await hardware.until(lambda view: view.state is State.CONTEXT_LOST)
        gpus.now(failure="none")
        view = await hardware.until(lambda view: view.state is State.WATCHING)
    assert healthy(view) == [True, True]


async def test_b6_a_pause_lets_go_of_the_gpus_and_a_resume_takes_a_reset_into_account(
    watched: Watching, described: Describe
) -> None:
    gpus = described([{"model": "T4", "recovery_action": None}])
    async with watched(gpus.path) as hardware:
        gpus.now(0, xid=48)
        await hardware.until(lambda view: healthy(view) == [False])
        child = child_of(hardware)
        await hardware.pause()
        await hardware.pause()  # once more changes nothing
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        view = hardware.view.value
        assert view.state is State.PAUSED
        assert "the agent is paused" in believed(view)[0].reasons[0]
        hardware.resume()
        view = await hardware.until(lambda view: healthy(view) == [True])
    assert (view.state, view.child_restarts) == (State.WATCHING, 0)


async def test_b6_a_pause_is_possible_while_the_driver_is_missing(watching: Watching, described: Describe) -> None:
    gpus = described(events=[{"at": 0, "failure": "no-driver"}])
    async with watching(gpus.path) as hardware:
        await hardware.until(lambda view: view.state is State.NO_DRIVER)
        await hardware.pause()
        assert hardware.view.value.state is State.PAUSED
        gpus.now(failure="none")
        hardware.resume()
        view = await hardware.until(lambda view: view.state is State.WATCHING)
    assert healthy(view) == [True, True]


async def test_b14_a_storm_of_xids_is_counted_and_moves_the_view_once(watched: Watching, described: Describe) -> None:
    xids: list[Xid] = []
    all_seen = asyncio.Event()

    def count(xid: Xid) -> None:
        xids.append(xid)
        if len(xids) == 500:
            all_seen.set()

    gpus = described([{"model": "T4", "recovery_action": None}])
    async with watched(gpus.path, on_xid=count) as hardware:
        version = hardware.view.version
        gpus.document["events"] = [{"at": 0, "gpu": 0, "xid": 95}] * 500
        gpus.write()
        async with patience(hardware):
            await all_seen.wait()
        assert len(xids) == 500
        await hardware.view.after(version)
        assert hardware.view.version == version + 1


async def test_b15_memory_that_waits_for_repair_is_advice_or_fatal_as_configured_while_running(
    watched: Watching, described: Describe
) -> None:
    gpus = described()
    async with watched(gpus.path) as hardware:
        gpus.now(0, ecc=1, remap="pending")
        view = await hardware.until(lambda view: believed(view)[0].notes)
        assert healthy(view) == [True, True]
        assert len(believed(view)[0].notes) == 2
        hardware.rules = HealthRules(remap_pending_is_fatal=True)
        await hardware.until(lambda view: healthy(view) == [False, True])


async def test_b16_b17_a_card_that_is_swapped_is_another_gpu_and_the_old_one_stays_listed(
    watched: Watching, described: Describe
) -> None:
    old, new = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")
    gpus = described([{"model": "T4", "uuid": old}, {"model": "A10"}])
    async with watched(gpus.path) as hardware:
        gpus.document["gpus"][0]["uuid"] = new
        gpus.write()
        view = await hardware.until(lambda view: len(view.inventory.gpus) == 3)
    assert [(gpu.uuid, gpu.product) for gpu in view.inventory.gpus][::2] == [(old, "Tesla T4"), (new, "Tesla T4")]
    assert healthy(view) == [False, True, True]
    assert believed(view)[0].reasons[0].startswith("the driver no longer finds it; ")


async def test_b18_gpus_that_appear_later_are_found(watching: Watching, described: Describe) -> None:
    gpus = described([])
    async with watching(gpus.path) as hardware:
        view = await hardware.until(lambda view: view.state is State.WATCHING)
        assert view.sentence == "the driver works and lists no GPU, driver 580.65.06"
        for count in (2, 3):
            gpus.document["gpus"] = f"{count}xT4"
            gpus.write()
            view = await hardware.until(lambda view, count=count: len(healthy(view)) == count)  # type: ignore[misc]  # the count of this round
            assert all(healthy(view))


async def test_b19_gpus_of_different_sizes_keep_their_own(watched: Watching) -> None:
    async with watched("fake:1xP4,1xT4,1xA100-40GiB") as hardware:
        view = hardware.view.value
    assert [gpu.total_mib for gpu in view.inventory.gpus] == [7680, 15360, 40960]


async def test_b20_mig_mode_is_noticed_when_it_is_switched(
    watched: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described("2xA100")
    async with watched(gpus.path, timings=replace(quick, rescan_every_s=60, rescan_missing_every_s=60)) as hardware:
        gpus.now(1, mig=True)
        view = await hardware.until(lambda view: view.inventory.gpus[1].mig)
        assert [gpu.mig for gpu in view.inventory.gpus] == [False, True]
        assert healthy(view) == [True, True]


def labels(view: HardwareView) -> list[str]:
    """Return the label of each GPU and instance, with the profile of instances."""
    return [gpu.label if gpu.instance is None else f"{gpu.label} {gpu.instance.profile}" for gpu in view.inventory.gpus]


async def test_mig_instances_follow_their_gpu(watched: Watching) -> None:
    async with watched("fake:1xT4,1xH100:mig=3g.40gb/2g.20gb*2") as hardware:
        view = hardware.view.value
    assert labels(view) == ["0", "1", "1:0 3g.40gb", "1:1 2g.20gb", "1:2 2g.20gb"]
    assert view.sentence == "2 GPUs with 3 MIG instances, driver 580.65.06"
    assert healthy(view) == [True] * 5


@pytest.mark.parametrize("event", [True, False], ids=["by an event", "by a reading"])
async def test_b20_a_gpu_that_is_divided_anew_is_noticed_and_no_gpu_is_blamed(
    watched: Watching,
    described: Describe,
    quick: MonitorTimings,
    event: bool,  # noqa: FBT001 (a parameter)
) -> None:
    """A driver that reports the change need not be read for it to be noticed."""
    changes: list[HealthChange] = []
    anew = [{"profile": "1g.10gb", "gi": 7}, "3g.40gb"]
    gpus = described(["1xH100:mig=1g.10gb*7", {"model": "H100", "mig": "1g.10gb*2"}])
    timings = replace(quick, rescan_every_s=3600, rescan_missing_every_s=3600)
    timings = replace(timings, probe_every_s=3600) if event else timings
    async with watched(gpus.path, timings=timings, on_change=changes.append) as hardware:
        before = hardware.view.value
        if event:
            gpus.now(1, mig=anew)
        else:
            gpus.document["gpus"][1]["mig"] = anew
            gpus.write()
        view = await hardware.until(lambda view: view.inventory != before.inventory)
        assert hardware.readings.value.keys() == view.health_by_uuid.keys()
        gpus.now(1, mig=[])
        none = await hardware.until(lambda view: len(view.inventory.gpus) == 9)
        gpus.now(1, mig=False)
        await hardware.until(lambda view: not view.inventory.gpus[8].mig)
    assert labels(view)[8:] == ["1", "1:1 1g.10gb", "1:0 3g.40gb"]  # the one that stayed, and a new one
    assert view.inventory.gpus[9].uuid in before.health_by_uuid
    assert none.inventory.gpus[8].mig
    assert changes == []
    assert hardware.view.value.child_restarts == 0


def never_the_same(folder: Path) -> tuple[str, ...]:
    """Return a command of which each process lists another instance than its readings show, and writes into `lists`."""
    parent = {**GPU, "mig": True}
    place = {"parent": "GPU-a", "number": 0, "profile": "1g.10gb", "gi": 7, "ci": 0, "alone": True, "caps": []}
    gpus = [parent, {**GPU, "uuid": "MIG-old", "instance": place}]
    inventory = {"gpus": gpus, "links": [], "driver_version": "1.2", "cgroup": 2, "left_out": 0, "troubles": []}
    probes = [{"uuid": "GPU-a", "mig": True, "instances": ["MIG-new"]}]
    (folder / "first").write_text(json.dumps({"answer": {"inventory": inventory, "probes": probes}}) + "\n")
    (folder / "later").write_text(json.dumps({"answer": {"probes": probes}}) + "\n")
    (folder / "child.sh").write_text(f"cd {folder}; echo >> lists; cat first; while read asked; do cat later; done")
    return ("sh", str(folder / "child.sh"))


async def test_an_inventory_that_is_outdated_again_at_once_makes_no_busy_loop(
    watched: Watching, tmp_path: Path, quick: MonitorTimings
) -> None:
    """The second listing comes at once, and the third after a wait, however often the GPUs are read meanwhile."""
    lists = tmp_path / "lists"
    lists.touch()
    timings = replace(quick, probe_every_s=0.001, rescan_every_s=3600, retry_from_s=3600, retry_to_s=7200)
    async with watched("fake:1xT4", command=never_the_same(tmp_path), timings=timings) as hardware:
        await eventually(lambda: len(lists.read_text()) == 2)
        for _ in range(100):
            await hardware.read_again()
        assert len(lists.read_text()) == 2
        hardware.timings = replace(timings, retry_from_s=0.001, retry_to_s=0.001)
        await hardware.pause()
        hardware.resume()
        await eventually(lambda: len(lists.read_text()) > 5)


def test_a_description_that_makes_no_sense_is_refused_before_anything_starts() -> None:
    with pytest.raises(DescriptionError, match=r"fake:4xT5: gpus\.model: 'T5' is not a known model"):
        Hardware("fake:4xT5")


class Stuck:
    """A process in a call that not even SIGKILL ends."""

    exited = False


async def test_b2_when_too_many_processes_hang_for_good_no_more_are_started(watching: Watching) -> None:
    async with watching("fake:1xT4") as hardware:
        hardware.abandoned = [Stuck(), Stuck()]  # type: ignore[list-item]  # none can be made without a broken driver
        view = await hardware.until(lambda view: view.state is not State.STARTING)
        assert view.state is State.HUNG
        assert view.sentence.startswith("2 processes hang in the driver and cannot be killed; ")
        hardware.abandoned[0].exited = True  # type: ignore[misc]  # as above
        await hardware.until(lambda view: view.state is State.WATCHING)


async def test_a_process_that_cannot_be_started_is_told(watching: Watching) -> None:
    """The operating system takes no environment variable of this length."""
    async with watching("nvml", library_dir=Path("/" + "x" * 200_000)) as hardware:
        view = await hardware.until(lambda view: view.state is not State.STARTING)
    assert view.state is State.OTHER
    assert "Argument list too long" in view.sentence


def speaking(folder: Path, line: bytes, *, at_first: bool) -> tuple[str, ...]:
    """Return a command of which the first process writes `line`, and every later one what a child of one T4 does."""
    inventory = {"gpus": [GPU], "links": [], "driver_version": "1.2", "cgroup": 2, "left_out": 0, "troubles": []}
    (folder / "well").write_text(json.dumps({"answer": {"inventory": inventory, "probes": []}}) + "\n")
    (folder / "line").write_bytes(line)
    script = folder / "child.sh"
    script.write_text(
        f"""cd {folder}
        {"" if at_first else "cat well; read asked"}
        if mv line written; then cat written; sleep 1000; fi 2>/dev/null
        {"cat well" if at_first else ""}
        while read asked; do echo '{{"answer": {{"probes": []}}}}'; done
        """
    )
    return ("sh", str(script))


GPU = {"uuid": "GPU-a", "index": 0, "product": "Tesla T4", "total_mib": 15360}


@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize(
    "line",
    [
        b'{"answer": {"probes": [{}]}}\n',
        b'{"events": [{"code": 79}]}\n',
        b"x" * (MOST_BYTES + 1),
    ],
    ids=lambda line: line[:40].decode(),
)
async def test_a_message_of_a_wrong_shape_ends_the_process_that_wrote_it_and_not_the_agent(
    watching: Watching,
    tmp_path: Path,
    line: bytes,
    at_first: bool,  # noqa: FBT001 (a parameter)
) -> None:
    command = speaking(tmp_path, line, at_first=at_first)
    async with watching("fake:1xT4", command=command) as hardware:
        told = await hardware.until(lambda view: "wrote an invalid answer (" in view.sentence)
        assert told.state is State.OTHER
        view = await hardware.until(lambda view: view.state is State.WATCHING)
        assert [gpu.uuid for gpu in view.inventory.gpus] == ["GPU-a"]
        assert view.child_restarts == (0 if at_first else 1)


async def test_a_first_answer_without_gpus_is_none(watching: Watching, tmp_path: Path) -> None:
    command = speaking(tmp_path, b'{"answer": {"probes": []}}\n', at_first=True)
    async with watching("fake:1xT4", command=command) as hardware:
        await hardware.until(lambda view: view.sentence.startswith("the process that calls the driver wrote an"))
        await hardware.until(lambda view: view.state is State.WATCHING)


async def test_a_later_look_that_fails_is_told_and_leaves_the_watch_as_it_is(
    watched: Watching, tmp_path: Path, quick: MonitorTimings
) -> None:
    program, elsewhere = tmp_path / "child", tmp_path / "elsewhere"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpu_device_plugin.hardware.child "$@"\n')
    program.chmod(0o755)
    timings = replace(quick, rescan_every_s=0.1)
    async with watched("fake:2xT4", timings=timings, command=(str(program),)) as hardware:
        program.rename(elsewhere)
        view = await hardware.until(lambda view: view.sentence.startswith("looking for other GPUs failed: "))
        assert (view.state, healthy(view), view.child_restarts) == (State.WATCHING, [True, True], 0)
        elsewhere.rename(program)
        await hardware.until(lambda view: view.sentence == "2 GPUs, driver 580.65.06")


async def test_no_child_is_left_when_the_watch_ends(watched: Watching) -> None:
    async with watched("fake:1xT4") as hardware:
        child = child_of(hardware)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


async def test_requests_are_answered_in_their_order_beside_the_readings(
    watching: Watching, described: Describe, quick: MonitorTimings
) -> None:
    gpus = described([{"model": "T4", "used": "1GiB"}])
    timings = replace(quick, probe_every_s=0.001, rescan_every_s=3600)
    async with watching(gpus.path, timings=timings) as hardware:
        # No process has started.
        assert (await hardware.use(), await hardware.limits([]), await hardware.set_limits([])) == (None, None, None)
        view = await hardware.until(lambda view: view.inventory.gpus)
        uuid = view.inventory.gpus[0].uuid
        use, limit = (GpuReading(uuid, (), 1024),), CgroupLimit(uuid, "/a", code=13)
        for _ in range(20):
            answers = await asyncio.gather(
                hardware.use(), hardware.limits([(uuid, "/a")]), hardware.use(utilisation=True), hardware.limits([])
            )
            assert tuple(answers) == (use, (limit,), use, ())


def busy(folder: Path) -> tuple[str, ...]:
    """Return a command of which the first process answers readings, but other requests when the file `late` is there.

    When it is asked, it writes `asked`. Every later process waits for the file `next`, and answers everything at once.
    """
    inventory = {"gpus": [GPU], "links": [], "driver_version": "1.2", "cgroup": 2, "left_out": 0, "troubles": []}
    (folder / "well").write_text(json.dumps({"answer": {"inventory": inventory, "probes": []}}) + "\n")
    script = folder / "child.sh"
    script.write_text(
        f"""cd {folder}
        until_there() {{ until [ -e $1 ]; do sleep 0.01; done; }}
        mkdir first 2>&- && first=y || {{ : > waiting; until_there next; }}
        cat well
        while read -r request; do
            [ "$first$request" = "$first" ] || [ -z "$first" ] || {{ : > asked; until_there late; }}
            case $request in
                *use*) echo '{{"use": [{{"uuid": "GPU-a", "processes": null}}]}}';;
                *limits*) echo '{{"limits": []}}';;
                *) echo '{{"answer": {{"probes": []}}}}';;
            esac
        done
        """
    )
    return ("sh", str(script))


@pytest.fixture
def patient(quick: MonitorTimings) -> MonitorTimings:
    """Wait longer than any test, and neither read nor list the GPUs unless asked."""
    return replace(quick, answer_within_s=3600, probe_every_s=3600, rescan_every_s=3600)


async def test_an_answer_that_comes_too_late_is_no_other_requests_answer(
    watched: Watching, tmp_path: Path, patient: MonitorTimings
) -> None:
    """The driver as a whole is judged by its readings: a request that was not answered in time is no failure of it."""
    async with watched("fake:1xT4", command=busy(tmp_path), timings=patient) as hardware:
        hardware.timings = replace(patient, answer_within_s=0.01)
        assert await hardware.use() is None
        hardware.timings = patient
        waiting = asyncio.create_task(hardware.limits([]))
        (tmp_path / "late").touch()
        async with patience(hardware):
            assert await waiting == ()
            assert await hardware.use() == (GpuReading("GPU-a", None),)
            await hardware.read_again()
        assert (hardware.view.value.state, hardware.view.value.child_restarts) == (State.WATCHING, 0)


async def paused(hardware: Hardware, folder: Path) -> None:
    (folder / "next").touch()
    await hardware.pause()
    hardware.resume()


async def killed(hardware: Hardware, folder: Path) -> None:
    (folder / "next").touch()
    os.kill(child_of(hardware), signal.SIGKILL)


async def replaced(_: Hardware, folder: Path) -> None:
    (folder / "next").touch()  # the listing has begun before the request


@pytest.mark.parametrize("ends", [paused, killed, replaced])
async def test_a_request_ends_with_the_process_that_was_asked(
    watching: Watching,
    tmp_path: Path,
    patient: MonitorTimings,
    ends: Callable[[Hardware, Path], Awaitable[None]],
) -> None:
    timings = replace(patient, rescan_every_s=0.01) if ends is replaced else patient
    async with watching("fake:1xT4", command=busy(tmp_path), timings=timings) as hardware, patience(hardware):
        await hardware.until(lambda view: view.state is State.WATCHING)
        if ends is replaced:
            await eventually((tmp_path / "waiting").exists)
            hardware.timings = patient
        requests = [asyncio.create_task(each) for each in (hardware.use(), hardware.limits([]))]
        await eventually((tmp_path / "asked").exists)
        await ends(hardware, tmp_path)
        assert await asyncio.gather(*requests) == [None, None]
        await eventually(hardware.use, "the next process answers")
