"""The limit helper sets what the agent wants on the right cgroups, and survives whatever becomes of the others."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.limits.contract import LIMIT_FILES, LimitKey, LimitOutcome, MemoryLimit
from gpu_device_plugin.features.limits.helper_program import LimitHelper
from gpu_device_plugin.features.limits.rules import helper_limits as setting
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.hardware.monitor import Hardware, MonitorTimings
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from tests.hardware.memory_limits import OUT_OF_MEMORY, LimitingLibrary, cgroup, times_set
from tests.patience import beside, eventually, rounds, stretched, until

UID = "8dbc6bd1-07c9-4f21-a4f4-3b4fd6e0c6a1"
C, D = "c" * 64, "d" * 64
GPU = "GPU-11111111-2222-3333-4444-555555555555"
POLL_S = 0.01


class Node:
    """A node's cgroups, the directory where agent and helper meet, and a driver with limits."""

    def __init__(self, root: Path) -> None:
        """Make them below `root`."""
        self.cgroups, self.directory, self.description = root / "cgroup", root / "memory", root / "gpus.json"
        self.cgroups.mkdir()
        self.directory.mkdir()
        self.describe()

    def describe(self, gpu: dict[str, Any] | None = None, *events: dict[str, Any]) -> None:
        gpus = [{"model": "H200", "uuid": GPU, "memory_limits": True, **(gpu or {})}]
        new = self.description.with_suffix(".new")
        new.write_text(json.dumps({"gpus": gpus, "events": list(events)}))
        new.rename(self.description)

    def starts(self, container_id: str) -> Path:
        """Make the cgroup of a container."""
        leaf = self.cgroups / f"kubepods/burstable/pod{UID}/{container_id}"
        leaf.mkdir(parents=True)
        return leaf

    def want(self, **limits: int) -> None:
        """Want hard limits, by the letter of which a container's ID consists."""
        wanted = {LimitKey(UID, letter * 64, GPU): MemoryLimit(mib) for letter, mib in limits.items()}
        self.write(LIMIT_FILES.write_wanted(wanted).encode())

    def write(self, content: bytes) -> None:
        new = self.directory / "new"
        new.write_bytes(content)
        new.rename(self.directory / LIMIT_FILES.wanted_file)

    @property
    def state(self) -> tuple[Mapping[LimitKey, LimitOutcome], float]:
        try:
            state, beat_s = LIMIT_FILES.read_state((self.directory / LIMIT_FILES.state_file).read_text())
        except FileNotFoundError:
            return {}, -1.0
        return state.outcomes, beat_s

    def outcome(self, container_id: str) -> LimitOutcome | None:
        return self.state[0].get(LimitKey(UID, container_id, GPU))

    def limit(self, leaf: Path) -> int | None:
        """Return the hard limit in MiB that an agent would read back."""
        driver = Fake(str(self.description))
        driver.inventory()
        (found,) = driver.limits([(GPU, str(leaf))])
        mib: int | None = found.get("hard_mib")
        return mib

    async def has_set(self, container_id: str, mib: int) -> None:
        wanted = LimitOutcome(MemoryLimit(mib))
        await eventually(lambda: self.outcome(container_id) == wanted, f"{container_id[0]} has a limit of {mib} MiB")

    async def says(self, container_id: str, why: str) -> None:
        await eventually(lambda: why in getattr(self.outcome(container_id), "why", ""), f"it says: {why}")

    @asynccontextmanager
    async def helper(self, hardware: Hardware | None = None) -> AsyncIterator[Hardware]:
        """Run a helper."""
        hardware = hardware or Hardware(str(self.description), timings=QUICK)
        helper = LimitHelper(self.directory, hardware, CgroupTree(self.cgroups), poll_s=POLL_S)
        async with beside(helper.run()):
            yield hardware


