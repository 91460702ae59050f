"""Memory limits: the means, what they add to grants, whether the driver holds them, and limits that change later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import in_thread, together, wait_within
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.limits import LimitSettings
from gpu_device_plugin.features.limits.contract import LIMIT_FILES, OLDER, LimitKey, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.extra_grant_file import read_extra_grant
from gpu_device_plugin.features.limits.rules import dmem_limits as dmem
from gpu_device_plugin.features.limits.rules import running_limits as rules
from gpu_device_plugin.features.limits.rules.compute_mask import compute_mask
from gpu_device_plugin.features.limits.rules.enforcement import REFUSE, Facts, OtherMeans, derive_means
from gpu_device_plugin.features.limits.rules.helper_limits import NO_LEAF
from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, added_for_limits, refuse_unlimited
from gpu_device_plugin.features.limits.verification import Verification
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.file_link import FileLink
from gpu_device_plugin.hardware.amdgpu.dmem import ROOT as CGROUPS
from gpu_device_plugin.hardware.amdgpu.dmem import Dmem
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.gauges import Gauge, Gauges
from gpu_device_plugin.model.gpus import NVIDIA
from gpu_device_plugin.model.limits import Enforcement, LimitMeans
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares, parse_id
from gpu_device_plugin.node.allocation_handler import Starts
from gpu_device_plugin.node.extension import Contribution, GrantDraft, GrantRequest, NodeFeature, StartRequest, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

_log = logging.getLogger(__name__)

LIMIT_STATES = Gauge("gpushare_limit_states", "Memory limits of running containers by what was read back.", ("state",))


def _link(directory: Path, clock: Callable[[], float]) -> FileLink[Mapping[LimitKey, MemoryLimit], LimitsState]:
    words = "the limit helper", rules.NOT_THERE, rules.NOT_THERE, rules.SILENT
    return FileLink(directory, LIMIT_FILES, clock, *words, rules.BEAT_S)


def _lack(state: LimitsState | str) -> str:
    """Return why the helper sets no limits by dmem, as a clause; empty: it does."""
    if isinstance(state, str):
        return dmem.NOT_THERE if state == rules.NOT_THERE else state
    return state.dmem and f"the limit helper sets no limits by dmem: {state.dmem}"


def dmem_facts(memory_dir: Path | None, root: Path) -> Facts:
    """Return what a node's kernel and its limit helper tell of dmem; below `root` is the node."""
    lack = Dmem(str(root / CGROUPS.lstrip("/"))).lack()
    if memory_dir is None:
        return Facts(lack)
    return Facts(lack, _lack(_link(root / memory_dir.relative_to("/"), boot_time).read_state()))


