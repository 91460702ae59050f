"""Which processes use AMD's and Intel's GPUs, as KFD and the fdinfo of DRM tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from gpu_device_plugin.hardware.amdgpu.processes import Processes, fields, vram
from gpu_device_plugin.hardware.driver import MOST_PROCESSES
from tests.hardware.amdgpu.trees import b580, mi300x, rx7900xtx, write

MIB = 1 << 20
KFD = "/sys/class/kfd/kfd/proc"
ALL_CAPABILITIES = 0x1FFFFFFFFFF
SYS_PTRACE, DAC = 1 << 19, 1 << 1 | 1 << 2


class Node:
    """A node whose GPUs are in a tree."""

    def __init__(self, root: Path, *, capabilities: int = ALL_CAPABILITIES, namespace: int = 4026531836) -> None:
        self._root = root
        write(root, {"/proc/self/status": f"Name:\tpython\nCapEff:\t{capabilities:016x}"})
        write(root, {"/proc/self/ns/pid@": f"pid:[{namespace}]", f"{KFD}/unused": 0})
        self._drm: Drm | None = None

    def drm(self, driver: str) -> Drm:
        if self._drm is None:
            self._drm = Drm([driver], str(self._root))
            self._drm.inventory()
        return self._drm

    def opens(self, pid: int, fd: int, node: str, **told: str | int) -> None:
        """Open a device node in a process; `told` is its fdinfo."""
        place = self._root / f"proc/{pid}/fd/{fd}"
        if not place.is_symlink():
            write(self._root, {f"/proc/{pid}/fd/{fd}@": f"/dev/dri/{node}"})
        lines = (f"drm-{key.replace('_', '-')}:\t{value}" for key, value in told.items())
        write(self._root, {f"/proc/{pid}/fdinfo/{fd}": "pos:\t0\n" + "\n".join(lines)})

    def rocm(self, pid: int, gpu: int, mib: int, **stats: int) -> None:
        """Let a process of ROCm have so much memory of a GPU, by KFD."""
        files = {f"{KFD}/{pid}/stats_{gpu}/{name}": value for name, value in stats.items()}
        write(self._root, {f"{KFD}/{pid}/vram_{gpu}": mib * MIB, **files})

    def use(self, driver: str = "amdgpu", *, utilisation: bool = False) -> list[list[tuple[int, int]] | None]:
        """Return PID and MiB of the processes on each GPU."""
        found = self.drm(driver).use(utilisation=utilisation)
        return [each["processes"] and [(one["pid"], one["used_mib"]) for one in each["processes"]] for each in found]

    def percents(self, driver: str = "amdgpu") -> list[int | None]:
        """Return the use of the first GPU by its processes."""
        found: list[dict[str, Any]] = self.drm(driver).use(utilisation=True)[0]["processes"]
        return [each["sm_percent"] for each in found]


def test_rocms_processes_are_those_of_kfd(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=2)
    node = Node(tmp_path)
    node.rocm(70, 1000, 512)
    node.rocm(70, 2000, 0)  # it may open this GPU, and does not use it
    node.rocm(9, 1000, 64)
    assert node.use() == [[(9, 64), (70, 512)], []]
    assert [each["processes"] for each in node.drm("amdgpu").probe()] == [2, 0]


def test_each_partition_has_its_own_processes(tmp_path: Path) -> None:
    (pci,) = mi300x(tmp_path, partitions=4)
    node = Node(tmp_path)
    node.rocm(70, 1002, 512)
    node.opens(71, 5, "renderD129", pdev=pci, client_id=3, memory_vram="2048 KiB")
    node.opens(71, 6, "renderD200", pdev=pci, client_id=4, memory_vram="2048 KiB")  # of no partition that is listed
    assert node.use() == [[], [(71, 2)], [(70, 512)], []]


def test_a_process_in_both_sources_counts_once_with_the_larger_amount(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    node.rocm(70, 500, 512)
    node.opens(70, 5, "renderD200", pdev=pci, client_id=3, memory_vram=f"{700 * 1024} KiB")
    node.rocm(71, 500, 512)
    node.opens(71, 5, "card100", pdev=pci, client_id=4, memory_vram="100 MiB")
    assert node.use() == [[(70, 700), (71, 512)]]


def test_a_client_counts_once_and_clients_of_a_process_add_up(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    for pid, fd in ((70, 5), (70, 6), (71, 5)):  # a copy, and a fork
        node.opens(pid, fd, "renderD200", pdev=pci, client_id=3, memory_vram="100 MiB")
    node.opens(70, 7, "renderD200", pdev=pci, client_id=4, memory_vram="10 MiB")
    node.opens(72, 5, "renderD200", pdev=pci, client_id=5, memory_vram="0")  # it has nothing there
    node.opens(73, 5, "card7.txt")
    node.opens(74, 5, "renderD130", pdev="0000:99:00.0", client_id=6, memory_vram="10 MiB")  # of another GPU
    assert node.use() == [[(70, 110)]]


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("drm-memory-vram:\t2048 KiB", 2 * MIB),
        ("drm-total-vram:\t9 MiB\ndrm-resident-vram:\t3 MiB\ndrm-memory-vram:\t5 MiB", 3 * MIB),
        ("drm-total-vram:\t9 MiB\ndrm-memory-vram:\t5 MiB", 5 * MIB),
        ("drm-total-vram:\t9 MiB", 9 * MIB),
        ("drm-resident-vram0:\t3 MiB\ndrm-resident-vram1:\t1 GiB\ndrm-resident-gtt:\t7 MiB", 1027 * MIB),
        ("drm-resident-vram:\t4096", 4096),
        ("drm-resident-vram:\t-5 MiB\ndrm-memory-vram:\t5 MiB", 0),
        ("drm-resident-vram:\tmuch", 0),
        ("drm-resident-vram:\t5 parsecs", 0),
        ("amd-requested-vram:\t9 MiB\nno line", 0),
    ],
)
def test_the_memory_of_a_client_is_what_is_resident_if_told(text: str, used: int) -> None:
    assert vram(fields(text)) == used


@given(st.text())
def test_no_fdinfo_fails(anything: str) -> None:
    assert vram(fields(anything)) >= 0


@pytest.mark.parametrize("lacking", [SYS_PTRACE, DAC])
def test_without_the_capabilities_rocm_alone_is_seen(tmp_path: Path, lacking: int) -> None:
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path, capabilities=ALL_CAPABILITIES & ~lacking)
    node.rocm(70, 500, 512)
    node.opens(71, 5, "renderD200", pdev=pci, client_id=4, memory_vram="100 MiB")
    assert node.use() == [[(70, 512)]]
    (trouble,) = node.drm("amdgpu").inventory()["troubles"]
    assert trouble == (
        "processes that use GPUs of the driver amdgpu without ROCm are not seen, because this container lacks the "
        "capabilities SYS_PTRACE and DAC_READ_SEARCH"
    )


def test_without_the_capability_no_process_on_intels_gpus_is_known(tmp_path: Path) -> None:
    b580(tmp_path)
    node = Node(tmp_path, capabilities=0)
    assert node.use("xe") == [None]
    assert "of the driver xe at all are not seen" in node.drm("xe").inventory()["troubles"][0]


def test_kfds_pids_name_other_processes_in_another_namespace(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path, namespace=4026532000)
    node.rocm(70, 500, 512)
    node.opens(71, 5, "renderD200", pdev=pci, client_id=4, memory_vram="100 MiB")
    assert node.use() == [[(71, 100)]]
    assert node.drm("amdgpu").probe()[0]["processes"] == 1  # to count them is right in any


def test_a_kernel_whose_kfd_lists_no_processes_does_not_say_that_there_are_none(tmp_path: Path) -> None:
    rx7900xtx(tmp_path)
    write(tmp_path, {"/proc/self/status": "CapEff:\t0"})
    drm = Drm(["amdgpu"], str(tmp_path))
    drm.inventory()
    assert (drm.use(utilisation=False)[0]["processes"], drm.probe()[0]["processes"]) == (None, None)


# --- the use of a GPU as a whole


def test_what_a_gpu_uses_without_processes_is_the_drivers_own(tmp_path: Path) -> None:
    mi300x(tmp_path)
    node = Node(tmp_path)
    drm = node.drm("amdgpu")
    assert drm.probe()[0]["used_mib"] == 297
    assert drm.use(utilisation=False)[0]["used_mib"] == 0
    node.rocm(70, 1000, 512)
    write(tmp_path, {"/sys/bus/pci/devices/0000:0c:00.0/mem_info_vram_used": (297 + 520) * MIB})
    assert drm.use(utilisation=False)[0]["used_mib"] == 520
    assert drm.probe()[0]["used_mib"] == 520


def test_more_than_a_driver_can_keep_is_somebodys(tmp_path: Path) -> None:
    mi300x(tmp_path)
    write(tmp_path, {"/sys/bus/pci/devices/0000:0c:00.0/mem_info_vram_used": 2048 * MIB})
    assert Node(tmp_path).drm("amdgpu").use(utilisation=False)[0]["used_mib"] == 2048


# --- how busy


def test_a_rocm_process_is_as_busy_as_the_compute_units_it_occupies(tmp_path: Path) -> None:
    mi300x(tmp_path)
    node = Node(tmp_path)
    node.rocm(70, 1000, 512, cu_occupancy=76)
    node.rocm(71, 1000, 512)  # a chip or kernel that does not tell
    assert node.percents() == [25, None]
    assert {each["sm_percent"] for each in node.drm("amdgpu").use(utilisation=False)[0]["processes"]} == {None}


def test_engines_tell_nothing_of_queues_that_bypass_them(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    for hours in (1, 2):
        engines = {"engine_gfx": f"{hours * 3600 * 10**9} ns", "memory_vram": "100 MiB"}
        node.opens(70, 5, "renderD200", pdev=pci, client_id=4, **engines)
        assert node.percents() == [None]


# --- how often a process is looked at


def test_a_process_that_opens_a_gpu_late_is_found(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    write(tmp_path, {"/proc/70/fd/0@": "/dev/null"})
    for _ in range(10):
        assert node.use() == [[]]
    node.opens(70, 5, "renderD200", pdev=pci, client_id=4, memory_vram="100 MiB")
    found = [node.use() for _ in range(8)]
    assert [[(70, 100)]] in found
    assert node.use() == [[(70, 100)]]  # and from then on in every reading


def test_a_device_node_of_another_name_hides_nothing(tmp_path: Path) -> None:
    """Root in a container may make one."""
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    write(tmp_path, {"/proc/70/fd/3@": "/tmp/mine", "/proc/70/fd/4@": "/tmp/renderD200", "/proc/70/fd/5@": "pipe:[1]"})
    write(tmp_path, {"/proc/70/fdinfo/4": "pos:\t0", "/proc/70/fdinfo/5": "pos:\t0"})
    told = f"drm-pdev:\t{pci}\ndrm-client-id:\t7\ndrm-memory-vram:\t2048 KiB"
    write(tmp_path, {"/proc/70/fdinfo/3": told})
    assert node.use() == [[(70, 2)]]


class Clock:
    """A clock that advances whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def many_files(root: Path, pid: int, files: int) -> None:
    write(root, {f"/proc/{pid}/fd/{fd}@": "socket:[1]" for fd in range(files)})


