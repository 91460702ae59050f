"""A kubelet for development and tests: real sockets and the real rules, and time passes only where a test says so.

`Kubelet` represents a node: the state of its kubelet process ends with the process, while pods, running containers, the
node's status and the files stay. The files are real, so a test can damage them: it may write nonsense to `checkpoint`,
unlink it, or remove `device_plugin_dir`.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import add_RegistrationServicer_to_server
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import add_PodResourcesListerServicer_to_server
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet.device_manager import Amount, DeviceManager, KubeletPanic
from gpu_device_plugin.testing.kubelet.kubelet_files import CHECKPOINT, serve, wipe
from gpu_device_plugin.testing.kubelet.kubelet_services import PluginRegistry, PodResources
from gpu_device_plugin.testing.kubelet.plugin_client import AdmissionError
from gpu_device_plugin.testing.pod_specs import Container, ContainerSpec, NodePods, Pod, PodSpec, stopped

# --- The process ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class KubeletProcess:
    """The state that ends with one kubelet process."""

    manager: DeviceManager
    registry: PluginRegistry
    servers: tuple[grpc.aio.Server, grpc.aio.Server]
    pods: NodePods
    on_panic: Callable[[KubeletPanic], Awaitable[None]]
    """Called when a pod makes the process panic."""
    seen: set[str] = field(default_factory=set)
    """UIDs of the pods that its sources have delivered."""
    sync_loop: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Pods are admitted and removed one by one, in one loop that waits for every answer of a plugin without a timeout.

    This lock spans awaits, which our own code never does, because the real kubelet blocks like this.
    """
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def seen_pods(self) -> list[Pod]:
        """Return the pods that its sources have delivered, without ended ones."""
        known = (self.pods.in_api.get(uid) for uid in sorted(self.seen))
        return [pod for pod in known if pod is not None and pod.active]

    def refused(self, _pod: Pod) -> tuple[str, str] | None:
        """Return reason and message if the kubelet refuses a pod after Allocate; it keeps the devices for a while."""
        return None

    async def admit(self, pod: Pod) -> Pod:
        """Allocate a pod's devices and start its containers, or refuse the pod; see `Kubelet.admit`."""
        async with self.sync_loop:
            if self.ended.is_set() or pod.uid not in self.pods.in_api:
                return pod
            self.seen.add(pod.uid)
            rejected: tuple[str, str] | None
            try:
                for container in pod.containers:
                    await self._or_die(self.manager.allocate(pod.uid, container.spec))
            except _EndedError:
                return self.pods.in_api.get(pod.uid, pod)
            except AdmissionError as error:
                rejected = ("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")
            else:
                rejected = self.refused(pod)
            pod = self.pods.in_api[pod.uid]
            if rejected:
                reason, message = rejected
                failed = replace(stopped(pod), phase="Failed", reason=reason, message=f"Pod was rejected: {message}")
                return self.pods.put(failed)
            for container in pod.containers:
                self.pods.put_container(pod.uid, replace(container, devices=self._devices(pod.uid, container.name)))
        await self.start_containers(pod.uid)
        return self.pods.known(pod.uid) or pod

    async def start_containers(self, uid: str) -> None:
        """Start the containers of a pod that were not started yet, up to the first that fails."""
        pods = self.pods
        for container in pods.in_api[uid].containers:
            if not container.started:
                await self._start_container(uid, container.spec)
            if (known := pods.known(uid)) is None or not known.container(container.name).started:
                return
        if uid in pods.in_api and not pods.in_api[uid].terminal:
            pods.put(replace(pods.in_api[uid], phase="Running"))

    async def _start_container(self, uid: str, spec: ContainerSpec) -> None:
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


# --- The node -------------------------------------------------------------------------------------------------------

_LONGEST_SOCKET_PATH = 107
"""Bytes; sun_path of Linux has 108 with the zero at its end."""


