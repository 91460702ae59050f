"""Answer the wishes of running pods for more or less guaranteed memory, while this extender is the active one."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import metrics as m
from gpu_device_plugin.cluster.client.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from gpu_device_plugin.cluster.lease import holder_of
from gpu_device_plugin.cluster.objects.decoding import NAMESPACES, read_metadata
from gpu_device_plugin.core.cluster.resizing import Outcome, wants_more
from gpu_device_plugin.model.contract.keys import MEMORY_PROMISED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.cluster.writers.binder import Binder
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.extender.extender_routes import Readiness
    from gpu_device_plugin.programs.extender.resizes import Patch, Resizes

_log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_MOST = 10
"""Pods that are decided on between two pauses: 50 a second, which take 2 % of a CPU and as many patches at most."""
_LABELS_S = 10.0
"""How long the labels of a namespace are remembered."""
_MOST_NAMESPACES = 1000
_TERM_S = 1.0
"""How long the holder of kube-scheduler's Lease is remembered. Another needs more than 10 s to take it."""
_READ_S = 2.0
"""Timeout of reading a namespace or a Lease."""


@dataclass(eq=False, repr=False)
class Leadership:
    """Whether this extender is the active one. Of several, that is the one whose kube-scheduler leads."""

    _client: Client
    _readiness: Readiness
    _: KW_ONLY
    lease: tuple[str, str] | None
    """Namespace and name of the Lease of the kube-scheduler beside this extender; None: there is no other extender, or
    they elect the active one themselves."""
    identity: str
    """The host name of this pod, with which kube-scheduler's own identity begins."""
    clock: Callable[[], float]
    """Returns monotonic seconds."""

    def __post_init__(self) -> None:
        self._read: tuple[float, Hashable | None] | None = None

    async def term(self, within_s: float = _TERM_S) -> Hashable | None:
        """Return what stays equal for as long as no other extender can have been active; None: this one is not.

        The Lease was read at most `within_s` ago. Raises ApiError.
        """
        if self._readiness.unready():
            return None
        if self.lease is None:
            return ("elected", self._readiness.term)
        now = self.clock()
        if self._read is None or now - self._read[0] > within_s:
            holder, transitions = await holder_of(self._client, *self.lease, timeout_s=_READ_S)
            ours = holder.rpartition("_")[0] == self.identity
            self._read = now, (holder, transitions) if ours else None
        return self._read[1]


@dataclass(eq=False, repr=False)
class Resizer:
    """Decides on resizes and writes the promises: a few at a time, so that no call of the scheduler waits for them."""

    _resizes: Resizes
    _client: Client
    _binder: Binder
    _resources: Sequence[Resource]
    _leadership: Leadership
    _metrics: m.Metrics
    _: KW_ONLY
    catch_up: Callable[[], Awaitable[None]]
    """Returns once the fleet has all bindings that other extenders have made; it raises ApiError or TimeoutError."""
    clock: Callable[[], float]
    """Returns monotonic seconds."""
    check_doubts_s: float
    before_write: Callable[[str, object], Awaitable[object]]
    """Awaited before a promise is written that the fleet counts on a node already, with the node and the pod's name."""
    pause_s: float = _PAUSE_S

    def __post_init__(self) -> None:
        self._term: Hashable | None = None
        self._labels: OrderedDict[str, tuple[float, Mapping[str, str]]] = OrderedDict()
        self._doubts_at = 0.0
        self._writing = asyncio.Lock()
        self._closed = False

    async def run(self) -> NoReturn:
        """Answer wishes. Ends only by cancellation."""
        while True:
            await asyncio.sleep(self.pause_s)
            try:
                # The lock spans awaits on purpose: `close` waits for what is under way.
                async with self._writing:
                    if not self._closed:
                        await self.answer()
            except (ApiError, TimeoutError) as error:
                _log.warning("resizes of pods wait", extra={"why": str(error), "once_per_s": 60})

    async def close(self) -> None:
        """Return once no promise is being written; none will be."""
        self._closed = True
        async with self._writing:
            return

    async def answer(self) -> None:
        """Answer the wishes that are due, and look at the patches in doubt. Raises ApiError or TimeoutError."""
        doubts = self._resizes.doubts if self.clock() >= self._doubts_at else ()
        if not doubts and not self._resizes.due():
            return
        term = await self._leadership.term()
        if doubts:
            self._doubts_at = self.clock() + self.check_doubts_s
            await asyncio.gather(*(self._check(patch, leads=term is not None) for patch in doubts))
        if term is not None and term != self._term:
            await self.catch_up()
            self._resizes.requeue()
        self._term = term
        if term is not None:
            await asyncio.gather(*map(self._decide, self._resizes.take(_MOST)))

    async def _decide(self, pod: Pod) -> None:
        labels: Mapping[str, str] = {}
        if wants_more(pod, self._resources):
            try:
                labels = await self._labels_of(pod.namespace)
            except ApiError as error:
                self._resizes.postpone(pod.uid)
                self._told(pod, f"the bound of its namespace cannot be read: {error}")
                return
        # The decision claims: what is awaited before the patch does not matter.
        outcome, patch = self._resizes.decide(pod.uid, labels)
        if patch is not None and await self._write(patch):
            self._metrics.count(m.RESIZES, outcome)
            if outcome in {Outcome.GROWN, Outcome.LOWERED}:
                what = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node_name, "promised": patch.promised[:600]}
                _log.info("a pod is resized", extra=what)

    async def _write(self, patch: Patch) -> bool:
        try:
            await self.before_write(patch.pod.node_name, f"{patch.pod.namespace}/{patch.pod.name}")
            after = await self._binder.annotate(patch.pod, {MEMORY_PROMISED: patch.promised})
        except (ConflictError, InvalidError, NotFoundError):
            self._resizes.failed(patch, certain=True, outdated=True)
            return False
        except ApiError as error:
            self._resizes.failed(patch, certain=not (isinstance(error, UnavailableError) and error.sent))
            self._told(patch.pod, f"the promise could not be written: {error}")
            return False
        except BaseException:
            self._resizes.failed(patch, certain=False)
            raise
        self._resizes.written(patch, after)
        return True

    def _told(self, pod: Pod, why: str) -> None:
        self._metrics.count(m.RESIZES, "failed")
        extra = {"pod": f"{pod.namespace}/{pod.name}", "why": why, "once_per_s": 60}
        _log.warning("a pod is not resized yet", extra=extra)

    async def _check(self, patch: Patch, *, leads: bool) -> None:
        """Find out whether a patch is written whose answer was lost."""
        asked_at = self.clock()
        try:
            now: Pod | None = await self._binder.read(patch.pod.namespace, patch.pod.name, timeout_s=_READ_S)
        except NotFoundError:
            now = None
        except ApiError:
            return
        # Of identical patches of one state of the pod only one can be made.
        if self._resizes.looked(patch, now, asked_at) and leads:
            await self._write(patch)

    async def _labels_of(self, namespace: str) -> Mapping[str, str]:
        found = self._labels.get(namespace)
        if found is None or self.clock() - found[0] > _LABELS_S:
            try:
                answer = await self._client.get(NAMESPACES, namespace, timeout_s=_READ_S)
                labels = answer.read(read_metadata).labels or {}
            except NotFoundError:
                labels = {}
            found = self.clock(), labels
            self._labels[namespace] = found
            if len(self._labels) > _MOST_NAMESPACES:
                self._labels.popitem(last=False)
        return found[1]
