"""`kubectl inspect gpushare wake`: list the workloads that were scaled to zero as idle, and bring them back."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from gpu_device_plugin.core.report.text.printing import counted
from gpu_device_plugin.features.idle.rules import replicas_before
from gpu_device_plugin.model.contract.keys import NOTEBOOK_STOPPED, REPLICAS_BEFORE_IDLE
from gpu_device_plugin.programs.commandline import FAILED, OK
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, unread
from gpu_device_plugin.view.objects import ApiObject, Named, decoded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.kubectl import Kubectl

_PATHS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "deployment": ("apps", "deployments"),
        "statefulset": ("apps", "statefulsets"),
        "notebook": ("kubeflow.org", "notebooks"),
    }
)
"""API group and plural of the kinds that sleep."""


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


def wake(arguments: argparse.Namespace, kubectl: Kubectl, _: Sequence[Resource]) -> tuple[Sequence[str], int]:
    """Bring back the workload in the arguments, or list those that sleep; return what was done, with the exit code.

    Raises:
        ClusterUnreadableError: it cannot be read or changed, or was not scaled to zero as idle.
    """
    namespace = arguments.namespace or kubectl.namespace()
    if not arguments.workload:
        return _listed(kubectl, namespace)
    kind, name = arguments.workload
    found = _Sleeper(kind, namespace, decoded(kubectl.one(_path(kind, namespace, name)), _Object))
    before = replicas_before(found.annotations)
    if before is None:
        raise ClusterUnreadableError(
            f"{found} was not scaled to zero as idle: it has no annotation {REPLICAS_BEFORE_IDLE}; "
            f"kubectl -n {namespace} scale {kind} {name} --replicas=N sets its replicas"
        )
    done = f"{found} has replicas already; only the annotation {REPLICAS_BEFORE_IDLE} is removed."
    resource = f"{kind}s.{_PATHS[kind][0]}"
    forget: dict[str, str | None] = {REPLICAS_BEFORE_IDLE: None}
    if found.asleep:
        done = f"{found} is woken: it has {counted(before, 'replica')} again."
        if kind == "notebook":
            forget[NOTEBOOK_STOPPED] = None
        else:  # first, so that whatever ends this in between, the number is not lost
            _patch(kubectl, found, resource, {"spec": {"replicas": before}}, subresource="scale")
    _patch(kubectl, found, resource, {"metadata": {"annotations": forget}})
    return [done], OK


def _listed(kubectl: Kubectl, namespace: str) -> tuple[Sequence[str], int]:
    lines, problems = [], []
    for kind in _PATHS:
        try:
            raw = kubectl.items(_path(kind, namespace), optional=True)
        except ClusterUnreadableError as error:
            # A cluster without Kubeflow knows no notebooks.
            if not (kind == "notebook" and "NotFound" in str(error)):
                problems.append(f"{kind}s are not listed: {unread(error)}")
            continue
        for each in (_Sleeper(kind, namespace, decoded(one, _Object)) for one in raw):
            before = replicas_before(each.annotations)
            if before is not None and each.asleep:
                wakes = f"kubectl inspect gpushare wake {kind}/{each.object.metadata.name} -n {namespace}"
                lines.append(f"{each} sleeps, and had {counted(before, 'replica')}: {wakes}")
    nothing = [] if lines or problems else [f"Nothing in namespace {namespace} was scaled to zero as idle."]
    return [*lines, *problems, *nothing], FAILED if problems else OK


def _path(kind: str, namespace: str, name: str = "") -> str:
    group, plural = _PATHS[kind]
    return f"/apis/{group}/v1/namespaces/{quote(namespace, safe='')}/{plural}" + (
        f"/{quote(name, safe='')}" if name else ""
    )


def _patch(kubectl: Kubectl, found: _Sleeper, resource: str, body: object, *, subresource: str = "") -> None:
    name = found.object.metadata.name
    try:
        kubectl.patch(resource, name, body, namespace=found.namespace, subresource=subresource)
    except ClusterUnreadableError as error:
        raise ClusterUnreadableError(f"{found} is not woken: {unread(error)}") from error
