"""A kubelet double of any version, as strict as a real one, which a test can hold up.

Nodes restart, and pods are deleted by force or refused after their Allocate, where a test says so.
"""

import asyncio
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import RegisterRequest
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet import kubelet_double
from gpu_device_plugin.testing.kubelet.device_manager import DeviceManager, KubeletPanic
from gpu_device_plugin.testing.pod_specs import Container, ContainerSpec, NodePods, Pod, PodSpec, stopped
from tests.kubelet import kubelet_versions as versions
from tests.kubelet.any_version import DeviceStream, Lister, Manager, Registration, Registry, RpcStatusError
from tests.kubelet.kubelet_checks import is_extended_resource_name, shortage, validate


class Gate:
    """Every call passes through it. Starts open; belongs to one event loop, like the doubles that own it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._refusal: RpcStatusError | None = None
        self._refusals_left: float = 0
        self._reached = asyncio.Event()
        self.waiting = 0
        """The number of calls that wait at the closed gate."""

    def __repr__(self) -> str:
        state = "open" if self._open.is_set() else f"held, {self.waiting} waiting"
        return f"<Gate {state}{', refusing' if self._refusals_left else ''}>"

    def hold(self) -> None:
        """Let calls hang from now on, until `release` or until their callers give up."""
        self._open.clear()
        self._reached.clear()

    async def reached(self) -> None:
        """Wait until a call has reached the gate that `hold` closed."""
        await self._reached.wait()

    def release(self) -> None:
        """Open the gate, also for the waiting calls; forget refusals."""
        self._refusals_left = 0
        self._open.set()

    def refuse(
        self, details: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, times: float = float("inf")
    ) -> None:
        """Answer the next `times` calls with this status."""
        self._refusal, self._refusals_left = RpcStatusError(code, details), times

    async def passed(self) -> None:
        """Wait until the gate is open. RpcStatusError: the call is refused."""
        if not self._open.is_set():
            self.waiting += 1
            self._reached.set()
            try:
                await self._open.wait()
            finally:
                self.waiting -= 1
        if self._refusal is not None and self._refusals_left:
            self._refusals_left -= 1
            raise self._refusal


class LeavingPods(NodePods):
    """Pods of which the processes may outlive what the API and the kubelet know."""

    def __init__(self) -> None:
        super().__init__()
        self.by_force: set[str] = set()
        """UIDs of the pods that are deleted by force."""
        self.left_behind: dict[str, Pod] = {}
        """Pods that were deleted from the API while their processes run, or while their containers are starting."""
        self.starting: set[str] = set()
        """UIDs of the pods with starting containers."""

    def known(self, uid: str) -> Pod | None:
        return super().known(uid) or self.left_behind.get(uid)

    def put_container(self, uid: str, container: Container) -> None:
        if uid in self.in_api:
            super().put_container(uid, container)
            return
        pod = self.left_behind[uid]
        containers = tuple(container if each.name == container.name else each for each in pod.containers)
        self.left_behind[uid] = replace(pod, containers=containers)

    def remove(self, uid: str) -> Pod:
        if uid in self.by_force and (self.in_api[uid].process_running or uid in self.starting):
            self.left_behind[uid] = self.in_api.pop(uid)
            return self.left_behind[uid]
        return super().remove(uid)


class Process(kubelet_double.KubeletProcess):
    """Knows which pods' containers are starting, and admits them by the rules of any version."""

    minor = 36
    node: "Kubelet"

    def refused(self, pod: Pod) -> tuple[str, str] | None:
        return self.node.refused(pod)

    async def _start_container(self, uid: str, spec: ContainerSpec) -> None:
        await self.node.start_gate.passed()
        await super()._start_container(uid, spec)

    async def admit(self, pod: Pod) -> Pod:
        if self.minor not in versions.KNOWS_SIDECARS:
            pod = self.pods.in_api.get(pod.uid, pod)
            for container in pod.containers if pod.uid in self.pods.in_api else ():
                if container.spec.kind is ContainerKind.SIDECAR:
                    # A field that a kubelet does not know is not there for it.
                    plain = replace(container.spec, kind=ContainerKind.INIT)
                    self.pods.put_container(pod.uid, replace(container, spec=plain))
            pod = self.pods.in_api.get(pod.uid, pod)
        admitted = await super().admit(pod)
        said = admitted.message.removeprefix("Pod was rejected: ")
        if self.minor in versions.SAYS_WAS_REJECTED or said == admitted.message:
            return admitted
        return self.pods.put(replace(admitted, message=f"Pod {said}"))

    def all_seen(self) -> list[Pod]:
        """Return the pods that its sources have delivered, ended ones too."""
        known = (self.pods.in_api.get(uid) for uid in sorted(self.seen))
        return [pod for pod in known if pod is not None]

    async def start_containers(self, uid: str) -> None:
        pods = self.pods
        assert isinstance(pods, LeavingPods)
        pods.starting.add(uid)
        try:
            await super().start_containers(uid)
        finally:
            pods.starting.discard(uid)
            if uid in pods.left_behind and not pods.left_behind[uid].process_running:
                del pods.left_behind[uid]


