"""The limit helper and the kernel's dmem: limits before containers begin, while they begin and end, and set again."""

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.limits.contract import LIMIT_FILES, LimitKey, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.helper_program import LimitHelper
from gpu_device_plugin.features.limits.rules import helper_limits
from gpu_device_plugin.hardware.amdgpu.dmem import Dmem
from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView, State
from gpu_device_plugin.hardware.messages import CgroupLimit
from gpu_device_plugin.hardware.monitor import Hardware, MonitorTimings
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.model.gpus import Gpu, Inventory
from tests.hardware.amdgpu.dmem_double import DmemDouble, doubled, real_cgroups
from tests.patience import beside, eventually

UID = "8dbc6bd1-07c9-4f21-a4f4-3b4fd6e0c6a1"
POD = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
C, D = "c" * 64, "d" * 64
VRAM = "drm/0000:c1:00.0/vram"
GPU = "PCI-0000:c1:00.0"
POLL_S = 0.01
GIB = 1 << 30


class KernelHardware:
    """What the helper asks of the driver process, answered here by the kernel's files."""

    def __init__(self, root: Path, controller: str = "dmem") -> None:
        """Answer for one GPU."""
        gpu = Gpu(GPU, 0, "AMD Radeon PRO W7900", 45_976, memory_limits=True, driver="amdgpu")
        self.view = Observable(HardwareView(inventory=Inventory((gpu,), cgroup=2), state=State.WATCHING))
        self.timings = MonitorTimings()
        self._dmem = Dmem(str(root), controller)

    async def run(self) -> NoReturn:
        """Wait."""
        await asyncio.Event().wait()
        raise AssertionError

    async def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    async def set_limits(self, wanted: Sequence[tuple[str, str, int | None, int]]) -> tuple[CgroupLimit, ...]:
        """Set limits as the driver process does."""
        await asyncio.sleep(0)
        return tuple(CgroupLimit(**self._dmem.set_limit([VRAM], each)) for each in wanted if each[0] == GPU)