QUICK = MonitorTimings(
    probe_every_s=0.05, answer_within_s=stretched(5), start_within_s=stretched(20), retry_from_s=0.02, retry_to_s=0.1
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_wanted_limit_is_set_lowered_and_raised(node: Node) -> None:
    leaf = node.starts(C)
    node.want(c=12288)
    async with node.helper():
        for mib in (12288, 4096, 6144):
            node.want(c=mib)
            await node.has_set(C, mib)
            assert node.limit(leaf) == mib


async def test_soft_limits_beyond_the_memory_of_the_gpu_are_not_set(node: Node) -> None:
    greedy, modest = node.starts(C), node.starts(D)
    reserves, holds = MemoryLimit(1 << 26, 1 << 26), MemoryLimit(4096)
    node.write(LIMIT_FILES.write_wanted({LimitKey(UID, C, GPU): reserves, LimitKey(UID, D, GPU): holds}).encode())
    async with node.helper():
        await node.says(C, "the soft limits of its GPU are 67108864 MiB together, and it has")
        await node.has_set(D, 4096)
        assert (node.limit(greedy), node.limit(modest)) == (None, 4096)


async def test_without_an_agent_the_driver_is_not_open_and_nothing_is_set(node: Node) -> None:
    """A GPU that nobody uses can be reset, and its driver be replaced."""
    leaf = node.starts(C)
    async with node.helper() as hardware:
        await eventually(lambda: hardware.view.value.state is State.PAUSED and node.state[1] > 0)
        assert (hardware.child, node.state[0], node.limit(leaf)) == (None, {}, None)
        node.want(c=4096)
        await node.has_set(C, 4096)
        assert hardware.child is not None
        node.want()
        await eventually(lambda: hardware.view.value.state is State.PAUSED and not node.state[0])
        assert node.limit(leaf) == 4096, "it stays as it was"


async def test_a_container_that_starts_again_gets_its_limit_in_its_new_cgroup(node: Node) -> None:
    node.starts(C)
    node.want(c=4096)
    async with node.helper():
        await node.has_set(C, 4096)
        (node.cgroups / f"kubepods/burstable/pod{UID}/{C}").rmdir()
        new = node.starts(D)
        assert node.limit(new) is None
        node.want(d=4096)
        await node.has_set(D, 4096)
        assert node.limit(new) == 4096
        assert node.outcome(C) is None, "what has ended is forgotten"


async def test_a_cgroup_that_is_not_there_yet_is_looked_for_again(node: Node) -> None:
    node.starts(C)
    node.want(c=4096, d=4096)
    async with node.helper():
        await node.says(D, setting.NO_LEAF)
        await node.has_set(C, 4096)
        node.starts(D)
        await node.has_set(D, 4096)


async def test_a_node_whose_cgroups_are_not_mounted_is_told(node: Node) -> None:
    node.want(c=4096)
    async with node.helper():
        await node.says(C, setting.NO_CGROUPS)


async def test_a_cgroup_that_is_none_of_the_kubelets_is_never_touched(node: Node) -> None:
    node.starts(D)
    others = [
        node.cgroups / f"system.slice/docker-{C}.scope",
        node.cgroups / f"system.slice/pod{UID}/{C}",
        node.cgroups / f"kubepods/burstable/pod{UID}/{D}/{C}",
    ]
    for each in others:
        each.mkdir(parents=True)
    node.want(c=4096)
    async with node.helper():
        await node.says(C, setting.NO_LEAF)
    assert [node.limit(each) for each in others] == [None, None, None]


WRONG = {
    "half-written": b'{"version": 1, "limits": [{"pod_uid": "8dbc6b',
    "empty": b"",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "oversized": b" " * (LIMIT_FILES.largest + 1),
    "forged": json.dumps(
        {
            "version": 1,
            "limits": [{"pod_uid": UID, "container_id": "../../../../x", "uuid": GPU, "hard_mib": 1, "soft_mib": 0}],
        }
    ).encode(),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
async def test_what_cannot_be_read_changes_nothing(
    node: Node, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    leaf = node.starts(C)
    node.want(c=4096)
    async with node.helper():
        await node.has_set(C, 4096)
        node.write(content)
        await eventually(lambda: any(LIMIT_FILES.wanted_file in each.getMessage() for each in caplog.records))
        await rounds(3, POLL_S)
        assert (node.outcome(C), node.limit(leaf)) == (LimitOutcome(MemoryLimit(4096)), 4096)
        assert len([each for each in caplog.records if LIMIT_FILES.wanted_file in each.getMessage()]) == 1
        node.want(c=2048)
        await node.has_set(C, 2048)


async def test_a_link_is_not_followed(node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node.starts(C)
    node.want(c=4096)
    (node.directory / LIMIT_FILES.wanted_file).rename(tmp_path / "elsewhere")
    (node.directory / LIMIT_FILES.wanted_file).symlink_to(tmp_path / "elsewhere")
    async with node.helper():
        await eventually(lambda: "symbolic link" in str(caplog.messages))
        assert node.outcome(C) is None


async def test_a_state_that_cannot_be_written_is_written_later(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.starts(C)
    (node.directory / LIMIT_FILES.state_file).mkdir()
    node.want(c=4096)
    async with node.helper():
        await eventually(lambda: "cannot be written" in str(caplog.messages))
        (node.directory / LIMIT_FILES.state_file).rmdir()
        node.want(c=2048)
        await node.has_set(C, 2048)


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ({"memory_limits": False}, "come with r615"),
        ({"limits": {"*": {"code": 4}}}, "CAP_SYS_ADMIN"),
        ({"limits": {"*": {"code": 3}}}, "not supported"),
        ({"uuid": "GPU-other"}, setting.NO_GPU),
    ],
    ids=str,
)
async def test_a_limit_that_the_driver_does_not_set_has_a_reason_and_is_tried_again(
    node: Node, gpu: dict[str, Any], why: str
) -> None:
    node.starts(C)
    node.describe(gpu)
    node.want(c=4096)
    async with node.helper():
        await node.says(C, why)
        if "uuid" not in gpu:  # GPUs are listed when the driver is opened
            node.describe()
            await node.has_set(C, 4096)


async def test_a_driver_that_does_not_answer_is_the_reason_until_it_does(node: Node) -> None:
    leaf = node.starts(C)
    node.describe(None, {"at": 0, "failure": "no-driver"})
    node.want(c=4096)
    async with node.helper():
        await node.says(C, "the driver does not answer: ")
        node.describe()
        await node.has_set(C, 4096)
        assert node.limit(leaf) == 4096


# --- With the real pynvml, and a library with the rules of dmem -------------------------------------------------------


async def test_a_helper_that_starts_again_leaves_right_limits_alone(node: Node, tmp_path: Path) -> None:
    """It is killed and replaced while containers run; limits do not need it any more."""
    uuid = "GPU-a"
    library = LimitingLibrary(tmp_path)
    leaf = cgroup(node.cgroups / f"kubepods/pod{UID}/{C}", hard_mib=12288)
    key = LimitKey(UID, C, uuid)
    assert library.allocate(leaf, 8192) == 0

    def want(mib: int) -> None:
        node.write(LIMIT_FILES.write_wanted({key: MemoryLimit(mib)}).encode())

    async def has_set(mib: int) -> None:
        await eventually(lambda: node.state[0].get(key) == LimitOutcome(MemoryLimit(mib)), f"{mib} MiB")

    def hardware() -> Hardware:
        return Hardware("nvml", timings=QUICK, library_dir=tmp_path, version_files=())

    want(4096)
    async with node.helper(hardware()):
        await has_set(4096)
    assert (times_set(leaf), library.allocate(leaf, 1)) == (1, OUT_OF_MEMORY)
    (node.directory / LIMIT_FILES.state_file).unlink()
    async with node.helper(hardware()):
        await has_set(4096)
        assert times_set(leaf) == 1
        want(12288)
        await has_set(12288)
        assert (times_set(leaf), library.allocate(leaf, 4096)) == (2, 0)


# --- As a process -----------------------------------------------------------------------------------------------------


def command(node: Node) -> list[str]:
    flags = [f"--memory-dir={node.directory}", f"--gpus={node.description}"]
    return [sys.executable, "-m", "gpu_device_plugin", "limits", *flags]


def test_the_program_runs_until_it_is_stopped(node: Node) -> None:
    node.want(c=4096)
    with subprocess.Popen(command(node), stderr=subprocess.PIPE, text=True) as process:
        until(lambda: node.outcome(C) is not None, "it has tried")  # no container of this machine has the ID
        os.kill(process.pid, signal.SIGTERM)
        _, log = process.communicate(timeout=stretched())
    assert process.returncode == 0
    assert "the limit helper starts" in log


def test_a_directory_that_is_not_mounted_is_a_wrong_setting(node: Node) -> None:
    node.directory.rmdir()
    ended = subprocess.run(command(node), capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no such directory; mount the node's" in ended.stderr


def test_gpus_that_are_none_are_a_wrong_setting(node: Node) -> None:
    ended = subprocess.run([*command(node), "--gpus=fake:zz"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "fake:zz" in ended.stderr
    assert "Traceback" not in ended.stderr
