"""The parts of GPUs that each container of the node was granted: the kubelet's records joined with the API's pods."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.pods import ContainerKind
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import parse_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.core.model.limits import Rung
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.shares import Shares


@dataclass(frozen=True, slots=True)
class Allocated:
    """An entry of the kubelet's checkpoint: the devices of one kind that one container was given."""

    pod_uid: str
    """As the kubelet knows the pod."""
    container: str
    kind: Kind
    device_ids: frozenset[str]
    rung: Rung | None = None
    """The means of limiting in the answer that the container got; None: the answer, of an older agent, does not say."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The GPUs of one container."""

    pod_uid: str
    """As the kubelet knows the pod, and as cgroups name it."""
    container: str
    granted: Mapping[str, int] = field(default_factory=dict)
    """MiB of each GPU, by UUID; of a whole GPU all of it."""
    pod_granted: Mapping[str, int] = field(default_factory=dict)
    """MiB of each of these GPUs that all containers of the pod have together. The device IDs that an ordinary init
    container hands on to a later container count once."""
    whole: bool = False
    """It was given whole GPUs, or MIG instances, which have no limit of ours."""
    rung: Rung | None = None
    """See `Allocated.rung`."""
    pod: Pod | None = None
    """The pod in the API; None: not known (yet), or the agent runs without the API."""

    @property
    def container_id(self) -> str:
        """The ID of the running container, 64 hexadecimal digits; empty: not known, or it does not run."""
        return "" if self.pod is None else self.pod.container_ids.get(self.container, "")


def holdings(allocated: Iterable[Allocated], pods: Iterable[Pod], shares: Shares) -> tuple[Holding, ...]:
    """Return the GPUs of each container that holds some, but for containers that have ended as far as the API tells.

    Args:
        allocated: the entries of the kubelet's checkpoint for our resources. It keeps those of ordinary init containers
            as long as their pod.
        pods: the pods of this node in the API; none without the API.
        shares: the node's GPUs; devices of GPUs that are no longer among them are left out.
    """
    known = {pod.kubelet_uid: pod for pod in pods}
    kept = [entry for entry in allocated if not _ended(entry.container, known.get(entry.pod_uid))]
    ids: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in kept:
        for name in entry.device_ids:
            ids[entry.pod_uid, parse_id(name)[0]].add(name)
    found = []
    for entry in kept:
        granted = {
            uuid: mib
            for uuid, count in Counter(parse_id(name)[0] for name in entry.device_ids).items()
            if (mib := _mib(uuid, count, entry.kind, shares))
        }
        together = {uuid: _mib(uuid, len(ids[entry.pod_uid, uuid]), entry.kind, shares) for uuid in granted}
        if granted:
            whole, pod = entry.kind is not Kind.MEMORY, known.get(entry.pod_uid)
            found.append(Holding(entry.pod_uid, entry.container, granted, together, whole, entry.rung, pod))
    return tuple(found)


def _ended(container: str, pod: Pod | None) -> bool:
    """Return whether a container of a pod has ended, or is an ordinary init container that does not run (yet)."""
    if pod is None:
        return False
    init = {each.name for each in pod.containers if each.kind is ContainerKind.INIT}
    return pod.ended or (container in init and container not in pod.container_ids)


def _mib(uuid: str, count: int, kind: Kind, shares: Shares) -> int:
    """Return the memory of `count` devices of a GPU, in MiB; 0 for a GPU that is not known."""
    shared = shares.by_uuid(uuid)
    if shared is None:
        return 0
    return shared.gpu.total_mib if kind is not Kind.MEMORY else count * shares.share_mib
