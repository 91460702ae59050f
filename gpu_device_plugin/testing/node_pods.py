"""The pods of a node, which outlive its kubelet's process, and what still runs of those that are gone."""

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
        """Hold none."""
        self.in_api: dict[str, Pod] = {}
        self.left_behind: dict[str, Pod] = {}
        """Pods that are gone from the API while their processes are not, or while their containers are starting."""
        self.starting: set[str] = set()
        """UIDs of the pods whose containers are being started."""

    @property
    def oldest_first(self) -> tuple[Pod, ...]:
        """All pods in the API."""
        return tuple(sorted(self.in_api.values(), key=lambda each: each.created))

    def known(self, uid: str) -> Pod | None:
        """Return a pod, even one that is gone from the API while something of it is left; None: there is none."""
        return self.in_api.get(uid) or self.left_behind.get(uid)

    def put(self, pod: Pod) -> Pod:
        """Keep a pod as it is now."""
        self.in_api[pod.uid] = pod
        return pod

    def put_container(self, uid: str, container: Container) -> None:
        """Keep a container as it is now. KeyError: nothing is left of its pod."""
        pods = self.in_api if uid in self.in_api else self.left_behind
        pod = pods[uid]
        pods[uid] = replace(pod, containers=tuple(container if c.name == container.name else c for c in pod.containers))

    def remove(self, uid: str, *, force: bool) -> Pod:
        """Take a pod from the API, and return what is left of it; with `force` its processes run on."""
        gone = self.in_api.pop(uid)
        if force and (gone.process_running or gone.uid in self.starting):
            self.left_behind[gone.uid] = gone
            return gone
        return stopped(gone)


def stopped(pod: Pod) -> Pod:
    """Return a pod of which no process runs."""
    return replace(
        pod, containers=tuple(replace(container, started=False, running=False) for container in pod.containers)
    )


def shortage(pod: Pod, others: Iterable[Pod], room: Mapping[str, int]) -> tuple[str, str] | None:
    """Return reason and message where a pod does not fit beside others; None: it does.

    The check of the scheduler, done once more by the kubelet. Resources that are missing in `room` are nobody's:
    without a plugin's first registration a pod runs without its devices.
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
