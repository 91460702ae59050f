"""One kubelet process: it admits the pods of its sources one by one, and starts their containers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet import kubelet_versions as versions
from gpu_device_plugin.testing.kubelet.device_manager import KubeletPanic
from gpu_device_plugin.testing.kubelet.kubelet_services import is_extended_resource_name
from gpu_device_plugin.testing.kubelet.plugin_client import AdmissionError
from gpu_device_plugin.testing.pod_specs import NodePods, shortage, stopped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import grpc.aio

    from gpu_device_plugin.testing.kubelet.device_manager import Amount, DeviceManager
    from gpu_device_plugin.testing.kubelet.kubelet_services import PluginRegistry
    from gpu_device_plugin.testing.pod_specs import ContainerSpec, Pod


@dataclass(slots=True)
class KubeletProcess:
    """The state that ends with one kubelet process."""

    manager: DeviceManager
    registry: PluginRegistry
    servers: tuple[grpc.aio.Server, grpc.aio.Server]
    pods: NodePods
    node_status: Callable[[], Mapping[str, Amount]]
    before_start: Callable[[], Awaitable[None]]
    on_panic: Callable[[KubeletPanic], Awaitable[None]]
    """Called when a pod makes the process panic."""
    seen: set[str] = field(default_factory=set)
    """UIDs of the pods that its sources have delivered."""
    sync_loop: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Pods are admitted and removed one by one, in one loop that waits for every answer of a plugin without a timeout.

    This lock spans awaits, which our own code never does, because the real kubelet blocks like this.
    """
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def seen_pods(self, *, active_only: bool) -> list[Pod]:
        """Return the pods that its sources have delivered; with `active_only`, without ended pods."""
        known = (self.pods.in_api.get(uid) for uid in sorted(self.seen))
        return [pod for pod in known if pod is not None and (pod.active or not active_only)]

    async def admit(self, pod: Pod, rejected: tuple[str, str] | None = None) -> Pod:
        """Allocate a pod's devices and start its containers, or refuse the pod; see `Kubelet.admit`."""
        async with self.sync_loop:
            if self.ended.is_set() or pod.uid not in self.pods.in_api:
                return pod
            self.seen.add(pod.uid)
            try:
                for container in pod.containers:
                    await self._or_die(self.manager.allocate(pod.uid, container.spec))
            except _EndedError:
                return self.pods.in_api.get(pod.uid, pod)
            except AdmissionError as error:
                rejected = ("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")
            else:
                rejected = rejected or self._predicate(pod)
            pod = self.pods.in_api[pod.uid]
            if rejected:
                reason, message = rejected
                says_so = self.manager.minor in versions.SAYS_WAS_REJECTED
                return self.pods.put(
                    replace(
                        stopped(pod),
                        phase="Failed",
                        reason=reason,
                        message=f"{'Pod was rejected: ' if says_so else 'Pod '}{message}",
                    )
                )
            for container in pod.containers:
                self.pods.put_container(pod.uid, replace(container, devices=self._devices(pod.uid, container.name)))
        await self.start_containers(pod.uid)
        return self.pods.known(pod.uid) or pod

    def _predicate(self, pod: Pod) -> tuple[str, str] | None:
        room = {resource: amount.allocatable for resource, amount in self.node_status().items()}
        if pod.uid in self.manager.grants:
            for resource, ids in self.manager.allocated.items():
                room[resource] = max(room.get(resource, 0), len(ids))
        extended = {resource: number for resource, number in room.items() if is_extended_resource_name(resource)}
        others = [known for known in self.seen_pods(active_only=True) if known.uid != pod.uid]
        return shortage(pod, others, extended)

    async def start_containers(self, uid: str) -> None:
        """Start the containers of a pod that were not started yet, up to the first that fails."""
        pods = self.pods
        pods.starting.add(uid)
        try:
            for container in pods.in_api[uid].containers:
                if not container.started:
                    await self._start_container(uid, container.spec)
                if (known := self.pods.known(uid)) is None or not known.container(container.name).started:
                    return
        finally:
            pods.starting.discard(uid)
            if uid in pods.left_behind and not pods.left_behind[uid].process_running:
                del pods.left_behind[uid]
        if uid in pods.in_api and not pods.in_api[uid].terminal:
            pods.put(replace(pods.in_api[uid], phase="Running"))

    async def _start_container(self, uid: str, spec: ContainerSpec) -> None:
        await self.before_start()
        try:
            await self._or_die(self.manager.before_start(uid, spec))
        except _EndedError:
            return
        except AdmissionError as error:
            if known := self.pods.known(uid):
                waiting = f"CreateContainerConfigError: {error}"
                self.pods.put_container(uid, replace(known.container(spec.name), waiting=waiting))
            return
        if (known := self.pods.known(uid)) is None or known.terminal:
            return
        self.pods.put_container(
            uid,
            replace(
                known.container(spec.name),
                devices=self._devices(uid, spec.name),
                received=self.manager.received(uid, spec.name),
                started=True,
                running=spec.kind is not ContainerKind.INIT,
                waiting=None,
            ),
        )

    def _devices(self, uid: str, container: str) -> Mapping[str, frozenset[str]]:
        return {resource: grant.ids for resource, grant in self.manager.held(uid, container).items()}

    async def _or_die(self, work: Awaitable[None]) -> None:
        try:
            await work
        except AdmissionError:
            # The end of the process aborts its calls; that is not an answer of the plugin.
            if self.ended.is_set():
                raise _EndedError from None
            raise
        except KubeletPanic as panic:
            await self.on_panic(panic)
            raise
        if self.ended.is_set():
            raise _EndedError


class _EndedError(Exception):
    """The process ended while it worked on this."""
