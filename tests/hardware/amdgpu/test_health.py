"""What a reading of AMD's and Intel's GPUs says about their health, and which of the kernel's events are heard."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.hardware.amdgpu.discovery import Board
from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from gpu_device_plugin.hardware.amdgpu.health import NO_EVENTS, Health, Uevents, concerned, listening, parse
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from tests.hardware.amdgpu.trees import b580, mi300x, write

PCI = "0000:0c:00.0"
FOLDER = f"/sys/bus/pci/devices/{PCI}"


def opened(root: Path, driver: str = "amdgpu") -> Drm:
    drm = Drm([driver], str(root))
    drm.inventory()
    return drm


def reading(root: Path, files: Mapping[str, str | int] | None = None) -> dict[str, Any]:
    """Return the reading of a GPU with these attributes."""
    mi300x(root)
    write(root, {f"{FOLDER}/{name}": content for name, content in (files or {}).items()})
    (found,) = opened(root).probe()
    return found


def test_a_gpu_without_error_counts_tells_none(tmp_path: Path) -> None:
    assert reading(tmp_path) == {
        "uuid": "GPU-5B1E6A0C2F3D4E00",
        "recovery_action": None,
        "ecc_uncorrected": None,
        "remap_pending": None,
        "remap_failed": None,
        "processes": None,
        "used_mib": 297,
    }


def test_uncorrected_errors_of_all_blocks_but_the_links_count(tmp_path: Path) -> None:
    found = reading(
        tmp_path,
        {
            "ras/umc_err_count": "ue: 2\nce: 40\nde: 1",
            "ras/gfx_err_count": "ue: 1\nce: 0",
            "ras/xgmi_wafl_err_count": "ue: 7\nce: 9",
            "ras/features": "feature mask: 0x1",
        },
    )
    assert found["ecc_uncorrected"] == 3


def test_counts_that_cannot_be_read_are_not_zero(tmp_path: Path) -> None:
    files = {"ras/umc_err_count": "Query currently inaccessible", "ras/gfx_err_count": "ue: 1\nce: 0"}
    assert reading(tmp_path, files)["ecc_uncorrected"] is None


@pytest.mark.parametrize(
    ("lines", "pending", "failed"),
    [
        ("", False, False),
        ("0x00000001 : 0x00001000 : R", False, False),
        ("0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P", True, False),
        ("0x00000001 : 0x00001000 : F", False, True),
        ("no page at all", False, False),
    ],
)
def test_bad_pages_are_retired_wait_or_stay(tmp_path: Path, lines: str, *, pending: bool, failed: bool) -> None:
    found = reading(tmp_path, {"ras/gpu_vram_bad_pages": lines})
    assert (found["remap_pending"], found["remap_failed"]) == (pending, failed)


def test_a_gpu_whose_bus_answers_with_ones_only_is_lost(tmp_path: Path) -> None:
    mi300x(tmp_path)
    drm = opened(tmp_path)
    (tmp_path / FOLDER.lstrip("/") / "config").write_bytes(b"\xff" * 64)
    (found,) = drm.probe()
    assert found["lost"]
    assert found["error"] == "its kernel driver cannot reach it: the bus answers with ones only"


def test_a_gpu_without_its_driver_is_lost(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    drm = opened(tmp_path)
    (tmp_path / "sys/bus/pci/drivers/amdgpu" / PCI).unlink()
    assert [found.get("lost") for found in drm.probe()] == [True, None]


@pytest.mark.parametrize(
    ("number", "lost"),
    [(1, False), (19, True)],  # EPERM: during a reset; ENODEV
)
def test_a_reset_is_no_loss(tmp_path: Path, number: int, *, lost: bool) -> None:
    mi300x(tmp_path)
    gpus = opened(tmp_path)._gpus

    class Failing(KernelFiles):
        def problem(self, path: str) -> int:
            return number if path.endswith("/unique_id") else super().problem(path)

    (found,) = Health(Failing(str(tmp_path))).read(gpus)
    assert found["lost"] is lost
    assert found["error"]


def test_without_a_unique_id_another_attribute_tells_of_a_reset(tmp_path: Path) -> None:
    mi300x(tmp_path)
    gpus = opened(tmp_path)._gpus
    (tmp_path / FOLDER.lstrip("/") / "unique_id").unlink()

    class Failing(KernelFiles):
        def problem(self, path: str) -> int:
            return 1 if path.endswith("/gpu_busy_percent") else super().problem(path)

    (found,) = Health(Failing(str(tmp_path))).read(gpus)
    assert found == {"uuid": gpus[0].uuid, "error": "its kernel driver resets it", "lost": False}


def test_a_sleeping_gpu_is_not_woken(tmp_path: Path) -> None:
    asleep = {"power/runtime_status": "suspended", "ras/umc_err_count": "ue: 1\nce: 0"}
    found = reading(tmp_path, asleep)
    assert found == {"uuid": "GPU-5B1E6A0C2F3D4E00", "recovery_action": None, "processes": None, "used_mib": 297}
    assert opened(tmp_path).condition(["memory-errors"]) == [{"uuid": found["uuid"]}]


def test_partitions_have_the_errors_of_their_board_and_no_use_of_it(tmp_path: Path) -> None:
    mi300x(tmp_path, partitions=8)
    write(tmp_path, {f"{FOLDER}/ras/umc_err_count": "ue: 2\nce: 0"})
    found = opened(tmp_path).probe()
    assert [each["ecc_uncorrected"] for each in found] == [2] * 8
    assert [each["used_mib"] for each in found] == [None] * 8


def test_the_use_of_xe_is_that_of_all_cgroups(tmp_path: Path) -> None:
    (pci,) = b580(tmp_path)
    write(tmp_path, {"/sys/fs/cgroup/dmem.current": f"drm/{pci}/vram0 {3 << 30}\ndrm/0000:99:00.0/vram0 1"})
    (found,) = opened(tmp_path, "xe").probe()
    assert (found["used_mib"], found["processes"]) == (3072, None)


def test_the_counts_of_a_cgroup_below_are_not_those_of_all(tmp_path: Path) -> None:
    (pci,) = b580(tmp_path)
    drm = opened(tmp_path, "xe")
    write(tmp_path, {"/sys/fs/cgroup/dmem.current": f"drm/{pci}/vram0 0"})
    (tmp_path / "sys/fs/cgroup/dmem.capacity").unlink()
    assert drm.probe()[0]["used_mib"] is None


# --- events

DEVICE = f"/devices/pci0000:08/0000:08:01.1/{PCI}"
OURS = {PCI: Board(PCI, "amdgpu", {})}


def message(action: str, path: str, **variables: str) -> bytes:
    known = {"ACTION": action, "DEVPATH": path, **variables}
    return f"{action}@{path}\0".encode() + b"".join(f"{key}={value}\0".encode() for key, value in known.items())


WEDGED = message("change", f"{DEVICE}/drm/card1", SUBSYSTEM="drm", WEDGED="rebind,bus-reset")


def test_a_message_has_variables() -> None:
    assert parse(WEDGED) == {
        "ACTION": "change",
        "DEVPATH": f"{DEVICE}/drm/card1",
        "SUBSYSTEM": "drm",
        "WEDGED": "rebind,bus-reset",
    }


@pytest.mark.parametrize("other", [b"", b"libudev\0\xfe\xed\xca\xfe", b"add@/a\0ACTION=remove\0DEVPATH=/a\0"])
def test_what_is_no_event_of_the_kernel_has_none(other: bytes) -> None:
    assert parse(other) == {}


@given(st.binary(max_size=200))
def test_no_message_fails(anything: bytes) -> None:
    assert concerned(parse(anything), OURS) is None


@pytest.mark.parametrize(
    ("event", "heard"),
    [
        (WEDGED, True),
        (message("unbind", DEVICE, SUBSYSTEM="pci"), True),
        (message("add", DEVICE, SUBSYSTEM="pci"), True),
        (message("add", DEVICE, SUBSYSTEM="pci", SYNTH_UUID="0"), False),
        (message("change", f"{DEVICE}/drm/card1", HOTPLUG="1"), False),
        (message("remove", f"{DEVICE}/drm/card1"), False),
        (message("unbind", "/devices/pci0000:08/0000:08:01.1/0000:0d:00.0"), False),
        (message("change", "/devices/pci0000:08/0000:0d:00.0/drm/card2", WEDGED="none"), False),
    ],
)
def test_only_events_that_tell_something_of_our_boards_are_heard(event: bytes, *, heard: bool) -> None:
    assert (concerned(parse(event), OURS) is not None) is heard


class Heard:
    """A driver whose kernel's events a test sends."""

    def __init__(self, root: Path, gpus: int = 1, partitions: int = 1) -> None:
        mi300x(root, gpus, partitions)
        self.drm = opened(root)

    def after(self, event: bytes) -> list[dict[str, Any]]:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs, ours:
            self.drm._events = Uevents(theirs)
            ours.send(event)
            return self.drm.wait_events(10)


