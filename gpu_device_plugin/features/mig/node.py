"""Annotate pods with the MIG instances that they hold, and tell of those that hold instances which exist no more."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import INSTANCES
from gpu_device_plugin.model.contract.promises import write_instances
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares, parse_id
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext

_log = logging.getLogger(__name__)

INSTANCE = "MIG-"
"""The beginning of the UUID of an instance."""


class InstancesOfPods(NodeFeature):
    """Compares the instances that containers hold with those on their pods, and with those that exist."""

    def __init__(self, node: NodeContext) -> None:
        """Look at `node`."""
        self._config, self._entries, self._records, self._api = node.config, node.entries, node.records, node.api
        self._checkpoint = node.checkpoint_entries
        self._told: frozenset[tuple[str, str, str]] = frozenset()
        self._requested: dict[str, str | None] = {}
        """The annotation last requested for each pod, by UID, until the pod shows it."""

    def tasks(self) -> Tasks:  # noqa: D102
        return [
            self._config.follow(self._look),
            self._entries.follow(self._holders_changed),
            self._api.node.follow(self._look),
            self._checkpoint.follow(self._annotate),
            self._api.pod_changes.follow(self._annotate),
        ]

    def _annotate(self, _new: object = None) -> None:
        """Let each pod say which instances it holds, and none say more: its owner may have written the annotation."""
        if not self._checkpoint.version:  # the kubelet's checkpoint is not read yet
            return
        instances, before, self._requested = instances_by_pod(self._checkpoint.value), self._requested, {}
        for uid, pod in self._api.pods.items():
            held = instances.get(pod.kubelet_uid)
            text = None if held is None else write_instances(held)
            if not pod.ended and text != pod.annotations.get(INSTANCES):
                self._requested[uid] = text
                if uid not in before or before[uid] != text:
                    self._api.annotate(pod, {INSTANCES: text})

    def _holders_changed(self, _new: object) -> None:
        if any(shared.gpu.instance is not None for shared in self._config.value.shares.gpus) or any(
            device.startswith(INSTANCE) for entry in self._entries.value for device in entry.device_ids
        ):
            self._look()

    def _look(self, _new: object = None) -> None:
        """Look at the present state. A pod that the API shows only later is told of again, with its name."""
        config, ended = self._config.value, self._records.over
        if not config.facts.watched:
            return
        held = [
            allocation
            for allocation in self._entries.value
            if allocation.kind is not None and allocation.pod_uid not in ended
        ]
        present = {gpu.uuid for gpu in config.facts.inventory.gpus}
        alive = {pod.kubelet_uid: pod for pod in self._api.pods.values() if not pod.ended}
        strandings = {
            (one.pod_uid if one.pod is None else one.pod.name, one.container, one.uuid): one
            for one in stranded(held, present, config.shares, alive)
        }
        for key, one in strandings.items():
            if key not in self._told:
                self._tell(one)
        self._told = frozenset(strandings)

    def _tell(self, found: Stranded) -> None:
        pod = found.pod or f"the pod with the UID {found.pod_uid}"
        _log.warning("%s: %s", pod, found.sentence)
        self._api.event("MigInstanceGone", f"{pod}: {found.sentence}.", "Observe")
        if found.pod is not None:
            self._api.event("MigInstanceGone", f"{found.sentence}.", "Observe", pod=found.pod)


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
            f"container {self.container} was allocated {which}, a MIG instance that no longer exists; delete the pod "
            "so that it gets another"
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