class Kubelet:
    """The kubelet of one node under `root`, with the state of the node that outlives its process.

    Deterministic: `seed` replaces the random order of Go's maps, and allocations do not depend on the number of queries
    in between. Belongs to one event loop. `async with` starts it and stops it for good.

    Failures of a plugin or an agent never raise here: they show in the returned pods. Only a caller's own mistakes
    raise, and `admit` raises `KubeletPanic`.
    """

    manager_type: ClassVar[Callable[..., DeviceManager]] = DeviceManager
    process_type: ClassVar[Callable[..., KubeletProcess]] = KubeletProcess
    registry_type: ClassVar[Callable[..., PluginRegistry]] = PluginRegistry
    pod_resources_type: ClassVar[Callable[..., PodResources]] = PodResources

    def __init__(
        self,
        root: Path,
        *,
        node: str = "node",
        seed: int = 0,
        dial_timeout_s: float = 10,
    ) -> None:
        self.node = node
        self.device_plugin_dir = root / "device-plugins"
        self.registration_socket = self.device_plugin_dir / "kubelet.sock"
        self.checkpoint = self.device_plugin_dir / CHECKPOINT
        self.pod_resources_socket = root / "pod-resources" / "kubelet.sock"
        self._boot_id = root / "proc" / "sys" / "kernel" / "random" / "boot_id"
        self.node_status: dict[str, Amount] = {}
        """The node's status in the API, as of the last `publish`. A scheduler sees only this."""
        self._listening = root / "listening"
        self._dial_timeout_s = dial_timeout_s
        self._choices, self._orders = random.Random(seed), random.Random(seed)
        self._pods = NodePods()
        self._created = 0
        self._process: KubeletProcess | None = None
        if len(os.fsencode(self.pod_resources_socket)) > _LONGEST_SOCKET_PATH:
            raise ValueError(
                f"{self.pod_resources_socket}: a unix socket's path has at most {_LONGEST_SOCKET_PATH} bytes; "
                f"give the kubelet a shorter root"
            )

    def __repr__(self) -> str:
        state = repr(self._process.manager) if self._process else "down"
        return f"<Kubelet {self.node}: {len(self._pods.in_api)} pods, {state}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The process

    @property
    def up(self) -> bool:
        """Whether a kubelet process is running."""
        return self._process is not None

    async def start(self, *, ready: bool = True) -> None:
        """Start a kubelet process: read the checkpoint, wipe old sockets, serve. RuntimeError: there is one already.

        With `ready` its sources deliver all pods at once; without, it knows no pod until `sources_ready` is called, as
        a real one for a second, or for as long as the API server is away.
        """
        if self._process:
            raise RuntimeError("this kubelet is up already")
        folders = self.device_plugin_dir, self.pod_resources_socket.parent, self._listening, self._boot_id.parent
        for directory in folders:
            directory.mkdir(parents=True, exist_ok=True)
        if not self._boot_id.exists():
            self._boot_id.write_text(f"{uuid.uuid4()}\n")
        running = {
            (uid, container.name)
            for uid, known in self._pods.in_api.items()
            for container in known.containers
            if container.running
        }
        if not self.checkpoint.exists():
            # Without a checkpoint the kubelet treats the node as new, and resets all resources, also those of others.
            self.node_status = dict.fromkeys(self.node_status, Amount(0, 0))
        manager = self.manager_type(
            self.checkpoint,
            choices=self._choices,
            orders=self._orders,
            active_pods=lambda: {pod.uid for pod in self._seen()},
            is_running=lambda uid, container: (uid, container) in running,
        )
        manager.read_checkpoint()
        wipe(self.device_plugin_dir)
        registry = self.registry_type(self.device_plugin_dir, manager, dial_timeout_s=self._dial_timeout_s)
        registration, pod_resources = grpc.aio.server(), grpc.aio.server()
        add_RegistrationServicer_to_server(registry, registration)
        lister = self.pod_resources_type(manager, self._seen_in_any_order)
        add_PodResourcesListerServicer_to_server(lister, pod_resources)
        servers = registration, pod_resources
        self._process = self.process_type(manager, registry, servers, self._pods, self._panicked)
        await serve(pod_resources, self.pod_resources_socket, self._listening)
        await serve(registration, self.registration_socket, self._listening)
        if ready:
            await self.sources_ready()

    async def stop(self) -> None:
        """End the kubelet process, if there is one. Containers keep running, and its sockets stay as dead files.

        A stopping kubelet does no more; SIGTERM and SIGKILL look the same to a plugin.
        """
        if self._process is None:
            return
        process, self._process = self._process, None
        process.ended.set()
        await process.registry.close()
        for server in process.servers:
            await server.stop(None)

    async def sources_ready(self) -> None:
        """Deliver all pods of the API to the process, oldest first, which admits them again.

        Only then does it treat its list of pods as complete, and free the devices of missing pods.
        """
        process = self._require()
        for known in self.pods:
            if process.ended.is_set():
                return
            if known.uid in process.seen or known.uid not in self._pods.in_api:
                continue
            if known.terminal:
                process.seen.add(known.uid)
            else:
                await process.admit(known)
        process.manager.sources_ready = True

    # Pods

    async def admit(self, spec: PodSpec) -> Pod:
        """Bind a pod to the node, and return it when its containers have started or it is refused.

        With no process, or if it ends meanwhile, the pod stays Pending for the next.

        KubeletPanic: the kubelet process died of this pod. ValueError: there is such a pod already.
        """
        self._created += 1
        pod = Pod(
            spec,
            uid=spec.uid or str(uuid.UUID(int=self._choices.getrandbits(128), version=4)),
            created=self._created if spec.created is None else spec.created,
            containers=tuple(map(Container, spec.containers)),
        )
        if pod.uid in self._pods.in_api:
            raise ValueError(f"pod {pod.uid} exists already")
        self._pods.put(pod)
        return await self._process.admit(pod) if self._process else pod

    async def delete(self, pod: Pod) -> Pod:
        """Remove a pod from the API, its grace period over; return what is left of it.

        The sync loop deletes, so this waits for an Allocate that hangs.
        """
        if self._process:
            async with self._process.sync_loop:
                pass
        gone = self._pods.remove(pod.uid)
        if self._process:
            self._process.seen.discard(gone.uid)
        return gone

    @property
    def pods(self) -> tuple[Pod, ...]:
        """All pods in the API that are bound to this node, oldest first."""
        return tuple(sorted(self._pods.in_api.values(), key=lambda each: each.created))

    @property
    def running(self) -> tuple[Pod, ...]:
        """All pods with a running process."""
        return tuple(each for each in self.pods if each.process_running)

    # Devices

    @property
    def amounts(self) -> Mapping[str, Amount]:
        """Capacity and allocatable of each resource as the kubelet knows it now, ahead of `node_status`."""
        return self._require().manager.amounts()

    @property
    def health(self) -> Mapping[str, Mapping[str, bool]]:
        """Whether each device is healthy, by resource and ID, in order of the IDs."""
        manager = self._require().manager
        return {
            resource: {device: device in healthy for device in sorted(healthy | manager.unhealthy[resource])}
            for resource, healthy in manager.healthy.items()
        }

    def publish(self) -> Mapping[str, Amount]:
        """Write the node's status, which a real kubelet does every ten seconds; return it."""
        self.node_status |= self.amounts
        return self.node_status

    # Inside

    def _require(self) -> KubeletProcess:
        if self._process is None:
            raise RuntimeError("this kubelet is down: start it first")
        return self._process

    async def _panicked(self, _panic: KubeletPanic) -> None:
        await self.stop()

    def _seen(self) -> list[Pod]:
        return self._process.seen_pods() if self._process else []

    def _seen_in_any_order(self) -> list[Pod]:
        known = self._seen()
        self._orders.shuffle(known)
        return known
