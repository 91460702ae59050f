"""`kubectl inspect gpushare resize`: change how much memory a running container is guaranteed and may use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from gpu_device_plugin.core.cluster.resizing import sizes
from gpu_device_plugin.core.cluster.usage import growable
from gpu_device_plugin.core.report.text.printing import counted
from gpu_device_plugin.core.report.why.pod_use import (
    gpu_of,
    not_resizable,
    of_size,
    settled,
    unreadable_wishes,
    why_not,
)
from gpu_device_plugin.features.elastic.contract import IN_CONTAINER, Allowance, Wish, read_wish, write_wish
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT, RESIZE_BOUND
from gpu_device_plugin.programs.commandline import FAILED, OK
from gpu_device_plugin.programs.kubectl import MISSING_RIGHT, ClusterUnreadableError, unread
from gpu_device_plugin.view.following import cluster
from gpu_device_plugin.view.objects import Named, decoded
from gpu_device_plugin.view.poddetails import pod_and_status

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.report.why.pod_causes import SchedulingStatus
    from gpu_device_plugin.features.elastic.contract import Size
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.kubectl import Kubectl

PATIENCE_S, _EVERY_S = 15.0, 0.5
_AGAIN = "the wish stays, and is tried again within a minute"
_EDIT = (
    "an administrator gives it, for example by kubectl -n {namespace} create rolebinding edit-USER --clusterrole=edit "
    "--user=USER"
)


def resize(
    arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource], patience_s: float = PATIENCE_S
) -> tuple[Sequence[str], int]:
    """Write the wishes in the arguments on a pod, wait for the answers, and return what holds, with the exit code.

    Raises:
        ClusterUnreadableError: the pod cannot be read, resized or changed.
    """
    namespace = arguments.namespace or kubectl.namespace()
    pod, status = named_pod(kubectl, namespace, arguments.pod, resources)
    name = f"{namespace}/{pod.name}"
    if why := not_resizable(pod, resources, arguments.container, claims=bool(status.claims)):
        raise ClusterUnreadableError(f"{name} cannot be resized: {why}")
    container = arguments.container or next(iter(growable(pod, resources)))
    node = _node_of(kubectl, pod, resources)
    size = _size(pod, resources, container)
    if why := _too_large(arguments, size, node):
        raise ClusterUnreadableError(f"{name} cannot be resized: {why}")
    notes: list[str] = []
    if patch := _changes(arguments, pod, container, resources):
        _write(kubectl, pod, patch, (arguments.amount or 0) - size.request)
        if pod.annotations.keys().isdisjoint({MEMORY_GUARANTEE, MEMORY_LIMIT}):
            notes.append(f"The container gets no {IN_CONTAINER}, unlike one whose pod is made with these annotations.")
        pod = _answered(kubectl, pod, resources, container, patience_s)
        size = _size(pod, resources, container)
    if patch and status.controller:
        notes.append(f"It lasts as long as this pod: other pods of {status.controller} have what their template says.")
    found = [*map(str, of_size(pod, size, node)), *map(str, unreadable_wishes(pod)), *notes]
    found += [f"Ignored: {ignored}." for ignored in status.ignored]
    why = why_not(pod, size)
    if size.held < size.target:
        found += _allow(kubectl, namespace, size, why)
    if not settled(why):
        found.append(
            f"There is no answer yet; the wish stays. See whether the agent runs on {pod.node_name} (kubectl inspect "
            "gpushare doctor), and repeat the command without an amount."
        )
    return [f"{name}: {found[0]}", *found[1:]], FAILED if why else OK


def named_pod(
    kubectl: Kubectl, namespace: str, name: str, resources: Sequence[Resource]
) -> tuple[Pod, SchedulingStatus]:
    """Return one pod.

    Raises:
        ClusterUnreadableError: it cannot be read, or does not exist.
    """
    try:
        return pod_and_status(kubectl.one(_path(namespace, name)), resources)
    except ClusterUnreadableError as error:
        raise ClusterUnreadableError(
            f"pod {namespace}/{name} cannot be read, and kubectl's message stands above; if it is in another "
            "namespace, name that with -n"
        ) from error


def _path(namespace: str, pod: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}"


def _node_of(kubectl: Kubectl, pod: Pod, resources: Sequence[Resource]) -> NodeView | None:
    """Return the node of a pod, without its pods; None: the user may not read it, or it shares no GPUs."""
    try:
        raw = kubectl.raw(f"/api/v1/nodes/{quote(pod.node_name, safe='')}")
    except ClusterUnreadableError:
        return None
    return next(iter(cluster([msgspec.Raw(raw)], (), resources)[0].views), None)


def _too_large(arguments: argparse.Namespace, size: Size, node: NodeView | None) -> str:
    """Return why its GPU can never give a container as much; empty: it can, as far as is known."""
    gpu = gpu_of(size, node)
    if gpu is None:
        return ""
    if gpu.instance is not None:
        return "it has shares of a MIG instance, which neither grow nor borrow"
    most = max(arguments.amount or 0, arguments.limit or 0)
    return f"{most} is more than its GPU has: {counted(gpu.shares, 'unit')}" if most > gpu.shares else ""


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


def _write(kubectl: Kubectl, pod: Pod, annotations: Mapping[str, str | None], growth: int) -> None:
    try:
        kubectl.patch("pod", pod.name, {"metadata": {"annotations": annotations}}, namespace=pod.namespace)
    except ClusterUnreadableError as error:
        denied = unread(error)
        advice = f"; {_EDIT.format(namespace=pod.namespace)}" if denied.code == MISSING_RIGHT else ""
        if RESIZE_BOUND in str(error):  # an admission policy
            advice = f"; {_label(pod.namespace, growth)}"
        raise ClusterUnreadableError(f"{denied}{advice}") from error


def _answered(kubectl: Kubectl, pod: Pod, resources: Sequence[Resource], container: str, patience_s: float) -> Pod:
    """Return the pod once extender and agent have said what they do about the wishes, or the time is over."""
    until = time.monotonic() + patience_s
    try:
        while True:
            pod, _ = pod_and_status(msgspec.Raw(kubectl.raw(_path(pod.namespace, pod.name))), resources)
            if settled(why_not(pod, _size(pod, resources, container))) or time.monotonic() >= until:
                return pod
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return pod


def _size(pod: Pod, resources: Sequence[Resource], container: str) -> Size:
    return next(each for each in sizes(pod, resources) if each.container == container)


def _allow(kubectl: Kubectl, namespace: str, size: Size, why: str) -> list[str]:
    """Return the command by which an administrator lets a guarantee grow, if the namespace keeps it from that."""
    try:
        labels = decoded(kubectl.raw(f"/api/v1/namespaces/{quote(namespace, safe='')}"), Named).metadata.labels or {}
    except ClusterUnreadableError:
        labels = None
    allowance = Allowance.of(namespace, labels or {})
    if RESIZE_BOUND not in why and (labels is None or allowance.bound is not None):
        return []
    if allowance.bound is not None and Allowance(namespace, None).refusal(1) in why:
        return [f"The namespace has the label now, {RESIZE_BOUND}={allowance.bound}: {_AGAIN}."]
    # What the namespace has in use is at most its bound.
    enough = size.target - size.request if allowance.bound is None else allowance.bound + size.target - size.held
    meaning = (
        f"The label {RESIZE_BOUND} of a namespace is the sum of units that its pods may have beyond their requests"
    )
    return [f"{_AGAIN.capitalize()}. {meaning}; {_label(namespace, enough)}"]


def _label(namespace: str, bound: int) -> str:
    return f"an administrator sets it: kubectl label namespace {namespace} --overwrite {RESIZE_BOUND}={bound}"
