"""Which MIG instances the containers of pods hold, how their pods show that, and which of them exist no more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares, parse_id

INSTANCE = "MIG-"
"""The beginning of the UUID of an instance."""


def instances_by_pod(allocations: Iterable[Allocation]) -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Return the UUIDs of the whole instances of each container, by the UID of its pod and its name."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for allocation in allocations:
        if allocation.kind is Kind.INSTANCE:
            held = found.setdefault(allocation.pod_uid, {})
            held[allocation.container] = held.get(allocation.container, frozenset()) | allocation.device_ids
    return found


@dataclass(frozen=True, slots=True)
class Stranded:
    """A container that holds an instance which exists no more."""

    pod_uid: str
    container: str
    uuid: str
    """Of the instance."""
    name: str
    """The instance for people; empty: an earlier agent gave it, and nothing but its UUID is known."""
    pod: Pod | None
    """None: not known (yet), or the agent runs without the API."""

    @property
    def sentence(self) -> str:
        """The finding, for the owner of the pod."""
        which = f"{self.name} ({self.uuid})" if self.name else self.uuid
        return (
            f"container {self.container} was given {which}, a MIG instance that exists no more: "
            "delete the pod, so that it gets another"
        )


def stranded(
    allocations: Iterable[Allocation], there: Collection[str], shares: Shares, pods: Mapping[str, Pod]
) -> tuple[Stranded, ...]:
    """Return the containers of a node that hold instances which exist no more.

    `there` are the UUIDs of all GPUs and instances of the node, those included that cannot be read; `pods` those that
    have not ended, by the UID by which the kubelet knows them.
    """
    return tuple(
        Stranded(
            allocation.pod_uid,
            allocation.container,
            uuid,
            "" if shared is None else shared.name,
            pods.get(allocation.pod_uid),
        )
        for allocation in allocations
        for uuid in sorted({parse_id(device)[0] for device in allocation.device_ids})
        if uuid.startswith(INSTANCE) and uuid not in there
        for shared in (shares.by_uuid(uuid),)
    )


# --- The annotation by which people and their tools see the instances of a pod ----------------------------------------
