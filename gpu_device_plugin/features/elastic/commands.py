"""`kubectl inspect gpushare resize`: a user changes the memory of a running container."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile

from gpu_device_plugin.commandline import FAILED, OK
from gpu_device_plugin.features.elastic.contract import IN_CONTAINER, Allowance, Size, Wish, read_wish, write_wish
from gpu_device_plugin.features.elastic.report import (
    gpu_of,
    not_resizable,
    of_size,
    settled,
    unreadable_wishes,
    why_not,
)
from gpu_device_plugin.features.elastic.rules.promising import sizes
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.api_objects import Named
from gpu_device_plugin.kubernetes.objects.decoding import NAMESPACES, NODES, PODS, decoded
from gpu_device_plugin.kubernetes.objects.pod_details import pod_and_status
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT, RESIZE_BOUND
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.commands import (
    CONTROLLERS,
    NAMESPACE,
    PODS_OF_KUBECTL,
    Command,
    Output,
    argument,
    named_pod,
    switch,
    unread,
)
from gpu_device_plugin.report.followed_cluster import cluster
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.printing import counted
from gpu_device_plugin.scheduler.rules.usage import growable
from gpu_device_plugin.settings.knobs import UsageError

PATIENCE_S, _EVERY_S = 15.0, 0.5
_AGAIN = "the request remains, and is retried within a minute"
_EDIT = (
    "an administrator grants it, for example with kubectl -n {namespace} create rolebinding edit-USER "
    "--clusterrole=edit --user=USER"
)


async def resize(
    arguments: argparse.Namespace, access: Access, resources: Sequence[Resource], patience_s: float = PATIENCE_S
) -> Output:
    """Write the wishes in the arguments on a pod, wait for the answers, and return what holds, with the exit code.

    Raises:
        ClusterUnreadableError: the pod cannot be read, resized or changed.
        ApiError: the pod cannot be read again.
    """
    namespace = arguments.namespace or access.namespace
    pod, status = await named_pod(access, namespace, arguments.pod, resources)
    name = f"{namespace}/{pod.name}"
    if why := not_resizable(pod, resources, arguments.container, claims=bool(status.claims)):
        raise ClusterUnreadableError(f"{name} cannot be resized: {why}")
    container = arguments.container or next(iter(growable(pod, resources)))
    node = await _node_of(access, pod, resources)
    size = _size(pod, resources, container)
    if why := _too_large(arguments, size, node):
        raise ClusterUnreadableError(f"{name} cannot be resized: {why}")
    notes: list[str] = []
    if patch := _changes(arguments, pod, container, resources):
        await _write(access, pod, patch, (arguments.amount or 0) - size.request)
        if pod.annotations.keys().isdisjoint({MEMORY_GUARANTEE, MEMORY_LIMIT}):
            notes.append(f"The container has no {IN_CONTAINER}; only pods created with these annotations get it.")
        pod = await _answered(access, pod, resources, container, patience_s)
        size = _size(pod, resources, container)
    if patch and status.controller:
        notes.append(f"This lasts as long as the pod: other pods of {status.controller} get what their template says.")
    found = [*map(str, of_size(pod, size, node)), *map(str, unreadable_wishes(pod)), *notes]
    found += [f"Ignored: {ignored}." for ignored in status.ignored]
    why = why_not(pod, size)
    if size.held < size.target:
        found += await _allow(access, namespace, size, why)
    if not settled(why):
        found.append(
            f"No answer yet; the request remains. Check that the agent runs on {pod.node_name} (kubectl inspect "
            "gpushare doctor), then repeat the command without an amount."
        )
    return [f"{name}: {found[0]}", *found[1:]], FAILED if why else OK


async def _node_of(access: Access, pod: Pod, resources: Sequence[Resource]) -> NodeView | None:
    """Return the node of a pod, without its pods; None: the user may not read it, or it shares no GPUs."""
    try:
        raw = await access.get(NODES, pod.node_name)
    except ApiError:
        return None
    return next(iter(cluster([raw], (), resources)[0].views), None)


def _too_large(arguments: argparse.Namespace, size: Size, node: NodeView | None) -> str:
    """Return why its GPU can never give a container as much; empty: it can, as far as is known."""
    gpu = gpu_of(size, node)
    if gpu is None:
        return ""
    if gpu.instance is not None:
        return "it has shares of a MIG instance, which can neither grow nor borrow"
    most = max(arguments.amount or 0, arguments.limit or 0)
    return f"{most} is more than its GPU has: {counted(gpu.shares, 'share')}" if most > gpu.shares else ""


def _changes(
    arguments: argparse.Namespace, pod: Pod, container: str, resources: Sequence[Resource]
) -> Mapping[str, str | None]:
    """Return the annotations of the pod to write, and those to remove: None. Other containers keep their wishes."""
    wishes = {MEMORY_GUARANTEE: arguments.amount, MEMORY_LIMIT: arguments.limit}
    every = growable(pod, resources)
    changes: dict[str, str | None] = {}
    for key, shares in wishes.items():
        if shares is None and not arguments.clear:
            continue
        before = read_wish(pod.annotations, key)
        by_name = {name: wish for name in {*every, *before.containers} if (wish := before.of(name)) is not None}
        by_name.pop(container, None)
        if shares is not None and len(every) == 1 and not before.containers:
            changes[key] = write_wish(Wish(shares))
        elif shares is not None:
            changes[key] = write_wish(Wish(containers=by_name | {container: shares}))
        elif key in pod.annotations:
            changes[key] = write_wish(Wish(containers=by_name)) if by_name else None
    return changes


async def _write(access: Access, pod: Pod, annotations: Mapping[str, str | None], growth: int) -> None:
    body = {"metadata": {"annotations": annotations}}
    try:
        await access.client.patch(PODS, pod.name, body, namespace=pod.namespace)
    except ForbiddenError as error:
        if not error.denied:
            raise ClusterUnreadableError(f"{unread(error)}; {_EDIT.format(namespace=pod.namespace)}") from error
        advice = f"; {_label(pod.namespace, growth)}" if RESIZE_BOUND in error.said else ""  # an admission policy
        raise ClusterUnreadableError(f"{error.said}{advice}") from error


async def _answered(access: Access, pod: Pod, resources: Sequence[Resource], container: str, patience_s: float) -> Pod:
    """Return the pod once extender and agent have said what they do about the wishes, or the time is over."""
    until = time.monotonic() + patience_s
    try:
        while True:
            pod, _ = pod_and_status(await access.get(PODS, pod.name, namespace=pod.namespace), resources)
            if settled(why_not(pod, _size(pod, resources, container))) or time.monotonic() >= until:
                return pod
            await asyncio.sleep(_EVERY_S)
    except asyncio.CancelledError:  # by Ctrl-C
        return pod


def _size(pod: Pod, resources: Sequence[Resource], container: str) -> Size:
    return next(each for each in sizes(pod, resources) if each.container == container)


async def _allow(access: Access, namespace: str, size: Size, why: str) -> list[str]:
    """Return the command by which an administrator lets a guarantee grow, if the namespace keeps it from that."""
    try:
        labels = decoded(await access.get(NAMESPACES, namespace), Named).metadata.labels or {}
    except ApiError:
        labels = None
    allowance = Allowance.of(namespace, labels or {})
    if RESIZE_BOUND not in why and (labels is None or allowance.bound is not None):
        return []
    if allowance.bound is not None and Allowance(namespace, None).refusal(1) in why:
        return [f"The namespace has the label now, {RESIZE_BOUND}={allowance.bound}: {_AGAIN}."]
    # What the namespace has in use is at most its bound.
    enough = size.target - size.request if allowance.bound is None else allowance.bound + size.target - size.held
    meaning = (
        f"The label {RESIZE_BOUND} of a namespace is the total of shares that its pods may have beyond their requests"
    )
    return [f"{_AGAIN.capitalize()}. {meaning}; {_label(namespace, enough)}"]


def _label(namespace: str, bound: int) -> str:
    return f"an administrator sets it: kubectl label namespace {namespace} --overwrite {RESIZE_BOUND}={bound}"


# --- The command line -------------------------------------------------------------------------------------------------


def _units(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 9 and int(text) > 0:
        return int(text)
    begin = "".join(takewhile(str.isdigit, text))
    meant = f"write {begin}, not {text}" if begin.strip("0") else "write it like 6"
    raise argparse.ArgumentTypeError(f"an amount is a whole number of shares (gpu-mem), at least 1: {meant}")


def _check(arguments: argparse.Namespace) -> None:
    words = arguments.words
    if len(words) > 1 and words[0] in PODS_OF_KUBECTL and not words[1].isdigit():
        words = words[1:]
    arguments.pod, amount = (*words, "")[:2]
    if len(words) > 2:
        raise UsageError(f"resize {' '.join(words)}: too many arguments; name one pod and one amount")
    before, _, name = arguments.pod.rpartition("/")
    if before in CONTROLLERS:
        raise UsageError(f"resize {before}/{name}: it changes one running pod; kubectl get pods names them")
    try:
        arguments.amount = _units(amount) if amount else None
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"AMOUNT: {error}") from error
    if arguments.clear and (arguments.amount or arguments.limit):
        raise UsageError("--clear: it returns to the request; leave out AMOUNT and --limit, or leave it out")
    if arguments.amount and arguments.limit and arguments.limit < arguments.amount:
        raise UsageError(f"--limit: {arguments.limit} is less than the guarantee of {arguments.amount}; choose more")


RESIZE = Command(
    "resize",
    "change the memory of a running pod",
    resize,
    (
        argument("words", nargs="+", metavar="POD [AMOUNT]", help="the amount to guarantee, in shares (gpu-mem)"),
        NAMESPACE,
        argument("--limit", type=_units, metavar="N", help="the most that the container may use, in shares (gpu-mem)"),
        switch("--clear", "back to the container's request"),
        argument("-c --container", default="", help="the container to resize, if several have shares"),
    ),
    _check,
)
