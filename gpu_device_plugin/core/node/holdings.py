"""The parts of GPUs that each container of the node was granted: the kubelet's records joined with the API's pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import parse_id
from gpu_device_plugin.core.node.assigned import kubelet_uid

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
    whole: bool = False
    """It was given whole GPUs, which have no limit."""
    rung: Rung | None = None
    """See `Allocated.rung`."""
    pod: Pod | None = None
    """The pod in the API; None: not known (yet), or the agent runs without the API."""

    @property
    def container_id(self) -> str:
        """The ID of the running container, 64 hexadecimal digits; empty: not known, or it does not run."""
        return "" if self.pod is None else self.pod.container_ids.get(self.container, "")


def holdings(allocated: Iterable[Allocated], pods: Iterable[Pod], shares: Shares) -> tuple[Holding, ...]:
    """Return the GPUs of each container that holds some, but for containers whose pods have ended.

    Args:
        allocated: the entries of the kubelet's checkpoint for our resources.
        pods: the pods of this node in the API; none without the API.
        shares: the node's GPUs; devices of GPUs that are no longer among them are left out.
    """
    known = {kubelet_uid(pod): pod for pod in pods}
    found = []
    for entry in allocated:
        pod = known.get(entry.pod_uid)
        if pod is not None and pod.ended:
            continue
        whole = entry.kind is Kind.COUNT
        granted: dict[str, int] = {}
        for name in entry.device_ids:
            uuid = parse_id(name)[0]
            shared = shares.by_uuid(uuid)
            if shared is not None:
                granted[uuid] = shared.gpu.total_mib if whole else granted.get(uuid, 0) + shares.share_mib
        if granted:
            found.append(Holding(entry.pod_uid, entry.container, granted, whole, entry.rung, pod))
    return tuple(found)