@pytest.mark.parametrize(
    ("method", "action"),
    [("rebind", 1), ("bus-reset", 6), ("rebind,bus-reset", 1), ("vendor-specific", -1), ("unknown", 1), ("none", 0)],
)
def test_a_wedged_gpu_asks_for_a_recovery(tmp_path: Path, method: str, action: int) -> None:
    heard = Heard(tmp_path, gpus=2)
    (found,) = heard.after(message("change", f"{DEVICE}/drm/card1", WEDGED=method))
    assert (found["uuid"], found["recovery_action"]) == ("GPU-5B1E6A0C2F3D4E00", action)
    assert [each["recovery_action"] for each in heard.drm.probe()] == [action, None]


def test_a_gpu_that_its_driver_gave_up_was_lost_and_asks_for_nothing_more(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.after(WEDGED)
    lost, now = heard.after(message("unbind", DEVICE))
    assert lost == {"uuid": now["uuid"], "error": "its kernel driver was taken from it", "lost": True}
    assert (now.get("error"), now["recovery_action"]) == (None, None)


def test_all_partitions_of_a_board_are_concerned(tmp_path: Path) -> None:
    heard = Heard(tmp_path, partitions=4)
    assert [each["recovery_action"] for each in heard.after(WEDGED)] == [1, 1, 1, 1]


def test_a_gpu_that_is_gone_is_read_as_lost(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    shutil.rmtree(tmp_path / "sys/bus/pci/drivers/amdgpu")
    assert [each["lost"] for each in heard.after(message("remove", DEVICE))] == [True, True]


class Scripted:
    """A socket that answers as told."""

    def __init__(self, *answers: tuple[bytes, int] | Exception) -> None:
        self._answers = [*answers]

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def recvmsg(self, _most: int) -> tuple[bytes, list[Any], int, tuple[int, int]]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer[0], [], 0, (answer[1], 1)


def test_a_message_of_another_process_is_not_heard() -> None:
    events = Uevents(Scripted((WEDGED, 4711), TimeoutError()))  # type: ignore[arg-type]
    assert events.wait(10, OURS) is None


def test_a_message_of_the_kernel_is_heard() -> None:
    events = Uevents(Scripted((message("change", "/devices/x"), 0), (WEDGED, 0)))  # type: ignore[arg-type]
    assert events.wait(10, OURS) == (OURS[PCI], parse(WEDGED))


def test_a_machine_whose_events_cannot_be_heard_says_so_and_may_hear_them_later(tmp_path: Path) -> None:
    mi300x(tmp_path)
    drm = Drm(["amdgpu"], str(tmp_path))
    drm._listen = lambda: None
    assert drm.inventory()["troubles"] == [NO_EVENTS]
    later = Uevents(Scripted(TimeoutError()))  # type: ignore[arg-type]
    drm._listen = lambda: later
    assert drm.wait_events(0.001) == []
    assert drm._events is later
    assert drm.wait_events(10) == []


def test_the_kernel_lets_us_listen_or_not() -> None:
    """A sandbox may have no netlink."""
    if (events := listening()) is not None:
        events._socket.close()


def test_after_lost_events_every_gpu_is_read(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    drm = opened(tmp_path)
    drm._events = Uevents(Scripted(OSError(105, "No buffer space available")))  # type: ignore[arg-type]
    assert len(drm.wait_events(0.001)) == 2


def test_a_board_that_is_divided_otherwise_is_not_what_was_listed(tmp_path: Path) -> None:
    """Its render node is that of its first partition now, so no pod may get it for a whole GPU; it is listed again."""
    mi300x(tmp_path)
    drm = opened(tmp_path)
    mode = tmp_path / FOLDER.lstrip("/") / "current_compute_partition"
    mode.write_text("CPX\n")
    (found,) = drm.probe()
    assert found["lost"]
    assert found["mig_changed"]
    assert "mode CPX, and did by SPX" in found["error"]
    mode.write_text("")  # not told at this moment
    assert "error" not in drm.probe()[0]
    mode.write_text("SPX\n")
    assert "error" not in drm.probe()[0]


def test_boards_that_were_bound_anew_and_changed_their_device_nodes_are_listed_again(tmp_path: Path) -> None:
    """A pod would get the node of the other one."""
    mi300x(tmp_path, gpus=2)
    drm = opened(tmp_path)
    folder = tmp_path / FOLDER.lstrip("/") / "drm"
    (folder / "renderD128").rename(tmp_path / "away")
    (folder / "card1").rename(tmp_path / "away, too")
    found = drm.probe()
    assert (found[0]["error"], found[0]["mig_changed"]) == ("its kernel driver has no device node for it", False)
    assert "error" not in found[1]
    (tmp_path / "away").rename(folder / "renderD136")
    found = drm.probe()
    assert (found[0]["error"], found[0]["lost"]) == ("its kernel driver has other device nodes for it now", True)
    assert found[0]["mig_changed"]