@dataclass(eq=False, repr=False)
class LimitLink:
    """Tells the limit helper the limits now, and follows what comes of them.

    Does nothing on a node where no limit changes and the kernel limits no GPU's memory. A file that cannot be written
    or read changes nothing but what is said.
    """

    _directory: Path
    """The setting `memory_dir`."""
    _node: NodeContext
    _use: Use
    _: KW_ONLY
    poll_s: float = 2.0
    """Seconds between two looks at the helper's file, and at the running containers."""
    waiting_poll_s: float = 0.2
    """The same while a container waits for its limit."""
    clock: Callable[[], float] = boot_time
    """Returns the seconds since the machine started."""

    def __post_init__(self) -> None:
        self.reasons: Mapping[Place, str] = {}
        """Why a limit that the helper was told is not set. It may be right all the same, if it is that of the start."""
        self.lack_of_dmem: Observable[str] = Observable(dmem.NOT_THERE)
        """Why the helper sets no limits by dmem, as a clause; empty: it does."""
        self._state: LimitsState | str = dmem.NOT_THERE
        self._wanted: Mapping[Place, tuple[LimitKey, MemoryLimit]] = {}
        self._steps: Observable[None] = Observable(None)
        self._waiting = 0
        self._saw_kernel = False
        """The last look at the containers found a GPU whose memory the kernel may limit."""
        self._files = _link(self._directory, self.clock)
        self._worker = Worker(self._step)

    async def run(self) -> NoReturn:
        """Follow the limits and the helper until cancelled; leaves the file as it is, for containers run on."""
        self._files.take_up()
        node = self._node
        # Until then no container is known, and what our predecessor wanted stays.
        await node.entries.after(0)
        follow = [node.api.pod_changes.follow(self._pods_changed), node.state.nodes.follow(self._node_changed)]
        await together(self._worker.run(self._use.allowed_now, node.entries, node.settings), *follow)

    def soft(self) -> bool:
        """Return whether what a container is guaranteed is its soft limit."""
        return self._node.settings.value.of(LimitSettings).soft_limit == "share"

    def by_kernel(self, uuids: Collection[str] | None = None) -> bool:
        """Return whether the kernel may limit the memory of one of these GPUs, by UUID; None: of any."""
        gpus = (shared.gpu for shared in self._node.state.node.shares.gpus)
        return any(gpu.driver != NVIDIA and (uuids is None or gpu.uuid in uuids) for gpu in gpus)

    def read(self) -> None:
        """Read the helper's state, and publish what it says of dmem."""
        self._publish(self._files.read_state())

    def _publish(self, state: LimitsState | str) -> None:
        self.lack_of_dmem.change(_lack(state))
        self._state = self.lack_of_dmem.value if isinstance(state, str) else state

    def pending(self, holder: ContainerGpus, uuid: str) -> str:
        """Return why the helper has not set the limit of a container that the kernel is to limit; empty: it has."""
        now_mib = self._use.allowed_now.value.get((holder.pod_uid, holder.container, uuid))
        key = LimitKey(holder.pod_uid, holder.container_id, uuid)
        return dmem.pending(self._state, key, MemoryLimit(dmem.allowed_mib(holder, uuid, now_mib)))

    def _pods_changed(self, _new: object) -> None:
        if self.by_kernel():  # a container that has just started has no limit of its own yet
            self._worker.wake()

    def _node_changed(self, _new: object) -> None:
        if not self._saw_kernel and self.by_kernel():  # its GPUs were found after its containers
            self._worker.wake()

    async def _step(self) -> float | None:
        node, holders, allowed = self._node, self._use.holders(), self._use.allowed_now.value
        if not node.state.node.shares.gpus:  # not found yet
            return None
        found = {**rules.wanted_limits(holders, allowed, self._files.wanted, soft=self.soft())}
        self._saw_kernel = by_kernel = self.by_kernel()
        state: LimitsState | str = ""
        if found or by_kernel:
            state = await in_thread(self._files.read_state)
            self._publish(state)
        # An older helper would refuse the whole file.
        if by_kernel and self._files.last is not None and self._files.last.dmem != OLDER:
            ended = {pod.kubelet_uid for pod in node.api.pods.values() if pod.ended} | {*node.records.over}
            share_mib = node.state.node.shares.share_mib
            held = node.entries.value, holders, allowed, share_mib, ended
            found |= dmem.wanted_of_kernel(*held, before=self._files.wanted)
        self._wanted = found
        self.reasons = {place: why for place, why in self.reasons.items() if place in found}
        await in_thread(self._files.want, dict(found.values()))
        known, self.reasons = self.reasons, rules.reasons(found, self._files.unwritten or state)
        for place, why in self.reasons.items():
            if why not in {known.get(place), dmem.NOT_YET}:
                extra = {**dict(zip(("pod_uid", "container", "gpu"), place, strict=True)), "why": why}
                # The helper is optional, and a pod has its limit before there is anything of it.
                level = logging.INFO if why in {rules.NOT_THERE, NO_LEAF} else logging.WARNING
                _log.log(level, "the limit of a running container is not changed", extra=extra)
        self._steps.set(None)
        # Nobody's limit is changed on most nodes, where nothing is looked at either.
        if not (self._files.wanted or self._files.unwritten or by_kernel):
            return None
        return self.waiting_poll_s if self._waiting else self.poll_s

    async def before_start(self, start: StartRequest) -> Refusal | None:
        """Wait until the pod of a container has the limit by dmem with which the container was allocated.

        A start without it would not be what the pod was told, so it is refused; the kubelet tries again.
        """
        ids = frozenset(start.device_ids)
        if start.kind is not Kind.MEMORY or not self.by_kernel({parse_id(name)[0] for name in ids}):
            return None
        self.read()
        self._waiting += 1
        try:
            self._worker.wake()
            limited = self._steps.wait_until(lambda _: bool(start.lost()) or not self._not_limited(ids))
            await wait_within(start.deadline - time.monotonic(), limited)
        finally:
            self._waiting -= 1
        why = "" if start.lost() else self._not_limited(ids)
        return Refusal(RefusalCode.NO_LIMIT, why) if why else None

    def _not_limited(self, ids: frozenset[str]) -> str:
        """Return why the pods with these devices must not start a container yet, as a sentence; empty: they may."""
        owners = Starts(self._node).owners(ids)
        if not owners and self.lack_of_dmem.value:
            return ""  # where dmem sets no limits, its pod was told of none
        if not owners:
            return (
                "the kubelet's records do not show yet which pod has these devices, whose GPU memory is to be limited"
            )
        pods = {each.pod_uid for each in owners if each.enforcement is Enforcement.DMEM}
        last = self._files.last
        whys = dmem.unlimited(pods, self._wanted, {} if last is None else last.outcomes)
        if not whys:
            return ""
        why = self._files.unwritten or self.lack_of_dmem.value or whys[0]
        return f"the GPU memory of the pod is not limited yet, as it was allocated with limits by dmem: {why}"


