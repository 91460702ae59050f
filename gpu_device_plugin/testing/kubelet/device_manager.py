"""Allocate devices to containers by the rules of the kubelet's device manager.

The rules, including their oddities, are from pkg/kubelet/cm/devicemanager of Kubernetes 1.36: a double that is more
lenient than the real kubelet would hide the faults that it should show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.kubelet import kubelet_files
from gpu_device_plugin.testing.kubelet.kubelet_files import Grant
from gpu_device_plugin.testing.kubelet.plugin_client import AdmissionError, PluginClient
from gpu_device_plugin.testing.pod_specs import ContainerSpec

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import Device, DevicePluginOptions

HEALTHY = "Healthy"
NO_NUMA_NODE = -1

T = TypeVar("T")


class KubeletPanic(Exception):  # noqa: N818  (Go calls it a panic, and no caller handles it as an error)
    """The whole kubelet process died of a nil pointer."""


@dataclass(slots=True)
class Endpoint:
    """The endpoint for the calls of one resource."""

    plugin: PluginClient | None
    """None for a resource known only from the checkpoint."""
    options: DevicePluginOptions | None
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Amount:
    """Devices of one resource on the node, as in the node's status."""

    capacity: int
    allocatable: int


@dataclass
class DeviceManager:
    """The device state of one kubelet process. Belongs to one event loop; suspends only where it calls a plugin."""

    checkpoint: Path
    choices: random.Random
    """For every order of a Go map that determines an allocation."""
    orders: random.Random
    """For the order of entries in written files, which determines no allocation and may be drawn at any time."""
    active_pods: Callable[[], Collection[str]]
    """UIDs of the pods that have not ended."""
    is_running: Callable[[str, str], bool]
    """Whether the container runtime reported this container of this pod as running when the kubelet started."""
    sources_ready: bool = False
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    """Where the calls for each resource go."""
    healthy: dict[str, set[str]] = field(default_factory=dict)
    unhealthy: dict[str, set[str]] = field(default_factory=dict)
    listed: dict[str, dict[str, Device]] = field(default_factory=dict)
    """The latest list of every resource, by ID."""
    allocated: dict[str, set[str]] = field(default_factory=dict)
    grants: dict[str, dict[str, dict[str, Grant]]] = field(default_factory=dict)
    """By pod UID, container and resource."""
    _reusable: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)

    def __repr__(self) -> str:
        amounts = ", ".join(
            f"{resource} {amount.allocatable}/{amount.capacity}, {len(self.allocated.get(resource, ()))} used"
            for resource, amount in self.amounts().items()
        )
        return f"<DeviceManager {amounts or 'of nothing'}>"

    # Reports of plugins

    def update(self, resource: str, devices: Iterable[Device]) -> None:
        """Apply a plugin's list, and write the checkpoint. IDs missing from the list are forgotten."""
        self.listed[resource] = {device.ID: device for device in devices}
        listed = self.listed[resource].values()
        self.healthy[resource] = {device.ID for device in listed if device.health == HEALTHY}
        self.unhealthy[resource] = {device.ID for device in listed if device.health != HEALTHY}
        with suppress(OSError):  # the kubelet logs it and goes on
            self.write_checkpoint()

    def disconnected(self, resource: str) -> None:
        """Mark all devices of `resource` as unhealthy, and stop its current endpoint."""
        if endpoint := self.endpoints.get(resource):
            self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
            if resource in self.healthy:
                self.healthy[resource] = set()
            endpoint.stopped = True

    # The node's status

    def amounts(self) -> dict[str, Amount]:
        """Count the devices of every resource. The real kubelet drops one whose plugin is gone for five minutes."""
        return {
            resource: Amount(
                capacity=len(self.healthy.get(resource, ())) + len(self.unhealthy.get(resource, ())),
                allocatable=len(self.healthy.get(resource, ())),
            )
            for resource in self.healthy | self.unhealthy
        }

    def knows(self, resource: str) -> bool:
        """Return whether a plugin serves the resource, or an allocation has it. Other resources are ignored."""
        return resource in self.healthy or resource in self.allocated

    # Allocation

    async def allocate(self, pod_uid: str, container: ContainerSpec) -> None:
        """Allocate a container's devices. AdmissionError: that failed, though a part may stay allocated.

        Call it in the order of the containers in the spec. KubeletPanic: a plugin withdrew an ID during its Allocate.
        """
        for other in [uid for uid in self._reusable if uid != pod_uid]:
            del self._reusable[other]
        reusable = self._reusable.setdefault(pod_uid, {})
        await self._allocate_every_resource(pod_uid, container, reusable)
        for resource, grant in self.held(pod_uid, container.name).items():
            before = reusable.get(resource, frozenset())
            reusable[resource] = before | grant.ids if container.kind is ContainerKind.INIT else before - grant.ids

    async def before_start(self, pod_uid: str, container: ContainerSpec) -> None:
        """Call PreStartContainer where it is required; allocate missing devices. AdmissionError: no start."""
        missing = False
        for resource, needed in self._in_map_order(container.limits.items()):
            if not self.knows(resource) or needed == 0:
                continue
            await self._pre_start(pod_uid, container.name, resource)
            # A container that was admitted before its resource was ever registered has no devices yet.
            missing |= pod_uid in self.active_pods() and resource not in self.held(pod_uid, container.name)
        if missing:
            await self.allocate(pod_uid, container)

    def received(self, pod_uid: str, container: str) -> ContainerAllocateResponse:
        """Merge the answers for all resources of a container. The order of a Go map resolves conflicts."""
        answers = [grant.response for _, grant in self._in_map_order(self.held(pod_uid, container).items())]
        answers.reverse()  # the first one of a key, a path or a name wins
        return ContainerAllocateResponse(
            envs={name: value for answer in answers for name, value in answer.envs.items()},
            annotations={name: value for answer in answers for name, value in answer.annotations.items()},
            mounts={mount.container_path: mount for answer in answers for mount in answer.mounts}.values(),
            devices={node.container_path: node for answer in answers for node in answer.devices}.values(),
            cdi_devices={device.name: device for answer in answers for device in answer.cdi_devices}.values(),
        )

    def held(self, pod_uid: str, container: str) -> Mapping[str, Grant]:
        """Return the grants of a container by resource."""
        return self.grants.get(pod_uid, {}).get(container, {})

    def numa_nodes(self, resource: str, device: str) -> tuple[int, ...]:
        """Return a device's NUMA nodes in the latest list; (-1,) if it has none. KubeletPanic: it is not listed."""
        if device not in self.listed[resource]:
            raise KubeletPanic(
                f"invalid memory address or nil pointer dereference: {resource} listed {device} no more when the "
                f"Allocate for it was answered"
            )
        return tuple(node.ID for node in self.listed[resource][device].topology.nodes) or (NO_NUMA_NODE,)

    def collect(self) -> None:
        """Free the devices of pods that are no longer active; no other method frees devices."""
        if not self.sources_ready:
            return
        ended = self.ended()
        for pod_uid in ended:
            del self.grants[pod_uid]
        if ended:
            self._recount()

    def ended(self) -> set[str]:
        """Return the UIDs of the pods with devices that are no longer active."""
        return self.grants.keys() - set(self.active_pods())

    # The checkpoint

    def read_checkpoint(self) -> None:
        """Restore the state of the previous process. A missing file counts as empty; a corrupt one is ignored."""
        grants, registered = kubelet_files.read_checkpoint(self.checkpoint)
        for grant in grants:
            self._keep(grant)
        self._recount()
        for resource in registered:
            self.healthy[resource], self.unhealthy[resource] = set(), set()
            self.endpoints[resource] = Endpoint(None, None, stopped=True)

    def write_checkpoint(self) -> None:
        """Write the allocations and the healthy IDs. OSError: the directory does not exist."""

        def any_order(items: Iterable[T]) -> list[T]:
            return self._in_map_order(items, self.orders)

        kubelet_files.write_checkpoint(
            self.checkpoint,
            [
                grant
                for _, containers in any_order(self.grants.items())
                for _, resources in any_order(containers.items())
                for _, grant in any_order(resources.items())
            ],
            {resource: any_order(ids) for resource, ids in any_order(self.healthy.items())},
        )

    def _in_map_order(self, items: Iterable[T], rng: random.Random | None = None) -> list[T]:
        # Sorted first, so that a seed gives one order regardless of Python's sets. Items are keys, or pairs with one.
        ordered = sorted(items, key=lambda item: item if isinstance(item, str) else item[0])  # type: ignore[index]
        (rng or self.choices).shuffle(ordered)
        return ordered

    def _keep(self, grant: Grant) -> None:
        self.grants.setdefault(grant.pod_uid, {}).setdefault(grant.container, {})[grant.resource] = grant

    def _recount(self) -> None:
        self.allocated = {}
        for containers in self.grants.values():
            for resources in containers.values():
                for resource, grant in resources.items():
                    self.allocated.setdefault(resource, set()).update(grant.ids)

    async def _allocate_every_resource(
        self, pod_uid: str, container: ContainerSpec, reusable: Mapping[str, frozenset[str]]
    ) -> None:
        collected = changed = False
        for resource, needed in self._in_map_order(container.limits.items()):
            if not self.knows(resource):
                continue
            if not collected:
                self.collect()
                collected = True
            if not self._needs_devices(pod_uid, container.name, resource, needed):
                continue
            ids = await self._choose(resource, needed, reusable.get(resource, frozenset()))
            changed = True
            if (endpoint := self.endpoints.get(resource)) is None:
                self._recount()
                raise AdmissionError(f"unknown Device Plugin {resource}")
            try:
                answer = await self._plugin(resource, endpoint).allocate(self._in_map_order(ids))
            except AdmissionError:
                self._recount()
                raise
            if not answer.container_responses:
                raise AdmissionError(f"no containers return in allocation response {answer}")
            devices = self._by_numa_node(resource, ids)
            # The IDs are not added to `allocated` again, where the choice put them: if a List freed another pod during
            # the call, it recounted without them, and they can be allocated twice. The real kubelet has this fault too.
            self._keep(Grant(pod_uid, container.name, resource, devices, answer.container_responses[0]))
        if changed:
            try:
                self.write_checkpoint()
            except OSError as error:
                raise AdmissionError(
                    f'failed to write checkpoint file "{kubelet_files.CHECKPOINT}": {error}'
                ) from error

    def _needs_devices(self, pod_uid: str, container: str, resource: str, required: int) -> bool:
        held = self.held(pod_uid, container).get(resource)
        if held is not None and len(held.ids) != required:
            raise AdmissionError(
                f'pod "{pod_uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(held.ids)} to {required}"
            )
        if not self.sources_ready and self.is_running(pod_uid, container):
            return False
        if resource not in self.healthy:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        if not self.healthy[resource]:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if held is not None and not held.ids <= self.healthy[resource]:
            raise AdmissionError(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        return held is None and required > 0

    async def _choose(self, resource: str, required: int, reusable: frozenset[str]) -> frozenset[str]:
        chosen: set[str] = set()

        def take(source: Iterable[str]) -> bool:
            for device in self._in_map_order(set(source) - chosen)[: required - len(chosen)]:
                self.allocated.setdefault(resource, set()).add(device)
                chosen.add(device)
            return len(chosen) == required

        if take(reusable):
            return frozenset(chosen)
        available = self.healthy[resource] - self.allocated.get(resource, set())
        needed = required - len(chosen)
        if len(available) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        preferred = await self._preferred(resource, available, chosen, required)
        if take(preferred & available) or take(available):
            return frozenset(chosen)
        raise AdmissionError(
            f"unexpectedly allocated less resources than required. Requested: {required}, Got: {len(chosen)}"
        )

    def _by_numa_node(self, resource: str, ids: frozenset[str]) -> dict[int, tuple[str, ...]]:
        devices: dict[int, list[str]] = {}
        for device in self._in_map_order(ids):
            for node in self.numa_nodes(resource, device):
                devices.setdefault(node, []).append(device)
        return {node: tuple(ids) for node, ids in devices.items()}

    def _plugin(self, resource: str, endpoint: Endpoint) -> PluginClient:
        if endpoint.stopped or endpoint.plugin is None:
            raise AdmissionError(f"endpoint {resource} has been stopped")
        return endpoint.plugin

    async def _preferred(self, resource: str, free: set[str], chosen: set[str], size: int) -> set[str]:
        if (endpoint := self.endpoints.get(resource)) is None:
            raise AdmissionError(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        try:
            plugin = self._plugin(resource, endpoint)
            return set(await plugin.preferred(self._in_map_order(free | chosen), self._in_map_order(chosen), size))
        except AdmissionError as error:
            raise AdmissionError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error

    async def _pre_start(self, pod_uid: str, container: str, resource: str) -> None:
        if (endpoint := self.endpoints.get(resource)) is None:
            raise AdmissionError(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.pre_start_required:
            return
        if (grant := self.held(pod_uid, container).get(resource)) is None:
            raise AdmissionError(
                f"no devices found allocated in local cache for pod {pod_uid}, container {container}, "
                f"resource {resource}"
            )
        try:
            await self._plugin(resource, endpoint).pre_start(self._in_map_order(grant.ids))
        except AdmissionError as error:
            raise AdmissionError(f"device plugin PreStartContainer rpc failed with err: {error}") from error
