"""`kubectl inspect gpushare wake`: a user brings back what was scaled to zero as idle, or lists it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpu_device_plugin.commandline import FAILED, OK
from gpu_device_plugin.features.idle.rules import replicas_before
from gpu_device_plugin.kubernetes.client.errors import ApiError, NotFoundError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.api_objects import ApiObject, Named
from gpu_device_plugin.kubernetes.objects.decoding import decoded
from gpu_device_plugin.kubernetes.writers.workloads import NOTEBOOK, SCALED
from gpu_device_plugin.model.contract.keys import NOTEBOOK_STOPPED, REPLICAS_BEFORE_IDLE
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.commands import NAMESPACE, Command, Output, argument, refusal
from gpu_device_plugin.report.rules.printing import counted
from gpu_device_plugin.settings.knobs import UsageError

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
    try:
        raw = await access.get(_SLEEPERS[kind], name, namespace=namespace)
    except NotFoundError as error:
        elsewhere = "if it is in another namespace, name that with -n"
        raise ClusterUnreadableError(f"{refusal(error)}; {elsewhere}") from error
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
        done = f"{found} is awake: it has {counted(before, 'replica')} again."
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
                problems.append(f"{kind}s are not listed: {refusal(error)}")
            continue
        for each in (_Sleeper(kind, namespace, decoded(one, _Object)) for one in raw):
            before = replicas_before(each.annotations)
            if before is not None and each.asleep:
                wakes = f"kubectl inspect gpushare wake {kind}/{each.object.metadata.name} -n {namespace}"
                lines.append(f"{each} is asleep, and had {counted(before, 'replica')}: {wakes}")
    nothing = [] if lines or problems else [f"Nothing in namespace {namespace} was scaled to zero as idle."]
    return [*lines, *problems, *nothing], FAILED if problems else OK


async def _patch(access: Access, found: _Sleeper, body: Mapping[str, object], *, subresource: str = "") -> None:
    kind, name = _SLEEPERS[found.kind], found.object.metadata.name
    try:
        await access.client.patch(kind, name, body, namespace=found.namespace, subresource=subresource)
    except ApiError as error:
        raise ClusterUnreadableError(f"{found} is not woken: {refusal(error)}") from error


_WORKLOADS: Mapping[str, str] = {
    **dict.fromkeys(("deployment", "deployments", "deploy"), "deployment"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts"), "statefulset"),
    **dict.fromkeys(("notebook", "notebooks"), "notebook"),
}
"""The kinds of workloads that wake brings back, by the words for them."""


def _check(arguments: argparse.Namespace) -> None:
    """Have kind and name of a workload; None: none is named."""
    kind, _, name = "/".join(arguments.words).partition("/")
    arguments.workload = (_WORKLOADS.get(kind, ""), name) if arguments.words else None
    if arguments.words and (kind not in _WORKLOADS or not name or "/" in name):
        named = "name a workload as deployment/NAME, statefulset/NAME or notebook/NAME"
        raise UsageError(f"wake {' '.join(arguments.words)}: {named}")


WAKE = Command(
    "wake",
    "wake workloads that were scaled to zero as idle, or list them",
    wake,
    (argument("words", nargs="*", metavar="KIND/NAME", help="without one, list what is asleep"), NAMESPACE),
    _check,
)
