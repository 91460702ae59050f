"""Follow the pods of one node, in the kubelet's order of admission, across failures of the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubernetes.objects.decoding import PODS
from gpu_device_plugin.kubernetes.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.kubernetes.store import Store
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.rules.admission_order import AdmissionOrder

if TYPE_CHECKING:
    import msgspec

    from gpu_device_plugin.kubernetes.client.api_client import Client
    from gpu_device_plugin.kubernetes.objects.decoding import PodReader

T = TypeVar("T")
_log = logging.getLogger(__name__)

NODE_TIMING = ReflectorTiming(longest_retry_s=30.0)
"""An agent on every node follows its pods, so a recovering API server gets the retries of all nodes."""


class NodePods(Store[Pod]):
    """The pods bound to one node, in the order of `AdmissionOrder`. Run its `reflector` to keep them current."""

    def __init__(self, client: Client, reader: PodReader, node: str, *, timing: ReflectorTiming = NODE_TIMING) -> None:
        """Follow the pods bound to `node`."""
        self._reader = reader
        self._order = AdmissionOrder()
        self._kubelet: str | None = None
        """The kubelet process that admits the pods; empty: there was none yet; None: we were not told."""
        self.changes: Observable[Mapping[str, Pod]] = Observable(MappingProxyType({}))
        """Every snapshot that differs from the previous one in more than resource versions; and the first list."""
        self.reflector: Reflector[Pod] = Reflector(
            client, PODS, self._read, self, fields=f"spec.nodeName={node}", what="pods of this node", timing=timing
        )

    @property
    def pods(self) -> Mapping[str, Pod]:
        """A snapshot of all pods by UID, in admission order."""
        return self.changes.value

    async def wait_for(self, predicate: Callable[[Mapping[str, Pod]], T | None], timeout_s: float) -> T | None:
        """Return the first true result of `predicate` on the current or a later snapshot; None after `timeout_s`."""
        await wait_within(timeout_s, self.changes.wait_until(lambda pods: bool(predicate(pods))))
        return predicate(self.pods) or None

    def replace(self, objects: Sequence[Pod]) -> None:
        """Adopt a list from whose version a watch begins."""
        self._become(self._order.begun_with(objects))

    def compare(self, objects: Sequence[Pod]) -> None:
        """Adopt a list whose order the running watch may still report."""
        self._become(self._order.compared_with(objects))

    def replay(self, object: Pod, *, deleted: bool) -> None:  # noqa: A002 - the API's word
        """Learn the order from an event that the last list already includes."""
        self._become(self._order.replayed(object.uid, deleted=deleted))

    def level(self) -> None:
        """Show the changes of the last list that the watch did not report."""
        if self._order.unexplained:
            _log.warning("a list corrected %d pods that the watch had missed", len(self._order.unexplained))
        self._become(self._order.settled())

    def kubelet_is(self, identity: str) -> None:
        """Order the pods as a kubelet process does that starts, if this is another one than the last time.

        Empty: its socket is not there. What is bound meanwhile is among what the next one gets at once.
        """
        if not identity and self._kubelet is not None:
            return
        before, self._kubelet = self._kubelet, identity
        if before is not None and before != identity:
            self._become(self._order.after_start())

    def put(self, object: Pod) -> None:  # noqa: A002
        """Add or update a pod."""
        self._become(self._order.put(object))

    def remove(self, object: Pod) -> None:  # noqa: A002
        """Remove a pod."""
        self._become(self._order.removed(object.uid))

    def _become(self, order: AdmissionOrder) -> None:
        self._order = order
        if not self.reflector.synced or list(order.shown.items()) != list(self.pods.items()):
            self.changes.set(MappingProxyType(order.shown))

    def _read(self, raw: msgspec.Raw) -> Pod:
        pod, ignored = self._reader.read(raw)
        if ignored and pod.uid not in self._order.pods:
            _log.warning("pod %s/%s: %s", pod.namespace, pod.name, "; ".join(ignored))
        return pod
