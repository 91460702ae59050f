"""`kubectl inspect gpushare cordon`: let no new pod have a GPU, and move away those there, until it is uncordoned."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import NODES, NodeReader
from gpu_device_plugin.core.capacity.plans import drain, on_gpus
from gpu_device_plugin.core.cluster.candidate import gpus_of_node, with_cordons
from gpu_device_plugin.core.report.text.plan_texts import staying_lines
from gpu_device_plugin.core.report.text.printing import counted, first, gpu_names, short_uuid
from gpu_device_plugin.model.contract.cordons import Cordon, cordon_of, read_cordons, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS, MalformedAnnotationError
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.programs.commandline import FAILED, OK
from gpu_device_plugin.programs.inspect.plan import arranged, confirmed, details
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, unread

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.cluster.objects.decoding import NodeRecord
    from gpu_device_plugin.core.capacity.plans import Drain
    from gpu_device_plugin.core.cluster.held_instances import InstancePod
    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.report.text.columns import Line
    from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.inspect.plan import Reader
    from gpu_device_plugin.programs.kubectl import Kubectl
    from gpu_device_plugin.view.movable_pods import Arrangement

_ATTEMPTS = 5
_CONFLICT = "(Conflict)"
"""In kubectl's message where the object is not as it was read."""
_ALL = ":all"
"""After the number of a GPU in MIG mode, as in ``0:all``."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A GPU or MIG instance, or a GPU in MIG mode with all its instances."""

    uuid: str
    members: tuple[ListedGpu, ...]
    """Those that the node lists, by position; none: it is gone."""

    def __str__(self) -> str:
        return gpu_names(self.members) if self.members else f"GPU {self.uuid}"


def cordon(
    arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource], of: Reader
) -> tuple[Sequence[str | Line], int]:
    """Put the GPU in the arguments aside, move its pods if they say so, and return what was done, with the exit code.

    `of` returns the cluster of nodes and pods.

    Raises:
        ClusterUnreadableError: the node cannot be read or changed, or has no such GPU.
    """
    name, mark = arguments.node, Cordon(kubectl.user(), rfc3339(time.time()), arguments.reason)
    before, target = _read(kubectl, name, arguments.gpu)
    if (there := cordon_of(before, target.uuid, target.members[0].card if target.members else "")) is not None:
        more = "; uncordon it first to give another reason" if arguments.reason not in {"", there.why} else ""
        cordons, lines = before, [f"{target} of {name} is already {there}{more}."]
    else:
        cordons = {**before, target.uuid: mark}
        if not arguments.dry_run:
            cordons = _write(kubectl, name, lambda now: now if target.uuid in now else {**now, target.uuid: mark})
        would = "would be" if arguments.dry_run else "is"
        lines = [f"{target} of {name} {would} {cordons[target.uuid]}."]
        if not arguments.dry_run:
            lines.append(
                "The scheduler extender sends no pod there any more; the node's agent follows within a minute."
            )
    if not arguments.drain:
        return lines, OK
    marks = {CORDONS: _text(cordons) or ""}

    def as_if(view: NodeView) -> NodeView:
        if view.name != name:
            return view
        return replace(view, candidate=replace(view.candidate, gpus=with_cordons(view.candidate.gpus, marks)))

    views, found = arranged(kubectl, resources, of, as_if)
    pods = [pod for view in views if view.name == name for pod in view.instance_pods]
    made, staying = _drain(found, name, target, pods)
    if not made.moves and not staying:
        return [*lines, "No pod there has to be moved."], OK
    goal = f"{counted(len(made.moves), 'move')} to drain it." if made.moves else "No pod there can be moved."
    shown = [*lines, goal, *details(found.sites, made.moves, made.then, staying)]
    if not made.moves or arguments.dry_run:
        return shown, FAILED if staying and not arguments.dry_run else OK
    after, code = confirmed(arguments, kubectl, resources, made.moves, shown)
    return after, FAILED if staying else code


def _drain(
    found: Arrangement, node: str, target: _Target, instance_pods: Iterable[InstancePod]
) -> tuple[Drain, list[str]]:
    """Return the moves off a GPU that is put aside, and the pods that stay, by reason."""
    positions, uuids = [gpu.position for gpu in target.members], {gpu.uuid for gpu in target.members}
    made = drain(found.sites, node, positions, found.budgets)
    here = [replace(site, residents=tuple(on_gpus(site, positions))) for site in found.sites if site.node.name == node]
    staying = staying_lines(here)
    if made.stuck:
        staying.append(f"  there is no room for it elsewhere: {first(sorted(map(str, made.stuck)))}")
    if whole := sorted(f"{pod.namespace}/{pod.name}" for pod in instance_pods if pod.held & uuids):
        staying.append(f"  it has a whole MIG instance, and such pods are not moved: {first(whole)}")
    return made, staying