class Kubelet(kubelet_double.Kubelet):
    """The kubelet double with a gate before each of its steps, and with the checks of a real one.

    Failures of a plugin or an agent show in the returned pods, in `registrations`, `streams` and `panics`.
    """

    def __init__(self, root: Path, *, version: tuple[int, int] = (1, 36), **more: Any) -> None:
        super().__init__(root, **more)
        _, self.minor = version
        self._pods = self._leaving = LeavingPods()
        self._rejected: dict[str, tuple[str, str]] = {}
        self.registrations: list[Registration] = []
        self.streams: list[DeviceStream] = []
        """Like `registrations`, of all processes."""
        self.panics: list[KubeletPanic] = []
        self.register_gate = Gate()
        """Every Register call passes here: hold it, or refuse."""
        self.pod_resources_gate = Gate()
        """Every PodResources call passes here. The real one refuses above 100 a second: RESOURCE_EXHAUSTED,
        `rejected by rate limit`."""
        self.start_gate = Gate()
        """Every start of a container passes here before the kubelet looks up what its devices bring: hold it. The real
        one makes the pod's sandbox and pulls the image meanwhile, and goes on when the pod is deleted by force."""

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, of 1.{self.minor}>"

    def manager_type(self, *parts: Any, **named: Any) -> Manager:
        if self.minor not in versions.SPARES_RUNNING_CONTAINERS:
            named["is_running"] = lambda _uid, _container: False
        manager = Manager(*parts, **named)
        manager.minor = self.minor
        return manager

    def registry_type(self, *parts: Any, **named: Any) -> Registry:
        registry = Registry(*parts, **named)
        registry.minor, registry.registrations, registry.streams = self.minor, self.registrations, self.streams
        registry.before_register = self.before_register
        return registry

    def pod_resources_type(self, manager: DeviceManager, pods: Any) -> Lister:
        return Lister(manager, pods, self.pod_resources_gate.passed, self.minor)

    def process_type(self, *parts: Any) -> Process:
        process = Process(*parts)
        process.minor, process.node = self.minor, self
        return process

    async def start(self, *, ready: bool = True) -> None:
        if not self.up and self.minor in versions.WIPES_EVERY_FILE and self.device_plugin_dir.exists():
            for entry in self.device_plugin_dir.iterdir():
                with suppress(FileNotFoundError):  # a stopping plugin removes its own sockets meanwhile
                    if entry != self.checkpoint and not stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
                        entry.unlink()
        await super().start(ready=ready)

    def _seen_in_any_order(self) -> list[Pod]:
        if self.minor not in versions.LISTS_TERMINAL_PODS or not isinstance(self._process, Process):
            return super()._seen_in_any_order()
        known = self._process.all_seen()
        self._orders.shuffle(known)
        return known

    async def before_register(self, request: RegisterRequest) -> None:
        await self.register_gate.passed()
        validate(request)

    def drop_streams(self, resource: str | None = None) -> None:
        """Lose the connections over which the plugins of `resource`, or all plugins, send their lists."""
        for client in self._require().registry.connections:
            if resource in {None, client.resource} and client.lists is not None:
                client.lists.cancel()

    # The process

    async def restart(self, *, ready: bool = False) -> None:
        """End the process and start another one; see `start` for `ready`."""
        await self.stop()
        await self.start(ready=ready)

    async def reboot(self, *, ready: bool = False) -> None:
        """Restart the node: no process survives, and no socket of a plugin that does not come back by itself.

        The kernel draws another ID for the boot, in the file below `root` that stands for the node's in /proc.
        """
        await self.stop()
        self._boot_id.unlink()
        self._leaving.left_behind.clear()
        for known in self.pods:
            self._pods.put(stopped(known))
        await self.start(ready=ready)

    async def _panicked(self, panic: KubeletPanic) -> None:
        self.panics.append(panic)
        await super()._panicked(panic)

    # Pods

    async def admit(self, spec: PodSpec, *, rejected: tuple[str, str] | None = None) -> Pod:
        """Bind a pod to the node; see the double that does no more.

        With `rejected`, a reason and a message, some later check refuses it, after Allocate: its devices stay booked
        until the kubelet collects them.
        """
        if rejected is not None and self.up:
            self._rejected[spec.name] = rejected
        return await super().admit(spec)

    def refused(self, pod: Pod) -> tuple[str, str] | None:
        return self._rejected.pop(pod.name, None) or self._predicate(pod)

    def _predicate(self, pod: Pod) -> tuple[str, str] | None:
        process = self._require()
        room = {resource: amount.allocatable for resource, amount in self.node_status.items()}
        if pod.uid in process.manager.grants:
            for resource, ids in process.manager.allocated.items():
                room[resource] = max(room.get(resource, 0), len(ids))
        extended = {resource: number for resource, number in room.items() if is_extended_resource_name(resource)}
        others = [known for known in process.seen_pods() if known.uid != pod.uid]
        return shortage(pod, others, extended)

    def finish(self, pod: Pod, phase: str = "Succeeded") -> Pod:
        """Let all containers of a pod exit. Its devices stay booked until the kubelet collects them."""
        self._require()
        return self._pods.put(replace(stopped(self.pod(pod)), phase=phase, terminating=False))

    def terminate(self, pod: Pod) -> Pod:
        """Begin to delete a pod: it has its grace period, and holds its devices, until `delete` or `finish`."""
        return self._pods.put(replace(self.pod(pod), terminating=not self.pod(pod).terminal))

    async def delete(self, pod: Pod, *, force: bool = False) -> Pod:
        """Remove a pod from the API, its grace period over; return what is left of it.

        With `force` its processes are still running, until `process_ended`, while the kubelet's records forget it now.
        Containers that are just starting do start (kubelet.go gives the runtime's SyncPod a context that the end of the
        pod does not cancel), with whatever its records still say of their devices.
        """
        if force:
            self._leaving.by_force.add(pod.uid)
        return await super().delete(pod)

    def process_ended(self, pod: Pod) -> None:
        """End the processes of a pod that was deleted by force. KeyError: there are none."""
        del self._leaving.left_behind[pod.uid]

    async def restart_container(self, pod: Pod, name: str) -> Pod:
        """Let a container exit and be started again: no Allocate, the old answers anew, PreStartContainer if wanted.

        Also the next try for a container that waits because PreStartContainer failed. ValueError: it never came so far.
        """
        process = self._require()
        container = self.pod(pod).container(name)
        if not (container.started or container.waiting):
            raise ValueError(f"container {name} of pod {pod.name} was never started: {self.pod(pod)}")
        restarts = container.restarts + container.started
        self._pods.put_container(pod.uid, replace(container, started=False, running=False, restarts=restarts))
        await process.start_containers(pod.uid)
        return self._pods.known(pod.uid) or pod

    def pod(self, pod: Pod | str) -> Pod:
        """Return a pod's current state, by an older state or by its name. KeyError: it is not in the API."""
        if isinstance(pod, Pod):
            return self._pods.in_api[pod.uid]
        for known in self._pods.in_api.values():
            if known.name == pod:
                return known
        raise KeyError(f"no pod {pod} on {self.node}")

    @property
    def running(self) -> tuple[Pod, ...]:
        """All pods with a running process, including those that were deleted by force."""
        left = (each for each in self._leaving.left_behind.values() if each.process_running)
        return (*super().running, *left)

    # Devices

    @property
    def allocated(self) -> Mapping[str, frozenset[str]]:
        """The IDs that the kubelet will not allocate to another pod, by resource."""
        return {resource: frozenset(ids) for resource, ids in self._require().manager.allocated.items() if ids}
