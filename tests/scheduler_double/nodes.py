"""Pods and nodes as kube-scheduler counts them: what a pod takes, and why a node has no room for it.

Of a node it looks at no more than its extended resources, its cordon and its labels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_device_plugin.kubernetes.objects.quantity import whole_quantity
from tests.builders import Json

EXTENDER, FIT, AFFINITY, CORDON = "extender", "NodeResourcesFit", "NodeAffinity", "NodeUnschedulable"
"""The plugins that refuse."""


@dataclass(frozen=True, slots=True)
class Status:
    """Why a node was not taken."""

    text: str
    resolvable: bool = True
    """Evicting pods might help."""
    by: str = EXTENDER
    """The plugin that said so."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and the pods that count on it: bound there and not ended, or assumed to be bound."""

    body: Json
    pods: tuple[Json, ...]
    allocatable: Mapping[str, int]
    used: Mapping[str, int]

    @property
    def name(self) -> str:
        """Of the node."""
        return str(self.body["metadata"]["name"])


def node_of(body: Json, pods: Sequence[Json]) -> Node:
    """Return a node, with the pods that count on it."""
    used: Counter[str] = Counter()
    for pod in pods:
        used.update(requests(pod))
    amounts = body.get("status", {}).get("allocatable", {})
    allocatable = {name: amount for name, text in amounts.items() if (amount := whole_quantity(str(text))) is not None}
    return Node(body, tuple(pods), allocatable, used)


def requests(pod: Json) -> Mapping[str, int]:
    """Return what a pod takes at its peak of each extended resource. Sidecars run on while later containers start."""
    kept: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in containers(pod):
        wanted = Counter(dict(_wanted(container)))
        peak |= kept + wanted
        if container["kept"]:
            kept += wanted
    return peak | kept


def _wanted(container: Json) -> Iterator[tuple[str, int]]:
    resources = container.get("resources", {})
    for name, text in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
        if "/" in name:
            yield name, whole_quantity(str(text)) or 0


def containers(pod: Json) -> Iterator[Json]:
    """Yield the containers in the order in which they start, with `kept`: whether others start while this one runs."""
    for container in pod["spec"].get("initContainers") or ():
        yield {**container, "kept": container.get("restartPolicy") == "Always"}
    for container in pod["spec"]["containers"]:
        yield {**container, "kept": True}


def full_name(pod: Json) -> str:
    """Return a pod's namespace and name."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def priority(pod: Json) -> int:
    """Return how important a pod is; most are 0."""
    return pod["spec"].get("priority") or 0


def nomination(pod: Json) -> str:
    """Return the node on which others were evicted for a pod; empty: none were."""
    return str(pod["status"].get("nominatedNodeName") or "")


def counts_on_a_node(pod: Json | None) -> bool:
    """Whether a pod counts on a node. One that waits for those to end who were evicted for it counts there, too."""
    return pod is not None and not ended(pod) and bool(pod["spec"].get("nodeName") or nomination(pod))


def started(pod: Json) -> str:
    """Return since when a pod runs, or else is there."""
    return str(pod["status"].get("startTime") or pod["metadata"]["creationTimestamp"])


def ended(pod: Json) -> bool:
    """Whether all its containers are done."""
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


def evicted(pod: Json) -> bool:
    """Whether a pod goes since a scheduler wanted its place."""
    told: Json = next((each for each in pod["status"].get("conditions", []) if each["type"] == "DisruptionTarget"), {})
    return "deletionTimestamp" in pod["metadata"] and told.get("reason") == "PreemptionByScheduler"


def unfit(pod: Json, node: Node, nominated: Iterable[Json]) -> Status | None:
    """Return why the scheduler itself does not take a node, None if it would.

    Args:
        pod: whose place is looked for.
        node: where.
        nominated: pods for which others were evicted from this node, and which are not there yet.
    """
    if node.body["spec"].get("unschedulable"):
        return Status("node(s) were unschedulable", resolvable=False, by=CORDON)
    labels = node.body["metadata"].get("labels", {})
    if not pod["spec"].get("nodeSelector", {}).items() <= labels.items():
        return Status("node(s) didn't match Pod's node affinity/selector", resolvable=False, by=AFFINITY)
    used = Counter(node.used)
    for other in nominated:
        if other["metadata"]["uid"] != pod["metadata"]["uid"] and priority(other) >= priority(pod):
            used.update(requests(other))
    for resource, wanted in sorted(requests(pod).items()):
        if wanted and wanted > node.allocatable.get(resource, 0) - used[resource]:
            resolvable = wanted <= node.allocatable.get(resource, 0)
            return Status(f"Insufficient {resource}", resolvable=resolvable, by=FIT)
    return None
