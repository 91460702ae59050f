"""The privileged helper: set the limits that the node agent asks for on the cgroups of running containers.

Both meet in two files: the agent says which limits it wants, and the helper what came of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.features.limits import LimitHelperSettings
from gpu_device_plugin.features.limits.contract import LIMIT_FILES, LimitKey, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.rules import helper_limits as rules
from gpu_device_plugin.file_link import HelperLink
from gpu_device_plugin.hardware.amdgpu.dmem import Dmem
from gpu_device_plugin.hardware.driver import DRIVERS
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.hardware.monitor import Hardware, HardwareContextLost, MonitorTimings
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.lifetime import ReloadingProgram
from gpu_device_plugin.model.gpus import NVIDIA
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources, Texts

_log = logging.getLogger(__name__)

POLL_S = 0.5
"""Seconds between two looks at what is wanted."""
_BEAT_S = 5.0
"""Longest time between two writings of the state."""
_MOST_AT_ONCE = 128
"""Limits in one request to the driver."""
# The agent watches the health of the GPUs. Here readings only show that the driver still answers.
_TIMINGS = MonitorTimings(probe_every_s=30.0, rescan_every_s=86_400.0, rescan_missing_every_s=300.0)


class LimitHelper:
    """Sets every wanted limit on the cgroup of its container, and keeps the driver open only while one is wanted.

    It finds the cgroups itself, below the kubelet's, and touches no limit that is not wanted: that of a container that
    ends goes with its cgroup.
    """

    def __init__(
        self,
        directory: Path,
        hardware: Hardware,
        tree: CgroupTree,
        *,
        lack_of_dmem: Callable[[], str] = lambda: "",
        poll_s: float = POLL_S,
    ) -> None:
        """Prepare to meet the agent in `directory`, where it is looked for what is wanted every `poll_s` seconds.

        `lack_of_dmem` returns why the kernel's controller cannot limit memory here; empty: it can.
        """
        self._files = HelperLink(directory, LIMIT_FILES, boot_time)
        self._hardware = hardware
        self._tree = tree
        self._lack_of_dmem = lack_of_dmem
        self._poll_s = poll_s
        self._attempts: dict[LimitKey, rules.Attempt] = {}
        self._released = False

    @property
    def _wanted(self) -> Mapping[LimitKey, MemoryLimit]:
        return self._files.wanted or {}

    async def run(self) -> NoReturn:
        """Set limits until cancelled. They stay as they are afterwards.

        Raises:
            HardwareContextLost: only a new container can help, in an exception group.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hardware.run(), name="driver")
            tasks.create_task(self._files.publish(self._state, _BEAT_S), name="tell what is set")
            while True:
                self._files.read()
                await self._open_or_release()
                await self._set_due()
                await asyncio.sleep(self._poll_s)

    async def _open_or_release(self) -> None:
        if not self._wanted and not self._released:
            self._released = True
            await self._hardware.pause()  # so that the GPUs can be reset, or their driver replaced
        elif self._wanted and self._released:
            self._released = False
            self._hardware.resume()
        if self._wanted:
            starting = {State.STARTING, State.PAUSED}
            opened = self._hardware.view.wait_until(lambda view: view.state not in starting)
            await wait_within(self._hardware.timings.start_within_s, opened)

    async def _set_due(self) -> None:
        self._attempts = {key: old for key, old in self._attempts.items() if key in self._wanted}
        due = rules.due(self._wanted, self._attempts, boot_time())
        if not due:
            return
        leaves = self._tree.leaves({_owner(key) for key in self._wanted if key.container_id})
        pods = self._tree.pods({key.pod_uid for key in due if not key.container_id})
        memory_mib = {gpu.uuid: gpu.total_mib for gpu in self._hardware.view.value.inventory.gpus}
        refused = rules.refused_soft_limits(self._wanted, memory_mib)
        known = {key: (leaves or {}).get(_owner(key)) if key.container_id else pods.get(key.pod_uid) for key in due}
        paths = {key: path for key, path in known.items() if key not in refused and path is not None}
        unseen = rules.NO_CGROUPS if leaves is None else rules.NO_LEAF
        found = {key: refused.get(key, unseen) for key in due} | await self._set(paths)
        by_kernel = self._by_kernel()
        for key in due:
            self._attempted(key, found[key], by_kernel=key.uuid in by_kernel)
        self._files.changed.set()

    async def _set(self, paths: Mapping[LimitKey, str]) -> dict[LimitKey, str]:
        """Set the limits of these cgroups; return why each is not set, empty if it is."""
        found: dict[LimitKey, str] = {}
        keys = list(paths)
        for part in (keys[begin : begin + _MOST_AT_ONCE] for begin in range(0, len(keys), _MOST_AT_ONCE)):
            wanted = [(key.uuid, paths[key], *self._wanted[key]) for key in part]
            answer = await self._hardware.set_limits(wanted)
            if answer is None:
                why = f"the driver does not answer: {self._hardware.view.value.sentence}"
                await self._hardware.read_again()  # has a process that hangs replaced
                return found | dict.fromkeys(keys[len(found) :], why)
            read, by_kernel = {(each.uuid, each.path): each for each in answer}, self._by_kernel()
            for key in part:
                one = read.get((key.uuid, paths[key]))
                limit = self._wanted[key]
                if one is None:
                    found[key] = rules.NO_GPU
                elif key.uuid in by_kernel:
                    found[key] = rules.why_not_set_by_kernel(limit, one.code, one.hard_mib, one.used_mib)
                else:
                    found[key] = rules.why_not_set(limit, one.code, one.hard_mib)
        return found

    def _by_kernel(self) -> frozenset[str]:
        """Return the GPUs whose memory the kernel limits, not NVIDIA's driver, by UUID."""
        return frozenset(gpu.uuid for gpu in self._hardware.view.value.inventory.gpus if gpu.driver != NVIDIA)

    def _attempted(self, key: LimitKey, why: str, *, by_kernel: bool) -> None:
        limit, before = self._wanted[key], self._attempts.get(key)
        check_s = rules.DMEM_CHECK_S if by_kernel else rules.CHECK_S
        self._attempts[key] = after = rules.attempted(limit, why, before, boot_time(), check_s)
        if before is None or before.outcome != after.outcome:
            extra = {**key._asdict(), "hard_mib": limit.hard_mib, **({"why": why} if why else {})}
            # The limit of a pod is wanted before there is anything of it.
            early = why == rules.NO_LEAF and by_kernel
            level = logging.WARNING if why and not early else logging.INFO
            what = "not set" if why else "set"
            _log.log(level, "a limit is %s", what, extra=extra)

    def _state(self) -> LimitsState:
        return LimitsState({key: old.outcome for key, old in self._attempts.items()}, self._lack_of_dmem())


def _owner(key: LimitKey) -> CgroupOwner:
    return CgroupOwner(key.pod_uid, key.container_id)


def main(sources: Sources[LimitHelperSettings], texts: Texts, settings: LimitHelperSettings) -> int:
    """Run the helper until SIGTERM or SIGINT; return its exit code. Raises UsageError."""
    if not settings.memory_dir.is_dir():
        raise UsageError(
            f"memory_dir: {settings.memory_dir}: there is no such directory; mount the node's, as "
            "deploy/optional/limits.yaml does"
        )
    _log.info("the limit helper starts", extra={"version": __version__, "memory_dir": str(settings.memory_dir)})
    try:
        hardware = Hardware(settings.gpus, timings=_TIMINGS)
    except DescriptionError as error:
        raise UsageError(str(error)) from error
    dmem = Dmem()
    # Fake GPUs need no kernel.
    lack = dmem.lack_of_writing if settings.gpus in DRIVERS else lambda: ""
    work = LimitHelper(settings.memory_dir, hardware, CgroupTree(), lack_of_dmem=lack).run()
    program, ends = ReloadingProgram(settings), (HardwareContextLost,)
    return asyncio.run(program.follow_settings(sources, texts, work, "limit helper", restart_after=ends))
