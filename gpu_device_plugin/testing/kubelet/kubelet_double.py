"""A kubelet for development and tests: real sockets and the real rules, and time passes only where a test says so.

`Kubelet` represents a node: the state of its kubelet process ends with the process, while pods, running containers, the
node's status and the files stay. The files are real, so a test can damage them: it may write nonsense to `checkpoint`,
unlink it, or remove `device_plugin_dir`.
"""

from __future__ import annotations

import os
import random
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import add_RegistrationServicer_to_server
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import add_PodResourcesListerServicer_to_server
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet import kubelet_versions as versions
from gpu_device_plugin.testing.kubelet.device_manager import Amount, DeviceManager, KubeletPanic
from gpu_device_plugin.testing.kubelet.kubelet_files import CHECKPOINT, serve, wipe
from gpu_device_plugin.testing.kubelet.kubelet_process import KubeletProcess
from gpu_device_plugin.testing.kubelet.kubelet_services import PluginRegistry, PodResources
from gpu_device_plugin.testing.pod_specs import Container, NodePods, Pod, stopped

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from gpu_device_plugin.testing.kubelet.kubelet_services import Registration
    from gpu_device_plugin.testing.kubelet.plugin_client import DeviceStream
    from gpu_device_plugin.testing.pod_specs import ContainerSpec, PodSpec

_LONGEST_SOCKET_PATH = 107
"""Bytes; sun_path of Linux has 108 with the zero at its end."""


class Kubelet:
    """The kubelet of one node under `root`, with the state of the node that outlives its process.

    Deterministic: `seed` replaces the random order of Go's maps, and allocations do not depend on the number of queries
    in between. Belongs to one event loop. `async with` starts it and stops it for good.

    Failures of a plugin or an agent never raise here: they show in the returned pods, in `registrations`, `streams`
    and `panics`. Only a test's own mistakes raise, and `admit` raises `KubeletPanic`.
    """

    def __init__(
        self,
        root: Path,
        *,
        node: str = "node",
        seed: int = 0,
        version: tuple[int, int] = (1, 36),
        dial_timeout_s: float = 10,
    ) -> None:
        self.node = node
        _, self.minor = version
        self.device_plugin_dir = root / "device-plugins"
        self.registration_socket = self.device_plugin_dir / "kubelet.sock"
        self.checkpoint = self.device_plugin_dir / CHECKPOINT
        self.pod_resources_socket = root / "pod-resources" / "kubelet.sock"
        self._boot_id = root / "proc" / "sys" / "kernel" / "random" / "boot_id"
        self.registrations: list[Registration] = []
        self.streams: list[DeviceStream] = []
        self.panics: list[KubeletPanic] = []
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
        return f"<Kubelet 1.{self.minor} {self.node}: {len(self._pods.in_api)} pods, {state}>"

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
        manager = DeviceManager(
            self.checkpoint,
            self.minor,
            choices=self._choices,
            orders=self._orders,
            active_pods=lambda: {pod.uid for pod in self._seen(active_only=True)},
            is_running=lambda uid, container: (uid, container) in running,
        )
        manager.read_checkpoint()
        wipe(self.device_plugin_dir, self.checkpoint, self.minor)
        registry = PluginRegistry(
            self.device_plugin_dir,
            manager,
            before_register=self.before_register,
            dial_timeout_s=self._dial_timeout_s,
            registrations=self.registrations,
            streams=self.streams,
        )
        registration, pod_resources = grpc.aio.server(), grpc.aio.server()
        add_RegistrationServicer_to_server(registry, registration)
        lister = PodResources(manager, self._seen_in_any_order, self.before_pod_resources)
        add_PodResourcesListerServicer_to_server(lister, pod_resources)
        self._process = KubeletProcess(
            manager,
            registry,
            (registration, pod_resources),
            self._pods,
            lambda: self.node_status,
            self.before_start,
            self._panicked,
        )
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
        self._pods.left_behind.clear()
        for known in self.pods:
            self._pods.put(stopped(known))
        await self.start(ready=ready)

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

    async def admit(self, spec: PodSpec, *, rejected: tuple[str, str] | None = None) -> Pod:
        """Bind a pod to the node, and return it when its containers have started or it is refused.

        With `rejected`, a reason and a message, some later check refuses it, after Allocate: its devices stay booked
        until the kubelet collects them. With no process, or if it ends meanwhile, the pod stays Pending for the next.

        KubeletPanic: the kubelet process died of this pod. ValueError: there is such a pod already.
        """
        self._created += 1
        pod = Pod(
            spec,
            uid=spec.uid or str(uuid.UUID(int=self._choices.getrandbits(128), version=4)),
            created=self._created if spec.created is None else spec.created,
            containers=tuple(Container(self._as_known(container)) for container in spec.containers),
        )
        if pod.uid in self._pods.in_api:
            raise ValueError(f"pod {pod.uid} exists already")
        self._pods.put(pod)
        return await self._process.admit(pod, rejected) if self._process else pod

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
        The sync loop deletes, so this waits for an Allocate that hangs.
        """
        if self._process:
            async with self._process.sync_loop:
                pass
        gone = self._pods.remove(pod.uid, force=force)
        if self._process:
            self._process.seen.discard(gone.uid)
        return gone

    def process_ended(self, pod: Pod) -> None:
        """End the processes of a pod that was deleted by force. KeyError: there are none."""
        del self._pods.left_behind[pod.uid]

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
    def pods(self) -> tuple[Pod, ...]:
        """All pods in the API that are bound to this node, oldest first."""
        return tuple(sorted(self._pods.in_api.values(), key=lambda each: each.created))

    @property
    def running(self) -> tuple[Pod, ...]:
        """All pods with a running process, including those that were deleted by force."""
        return tuple(each for each in (*self.pods, *self._pods.left_behind.values()) if each.process_running)

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

    @property
    def allocated(self) -> Mapping[str, frozenset[str]]:
        """The IDs that the kubelet will not allocate to another pod, by resource."""
        return {resource: frozenset(ids) for resource, ids in self._require().manager.allocated.items() if ids}

    def publish(self) -> Mapping[str, Amount]:
        """Write the node's status, which a real kubelet does every ten seconds; return it."""
        self.node_status |= self.amounts
        return self.node_status

    # What may hold or refuse a step; RpcStatusError refuses a call

    async def before_register(self) -> None:
        """Every Register call waits for this."""

    async def before_pod_resources(self) -> None:
        """Every PodResources call waits for this."""

    async def before_start(self) -> None:
        """Every start of a container waits for this, before the kubelet looks up what its devices bring."""

    # Inside

    def _require(self) -> KubeletProcess:
        if self._process is None:
            raise RuntimeError("this kubelet is down: start it first")
        return self._process

    async def _panicked(self, panic: KubeletPanic) -> None:
        self.panics.append(panic)
        await self.stop()

    def _seen(self, *, active_only: bool) -> list[Pod]:
        return self._process.seen_pods(active_only=active_only) if self._process else []

    def _seen_in_any_order(self, *, active_only: bool) -> list[Pod]:
        known = self._seen(active_only=active_only)
        self._orders.shuffle(known)
        return known

    def _as_known(self, spec: ContainerSpec) -> ContainerSpec:
        # A field that a kubelet does not know is not there for it.
        lost = spec.kind is ContainerKind.SIDECAR and self.minor not in versions.KNOWS_SIDECARS
        return replace(spec, kind=ContainerKind.INIT) if lost else spec
