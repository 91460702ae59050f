"""Limits by dmem on the files of a double with the kernel's rules, and on the cgroups of this machine's kernel."""

import errno
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.hardware.amdgpu import dmem
from gpu_device_plugin.hardware.amdgpu.discovery import Board, ListedGpu
from gpu_device_plugin.hardware.amdgpu.dmem import Dmem
from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from tests.hardware.amdgpu.dmem_double import DmemDouble, doubled, real_cgroups
from tests.hardware.amdgpu.trees import mi300x, write

VRAM = "drm/0000:c1:00.0/vram"
TILES = ["drm/0000:43:00.0/vram0", "drm/0000:43:00.0/vram1", "drm/0000:43:00.0/vram2"]
POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8dbc6bd1.slice"
LEAF = f"{POD}/cri-containerd-{'c' * 64}.scope"
GPU = "GPU-5B1E6A0C2F3D4E00"
GIB = 1 << 30


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[DmemDouble]:
    with doubled(DmemDouble(tmp_path / "cgroup", [VRAM, *TILES])) as double:
        yield double


def limits(kernel: DmemDouble) -> Dmem:
    return Dmem(str(kernel.root))


# --- Where there are limits -------------------------------------------------------------------------------------------


def test_why_a_mount_has_no_limits_is_said(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    here = Dmem(str(root))
    assert here.lack() == f"no cgroup file system of version 2 is mounted at {root}"
    write(root, {"/cgroup.controllers": "cpu", "/cgroup.type": "domain"})
    assert here.lack() == f"{root} is that of the pod: mount the node's into it"
    (root / "cgroup.type").unlink()
    assert "CONFIG_CGROUP_DMEM" in here.lack() == here.lack_of_writing()
    write(root, {"/dmem.capacity": "nvidia/00000000:02:00.0/vidmem 1"})
    assert here.lack() == ""
    assert here.lack_of_writing() == "dmem.capacity names no memory of a GPU"


def test_the_controller_is_enabled_where_it_may_be(kernel: DmemDouble) -> None:
    kernel.refuses = {"cgroup.subtree_control": errno.EROFS}
    assert "cannot be written (Read-only file system): mount it writable" in limits(kernel).lack_of_writing()
    kernel.refuses = {}
    assert limits(kernel).lack_of_writing() == ""
    assert limits(kernel).lack_of_writing() == ""
    assert kernel.writes == ["cgroup.subtree_control: +dmem"] * 2, "one that failed, and one that did not"


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_is_set_on_each_level_read_back_and_lifted(kernel: DmemDouble) -> None:
    leaf, here = str(kernel.starts(LEAF)), limits(kernel)
    assert here.limit([VRAM], GPU, leaf) == {"uuid": GPU, "path": leaf, "code": 3}, "not enabled there"
    of = {"uuid": GPU, "path": leaf, "soft_mib": 0, "used_mib": 0}
    assert here.set_limit([VRAM], (GPU, leaf, 4096, 0)) == {**of, "code": 0, "hard_mib": 4096}
    above = ["", *(f"{'/'.join(POD.split('/')[:n])}/" for n in (1, 2, 3))]
    expected = [*(f"{each}cgroup.subtree_control: +dmem" for each in above), f"{LEAF}/dmem.max: {VRAM} {4 * GIB}"]
    assert kernel.writes == expected
    kernel.writes.clear()
    assert here.set_limit([VRAM], (GPU, leaf, 4096, 0))["hard_mib"] == 4096
    assert kernel.writes == [], "a right limit is left alone"
    kernel.uses(Path(leaf), VRAM, GIB)
    assert here.limit([VRAM], GPU, leaf)["used_mib"] == 1024
    assert here.set_limit([VRAM], (GPU, leaf, None, 0)) == {**of, "code": 6, "used_mib": 1024}
    assert kernel.writes == [f"{LEAF}/dmem.max: {VRAM} max"]
    assert here.set_limit([VRAM], (GPU, leaf, None, 0))["code"] == 6
    assert len(kernel.writes) == 1


def test_the_limit_of_a_pod_is_there_for_containers_that_are_yet_to_begin(kernel: DmemDouble) -> None:
    """And they have the controller from their beginning, so that nothing of them is counted for the pod alone."""
    pod = kernel.starts(POD)
    kernel.starts(f"{POD}/sandbox")
    assert limits(kernel).set_limit([VRAM], (GPU, str(pod), 8192, 0))["hard_mib"] == 8192
    leaf = kernel.starts(LEAF)
    assert (leaf / "dmem.max").exists()
    # In a container that begins nothing is enabled: no process could be put into it.
    limits(kernel).set_limit([VRAM], (GPU, str(leaf), 4096, 0))
    assert (leaf / "cgroup.subtree_control").read_text() == ""


def test_a_container_with_cgroups_of_its_own_is_limited(kernel: DmemDouble) -> None:
    leaf = kernel.starts(f"{LEAF}/inner").parent
    (leaf / "cgroup.procs").write_text("17")
    assert limits(kernel).set_limit([VRAM], (GPU, str(leaf), 4096, 0))["hard_mib"] == 4096


def test_a_soft_limit_is_set_if_it_is_wanted(kernel: DmemDouble) -> None:
    leaf = str(kernel.starts(LEAF))
    found = limits(kernel).set_limit([VRAM], (GPU, leaf, 4096, 1024))
    assert (found["hard_mib"], found["soft_mib"]) == (4096, 1024)
    found = limits(kernel).set_limit([VRAM], (GPU, leaf, 4096, 0))
    assert (found["hard_mib"], found["soft_mib"]) == (4096, 0)


@given(st.integers(1, 1 << 24), st.integers(1, 3))
def test_the_tiles_of_a_gpu_get_the_limit_together(
    tmp_path_factory: pytest.TempPathFactory, mib: int, tiles: int
) -> None:
    with doubled(DmemDouble(tmp_path_factory.mktemp("d") / "cgroup", TILES[:tiles])) as kernel:
        leaf = kernel.starts("kubepods/leaf")
        found = limits(kernel).set_limit(TILES[:tiles], (GPU, str(leaf), mib, 0))
        assert (found["code"], found["hard_mib"]) == (0, mib)
        amounts = [int(line.split()[1]) for line in (leaf / "dmem.max").read_text().splitlines()]
        assert sum(amounts) == mib << 20
        assert max(amounts) - min(amounts) <= 1


def test_a_gpu_of_which_one_tile_has_no_limit_has_none(kernel: DmemDouble) -> None:
    leaf = kernel.starts(LEAF)
    limits(kernel).set_limit(TILES, (GPU, str(leaf), 3072, 0))
    dmem._write(f"{leaf}/dmem.max", f"{TILES[1]} max")
    kernel.uses(leaf, TILES[2], GIB)
    found = limits(kernel).limit(TILES, GPU, str(leaf))
    assert (found["code"], found["used_mib"]) == (6, 1024)
    assert "hard_mib" not in found


@pytest.mark.parametrize(("newer", "hard_mib"), [(False, 4096), (True, 1024)])
def test_a_limit_below_the_use_is_not_applied_by_kernels_before_7_3(
    kernel: DmemDouble,
    newer: bool,  # noqa: FBT001 - a parameter of the test
    hard_mib: int,
) -> None:
    kernel.applies_below_use = newer
    leaf = kernel.starts(LEAF)
    limits(kernel).set_limit([VRAM], (GPU, str(leaf), 4096, 0))
    kernel.uses(leaf, VRAM, 2 * GIB)
    found = limits(kernel).set_limit([VRAM], (GPU, str(leaf), 1024, 0))
    assert (found["code"], found["hard_mib"], found["used_mib"]) == (0, hard_mib, 2048)
    kernel.uses(leaf, VRAM, 0)
    assert limits(kernel).set_limit([VRAM], (GPU, str(leaf), 1024, 0))["hard_mib"] == 1024


@pytest.mark.parametrize(
    ("file", "number", "code"),
    [
        ("cgroup.subtree_control", errno.EROFS, 4),
        ("cgroup.subtree_control", errno.EACCES, 4),
        ("cgroup.subtree_control", errno.EBUSY, 3),
        ("cgroup.subtree_control", errno.ENOMEM, 999),
        ("dmem.max", errno.EACCES, 4),
        ("dmem.max", errno.EINVAL, 999),
        ("dmem.max", errno.ENODEV, 999),  # the cgroup has just been removed
    ],
)
def test_what_the_kernel_refuses_has_a_code(kernel: DmemDouble, file: str, number: int, code: int) -> None:
    leaf = str(kernel.starts(LEAF))
    kernel.refuses = {file: number}
    assert limits(kernel).set_limit([VRAM], (GPU, leaf, 4096, 0)) == {"uuid": GPU, "path": leaf, "code": code}


def test_a_cgroup_that_is_gone_and_one_elsewhere_are_not_written(kernel: DmemDouble) -> None:
    here, leaf = limits(kernel), kernel.starts(LEAF)
    kernel.ends(leaf)
    assert here.limit([VRAM], GPU, str(leaf))["code"] == 999
    assert here.set_limit([VRAM], (GPU, str(leaf), 4096, 0))["code"] == 999
    kernel.writes.clear()
    for path in ("/sys/fs/other", f"{kernel.root}/../x", str(kernel.root), f"{kernel.root}x/y"):
        assert here.set_limit([VRAM], (GPU, path, 4096, 0))["code"] == 999
    assert kernel.writes == []


def test_another_region_is_not_limited(kernel: DmemDouble) -> None:
    leaf = str(kernel.starts(LEAF))
    for regions in ([], ["drm/0000:99:00.0/vram"]):
        assert limits(kernel).set_limit(regions, (GPU, leaf, 4096, 0))["code"] == 3
    assert not any("dmem.max" in each for each in kernel.writes)


def test_damaged_and_endless_files_are_no_limit(kernel: DmemDouble) -> None:
    leaf = kernel.starts(LEAF)
    limits(kernel).set_limit([VRAM], (GPU, str(leaf), 4096, 0))
    (leaf / "dmem.max").write_text(f"{VRAM}\n{VRAM} x\n{VRAM} -1\n{VRAM} {'9' * 5000}\n\n")
    assert limits(kernel).limit([VRAM], GPU, str(leaf))["code"] == 3
    (leaf / "dmem.max").write_text("x" * (1 << 20) + f"\n{VRAM} 1048576\n")
    assert limits(kernel).limit([VRAM], GPU, str(leaf))["code"] == 3
    (leaf / "dmem.max").write_text(f"{VRAM} 1048576\n{VRAM} max\n")
    assert limits(kernel).limit([VRAM], GPU, str(leaf))["hard_mib"] == 1


def test_the_driver_answers_for_its_own_gpus_and_not_for_partitions(kernel: DmemDouble, tmp_path: Path) -> None:
    leaf = str(kernel.starts(LEAF))
    whole, part = (Board(pci, "amdgpu", {VRAM: 16 * GIB}) for pci in ("0000:c1:00.0", "0000:c2:00.0"))
    driver = Drm(["amdgpu"], str(tmp_path))
    driver._dmem = limits(kernel)
    driver._gpus = [
        ListedGpu(whole, {"uuid": GPU}, 1, partition=False),
        ListedGpu(part, {"uuid": f"{GPU}-p1"}, 2, partition=True),
    ]
    uuids = (GPU, f"{GPU}-p1", "GPU-of-another-driver")
    wanted: list[tuple[str, str, int | None, int]] = [(uuid, leaf, 4096, 0) for uuid in uuids]
    assert [(each["uuid"], each["code"]) for each in driver.set_limits(wanted)] == [(GPU, 0), (f"{GPU}-p1", 3)]
    asked = [(uuid, path) for uuid, path, *_ in wanted]
    assert [(each["uuid"], each["code"]) for each in driver.limits(asked)] == [(GPU, 0), (f"{GPU}-p1", 3)]


# --- On real cgroups, where the controller hugetlb plays the part of dmem ---------------------------------------------


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    with real_cgroups(tmp_path / "cgroup2") as top:
        yield top


def real(mount: Path) -> Dmem:
    return Dmem(str(mount.parent), "hugetlb")


def set_on(mount: Path, path: Path) -> int:
    code: int = real(mount).set_limit([VRAM], (GPU, str(path), 4096, 0))["code"]
    return code


def test_a_real_kernel_enables_a_controller_level_by_level(mount: Path) -> None:
    leaf = mount / "kubepods" / "burstable" / "pod1" / "c"
    leaf.mkdir(parents=True)
    assert not list(leaf.glob("hugetlb.*"))
    # The files of hugetlb have other names, so there is no limit to be read.
    assert set_on(mount, leaf) == 3
    assert list(leaf.glob("hugetlb.*.max"))
    assert (leaf / "cgroup.subtree_control").read_text().split() == []
    assert real(mount).lack().startswith("the kernel has no controller dmem")


def test_a_real_pod_offers_the_controller_to_its_containers(mount: Path) -> None:
    pod = mount / "kubepods" / "pod1"
    (pod / "sandbox").mkdir(parents=True)
    set_on(mount, pod)
    (pod / "later").mkdir()
    assert list((pod / "later").glob("hugetlb.*.max"))


def test_a_real_container_that_begins_can_still_take_processes(mount: Path) -> None:
    leaf = mount / "kubepods" / "pod1" / "c"
    leaf.mkdir(parents=True)
    set_on(mount, leaf)
    with subprocess.Popen(["sleep", "60"]) as process:
        (leaf / "cgroup.procs").write_text(str(process.pid))
        assert set_on(mount, leaf) == 3
        process.kill()


def test_a_real_level_with_processes_of_its_own_is_not_enabled(mount: Path) -> None:
    leaf = mount / "kubepods" / "pod1" / "c"
    leaf.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as process:
        (leaf.parent / "cgroup.procs").write_text(str(process.pid))
        assert set_on(mount, leaf) == 3
        assert not list(leaf.glob("hugetlb.*.max"))
        assert list(leaf.parent.glob("hugetlb.*.max"))
        process.kill()


def test_real_containers_that_begin_and_end_are_no_error(mount: Path) -> None:
    pod = mount / "kubepods" / "pod1"
    pod.mkdir(parents=True)
    over = threading.Event()

    def churn() -> None:
        for _ in range(200):
            (pod / "c").mkdir()
            (pod / "c").rmdir()
        over.set()

    codes = set()
    thread = threading.Thread(target=churn)
    thread.start()
    while not over.is_set():
        codes.add(set_on(mount, pod / "c"))
        codes.add(real(mount).limit([VRAM], GPU, str(pod / "c"))["code"])
    thread.join()
    assert codes <= {3, 999}
    assert set_on(mount, pod / "c") == 999


# --- With what is listed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("partitions", "limited"), [(1, True), (8, False)])
def test_a_listed_gpu_is_limited_by_its_region_and_a_partition_is_not(
    tmp_path: Path,
    partitions: int,
    limited: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    (pci,) = mi300x(tmp_path, 1, partitions)
    (tmp_path / "sys/fs/cgroup").rename(tmp_path / "listed")
    regions = [f"drm/{pci}/vram", f"drm/{pci}/vram", VRAM]
    with doubled(DmemDouble(tmp_path / "sys/fs/cgroup", regions)) as kernel:
        leaf = kernel.starts(LEAF)
        driver = Drm(["amdgpu"], str(tmp_path))
        gpus = driver.inventory()["gpus"]
        assert [gpu["memory_limits"] for gpu in gpus] == [limited] * partitions
        (found,) = driver.set_limits([(gpus[0]["uuid"], str(leaf), 4096, 0)])
        assert (found["code"], found.get("hard_mib")) == ((0, 4096) if limited else (3, None))
        assert driver.limits([(gpus[0]["uuid"], str(leaf))]) == [found]
