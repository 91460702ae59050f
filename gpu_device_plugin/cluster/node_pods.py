"""Follow the pods of one node, in the order in which its kubelet admits them, whatever happens to the API server."""

from __future__ import annotations

import asyncio
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.cluster.api import PODS
from gpu_device_plugin.cluster.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.cluster.store import Store
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.node.admission_order import AdmissionOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.cluster.api import PodReader
    from gpu_device_plugin.cluster.client import Client

T = TypeVar("T")
_log = logging.getLogger(__name__)

NODE_TIMING = ReflectorTiming(longest_retry_s=30.0)
"""Every node has somebody who follows its pods: an API server that comes back meets all of them."""


class NodePods(Store[Pod]):
    """The pods bound to one node; `AdmissionOrder` says in which order. Run its `reflector` to keep them current."""

    def __init__(self, client: Client, reader: PodReader, node: str, *, timing: ReflectorTiming = NODE_TIMING) -> None:
        """Follow the pods bound to `node`."""
        self._reader = reader
        self._order = AdmissionOrder()
        self.changes: Latest[Mapping[str, Pod]] = Latest(MappingProxyType({}))
        """Every snapshot that differs from the one before in more than resource versions; and the first list."""
        self.reflector: Reflector[Pod] = Reflector(
            client, PODS, self._read, self, fields=f"spec.nodeName={node}", what="pods of this node", timing=timing
        )
        self.missed = 0
        """Pods that only a list put right, though the watch should have."""
        self.ignored_limits = 0
        """Limits of ours that are no whole numbers."""

    def __repr__(self) -> str:
        return f"<NodePods: {len(self.pods)} pods, {self.reflector!r}>"

    @property
    def pods(self) -> Mapping[str, Pod]:
        """A snapshot of all pods by UID, in the order of their admission."""
        return self.changes.value

    async def wait_for(self, predicate: Callable[[Mapping[str, Pod]], T | None], timeout_s: float) -> T | None:
        """Return the first true result of `predicate` over the pods, now or later; None after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                async for pods in self.changes.values():
                    if found := predicate(pods):
                        return found
        except TimeoutError:
            pass
        return None

    def replace(self, objects: Sequence[Pod]) -> None:
        """Take over a list with which a watch begins."""
        self._become(self._order.begun_with(objects))

    def compare(self, objects: Sequence[Pod]) -> None:
        """Take over a list, of which the watch may yet tell the order."""
        self._become(self._order.compared_with(objects))

    def replay(self, object: Pod, *, deleted: bool) -> None:  # noqa: A002 - the API's word
        """Learn the order from what is no news."""
        self._become(self._order.replayed(object.uid, deleted=deleted))

    def level(self) -> None:
        """Show what the list brought and the watch did not tell."""
        if self._order.unexplained:
            self.missed += len(self._order.unexplained)
            _log.warning("a list of the pods put %d right of which no watch told", len(self._order.unexplained))
        self._become(self._order.settled())

    def put(self, object: Pod) -> None:  # noqa: A002
        """Take over a pod."""
        self._become(self._order.put(object))

    def remove(self, object: Pod) -> None:  # noqa: A002
        """Let go of a pod."""
        self._become(self._order.removed(object.uid))

    def _become(self, order: AdmissionOrder) -> None:
        self._order = order
        if not self.reflector.synced or list(order.shown.items()) != list(self.pods.items()):
            self.changes.set(MappingProxyType(order.shown))

    def _read(self, raw: msgspec.Raw) -> Pod:
        pod, ignored = self._reader.read(raw)
        if ignored and pod.uid not in self._order.pods:
            self.ignored_limits += len(ignored)
            _log.warning("pod %s/%s: %s", pod.namespace, pod.name, "; ".join(ignored))
        return pod