class Node:
    """A node's cgroups, and the directory where agent and helper meet."""

    def __init__(self, root: Path, kernel: DmemDouble) -> None:
        self.kernel, self.directory = kernel, root / "memory"
        self.directory.mkdir()

    def want(self, limits: Mapping[str, int]) -> None:
        """Want limits in MiB by container ID; an empty ID is the pod's."""
        wanted = {LimitKey(UID, each, GPU): MemoryLimit(mib) for each, mib in limits.items()}
        new = self.directory / "new"
        new.write_text(LIMIT_FILES.write_wanted(wanted))
        new.rename(self.directory / LIMIT_FILES.wanted_file)

    @property
    def state(self) -> LimitsState:
        try:
            return LIMIT_FILES.read_state((self.directory / LIMIT_FILES.state_file).read_text())[0]
        except FileNotFoundError:
            return LimitsState(dmem="no state")

    def why(self, container_id: str) -> str | None:
        outcome = self.state.outcomes.get(LimitKey(UID, container_id, GPU))
        return None if outcome is None else outcome.why

    def limit(self, path: str) -> str:
        return (self.kernel.root / path / "dmem.max").read_text().split()[-1]

    @asynccontextmanager
    async def helper(self) -> AsyncIterator[None]:
        root = self.kernel.root
        hardware = cast("Hardware", KernelHardware(root))
        lack = Dmem(str(root)).lack_of_writing
        helper = LimitHelper(self.directory, hardware, CgroupTree(root), lack_of_dmem=lack, poll_s=POLL_S)
        async with beside(helper.run()):
            yield


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at each limit again with each round."""
    monkeypatch.setattr(helper_limits, "DMEM_CHECK_S", POLL_S)


@asynccontextmanager
async def node(tmp_path: Path, **more: Any) -> AsyncIterator[Node]:
    with doubled(DmemDouble(tmp_path / "cgroup", [VRAM], **more)) as kernel:
        there = Node(tmp_path, kernel)
        async with there.helper():
            yield there


async def test_a_pod_is_limited_before_its_container_and_that_as_soon_as_it_begins(tmp_path: Path) -> None:
    async with node(tmp_path) as there:
        await eventually(lambda: there.state.dmem == "")
        there.want({"": 8192})
        await eventually(lambda: there.why("") == helper_limits.NO_LEAF)
        there.kernel.starts(f"{POD}/cri-containerd-{'5' * 64}.scope")  # its sandbox
        await eventually(lambda: there.why("") == "" and there.limit(POD) == str(8 * GIB))
        leaf = f"{POD}/cri-containerd-{C}.scope"
        there.kernel.starts(leaf)
        there.want({"": 8192, C: 4096})
        await eventually(lambda: there.why(C) == "" and there.limit(leaf) == str(4 * GIB))


async def test_what_somebody_removed_is_set_again(tmp_path: Path) -> None:
    leaf = f"{POD}/cri-containerd-{C}.scope"
    async with node(tmp_path) as there:
        there.kernel.starts(leaf)
        there.want({"": 8192, C: 4096})
        await eventually(lambda: there.why(C) == "" == there.why(""))
        there.kernel.write(str(there.kernel.root / leaf / "dmem.max"), f"{VRAM} max")
        await eventually(lambda: there.limit(leaf) == str(4 * GIB))
        there.kernel.disable(there.kernel.root / "kubepods.slice")  # as systemd might
        await eventually(lambda: (there.kernel.root / leaf / "dmem.max").exists() and there.limit(leaf) == str(4 * GIB))
        await eventually(lambda: there.limit(POD) == str(8 * GIB))


async def test_a_limit_below_the_use_holds_as_soon_as_memory_is_returned(tmp_path: Path) -> None:
    leaf = f"{POD}/cri-containerd-{C}.scope"
    async with node(tmp_path) as there:
        place = there.kernel.starts(leaf)
        there.want({C: 8192})
        await eventually(lambda: there.why(C) == "")
        there.kernel.uses(place, VRAM, 6 * GIB)
        there.want({C: 4096})
        told = "the limit of 4096 MiB does not hold yet, and it stays at 8192 MiB: 6144 MiB are in use"
        await eventually(lambda: told in (there.why(C) or ""))
        there.kernel.uses(place, VRAM, 3 * GIB)
        await eventually(lambda: there.why(C) == "" and there.limit(leaf) == str(4 * GIB))


async def test_a_kernel_from_7_3_on_applies_a_limit_below_the_use(tmp_path: Path) -> None:
    leaf = f"{POD}/cri-containerd-{C}.scope"
    async with node(tmp_path, applies_below_use=True) as there:
        place = there.kernel.starts(leaf)
        there.want({C: 8192})
        await eventually(lambda: there.why(C) == "")
        there.kernel.uses(place, VRAM, 6 * GIB)
        there.want({C: 4096})
        await eventually(lambda: there.why(C) == "" and there.limit(leaf) == str(4 * GIB))


async def test_a_mount_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with doubled(DmemDouble(tmp_path / "cgroup", [VRAM])) as kernel:
        kernel.refuses = {"cgroup.subtree_control": errno.EROFS}
        there = Node(tmp_path, kernel)
        kernel.starts(f"{POD}/cri-containerd-{C}.scope")
        there.want({C: 4096})
        async with there.helper():
            await eventually(lambda: "mount it writable" in there.state.dmem)
            await eventually(lambda: "may not write to the cgroup" in (there.why(C) or ""))


async def test_a_kernel_without_the_controller_is_told(tmp_path: Path) -> None:
    with doubled(DmemDouble(tmp_path / "cgroup", [VRAM])) as kernel:
        (kernel.root / "dmem.capacity").unlink()
        there = Node(tmp_path, kernel)
        async with there.helper():
            await eventually(lambda: "CONFIG_CGROUP_DMEM" in there.state.dmem)


async def test_containers_that_begin_and_end_all_the_time_disturb_nobody(tmp_path: Path) -> None:
    steady, churned = (f"{POD}/cri-containerd-{each}.scope" for each in (C, D))
    async with node(tmp_path) as there:
        there.kernel.starts(steady)
        there.want({"": 8192, C: 4096, D: 2048})
        for _ in range(20):
            place = there.kernel.starts(churned)
            await eventually(lambda: there.why(D) == "" and there.limit(churned) == str(2 * GIB))
            there.kernel.ends(place)
            await eventually(lambda: there.why(D) == helper_limits.NO_LEAF)
        assert (there.why(C), there.limit(steady), there.limit(POD)) == ("", str(4 * GIB), str(8 * GIB))


async def test_real_cgroups_get_the_controller_while_containers_begin_and_end(tmp_path: Path) -> None:
    """Of the kernel of this machine, where hugetlb plays the part of dmem: its files have other names."""
    with real_cgroups(tmp_path / "cgroup2") as top:
        hardware = cast("Hardware", KernelHardware(top.parent, "hugetlb"))
        there = Node(tmp_path, cast("DmemDouble", None))
        pod = top / "kubepods" / "burstable" / f"pod{UID}"
        (pod / ("5" * 64)).mkdir(parents=True)  # its sandbox
        there.want({"": 8192, C: 4096, D: 2048})
        helper = LimitHelper(there.directory, hardware, CgroupTree(top), poll_s=POLL_S)
        not_read = helper_limits._DMEM_REASONS[3]
        async with beside(helper.run()):
            await eventually(lambda: there.why("") == not_read and bool([*pod.glob("hugetlb.*.max")]))
            for _ in range(20):
                for each in (C, D):
                    (pod / each).mkdir()
                    assert [*(pod / each).glob("hugetlb.*.max")], "it has the controller from its beginning"
                await eventually(lambda: there.why(C) == there.why(D) == not_read)
                (pod / C).rmdir()
                await eventually(lambda: there.why(C) == helper_limits.NO_LEAF)
                (pod / D).rmdir()
                await eventually(lambda: there.why(D) == helper_limits.NO_LEAF)
