"""The pods of a node, which outlive its kubelet's process, including deleted pods with running containers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.testing.pods import effective_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.testing.pods import Container, Pod


class NodePods:
    """Pods by UID."""

    def __init__(self) -> None:
        """Start without pods."""
        self.in_api: dict[str, Pod] = {}
        self.left_behind: dict[str, Pod] = {}
        """Pods that were deleted from the API while their processes run, or while their containers are starting."""
        self.starting: set[str] = set()
        """UIDs of the pods with starting containers."""

    @property
    def oldest_first(self) -> tuple[Pod, ...]:
        """All pods in the API."""
        return tuple(sorted(self.in_api.values(), key=lambda each: each.created))

    def known(self, uid: str) -> Pod | None:
        """Return a pod, including one of `left_behind`; None if there is none."""
        return self.in_api.get(uid) or self.left_behind.get(uid)

    def put(self, pod: Pod) -> Pod:
        """Store a pod's current state."""
        self.in_api[pod.uid] = pod
        return pod

    def put_container(self, uid: str, container: Container) -> None:
        """Store a container's current state. KeyError: its pod does not exist, even in `left_behind`."""
        pods = self.in_api if uid in self.in_api else self.left_behind
        pod = pods[uid]
        pods[uid] = replace(pod, containers=tuple(container if c.name == container.name else c for c in pod.containers))

    def remove(self, uid: str, *, force: bool) -> Pod:
        """Delete a pod from the API and return its last state; with `force` its processes keep running."""
        gone = self.in_api.pop(uid)
        if force and (gone.process_running or gone.uid in self.starting):
            self.left_behind[gone.uid] = gone
            return gone
        return stopped(gone)


def stopped(pod: Pod) -> Pod:
    """Return the pod with all its containers stopped."""
    return replace(
        pod, containers=tuple(replace(container, started=False, running=False) for container in pod.containers)
    )


def shortage(pod: Pod, others: Iterable[Pod], room: Mapping[str, int]) -> tuple[str, str] | None:
    """Return reason and message if a pod does not fit beside the others; None if it fits.

    The kubelet repeats this check of the scheduler. Resources that are missing in `room` are not checked: before a
    plugin's first registration a pod runs without its devices.
    """
    others = tuple(others)
    for resource, requested in effective_requests(pod.spec).items():
        if not requested or resource not in room:
            continue
        used = sum(effective_requests(other.spec).get(resource, 0) for other in others)
        if used + requested > room[resource]:
            message = (
                f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, "
                f"capacity: {room[resource]}"
            )
            return f"OutOf{resource}", message
    return None
