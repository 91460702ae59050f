"""Bind a pod: choose its GPUs, claim them, tell the API server, in this order."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, Protocol

from gpu_device_plugin.cluster.binder import InDoubtError
from gpu_device_plugin.cluster.errors import ApiError, NotFoundError
from gpu_device_plugin.core.asking import Impossible, ask
from gpu_device_plugin.core.fitting import Unfit, fit
from gpu_device_plugin.core.promising import promise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from gpu_device_plugin.cluster.binder import PodRef
    from gpu_device_plugin.core.candidate import Candidate
    from gpu_device_plugin.core.pods import Pod
    from gpu_device_plugin.core.resources import Resource
    from gpu_device_plugin.fleet import Fleet

_log = logging.getLogger(__name__)

LATEST_COMMIT_S = 60.0
"""So long after we gave up on it, a request may still take effect: kube-apiserver's default request timeout."""


class Cluster(Protocol):
    """What of the API server binding needs."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod and write its promise in one step; see `cluster.binder.Binder`."""

    async def read(self, namespace: str, name: str) -> Pod:
        """Return a pod as it is now. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A binding that the API server may or may not have made."""

    ref: PodRef
    node: str
    promised: Mapping[str, str]
    since: float
    """Monotonic seconds."""


class Binding:
    """Binds pods, many at a time. The only place that makes and gives back claims in a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        cluster: Cluster,
        resources: Sequence[Resource],
        *,
        current: Callable[[], Awaitable[None]],
        gpu_policy: Callable[[], str],
        timeout_s: Callable[[], float],
        clock: Callable[[], float],
        wall_ns: Callable[[], int],
        look_s: float = 5.0,
    ) -> None:
        """Bind within `fleet`.

        Args:
            fleet: who takes what.
            cluster: the API server.
            resources: what is managed.
            current: returns when the fleet knows what others did while we bound nothing. Raises ApiError or
                TimeoutError.
            gpu_policy: which GPU is preferred where neither pod nor node says.
            timeout_s: how long one binding may take.
            clock: monotonic seconds.
            wall_ns: nanoseconds since the epoch, for people.
            look_s: how often to look what became of a binding that is in doubt.
        """
        self._fleet = fleet
        self._cluster = cluster
        self._resources = tuple(resources)
        self._current = current
        self._gpu_policy = gpu_policy
        self._timeout_s = timeout_s
        self._clock = clock
        self._wall_ns = wall_ns
        self._look_s = look_s
        self._underway: dict[str, asyncio.Future[str]] = {}
        self._doubts: dict[str, _Doubt] = {}
        self._doubted = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Binding: {len(self._underway)} under way, {len(self._doubts)} in doubt>"

    @property
    def doubts(self) -> int:
        """Pods of which it is not known whether they are bound; their claims stand."""
        return len(self._doubts)

    async def bind(self, ref: PodRef, node: str) -> str:
        """Bind a pod to `node`; return an empty text, or a sentence for the pod's owner on why it is not bound.

        A scheduler that got no answer in time asks again: the second call waits for the first and then looks anew.
        """
        try:
            async with asyncio.timeout(self._timeout_s()):
                while (first := self._underway.get(ref.uid)) is not None:
                    await asyncio.wait({first})
                done = self._underway[ref.uid] = asyncio.get_running_loop().create_future()
                try:
                    return await self._bind(ref, node)
                finally:
                    del self._underway[ref.uid]
                    done.set_result("")
        except ApiError as error:
            return str(error)
        except TimeoutError as error:
            return str(error) or f"the API server did not answer within {self._timeout_s():g} s"

    async def _bind(self, ref: PodRef, node: str) -> str:
        await self._current()
        pod = self._fleet.pending(ref.uid)
        if pod is None or (pod.namespace, pod.name) != (ref.namespace, ref.name):
            pod = await self._cluster.read(ref.namespace, ref.name)
        if (why := self._unbindable(pod, ref, node)) is not None:
            return why
        doubt = self._doubts.get(ref.uid)
        if doubt is not None and doubt.node != node:
            return f"pod {ref} may still be bound to node {doubt.node}: the API server has not answered; wait for it"
        # What is in doubt is asked for once more as it was: of two equal bindings it is all one which is made.
        promised = doubt.promised if doubt is not None else self._promise(pod, node)
        if isinstance(promised, str):
            return promised
        return await self._claimed(pod, ref, node, promised)

    def _unbindable(self, pod: Pod, ref: PodRef, node: str) -> str | None:
        """Say why nothing is to be done; an empty text if it has been done already."""
        who = f"pod {ref}"
        if pod.uid != ref.uid:
            return f"{who} was deleted, and another pod now has its name"
        entry = self._fleet.entries.get(pod.uid)
        if pod.node_name == node and entry is not None and not entry.usage.unplaced:
            return ""  # the answer to an earlier call was lost
        if pod.node_name:
            return f"{who} is already bound to node {pod.node_name}"
        if pod.deleting:
            return f"{who} is being deleted"
        return None

    def _promise(self, pod: Pod, node: str) -> Mapping[str, str] | str:
        """Return the promise to write on a pod, or say why it does not fit."""
        asked = ask(pod, self._resources)
        if isinstance(asked, Impossible):
            return asked.sentence
        there: Candidate | None = self._fleet.candidates.get(node)
        if there is None:
            return f"node {node} is not known to the GPU scheduler"
        found = fit(asked, there, self._gpu_policy())
        if isinstance(found, Unfit):
            return f"node {node}: {found.sentence}"
        return promise(asked, found, there.gpus, self._wall_ns())

    async def _claimed(self, pod: Pod, ref: PodRef, node: str, promised: Mapping[str, str]) -> str:
        self._doubts.pop(ref.uid, None)
        # No await between the choice and this line: whoever asks next finds the GPU taken.
        self._fleet.claim(replace(pod, node_name=node, annotations={**pod.annotations, **promised}))
        try:
            await self._cluster.bind(ref, node, promised)
        except ApiError as error:
            if isinstance(error, InDoubtError):
                self._doubt(ref, node, promised)
            else:
                self._fleet.release(ref.uid)
            raise
        except BaseException:
            self._doubt(ref, node, promised)
            raise
        self._fleet.confirm(ref.uid)
        return ""

    # --- Doubts -------------------------------------------------------------------------------------------------------

    def _doubt(self, ref: PodRef, node: str, promised: Mapping[str, str]) -> None:
        self._doubts[ref.uid] = _Doubt(ref, node, promised, self._clock())
        self._doubted.set()

    async def settle(self) -> NoReturn:
        """Find out what became of bindings that are in doubt. Ends only by cancellation."""
        while True:
            await self._doubted.wait()
            await asyncio.sleep(self._look_s)
            for doubt in tuple(self._doubts.values()):
                if await self._settled(doubt) and self._doubts.get(doubt.ref.uid) is doubt:
                    del self._doubts[doubt.ref.uid]
            if not self._doubts:
                self._doubted.clear()

    async def _settled(self, doubt: _Doubt) -> bool:
        ref = doubt.ref
        entry = self._fleet.entries.get(ref.uid)
        if entry is None or not entry.claimed:
            return True  # the watch has shown it
        try:
            pod: Pod | None = await self._cluster.read(ref.namespace, ref.name)
        except NotFoundError:
            pod = None
        except ApiError:
            return False
        if self._doubts.get(ref.uid) is not doubt:
            return False  # it is being bound anew
        if pod is not None and pod.uid == ref.uid:
            if pod.node_name:
                self._fleet.put_pod(pod)
                return True
            if self._clock() - doubt.since < LATEST_COMMIT_S:
                return False
        _log.warning(
            "a binding that was not answered has not been made",
            extra={"pod": str(ref), "node": doubt.node},
        )
        self._fleet.release(ref.uid)
        return True
