"""Read back from the driver, while containers run, whether it holds the memory limits that they were granted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from gpu_device_plugin.aio.waiting import Attempts
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.limits.rules import running_limits as rules
from gpu_device_plugin.features.limits.rules.dmem_limits import NOT_YET, by_kernel, verified_by_kernel
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import used_by_processes
from gpu_device_plugin.hardware.messages import CgroupLimit
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.model.limits import Enforcement, LimitState, LimitStatus
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.ledger import ContainerKey
from gpu_device_plugin.report.rules.printing import printable

_log = logging.getLogger(__name__)

_LONGEST_INTERVAL_S = 60.0
"""Most seconds between two readings of all limits: the driver may be replaced, and root may change a limit."""
_SETTLE_S = 0.1
"""Seconds in which several changes become one round; a pod's containers start one after another."""
_RETRY_S = 1.0
"""Seconds until limits that could not be read are read again; doubles up to the interval."""
_MOST_AT_ONCE = 128
"""Limits in one question to the driver, which answers no other in between."""


@dataclass(frozen=True, slots=True)
class _Verified:
    """The result for one start of one container."""

    container_id: str
    granted: Mapping[str, int]
    states: Mapping[str, LimitState] = field(default_factory=dict)
    """By the GPU's UUID."""
    used_mib: Mapping[str, int] = field(default_factory=dict)
    """What the driver says that the container's cgroup uses, by the GPU's UUID."""
    final: bool = True
    """Whether only the next round of all containers may show something else."""


