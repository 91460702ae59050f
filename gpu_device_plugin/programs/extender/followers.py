"""Apply the API server's pods and nodes to a fleet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.cluster.objects.decoding import NodeRecord
from gpu_device_plugin.cluster.store import Store
from gpu_device_plugin.core.cluster.candidate import gpus_of_node
from gpu_device_plugin.core.cluster.other_pods import OtherPod
from gpu_device_plugin.model.contract.keys import NODE_USE
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.fleet import Fleet
    from gpu_device_plugin.model.contract.nodegpus import NodeGpus
    from gpu_device_plugin.model.gpus import Links
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.extender.capacity.followed import Followed
    from gpu_device_plugin.programs.extender.resizes import Resizes
    from gpu_device_plugin.programs.extender.workload_learning import Learner

_MOST_COUNTED = 10_000
"""Of a list only the latest pods are counted as coming: older ones would teach no more, and take seconds."""
_MOST_LINKS = 200
"""The most GPU topologies that are cached; the cache is cleared when it is full."""


@dataclass(eq=False, repr=False)
class PodStore(Store[Pod | OtherPod]):
    """Applies watched pods to a fleet and its resizes, and has a learner observe each pod that was bound, once.

    A pod that waits costs its owner nothing, and may never find room: it teaches nothing.
    """

    _fleet: Fleet
    _clock: Callable[[], float]
    """Returns monotonic seconds."""
    _learner: Learner
    _resizes: Resizes
    _followed: Followed

    def replace(self, objects: Sequence[Pod | OtherPod]) -> None:
        """Replace all pods."""
        # The mix of pods forgets by the time between them, so they come in their order.
        arrivals = [pod for pod in objects if self._comes(pod)]
        for pod in sorted(arrivals, key=lambda pod: pod.created)[-_MOST_COUNTED:]:
            self._learner.observe(pod)
        pods = {pod.uid: pod for pod in objects if isinstance(pod, Pod)}
        self._fleet.replace_pods(tuple(pods.values()), self._clock())
        self._resizes.replace(pods)
        self._followed.replace(pods)
        self._fleet.replace_others(each for each in objects if isinstance(each, OtherPod))

    def put(self, object: Pod | OtherPod) -> None:  # noqa: A002 - the API's term
        """Add or update a pod."""
        if self._comes(object):
            self._learner.observe(object)
        if isinstance(object, Pod):
            self._fleet.put_pod(object, self._clock())
            self._resizes.put(object)
            self._followed.put(object)
        else:
            self._fleet.put_other(object)

    def remove(self, object: Pod | OtherPod) -> None:  # noqa: A002 - the API's term
        """Remove a pod, given its last state."""
        if isinstance(object, Pod):
            self._fleet.remove_pod(object, self._clock())
            self._resizes.remove(object.uid)
            self._followed.remove(object.uid)
        else:
            self._fleet.remove_other(object)

    def _comes(self, pod: Pod | OtherPod) -> bool:
        """Return whether a pod is seen bound for the first time, and says something of what comes."""
        if pod.ended:
            return False
        if isinstance(pod, OtherPod):
            # A pod that had no choice of its node says nothing of what comes to other nodes.
            return not pod.bound_to_node and self._fleet.gains_other(pod)
        entry = self._fleet.entries.get(pod.uid)
        return bool(pod.node_name) and not pod.deleting and (entry is None or not entry.seen)


class NodeStore(Store[NodeRecord]):
    """Applies watched nodes to a fleet."""

    def __init__(self, fleet: Fleet, resources: Iterable[Resource], followed: Followed) -> None:
        self._fleet = fleet
        self._followed = followed
        self._names: Mapping[Kind, str] = {resource.kind: resource.name for resource in resources}
        self._links: dict[str, Links] = {}
        self.closed: set[str] = set()
        """The nodes that are cordoned or not ready."""
        self.used_mib: dict[str, Mapping[int, int]] = {}
        """By node, the memory in use on each GPU by position, where its agent tells it."""
        self.use_read_at: dict[str, float] = {}
        """By node, when its agent last read the use of its GPUs, in seconds since the epoch."""

    def without_use(self, node: NodeRecord) -> NodeRecord:
        """Note the memory in use on a node's GPUs; return the node without the long annotation that tells it."""
        self.use_read_at.pop(node.name, None)
        if NODE_USE not in node.annotations:
            self.used_mib.pop(node.name, None)
            return node
        self.used_mib[node.name], read_at = used_mib(node.annotations[NODE_USE])
        if read_at is not None:
            self.use_read_at[node.name] = read_at
        return replace(node, annotations={key: text for key, text in node.annotations.items() if key != NODE_USE})

    def replace(self, objects: Sequence[NodeRecord]) -> None:
        """Replace all nodes."""
        self.closed.clear()
        self.closed.update(node.name for node in objects if not _open(node))
        there = {node.name for node in objects}
        for known in (self.used_mib, self.use_read_at):
            for name in known.keys() - there:
                del known[name]
        self._fleet.replace_nodes({node.name: (self._gpus(node), node.cpu_and_memory) for node in objects})
        self._followed.replace_nodes(objects)

    def put(self, object: NodeRecord) -> None:  # noqa: A002
        """Add or update a node."""
        (self.closed.discard if _open(object) else self.closed.add)(object.name)
        self._fleet.put_node(object.name, self._gpus(object), object.cpu_and_memory)
        self._followed.put_node(object)

    def remove(self, object: NodeRecord) -> None:  # noqa: A002
        """Remove a node."""
        self.closed.discard(object.name)
        self.used_mib.pop(object.name, None)
        self.use_read_at.pop(object.name, None)
        self._fleet.remove_node(object.name)
        self._followed.remove_node(object.name)

    def _gpus(self, node: NodeRecord) -> NodeGpus:
        memory, count = (node.capacity.get(self._names[kind], 0) for kind in (Kind.MEMORY, Kind.COUNT))
        if len(self._links) > _MOST_LINKS:
            self._links.clear()
        return gpus_of_node(node.annotations, node.labels, memory, count, self._links)


def _open(node: NodeRecord) -> bool:
    return node.ready and not node.unschedulable


_LONGEST = 128 << 10
"""Characters; an agent writes no more than 96 KiB."""


class _Gpu(msgspec.Struct, gc=False):
    index: int = 0
    used: int | None = None


class _Use(msgspec.Struct, gc=False):
    """Of the long annotation how much memory is in use, and when, and nothing else."""

    at: str = ""
    gpus: list[_Gpu] = []


_USE = msgspec.json.Decoder(_Use)


def used_mib(text: str) -> tuple[Mapping[int, int], float | None]:
    """Return the memory in use on each GPU by position, and when it was read, in seconds since the epoch.

    By the annotation `NODE_USE`; nothing and None if it is malformed.
    """
    try:
        use = _USE.decode(text) if text and len(text) <= _LONGEST else _Use()
    except (msgspec.DecodeError, RecursionError):
        return {}, None
    return {gpu.index: gpu.used for gpu in use.gpus[:MOST_GPUS] if gpu.used is not None}, epoch_s(use.at)