def test_open_files_of_one_process_take_no_time_from_others(tmp_path: Path) -> None:
    """The first one has as many as could be read in 20 times the time that there is."""
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    clock = Clock(0.1)
    many_files(tmp_path, 5, 300)
    node.opens(70, 3, "renderD200", pdev=pci, client_id=7, memory_vram="2048 KiB")
    gpus = node.drm("amdgpu")._gpus
    processes = Processes(KernelFiles(str(tmp_path)), clock)
    for _ in range(3):
        (found,) = processes.read(gpus, utilisation=False)
        assert [each["pid"] for each in found["processes"]] == [70]
    assert clock.now_s < 3 * 3


def test_a_process_that_took_all_the_time_comes_last_in_the_next_reading(tmp_path: Path) -> None:
    """As one does whose files have so many locks that one of them takes the kernel a second to list."""
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    many_files(tmp_path, 5, 3)
    node.opens(70, 3, "renderD200", pdev=pci, client_id=7, memory_vram="2048 KiB")
    gpus = node.drm("amdgpu")._gpus
    clock = Clock(0.6)
    processes = Processes(KernelFiles(str(tmp_path)), clock)
    assert processes.read(gpus, utilisation=False)[0]["processes"] == []
    assert [each["pid"] for each in processes.read(gpus, utilisation=False)[0]["processes"]] == [70]


def test_of_too_many_processes_those_that_use_most_are_told(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    node = Node(tmp_path)
    for pid in range(10, 10 + MOST_PROCESSES):
        node.rocm(pid, 500, 1)
    node.opens(90_000, 3, "renderD200", pdev=pci, client_id=7, memory_vram="4096 KiB")
    node.rocm(90_001, 500, 8)
    told = node.use()[0]
    assert told is not None
    assert len(told) == MOST_PROCESSES
    assert told[-2:] == [(90_000, 4), (90_001, 8)]
    assert told[0] == (10, 1)


def test_of_a_directory_with_too_many_names_no_more_are_read(tmp_path: Path) -> None:
    write(tmp_path, {f"/folder/{name}": "" for name in "abc"})
    files = KernelFiles(str(tmp_path))
    assert len(files.names("/folder", 2)) == 2
    assert files.names("/folder") == ["a", "b", "c"]
    assert files.names("/folder/a") == files.names("/none") == []
