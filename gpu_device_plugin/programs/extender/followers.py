"""Apply the API server's pods and nodes to a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.api import NodeRecord
from gpu_device_plugin.cluster.store import Store
from gpu_device_plugin.core.contract.nodegpus import gpus_of_node
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus
    from gpu_device_plugin.core.model.gpus import Links
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.fleet import Fleet

_MOST_LINKS = 200
"""The most GPU topologies that are cached; the cache is cleared when it is full."""


class PodStore(Store[Pod]):
    """Applies watched pods to a fleet."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        """Write to `fleet`; `clock` returns monotonic seconds."""
        self._fleet = fleet
        self._clock = clock

    def replace(self, objects: Sequence[Pod]) -> None:
        """Replace all pods that ask for GPUs."""
        self._fleet.replace_pods(objects, self._clock())

    def put(self, object: Pod) -> None:  # noqa: A002 - the API's term
        """Add or update a pod."""
        self._fleet.put_pod(object, self._clock())

    def remove(self, object: Pod) -> None:  # noqa: A002 - the API's term
        """Remove a pod, given its last state."""
        self._fleet.remove_pod(object, self._clock())


class NodeStore(Store[NodeRecord]):
    """Applies watched nodes to a fleet."""

    def __init__(self, fleet: Fleet, resources: Iterable[Resource]) -> None:
        self._fleet = fleet
        self._names: Mapping[Kind, str] = {resource.kind: resource.name for resource in resources}
        self._links: dict[str, Links] = {}

    def replace(self, objects: Sequence[NodeRecord]) -> None:
        """Replace all nodes."""
        self._fleet.replace_nodes({node.name: self._gpus(node) for node in objects})

    def put(self, object: NodeRecord) -> None:  # noqa: A002
        """Add or update a node."""
        self._fleet.put_node(object.name, self._gpus(object))

    def remove(self, object: NodeRecord) -> None:  # noqa: A002
        """Remove a node."""
        self._fleet.remove_node(object.name)

    def _gpus(self, node: NodeRecord) -> NodeGpus:
        memory, count = (node.capacity.get(self._names[kind], 0) for kind in (Kind.MEMORY, Kind.COUNT))
        if len(self._links) > _MOST_LINKS:
            self._links.clear()
        return gpus_of_node(node.annotations, node.labels, memory, count, self._links)
