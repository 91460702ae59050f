"""What users change on their workloads: the memory of a running container (`resize`), and which sleep (`wake`)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.commandline import FAILED, OK
from gpu_device_plugin.features.elastic.contract import IN_CONTAINER, Allowance, Wish, read_wish, write_wish
from gpu_device_plugin.features.elastic.report import (
    gpu_of,
    not_resizable,
    of_size,
    settled,
    unreadable_wishes,
    why_not,
)
from gpu_device_plugin.features.elastic.rules.promising import sizes
from gpu_device_plugin.features.idle.rules import replicas_before
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NAMESPACES, NODES, PODS
from gpu_device_plugin.kubernetes.writers.workloads import NOTEBOOK, SCALED
from gpu_device_plugin.model.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_LIMIT,
    NOTEBOOK_STOPPED,
    REPLICAS_BEFORE_IDLE,
    RESIZE_BOUND,
)
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, unread
from gpu_device_plugin.report.followed_cluster import cluster
from gpu_device_plugin.report.objects import ApiObject, Named, decoded
from gpu_device_plugin.report.pod_details import pod_and_status
from gpu_device_plugin.report.rules.printing import counted
from gpu_device_plugin.scheduler.rules.usage import growable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.features.elastic.contract import Size
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.inspect.overview import Output
    from gpu_device_plugin.programs.kubectl import Access
    from gpu_device_plugin.report.rules.node_view import NodeView
    from gpu_device_plugin.report.rules.pod_causes import SchedulingStatus

PATIENCE_S, _EVERY_S = 15.0, 0.5
_AGAIN = "the wish stays, and is tried again within a minute"
_EDIT = (
    "an administrator gives it, for example by kubectl -n {namespace} create rolebinding edit-USER --clusterrole=edit "
    "--user=USER"
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
            notes.append(f"The container gets no {IN_CONTAINER}, unlike one whose pod is made with these annotations.")
        pod = await _answered(access, pod, resources, container, patience_s)
        size = _size(pod, resources, container)
    if patch and status.controller:
        notes.append(f"It lasts as long as this pod: other pods of {status.controller} have what their template says.")
    found = [*map(str, of_size(pod, size, node)), *map(str, unreadable_wishes(pod)), *notes]
    found += [f"Ignored: {ignored}." for ignored in status.ignored]
    why = why_not(pod, size)
    if size.held < size.target:
        found += await _allow(access, namespace, size, why)
    if not settled(why):
        found.append(
            f"There is no answer yet; the wish stays. See whether the agent runs on {pod.node_name} (kubectl inspect "
            "gpushare doctor), and repeat the command without an amount."
        )
    return [f"{name}: {found[0]}", *found[1:]], FAILED if why else OK


async def named_pod(
    access: Access, namespace: str, name: str, resources: Sequence[Resource]
) -> tuple[Pod, SchedulingStatus]:
    """Return one pod.

    Raises:
        ClusterUnreadableError: it cannot be read, or does not exist.
    """
    try:
        return pod_and_status(await access.get(PODS, name, namespace=namespace), resources)
    except ApiError as error:
        raise ClusterUnreadableError(
            f"pod {namespace}/{name} cannot be read: {unread(error)}; if it is in another namespace, name that with -n"
        ) from error


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
        f"The label {RESIZE_BOUND} of a namespace is the sum of units that its pods may have beyond their requests"
    )
    return [f"{_AGAIN.capitalize()}. {meaning}; {_label(namespace, enough)}"]


def _label(namespace: str, bound: int) -> str:
    return f"an administrator sets it: kubectl label namespace {namespace} --overwrite {RESIZE_BOUND}={bound}"


# --- What sleeps -----------------------------------------------------------------------------------------------------


_SLEEPERS = {kind.lower(): each for kind, each in {**SCALED, "Notebook": NOTEBOOK}.items()}
"""The kinds that sleep."""


class _Spec(ApiObject):
    replicas: int | None = None


class _Object(Named):
    spec: _Spec = msgspec.field(default_factory=_Spec)


@dataclass(frozen=True, slots=True)
class _Sleeper:
    """A workload that may have been scaled to zero."""

    kind: str
    namespace: str
    object: _Object

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.object.metadata.name}"

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.object.metadata.annotations or {}

    @property
    def asleep(self) -> bool:
        """Whether it has no replicas now."""
        return NOTEBOOK_STOPPED in self.annotations if self.kind == "notebook" else self.object.spec.replicas == 0


async def wake(arguments: argparse.Namespace, access: Access, _: Sequence[Resource]) -> Output:
    """Bring back the workload in the arguments, or list those that sleep; return what was done, with the exit code.

    Raises:
        ClusterUnreadableError: it cannot be changed, or was not scaled to zero as idle.
        ApiError: it cannot be read.
    """
    namespace = arguments.namespace or access.namespace
    if not arguments.workload:
        return await _listed(access, namespace)
    kind, name = arguments.workload
    raw = await access.get(_SLEEPERS[kind], name, namespace=namespace)
    found = _Sleeper(kind, namespace, decoded(raw, _Object))
    before = replicas_before(found.annotations)
    if before is None:
        raise ClusterUnreadableError(
            f"{found} was not scaled to zero as idle: it has no annotation {REPLICAS_BEFORE_IDLE}; "
            f"kubectl -n {namespace} scale {kind} {name} --replicas=N sets its replicas"
        )
    done = f"{found} has replicas already; only the annotation {REPLICAS_BEFORE_IDLE} is removed."
    forget: dict[str, str | None] = {REPLICAS_BEFORE_IDLE: None}
    if found.asleep:
        done = f"{found} is woken: it has {counted(before, 'replica')} again."
        if kind == "notebook":
            forget[NOTEBOOK_STOPPED] = None
        else:  # first, so that whatever ends this in between, the number is not lost
            await _patch(access, found, {"spec": {"replicas": before}}, subresource="scale")
    await _patch(access, found, {"metadata": {"annotations": forget}})
    return [done], OK


async def _listed(access: Access, namespace: str) -> Output:
    lines, problems = [], []
    for kind, api_kind in _SLEEPERS.items():
        try:
            raw = await access.items(api_kind, namespace=namespace)
        except ApiError as error:
            # A cluster without Kubeflow knows no notebooks.
            if not (kind == "notebook" and isinstance(error, NotFoundError)):
                problems.append(f"{kind}s are not listed: {unread(error)}")
            continue
        for each in (_Sleeper(kind, namespace, decoded(one, _Object)) for one in raw):
            before = replicas_before(each.annotations)
            if before is not None and each.asleep:
                wakes = f"kubectl inspect gpushare wake {kind}/{each.object.metadata.name} -n {namespace}"
                lines.append(f"{each} sleeps, and had {counted(before, 'replica')}: {wakes}")
    nothing = [] if lines or problems else [f"Nothing in namespace {namespace} was scaled to zero as idle."]
    return [*lines, *problems, *nothing], FAILED if problems else OK


async def _patch(access: Access, found: _Sleeper, body: Mapping[str, object], *, subresource: str = "") -> None:
    kind, name = _SLEEPERS[found.kind], found.object.metadata.name
    try:
        await access.client.patch(kind, name, body, namespace=found.namespace, subresource=subresource)
    except ApiError as error:
        raise ClusterUnreadableError(f"{found} is not woken: {unread(error)}") from error