def uncordon(
    arguments: argparse.Namespace, kubectl: Kubectl, _resources: Sequence[Resource]
) -> tuple[Sequence[str | Line], int]:
    """Take the GPU in the arguments back into use, an instance too that has a cordon of its own; see `cordon`."""
    name = arguments.node
    before, target = _read(kubectl, name, arguments.gpu)
    gone = {target.uuid, *(gpu.uuid for gpu in target.members)} & before.keys()
    if gone:
        if not arguments.dry_run:
            _write(kubectl, name, lambda now: {uuid: mark for uuid, mark in now.items() if uuid not in gone})
        marks = "; ".join(str(before[uuid]) for uuid in sorted(gone))
        takes = "would take" if arguments.dry_run else "takes"
        return [f"{target} of {name} {takes} new pods again within a minute. It was {marks}."], OK
    card = next((gpu.card for gpu in target.members), "")
    if card in before:
        raise ClusterUnreadableError(
            f"{target} of {name} is {before[card]} with its whole GPU: uncordon that one, {card}"
        )
    return [f"{target} of {name} is not cordoned."], OK


# --- The node ---------------------------------------------------------------------------------------------------------


def _read(kubectl: Kubectl, name: str, gpu: str) -> tuple[Mapping[str, Cordon], _Target]:
    try:
        node = NodeReader().read(kubectl.one(NODES.path(name=name)))
    except ClusterUnreadableError as error:
        raise ClusterUnreadableError(
            f"node {name} cannot be read, and kubectl's message stands above; kubectl get nodes lists the nodes"
        ) from error
    cordons = _cordons(node)
    gpus = gpus_of_node(node.annotations, node.labels, 0, 0)
    target = _target(gpus, gpu)
    if target is not None:
        return cordons, target
    if gpu in cordons:
        return cordons, _Target(gpu, ())
    listed = ", ".join(f"{gpu_names([each])} ({short_uuid(each.uuid)})" for each in gpus.all if each.uuid)
    raise ClusterUnreadableError(
        f"node {name} has no GPU {gpu}; it has {listed}"
        if listed
        else f"node {name} lists no GPUs by UUID: its device plugin is another, or has not started"
    )


def _target(gpus: NodeGpus, word: str) -> _Target | None:
    """Return the GPU of this position, UUID, beginning of a UUID as tables show it, or number of a MIG instance."""
    listed = [gpu for gpu in gpus.all if gpu.uuid]
    for gpu in listed:
        if word in {str(gpu.position), gpu.uuid, "" if gpu.instance is None else gpu.instance.label}:
            return _Target(gpu.uuid, (gpu,))
    inside = [
        gpu for gpu in listed if gpu.instance is not None and word in {gpu.instance.parent, f"{gpu.instance.gpu}{_ALL}"}
    ]
    if inside:
        return _Target(inside[0].card, tuple(inside))
    short = [gpu for gpu in listed if short_uuid(gpu.uuid) == word]
    return _Target(short[0].uuid, (short[0],)) if len(short) == 1 else None


def _cordons(node: NodeRecord) -> Mapping[str, Cordon]:
    try:
        return read_cordons(node.annotations[CORDONS]) if CORDONS in node.annotations else {}
    except MalformedAnnotationError as error:
        raise ClusterUnreadableError(
            f"{error}, so nobody can tell which GPUs of {node.name} were put aside; look at it, then remove it: "
            f"kubectl annotate node {node.name} {CORDONS}-"
        ) from error


def _text(cordons: Mapping[str, Cordon]) -> str | None:
    try:
        return write_cordons(cordons)
    except MalformedAnnotationError as error:
        raise ClusterUnreadableError(f"the cordon cannot be written: {error}") from error


def _write(
    kubectl: Kubectl, name: str, change: Callable[[Mapping[str, Cordon]], Mapping[str, Cordon]]
) -> Mapping[str, Cordon]:
    """Change the cordons of a node as it is now; return them. If it changes in between, this is done again."""
    left = _ATTEMPTS
    while True:
        left -= 1
        node = NodeReader().read(kubectl.raw(NODES.path(name=name)))
        cordons = change(_cordons(node))
        there = {"uid": node.uid, "resourceVersion": node.resource_version}
        body = {"metadata": {**there, "annotations": {CORDONS: _text(cordons)}}}
        try:
            kubectl.patch("node", name, body)
        except ClusterUnreadableError as error:
            if _CONFLICT not in str(error) or not left:
                raise ClusterUnreadableError(f"the cordon cannot be written: {unread(error)}") from error
        else:
            return cordons
