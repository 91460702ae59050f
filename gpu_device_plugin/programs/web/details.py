"""One node or one pod in full, read when somebody opens it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_device_plugin.aio.turns import Turns
from gpu_device_plugin.cluster.client.errors import ApiError, ForbiddenError
from gpu_device_plugin.cluster.objects.decoding import PODS, ObjectKind, UnreadableObjectError
from gpu_device_plugin.core.report.pod_document import containers_of
from gpu_device_plugin.core.report.why.explanations import explain
from gpu_device_plugin.view.objects import ConfigMap, decoded
from gpu_device_plugin.view.poddetails import event_documents, events, pod_and_status
from gpu_device_plugin.view.why_pod import CONFIGURATION, assumed, policy_in
from gpu_device_plugin.view.why_pod import why as explained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.report.why.pod_causes import SchedulingStatus
    from gpu_device_plugin.programs.web.callers import CallerScope
    from gpu_device_plugin.programs.web.page_state import PageState
    from gpu_device_plugin.programs.web.watched import Watched
    from gpu_device_plugin.view.why_pod import Policy

_EVENTS, _CONFIGMAPS = ObjectKind("events"), ObjectKind("configmaps")
_MOST_EXPLAINED = 10


@dataclass(frozen=True, slots=True)
class Details:
    """Reads details with the server's account; callers must have the right to see the pod."""

    client: Client
    watched: Watched
    page_state: PageState
    resources: Sequence[Resource]
    turns: Turns = field(default_factory=lambda: Turns(16))

    async def pod(self, namespace: str, name: str, scope: CallerScope, user: str) -> dict[str, Any]:
        """Return a pod of a namespace that the caller may see. Users take turns.

        Raises:
            ApiError: it cannot be read.
            UnreadableObjectError: it is no pod.
        """
        async with self.turns.turn(user):
            raw = msgspec.Raw(await self.client.get(PODS, name, namespace=namespace))
            pod, status = pod_and_status(raw, self.resources)
            raw_events, notes = await self._events(namespace, pod.uid)
            status = replace(status, events=events(raw_events, status))
            views = self.page_state.views(scope)
            why = await self._why(pod, status, views)
        shown = self.page_state.node(pod.node_name) if scope.nodes else None
        fields = {
            "node": pod.node_name,
            "phase": pod.phase,
            "created": pod.created,
            "priority": pod.priority,
            "deleting": pod.deleting,
            "scheduler": status.scheduler,
        }
        return {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            **{key: value for key, value in fields.items() if value},
            "containers": containers_of(pod, self.resources, None if shown is None else shown.view),
            "why": why,
            "events": event_documents(raw_events),
            **({"notes": notes} if notes else {}),
        }

    async def _why(self, pod: Pod, status: SchedulingStatus, views: Sequence[NodeView] | None) -> list[str]:
        """Return what `kubectl inspect gpushare why` prints."""
        policy = await self._policy(views)
        around = self.watched.cluster.around()
        claims = self.watched.claims_of(pod.namespace)

        def lines() -> list[str]:
            said = explained(
                pod, status, self.resources, views, around, most=_MOST_EXPLAINED, policy=lambda: policy, claims=claims
            )
            waits = [f"{pod.namespace}/{pod.name} waits for {said.asks}."] if said.asks else []
            return [*waits, *map(str, said.facts), *explain(said.answers, _MOST_EXPLAINED)]

        return await asyncio.to_thread(lines)

    async def _events(self, namespace: str, uid: str) -> tuple[Sequence[msgspec.Raw], list[str]]:
        escaped = "".join(f"\\{char}" if char in "\\,=" else char for char in uid)
        try:
            async for page in self.client.pages(
                _EVENTS, namespace=namespace, fields=f"involvedObject.uid={escaped}", limit=200
            ):
                return page.items or (), []
        except ForbiddenError:
            return (), [f"The right to list events in the namespace {namespace} is missing."]
        except ApiError as error:
            return (), [f"Events cannot be read: {error}."]
        return (), []

    async def _policy(self, views: Sequence[NodeView] | None) -> Policy:
        if all(view.candidate.gpus.policy is not None for view in views or ()):
            return assumed()
        found: list[ConfigMap] = []
        try:
            async for page in self.client.pages(_CONFIGMAPS, fields=f"metadata.name={CONFIGURATION}"):
                found += [decoded(raw, ConfigMap) for raw in page.items or ()]
        except (ApiError, UnreadableObjectError) as error:
            return assumed(f"the ConfigMap {CONFIGURATION} cannot be read ({error})")
        return policy_in(found)
