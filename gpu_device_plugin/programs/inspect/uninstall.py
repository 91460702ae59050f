"""`kubectl inspect gpushare uninstall`: remove from nodes what sharing left there, and say what was removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.cluster.api import ObjectMeta, Page, UnreadableObjectError
from gpu_device_plugin.cluster.quantity import whole_quantity
from gpu_device_plugin.core.contract.cleanup import Leftovers, leftovers
from gpu_device_plugin.core.contract.keys import SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.programs.inspect.kubectl import ClusterUnreadableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.programs.inspect.kubectl import Kubectl

_AGENTS = "/api/v1/pods?labelSelector=app.kubernetes.io/name%3Dgpushare,app.kubernetes.io/component%3Dnode"
_KUBELET_FORGETS = (
    "its kubelet knows the agent for five minutes after that has ended, and writes the capacity again until then: "
    "run this once more afterwards"
)


class _Status(msgspec.Struct):
    capacity: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: ObjectMeta
    status: _Status = msgspec.field(default_factory=_Status)


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec


def uninstall(
    kubectl: Kubectl,
    raw_nodes: Iterable[msgspec.Raw],
    resources: Sequence[Resource],
    *,
    labelled_too: bool,
    dry_run: bool,
) -> tuple[list[str], bool]:
    """Remove what is left on these nodes; return a line for each, and whether all went well.

    Args:
        kubectl: through which to change them.
        raw_nodes: the nodes as JSON.
        resources: what was shared.
        labelled_too: end sharing also where it goes on: the label is removed with all else.
        dry_run: say only what would be done.

    Raises:
        ClusterUnreadableError: it cannot be read where agents run.
    """
    agents = _agents(kubectl)
    told: list[str] = []
    well = True
    for left in filter(None, _read(raw_nodes, resources)):
        if left.labelled and not labelled_too:
            told.append(
                f"{left.node}: left alone, it is labelled {SWITCH_LABEL}={SWITCHED_ON}; to end sharing there: "
                f"kubectl label node {left.node} {SWITCH_LABEL}-"
            )
        elif left.node in agents and not left.labelled:
            told.append(f"{left.node}: left alone, the agent {agents[left.node]} runs there; end that first")
        elif dry_run:
            told.append(f"{left.node}: would remove {left}")
        else:
            try:
                _remove(kubectl, left)
            except ClusterUnreadableError as error:
                well = False
                told.append(f"{left.node}: not all was removed: {error}")
                continue
            again = f"; {_KUBELET_FORGETS}" if any(left.capacity.values()) else ""
            told.append(f"{left.node}: removed {left}{again}")
    return told or ["Nothing is left to be removed."], well


def _remove(kubectl: Kubectl, left: Leftovers) -> None:
    if left.metadata_patch:
        kubectl.patch("node", left.node, left.metadata_patch)
    if left.status_patch:
        kubectl.patch("node", left.node, left.status_patch, subresource="status")


def _read(raw_nodes: Iterable[msgspec.Raw], resources: Sequence[Resource]) -> Iterator[Leftovers]:
    for raw in raw_nodes:
        try:
            node = msgspec.json.decode(raw, type=_Node)
        except msgspec.DecodeError as error:
            raise UnreadableObjectError(f"not a node: {error}") from None
        amounts = ((name, whole_quantity(text)) for name, text in (node.status.capacity or {}).items())
        yield leftovers(
            node.metadata.name,
            node.metadata.labels or {},
            node.metadata.annotations or {},
            {name: amount for name, amount in amounts if amount is not None},
            [resource.name for resource in resources],
        )


def _agents(kubectl: Kubectl) -> dict[str, str]:
    """Return by node the pod of the agent that runs there."""
    try:
        pods = [
            msgspec.json.decode(raw, type=_Pod)
            for raw in msgspec.json.decode(kubectl.raw(_AGENTS), type=Page).items or ()
        ]
    except msgspec.DecodeError as error:
        raise UnreadableObjectError(f"not a list of pods: {error}") from None
    return {pod.spec.node_name: f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods}
