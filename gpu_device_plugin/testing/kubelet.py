"""A kubelet to develop against: real sockets and the real rules, and time passes only where a test says so.

`Kubelet` stands for a node: what its kubelet process knows dies with the process, while pods, running containers, the
node's status and the files stay. Files are real, so a test damages them itself: it may write nonsense to `checkpoint`,
unlink it, or remove `device_plugin_dir`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import stat
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import add_RegistrationServicer_to_server
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import add_PodResourcesListerServicer_to_server
from gpu_device_plugin.testing.device_checkpoint import FILE_NAME
from gpu_device_plugin.testing.device_manager import AdmissionError, Amount, DeviceManager, KubeletPanic
from gpu_device_plugin.testing.gate import Gate
from gpu_device_plugin.testing.plugin_registry import (
    Dialling,
    Journal,
    PluginRegistry,
    is_extended_resource_name,
)
from gpu_device_plugin.testing.pod_resources import PodResources
from gpu_device_plugin.testing.pods import Container, Kind, Pod, effective_requests
from gpu_device_plugin.testing.versions import Version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from gpu_device_plugin.testing.plugin_client import Stream
    from gpu_device_plugin.testing.plugin_registry import Registration
    from gpu_device_plugin.testing.pods import ContainerSpec, PodSpec

T = TypeVar("T")

_LONGEST_SOCKET_PATH = 107
"""Bytes; sun_path of Linux has 108 with the zero at its end."""


@dataclass(slots=True)
class _Process:
    """Everything that ends with one kubelet process."""

    manager: DeviceManager
    registry: PluginRegistry
    servers: tuple[grpc.aio.Server, grpc.aio.Server]
    seen: set[str]
    """UIDs of the pods that its sources have told it about."""
    sync_loop: asyncio.Lock
    """Pods are admitted and removed one by one, in one loop that waits for every answer of a plugin without deadline.

    A lock that spans awaits is what we never do ourselves and what the real kubelet does.
    """
    ended: asyncio.Event


class Kubelet:
    """The kubelet of one node under `root`, with everything around it that outlives its process.

    Deterministic: what a real one leaves to the order of Go's maps comes from `seed`, and who gets which devices does
    not depend on how often anyone asked in between. Belongs to one event loop.
    `async with` starts it and stops it for good.

    A plugin's or an agent's failures never raise here: they show in the returned pods, in `registrations`, `streams`
    and `panics`. What raises is a test's own mistake, and `KubeletPanic` out of `admit`.
    """

    def __init__(
        self,
        root: Path,
        *,
        node: str = "node",
        seed: int = 0,
        version: tuple[int, int] = (1, 36),
        dialling: Dialling | None = None,
        numa_hint: Iterable[int] | None = None,
    ) -> None:
        self.node = node
        self.version = Version(*version)
        self.device_plugin_dir = root / "device-plugins"
        self.registration_socket = self.device_plugin_dir / "kubelet.sock"
        self.checkpoint = self.device_plugin_dir / FILE_NAME
        self.pod_resources_socket = root / "pod-resources" / "kubelet.sock"
        self.register_gate = Gate()
        """Every Register call passes here: hold it, or refuse."""
        self.pod_resources_gate = Gate()
        """Every PodResources call passes here. The real one refuses above 100 a second: RESOURCE_EXHAUSTED,
        `rejected by rate limit`."""
        self.start_gate = Gate()
        """Every start of a container passes here before the kubelet looks up what its devices bring: hold it. The real
        one makes the pod's sandbox and pulls the image meanwhile, and goes on when the pod is deleted by force."""
        self.registrations: list[Registration] = []
        self.streams: list[Stream] = []
        self.panics: list[KubeletPanic] = []
        self.node_status: dict[str, Amount] = {}
        """The node's status in the API: what `publish` found the last time. A scheduler sees nothing else."""
        self._listening = root / "listening"
        self._dialling = dialling or Dialling()
        self._numa_hint = None if numa_hint is None else frozenset(numa_hint)
        self._choices, self._orders = random.Random(seed), random.Random(seed)
        self._pods: dict[str, Pod] = {}
        self._left_behind: dict[str, Pod] = {}
        """Pods that are gone from the API while their processes are not, or while their containers are starting."""
        self._starting: set[str] = set()
        """UIDs of the pods whose containers are being started."""
        self._created = 0
        self._changes = Latest(None)
        self._process: _Process | None = None
        if len(os.fsencode(self.pod_resources_socket)) > _LONGEST_SOCKET_PATH:
            raise ValueError(
                f"{self.pod_resources_socket}: a unix socket's path has at most {_LONGEST_SOCKET_PATH} bytes; "
                f"give the kubelet a shorter root"
            )

    def __repr__(self) -> str:
        state = repr(self._process.manager) if self._process else "down"
        return f"<Kubelet {self.version} {self.node}: {len(self._pods)} pods, {state}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # The process

    @property
    def up(self) -> bool:
        """A kubelet process is there."""
        return self._process is not None

    async def start(self, *, ready: bool = True) -> None:
        """Start a kubelet process: read the checkpoint, wipe old sockets, serve. RuntimeError: there is one already.

        With `ready` its sources deliver all pods at once; without, it knows no pod until `sources_ready` is called, as
        a real one for a second, or for as long as the API server is away.
        """
        if self._process:
            raise RuntimeError("this kubelet is up already")
        for directory in (self.device_plugin_dir, self.pod_resources_socket.parent, self._listening):
            directory.mkdir(parents=True, exist_ok=True)
        seen: set[str] = set()
        running = {
            (uid, container.name)
            for uid, known in self._pods.items()
            for container in known.containers
            if container.running
        }
        if not self.checkpoint.exists():
            # Without one the kubelet takes the node for a new one, other people's resources included.
            self.node_status = dict.fromkeys(self.node_status, Amount(0, 0))
        manager = DeviceManager(
            self.checkpoint,
            self.version,
            choices=self._choices,
            orders=self._orders,
            active_pods=lambda: {known.uid for known in self._seen(active_only=True)},
            is_running=lambda uid, container: (uid, container) in running,
            numa_hint=self._numa_hint,
        )
        manager.read_checkpoint()
        self._wipe()
        registry = PluginRegistry(
            self.device_plugin_dir,
            manager,
            version=self.version,
            gate=self.register_gate,
            dialling=self._dialling,
            journal=Journal(self.registrations, self.streams),
            changed=self._tick,
        )
        registration, pod_resources = grpc.aio.server(), grpc.aio.server()
        add_RegistrationServicer_to_server(registry, registration)
        lister = PodResources(manager, self._told, self.version, self.pod_resources_gate)
        add_PodResourcesListerServicer_to_server(lister, pod_resources)
        self._process = _Process(
            manager, registry, (registration, pod_resources), seen, asyncio.Lock(), asyncio.Event()
        )
        await self._serve(pod_resources, self.pod_resources_socket)
        await self._serve(registration, self.registration_socket)
        self._tick()
        if ready:
            await self.sources_ready()

    async def stop(self) -> None:
        """End the kubelet process, if there is one. Containers keep running, and its sockets stay as dead files.

        That is all a kubelet does on its way out; SIGTERM and SIGKILL look the same to a plugin.
        """
        if self._process is None:
            return
        process, self._process = self._process, None
        process.ended.set()
        await process.registry.close()
        for server in process.servers:
            await server.stop(None)
        self._tick()

    async def restart(self, *, ready: bool = False) -> None:
        """End the process and start another one; see `start` for `ready`."""
        await self.stop()
        await self.start(ready=ready)

    async def reboot(self, *, ready: bool = False) -> None:
        """Restart the node: no process survives, and no socket of a plugin that does not come back by itself."""
        await self.stop()
        self._left_behind.clear()
        for known in self.pods:
            self._pods[known.uid] = self._stopped(known)
        await self.start(ready=ready)

    async def sources_ready(self) -> None:
        """Deliver all pods of the API to the process, oldest first, which admits them again.

        Only then it believes in its list of pods and frees the devices of those that are missing.
        """
        process = self._require()
        for known in sorted(self._pods.values(), key=lambda each: each.created):
            if process.ended.is_set():
                return
            if known.uid in process.seen or known.uid not in self._pods:
                continue
            if known.terminal:
                process.seen.add(known.uid)
            else:
                await self._admit(process, known, None)
        process.manager.sources_ready = True
        self._tick()

    def drop_streams(self, resource: str | None = None) -> None:
        """Lose the connections over which the plugins of `resource`, or all plugins, send their lists."""
        self._require().registry.drop_streams(resource)

    def expire_grace(self) -> None:
        """Let five minutes pass for every plugin that is gone: the next `publish` drops its resource."""
        for endpoint in self._require().manager.endpoints.values():
            endpoint.expired = endpoint.stopped
        self._tick()

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
        if pod.uid in self._pods:
            raise ValueError(f"pod {pod.uid} exists already")
        self._put(pod)
        return await self._admit(self._process, pod, rejected) if self._process else pod

    def finish(self, pod: Pod, phase: str = "Succeeded", *, settled: bool = True) -> Pod:
        """Let all containers of a pod exit. Its devices stay booked until the kubelet collects them.

        Not `settled`, the pod has this phase in the API while the kubelet is still tidying up and counts it as active:
        a few milliseconds, which end with a second call.
        """
        self._require()
        return self._put(replace(self._stopped(self.pod(pod)), phase=phase, terminating=not settled))

    def terminate(self, pod: Pod) -> Pod:
        """Begin to delete a pod: it has its grace period, and holds its devices, until `delete` or `finish`."""
        return self._put(replace(self.pod(pod), terminating=not self.pod(pod).terminal))

    async def delete(self, pod: Pod, *, force: bool = False) -> Pod:
        """Remove a pod from the API, its grace period over; return what is left of it.

        With `force` its processes are still running, until `process_ended`, while the kubelet's books forget it now.
        Containers that are just starting do start (kubelet.go gives the runtime's SyncPod a context that the end of the
        pod does not cancel), with whatever the books still say of their devices.
        The sync loop deletes, so this waits for an Allocate that hangs.
        """
        if self._process:
            async with self._process.sync_loop:
                pass
        gone = self._pods.pop(pod.uid)
        if force and (gone.process_running or gone.uid in self._starting):
            self._left_behind[gone.uid] = gone
        else:
            gone = self._stopped(gone)
        if self._process:
            self._process.seen.discard(gone.uid)
        self._tick()
        return gone

    def process_ended(self, pod: Pod) -> None:
        """Let the processes of a pod that was deleted by force come to their end. KeyError: there are none."""
        del self._left_behind[pod.uid]
        self._tick()

    async def restart_container(self, pod: Pod, name: str) -> Pod:
        """Let a container exit and be started again: no Allocate, the old answers anew, PreStartContainer if wanted.

        Also the next try for a container that waits because PreStartContainer failed. ValueError: it never came so far.
        """
        process = self._require()
        container = self.pod(pod).container(name)
        if not (container.started or container.waiting):
            raise ValueError(f"container {name} of pod {pod.name} was never started: {self.pod(pod)}")
        restarts = container.restarts + container.started
        self._put_container(pod.uid, replace(container, started=False, running=False, restarts=restarts))
        await self._start_containers(process, pod.uid)
        return self._known(pod.uid) or pod

    def pod(self, pod: Pod | str) -> Pod:
        """Return a pod as it is now, by an older view of it or by its name. KeyError: it is not in the API."""
        if isinstance(pod, Pod):
            return self._pods[pod.uid]
        for known in self._pods.values():
            if known.name == pod:
                return known
        raise KeyError(f"no pod {pod} on {self.node}")

    @property
    def pods(self) -> tuple[Pod, ...]:
        """All pods in the API that are bound to this node, oldest first."""
        return tuple(sorted(self._pods.values(), key=lambda each: each.created))

    @property
    def running(self) -> tuple[Pod, ...]:
        """All pods with a running process, those that were deleted by force included."""
        return tuple(each for each in (*self.pods, *self._left_behind.values()) if each.process_running)

    def device_health(self, pod: Pod) -> Mapping[str, Mapping[str, list[tuple[str, str]]]]:
        """Return allocatedResourcesStatus of the pod: by app container and resource every ID with its health.

        Empty before 1.36. The order of the IDs is another one each time.
        """
        manager = self._require().manager
        if not self.version.reports_device_health:
            return {}
        return {
            spec.name: {
                resource: [
                    (device, "Unhealthy" if device in manager.unhealthy.get(resource, ()) else "Healthy")
                    for device in self._orders.sample(sorted(grant.ids), len(grant.ids))
                ]
                for resource, grant in manager.held(pod.uid, spec.name).items()
            }
            for spec in pod.spec.containers
            if spec.kind is Kind.APP
        }

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
        """The IDs that the kubelet will not give to another pod, by resource."""
        return {resource: frozenset(ids) for resource, ids in self._require().manager.allocated.items() if ids}

    def publish(self) -> Mapping[str, Amount]:
        """Write the node's status, which a real kubelet does every ten seconds; return it."""
        manager = self._require().manager
        gone = manager.forget_gone()
        self.node_status |= dict.fromkeys(gone, Amount(0, 0)) | manager.amounts()
        self._tick()
        return self.node_status

    async def wait_for(self, predicate: Callable[[], T], timeout_s: float = 10) -> T:
        """Return what `predicate` returns as soon as that is true; it is asked again whenever something changed here.

        TimeoutError: it stayed false.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    version = self._changes.version
                    if result := predicate():
                        return result
                    await self._changes.after(version)
        except TimeoutError as error:
            raise TimeoutError(
                f"{self!r}: not within {timeout_s:g} s; registrations {self.registrations}, streams "
                f"{[(stream.endpoint, len(stream.lists), stream.open, stream.error) for stream in self.streams]}"
            ) from error

    # Inside

    def _tick(self) -> None:
        self._changes.set(None)

    def _require(self) -> _Process:
        if self._process is None:
            raise RuntimeError("this kubelet is down: start it first")
        return self._process

    def _wipe(self) -> None:
        for entry in self.device_plugin_dir.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a plugin that ends removes its own sockets meanwhile
                mode = entry.stat(follow_symlinks=False).st_mode
                unwanted = not stat.S_ISDIR(mode) if self.version.wipes_every_file else stat.S_ISSOCK(mode)
                if unwanted and entry != self.checkpoint:
                    entry.unlink()

    async def _serve(self, server: grpc.aio.Server, socket: Path) -> None:
        # grpcio unlinks the path it listens on when it stops. A kubelet's socket stays behind as a dead file, so the
        # server listens elsewhere and the path the plugins know is a second name of that socket.
        shutil.rmtree(hidden := self._listening / socket.parent.name, ignore_errors=True)
        hidden.mkdir()
        server.add_insecure_port(f"unix:{hidden / 's'}")
        await server.start()
        _link(hidden / "s", socket)

    def _seen(self, *, active_only: bool) -> list[Pod]:
        if self._process is None:
            return []
        return [
            self._pods[uid]
            for uid in sorted(self._process.seen)
            if uid in self._pods and (self._pods[uid].active or not active_only)
        ]

    def _told(self, *, active_only: bool) -> list[Pod]:
        known = self._seen(active_only=active_only)
        self._orders.shuffle(known)
        return known

    def _as_known(self, spec: ContainerSpec) -> ContainerSpec:
        # A field that a kubelet does not know is not there for it.
        lost = spec.kind is Kind.SIDECAR and not self.version.knows_sidecars
        return replace(spec, kind=Kind.INIT) if lost else spec

    def _put(self, pod: Pod) -> Pod:
        self._pods[pod.uid] = pod
        self._tick()
        return pod

    def _put_container(self, uid: str, container: Container) -> None:
        books = self._pods if uid in self._pods else self._left_behind
        pod = books[uid]
        books[uid] = replace(
            pod, containers=tuple(container if c.name == container.name else c for c in pod.containers)
        )
        self._tick()

    @staticmethod
    def _stopped(pod: Pod) -> Pod:
        return replace(
            pod, containers=tuple(replace(container, started=False, running=False) for container in pod.containers)
        )

    async def _admit(self, process: _Process, pod: Pod, rejected: tuple[str, str] | None) -> Pod:
        async with process.sync_loop:
            if process.ended.is_set() or pod.uid not in self._pods:
                return pod
            process.seen.add(pod.uid)
            self._tick()
            try:
                for container in pod.containers:
                    await self._or_die(process, process.manager.allocate(pod.uid, container.spec))
            except _EndedError:
                return self._pods.get(pod.uid, pod)
            except AdmissionError as error:
                rejected = ("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")
            else:
                rejected = rejected or self._predicate(process, pod)
            pod = self._pods[pod.uid]
            if rejected:
                reason, message = rejected
                return self._put(
                    replace(
                        self._stopped(pod),
                        phase="Failed",
                        reason=reason,
                        message=self.version.rejection_prefix + message,
                    )
                )
            for container in pod.containers:
                devices = {
                    resource: grant.ids for resource, grant in process.manager.held(pod.uid, container.name).items()
                }
                self._put_container(pod.uid, replace(container, devices=devices))
        await self._start_containers(process, pod.uid)
        return self._known(pod.uid) or pod

    def _predicate(self, process: _Process, pod: Pod) -> tuple[str, str] | None:
        # The check of the scheduler, done once more by the kubelet against the node's status in the API. Resources
        # that are missing there are nobody's: without a plugin's first registration a pod runs without its devices.
        room = {resource: amount.allocatable for resource, amount in self.node_status.items()}
        if pod.uid in process.manager.grants:
            for resource, ids in process.manager.allocated.items():
                room[resource] = max(room.get(resource, 0), len(ids))
        others = [known for known in self._seen(active_only=True) if known.uid != pod.uid]
        for resource, requested in effective_requests(pod.spec).items():
            if not requested or resource not in room or not is_extended_resource_name(resource):
                continue
            used = sum(effective_requests(other.spec).get(resource, 0) for other in others)
            if used + requested > room[resource]:
                message = (
                    f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, "
                    f"capacity: {room[resource]}"
                )
                return f"OutOf{resource}", message
        return None

    async def _start_containers(self, process: _Process, uid: str) -> None:
        self._starting.add(uid)
        try:
            for container in self._pods[uid].containers:
                if not container.started:
                    await self._start_container(process, uid, container.spec)
                if (known := self._known(uid)) is None or not known.container(container.name).started:
                    return
        finally:
            self._starting.discard(uid)
            if uid in self._left_behind and not self._left_behind[uid].process_running:
                del self._left_behind[uid]
        if uid in self._pods and not self._pods[uid].terminal:
            self._put(replace(self._pods[uid], phase="Running"))

    async def _start_container(self, process: _Process, uid: str, spec: ContainerSpec) -> None:
        await self.start_gate.passed()
        try:
            await self._or_die(process, process.manager.before_start(uid, spec))
        except _EndedError:
            return
        except AdmissionError as error:
            if known := self._known(uid):
                waiting = f"CreateContainerConfigError: {error}"
                self._put_container(uid, replace(known.container(spec.name), waiting=waiting))
            return
        if (known := self._known(uid)) is None or known.terminal:
            return
        self._put_container(
            uid,
            replace(
                known.container(spec.name),
                devices={resource: grant.ids for resource, grant in process.manager.held(uid, spec.name).items()},
                received=process.manager.received(uid, spec.name),
                started=True,
                running=spec.kind is not Kind.INIT,
                waiting=None,
            ),
        )

    def _known(self, uid: str) -> Pod | None:
        return self._pods.get(uid) or self._left_behind.get(uid)

    async def _or_die(self, process: _Process, work: Awaitable[None]) -> None:
        try:
            await work
        except AdmissionError:
            # The end of a process cuts its calls short; that is no answer to anyone.
            if process.ended.is_set():
                raise _EndedError from None
            raise
        except KubeletPanic as panic:
            self.panics.append(panic)
            await self.stop()
            raise
        if process.ended.is_set():
            raise _EndedError


def _link(socket: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    name.hardlink_to(socket)


class _EndedError(Exception):
    """The process ended while it worked on this."""