@dataclass(eq=False, repr=False)
class Verification:
    """Verifies every limit of the driver's or kernel's soon after its container has started, and again at intervals.

    Publishes the state of each limit, of all means whose limits are more than told and of no whole GPU, as the node's
    `limit_states`, and what the driver counts as the use's `measured_by_driver`.

    Without the API the running containers are not known, without the node's cgroups they are not found, and a driver
    may not answer: then a limit is unverified, or as it was read last, and nothing else is different.
    """

    _node: NodeContext
    _use: Use
    _pending: Callable[[ContainerGpus, str], str] = lambda *_: ""
    """Returns why the limit helper has not set a container's limit on a GPU, by UUID; empty: it has."""

    def __post_init__(self) -> None:
        self._verified: dict[ContainerKey, _Verified] = {}
        self._reported: dict[ContainerKey, str] = {}
        """The container ID of which an Event was posted last."""
        self._worker = Worker(self._step, settle_s=_SETTLE_S)
        self._everything = True
        self._all_at = 0.0
        """When all limits are read again."""
        self._retry_s = _RETRY_S
        self._attempts = Attempts(_log, "memory limits cannot be read back; trying again")

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of limits in each state."""
        found = Counter(state.held for state in self._node.limit_states.value.values())
        return {held: found[held] for held in LimitStatus}

    def changed(self, _new: object = None) -> None:
        """Verify soon the limits of containers that have started since the last time."""
        self._retry_s = _RETRY_S
        self._worker.wake()

    def verify_all(self, _new: object = None) -> None:
        """Verify all limits soon: the driver may be another."""
        self._everything = True
        self.changed()

    async def run(self) -> NoReturn:
        """Verify until cancelled. No failure of a reading ends it."""
        await self._worker.run()

    async def _step(self) -> float:
        clock = asyncio.get_running_loop().time
        every_s = min(self._use.interval_s or _LONGEST_INTERVAL_S, _LONGEST_INTERVAL_S)
        if self._everything or clock() >= self._all_at:
            self._everything, self._all_at = False, clock() + every_s
            self._verified = {each: replace(old, final=False) for each, old in self._verified.items()}
        retry_s, self._retry_s = self._retry_s, min(2 * self._retry_s, every_s)
        complete = await self._attempts.make(self._round(), otherwise=False)
        left_s = max(0.0, self._all_at - clock())
        return left_s if complete else min(left_s, retry_s)

    async def _round(self) -> bool:
        """Read back what is not known for good; return whether that succeeded."""
        holders = tuple(self._use.holders())
        running = {
            (each.pod_uid, each.container): each
            for each in holders
            if (rules.by_driver(each) or by_kernel(each)) and each.container_id
        }
        due = {key: each for key, each in running.items() if (old := self._known(key, each)) is None or not old.final}
        found = await self._read(due, running.values()) if due else {}
        before = self._verified
        self._verified = {key: found[key] if key in found else before[key] for key in running}
        used = {(*key, uuid): mib for key, each in self._verified.items() for uuid, mib in each.used_mib.items()}
        self._use.measured_by_driver.set(used)
        self._reported = {key: reported for key, reported in self._reported.items() if key in running}
        places = (
            (each.pod_uid, each.container, uuid, state) for each in holders for uuid, state in self._states_of(each)
        )
        self._node.limit_states.change(
            {(pod_uid, container, uuid): state for pod_uid, container, uuid, state in places}
        )
        for key, holder in due.items():
            old = before.get(key)
            if old is None or (old.container_id, old.states) != (found[key].container_id, found[key].states):
                self._report(key, holder, found[key])
        return all(each.final for each in found.values())

    def _known(self, key: ContainerKey, holder: ContainerGpus) -> _Verified | None:
        """Return what is known of the present start of a container."""
        old = self._verified.get(key)
        same = old is not None and (old.container_id, old.granted) == (holder.container_id, holder.granted)
        return old if same else None

    async def _read(
        self, due: Mapping[ContainerKey, ContainerGpus], running: Iterable[ContainerGpus]
    ) -> Mapping[ContainerKey, _Verified]:
        leaves = self._node.cgroups.leaves({_owner(each) for each in running})
        paths = {key: (leaves or {}).get(_owner(each)) for key, each in due.items()}
        limits = await self._ask([(uuid, path) for key, path in paths.items() if path for uuid in due[key].granted])
        found = {}
        for key, holder in due.items():
            path, old, used = paths[key], self._known(key, holder), {}
            if path is None:
                unseen = _unverified(holder, rules.NO_CGROUPS if leaves is None else rules.NO_LEAF)
                states, final = dict.fromkeys(holder.granted, unseen), leaves is None
            else:
                states = dict.fromkeys(holder.granted, _unverified(holder, rules.NO_ANSWER))
                states |= {} if old is None else old.states
                read = {uuid: limits[uuid, path] for uuid in holder.granted if (uuid, path) in limits}
                now = {uuid: self._use.allowed_now.value.get((*key, uuid)) for uuid in read}
                states |= {uuid: self._verify(holder, one, now[uuid]) for uuid, one in read.items()}
                final = len(read) == len(states) and all(state.why != NOT_YET for state in states.values())
                used = {uuid: one.used_mib for uuid, one in read.items() if one.used_mib is not None}
            found[key] = _Verified(holder.container_id, holder.granted, states, used, final)
        return found

    def _verify(self, holder: ContainerGpus, read: CgroupLimit, now_mib: int | None) -> LimitState:
        if not by_kernel(holder):
            return rules.verified(holder, read.uuid, read.code, read.hard_mib, now_mib)
        found = read.code, read.hard_mib, read.used_mib
        processes_mib = used_by_processes(*self._use.processes_read, read.uuid, _owner(holder))
        pending = self._pending(holder, read.uuid)
        return verified_by_kernel(holder, read.uuid, found, now_mib, processes_mib=processes_mib, pending=pending)

    async def _ask(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], CgroupLimit]:
        """Return the limits that the driver has, as far as it answers."""
        found: dict[tuple[str, str], CgroupLimit] = {}
        for part in (wanted[begin : begin + _MOST_AT_ONCE] for begin in range(0, len(wanted), _MOST_AT_ONCE)):
            answer = await self._node.hardware.limits(part)
            if answer is None:
                break
            found |= {(each.uuid, each.path): each for each in answer}
        return found

    def _states_of(self, holder: ContainerGpus) -> Iterable[tuple[str, LimitState]]:
        if (unread := rules.by_kind(holder)) is not None:
            return dict.fromkeys(holder.granted, unread).items()
        if not (rules.by_driver(holder) or by_kernel(holder)):
            return ()
        if holder.pod is None:
            return dict.fromkeys(holder.granted, _unverified(holder, rules.NO_CONTAINER)).items()
        verified = self._verified.get((holder.pod_uid, holder.container))
        return () if verified is None else verified.states.items()

    def _report(self, key: ContainerKey, holder: ContainerGpus, found: _Verified) -> None:
        """Log the states of a container's limits, and post one Event for each of its starts if they do not hold."""
        pod = holder.pod
        if pod is None:
            return
        gpus: dict[LimitState, list[str]] = {}
        for uuid, state in found.states.items():
            shared = self._node.state.node.shares.by_uuid(uuid)
            gpus.setdefault(state, []).append(uuid if shared is None else str(shared.position))
        faults = []
        for state, names in gpus.items():
            extra = {"pod": f"{pod.namespace}/{pod.name}", "container": holder.container, "gpus": sorted(names)}
            wrong = state.held.broken
            level = logging.WARNING if wrong else logging.INFO
            _log.log(level, "the memory limit of a container is %s", state.held, extra={**extra, "why": state.why})
            if wrong:
                faults.append(f"on GPU {', '.join(sorted(names))} {state.why}")
        if faults and self._reported.get(key) != found.container_id:
            self._reported[key] = found.container_id
            note = f"The memory limit of container {printable(holder.container)} does not hold: {'; '.join(faults)}."
            self._node.api.event("GPULimitNotHeld", note, "Verify", pod=pod)


def _unverified(holder: ContainerGpus, why: str) -> LimitState:
    return rules.unverified(why, Enforcement.DMEM if by_kernel(holder) else Enforcement.DRIVER)


def _owner(holder: ContainerGpus) -> CgroupOwner:
    return CgroupOwner(holder.pod_uid, holder.container_id)
