"""`kubectl inspect gpushare cordon` and `uncordon`: an administrator puts GPUs aside, and takes them back into use."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.commandline import FAILED, OK
from gpu_device_plugin.features.capacity.arrangement import Arrangement
from gpu_device_plugin.features.capacity.commands import arranged, confirmed, details
from gpu_device_plugin.features.capacity.report import staying_lines
from gpu_device_plugin.features.capacity.rules.plans import Drain, drain, on_gpus
from gpu_device_plugin.kubernetes.client.errors import ApiError, NotFoundError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NodeReader
from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
from gpu_device_plugin.model.contract.cordons import LONGEST_REASON, Cordon, cordon_of, read_cordons, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS, MalformedAnnotationError
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.report.commands import DRY_RUN, YES, Command, Output, argument, refusal, switch, valued
from gpu_device_plugin.report.rules.held_instances import InstancePod
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.printing import counted, first, gpu_names, short_uuid
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node, with_cordons
from gpu_device_plugin.settings.knobs import UsageError

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


async def cordon(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Put the GPU in the arguments aside, move its pods if they say so, and return what was done, with the exit code.

    Raises:
        ClusterUnreadableError: the node cannot be read or changed, or has no such GPU.
        ApiError: the cluster cannot be read.
    """
    name, mark = arguments.node, Cordon(await access.user(), rfc3339(time.time()), arguments.reason)
    before, target = await _read(access, name, arguments.gpu)
    if (there := cordon_of(before, target.uuid, target.members[0].card if target.members else "")) is not None:
        more = "; uncordon it first to give another reason" if arguments.reason not in {"", there.why} else ""
        cordons, lines = before, [f"{target} of {name} is already {there}{more}."]
    else:
        cordons = {**before, target.uuid: mark}
        if not arguments.dry_run:
            cordons = await _write(access, name, lambda now: now if target.uuid in now else {**now, target.uuid: mark})
        would = "would be" if arguments.dry_run else "is"
        lines = [f"{target} of {name} {would} {cordons.get(target.uuid, mark)}."]
        if not arguments.dry_run:
            lines.append("The scheduler extender sends no more pods there; the node's agent follows within a minute.")
    if not arguments.drain:
        return lines, OK
    marks = {CORDONS: _text(cordons) or ""}

    def as_if(view: NodeView) -> NodeView:
        if view.name != name:
            return view
        return replace(view, candidate=replace(view.candidate, gpus=with_cordons(view.candidate.gpus, marks)))

    views, found = await arranged(access, resources, arguments.parts.kind, as_if)
    pods = [pod for view in views if view.name == name for pod in view.instance_pods]
    made, staying = _drain(found, name, target, pods)
    if not made.moves and not staying:
        return [*lines, "No pod there has to be moved."], OK
    goal = f"{counted(len(made.moves), 'move')} to drain it." if made.moves else "No pod there can be moved."
    shown = [*lines, goal, *details(found.sites, made.moves, made.then, staying)]
    if not made.moves or arguments.dry_run:
        return shown, FAILED if staying and not arguments.dry_run else OK
    after, code = await confirmed(arguments, access, resources, made.moves, shown)
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


async def uncordon(arguments: argparse.Namespace, access: Access, _: Sequence[Resource]) -> Output:
    """Take the GPU in the arguments back into use, an instance too that has a cordon of its own; see `cordon`."""
    name = arguments.node
    before, target = await _read(access, name, arguments.gpu)
    gone = {target.uuid, *(gpu.uuid for gpu in target.members)} & before.keys()
    if gone:
        if not arguments.dry_run:
            await _write(access, name, lambda now: {uuid: mark for uuid, mark in now.items() if uuid not in gone})
        marks = "; ".join(str(before[uuid]) for uuid in sorted(gone))
        takes = "would take" if arguments.dry_run else "takes"
        return [f"{target} of {name} {takes} new pods again within a minute. It was {marks}."], OK
    card = next((gpu.card for gpu in target.members), "")
    if card in before:
        raise ClusterUnreadableError(
            f"{target} of {name} is {before[card]} with its whole GPU: uncordon that one, {card}"
        )
    return [f"{target} of {name} is not cordoned."], OK


# --- The node's cordons -----------------------------------------------------------------------------------------------


async def _read(access: Access, name: str, gpu: str) -> tuple[Mapping[str, Cordon], _Target]:
    try:
        node = NodeReader().read(await access.get(NODES, name))
    except ApiError as error:
        lists = "kubectl get nodes lists the nodes" if isinstance(error, NotFoundError) else ""
        raise ClusterUnreadableError(f"node {name} cannot be read: {refusal(error, lists)}") from error
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
            f"{error}, so nobody can tell which GPUs of {node.name} are cordoned; look at it, then remove it: "
            f"kubectl annotate node {node.name} {CORDONS}-"
        ) from error


def _text(cordons: Mapping[str, Cordon]) -> str | None:
    try:
        return write_cordons(cordons)
    except MalformedAnnotationError as error:
        raise ClusterUnreadableError(f"the cordon cannot be written: {error}") from error


async def _write(
    access: Access, name: str, change: Callable[[Mapping[str, Cordon]], Mapping[str, Cordon]]
) -> Mapping[str, Cordon]:
    """Change the cordons of a node as it is now; return them."""
    try:
        return _cordons(await OwnNode(access.client, name).change_cordons(change))
    except NotFoundError as error:
        raise ClusterUnreadableError(f"the cordon cannot be written: node {name} is gone") from error
    except (ApiError, MalformedAnnotationError) as error:
        raise ClusterUnreadableError(f"the cordon cannot be written: {refusal(error)}") from error


def _check(arguments: argparse.Namespace) -> None:
    if arguments.yes and not arguments.drain:
        raise UsageError("--yes: there is nothing to confirm; write --drain too, or leave it out")


_GPU = (
    argument("node", metavar="NODE"),
    argument("gpu", metavar="GPU", help="its number, UUID or the beginning of one, as tables show them"),
)

CORDON = Command(
    "cordon",
    "keep new pods off a GPU, and optionally move its pods away",
    cordon,
    (
        *_GPU,
        argument(
            "--reason",
            type=valued(
                str,
                lambda text: len(text) <= LONGEST_REASON and text.isprintable(),
                f"write one line of at most {LONGEST_REASON} characters",
            ),
            default="",
            metavar="TEXT",
            help="why the GPU is cordoned, for all to read",
        ),
        switch("--drain", "also move the pods on the GPU elsewhere, as plan does"),
        YES,
        DRY_RUN,
    ),
    _check,
)
UNCORDON = Command("uncordon", "let new pods use the GPU again", uncordon, (*_GPU, DRY_RUN))