class Limits(NodeFeature):
    """Chooses what keeps containers within their parts, adds it to their grants, and verifies it."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`.

        Raises:
            SettingsError: the file of the setting `extra_grant` cannot be used.
        """
        settings, use = node.settings.value.of(LimitSettings), node.features.of(Use)
        self._node = node
        self._others = [feature for feature in node.features if isinstance(feature, OtherMeans)]
        self._extra = read_extra_grant(settings.extra_grant)
        self._plan = LimitPlan()
        self.link: LimitLink | None = None  # without elastic memory no limit changes
        if isinstance(settings, ElasticSettings) and settings.memory_dir is not None:
            self.link = LimitLink(settings.memory_dir, node, use)
        self.verification = Verification(node, use, (lambda *_: "") if self.link is None else self.link.pending)

    def means(self, shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> LimitMeans:  # noqa: D102
        settings = self._node.settings.value.of(LimitSettings)
        self._plan, chosen = derive_means(
            shares,
            cgroup,
            labels,
            self._others,
            limits=settings.limits,
            refuse=settings.limits_fallback == REFUSE,
            soft_is_share=settings.soft_limit == "share",
            extra=self._extra,
            dmem=self._dmem(shares),
        )
        return chosen

    def _dmem(self, shares: Shares) -> Facts | None:
        """Return what the node tells of limits by dmem; None: no GPU could have them."""
        foreign = [shared.gpu for shared in shares.gpus if shared.gpu.driver != NVIDIA]
        if not foreign or self.link is None:
            return None
        self.link.read()
        lack = "" if all(gpu.memory_limits for gpu in foreign) else Dmem(self._node.cgroups.mount).lack()
        return Facts(lack, self.link.lack_of_dmem.value)

    def means_follow(self) -> Sequence[Observable[Any]]:  # noqa: D102
        return () if self.link is None else (self.link.lack_of_dmem,)

    async def before_start(self, start: StartRequest) -> Refusal | None:
        """Let a container start with the limit that it was told, see `LimitLink.before_start`."""
        return None if self.link is None else await self.link.before_start(start)

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution]:
        """Limit a container, or refuse it if its memory cannot be limited although the administrator requires it."""
        return nullcontext(partial(self._limit, request))

    def _limit(self, request: GrantRequest, draft: GrantDraft) -> GrantDraft | Refusal:
        node, plan = self._node.state.node, self._plan
        if draft.enforcements:  # a means of another feature has chosen itself
            plan = replace(plan, enforcements={**plan.enforcements, **draft.enforcements})
        if not request.running:
            refusal = refuse_unlimited(node, draft.placement.demand.kind, draft.device_ids, plan, draft.owner)
            if refusal is not None:
                return refusal
        added = added_for_limits(draft.placement, node.shares, plan, draft.owner)
        if self._node.settings.value.of(LimitSettings).cu_mask == "by-share":
            added = replace(added, envs={**compute_mask(node.shares, draft.device_ids), **added.envs})
        return replace(draft, enforcements=plan.enforcements, added=added)

    def tasks(self) -> Tasks:  # noqa: D102
        node, verification = self._node, self.verification
        tasks = [
            verification.run(),
            node.entries.follow(verification.changed),
            node.hardware.view.follow(verification.verify_all),
            node.api.pod_changes.follow(verification.changed),
        ]
        if self.link is not None:
            tasks.append(self.link.run())
        return tasks

    def measured(self, metrics: NodeMetrics) -> Gauges:  # noqa: ARG002, D102
        return [(LIMIT_STATES, [((held,), count) for held, count in self.verification.counts.items()])]
