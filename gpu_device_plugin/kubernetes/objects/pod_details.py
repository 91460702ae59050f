"""One pod with its Events, read from objects of the API for a person who asks about it; its environment is not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from gpu_device_plugin.kubernetes.objects import requests
from gpu_device_plugin.kubernetes.objects.api_objects import ApiObject, Condition, readable
from gpu_device_plugin.kubernetes.objects.decoding import ObjectMeta, OwnedMeta, PodReader, decoded
from gpu_device_plugin.kubernetes.objects.requests import (
    LONGEST_KEY,
    LONGEST_LABEL,
    LONGEST_NAME,
    LONGEST_SENTENCE,
    bounded,
    fits,
)
from gpu_device_plugin.model.contract.keys import (
    FRAMEWORKS,
    MEMORY_GUARANTEE,
    MEMORY_LIMIT,
    NODE_LABELS,
    READ_BY_AGENT,
    WISHES,
)
from gpu_device_plugin.model.pods import Pod, PodClaim
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.rules.printing import nearest, shortened
from gpu_device_plugin.scheduler.rules.node_constraints import (
    DEFAULT_SCHEDULER,
    MOST_TERMS,
    NO_TERMS,
    Alternative,
    Requirement,
    SchedulingStatus,
    Terms,
    Toleration,
)

_CHOICES = tuple(sorted({*WISHES, FRAMEWORKS, MEMORY_GUARANTEE, MEMORY_LIMIT}))
"""The annotations that owners of pods write."""
_MOST_MISSPELT = 5
"""The number of unknown annotations that are named one by one."""
_WARNINGS = 3
"""The number of a pod's Events among the reasons why it waits."""
_LONGEST_WARNING = 500
"""Characters; the API allows 1,024."""
_MOST_KEPT = 100
"""Terms, gates, annotations, resources and claims of a waiting pod. Its owner can write some ten thousand of each."""


class _Alternative(ApiObject):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class _NodeSelector(ApiObject):
    node_selector_terms: list[_Alternative] | None = None


class _NodeAffinity(ApiObject):
    required: _NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(requests.Affinity, rename="camel", gc=False):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: dict[str, msgspec.Raw] | None = None


class _EmptyDir(ApiObject):
    medium: str = ""


class _Volume(ApiObject):
    name: str = ""
    host_path: dict[str, msgspec.Raw] | None = None
    empty_dir: _EmptyDir | None = None
    persistent_volume_claim: dict[str, msgspec.Raw] | None = None
    ephemeral: dict[str, msgspec.Raw] | None = None

    @property
    def local(self) -> bool:
        """Whether the Cluster Autoscaler keeps the pod for it (utils/drain/drain.go, 1.36)."""
        return self.host_path is not None or (self.empty_dir is not None and self.empty_dir.medium != "Memory")


class _Spread(ApiObject):
    when_unsatisfiable: str = ""


class _SecurityContext(ApiObject):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    supplemental_groups: list[int] | None = None


class _Container(requests.ContainerSpec, rename="camel", gc=False):
    security_context: _SecurityContext | None = None


class _PodSpec(requests.PodSpec, rename="camel", gc=False):
    containers: list[_Container] | None = None  # type: ignore[assignment]
    security_context: _SecurityContext | None = None
    scheduling_gates: list[requests.Name] | None = None
    tolerations: tuple[Toleration, ...] = ()
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    volumes: list[_Volume] | None = None
    topology_spread_constraints: list[_Spread] | None = None
    scheduler_name: str | None = None

    @property
    def terms(self) -> Terms:
        """The nodes that it may go to."""
        of_node = None if self.affinity is None else self.affinity.node_affinity
        required = None if of_node is None else of_node.required
        terms = () if required is None else required.node_selector_terms or ()
        alternatives = tuple(Alternative(term.match_expressions, term.match_fields) for term in terms)
        return Terms(self.tolerations, self.node_selector or {}, None if required is None else alternatives)

    @property
    def groups(self) -> frozenset[int] | None:
        """See `SchedulingStatus.groups`."""
        pod, found = self.security_context or _SecurityContext(), None
        for each in self.containers or ():
            own = each.security_context or _SecurityContext()
            user = pod.run_as_user if own.run_as_user is None else own.run_as_user
            forbidden = pod.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
            if (forbidden if user is None else user) and any(
                "/" in name for name in requests.requested(each.resources)
            ):
                group = pod.run_as_group if own.run_as_group is None else own.run_as_group
                groups = {*(pod.supplemental_groups or ())[:_MOST_KEPT], pod.fs_group, group} - {None}
                found = groups if found is None else found & groups
        return None if found is None else frozenset(found)


class _PodStatus(requests.ClaimStatuses, rename="camel", gc=False):
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    nominated_node_name: str | None = None


class PodObject(ApiObject):
    """A pod with what decides where it may run, and whether it may be moved; without its environment."""

    metadata: OwnedMeta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


def pod_and_status(raw: msgspec.Raw, resources: Iterable[Resource]) -> tuple[Pod, SchedulingStatus]:
    """Return one pod, with the fields that may explain its scheduling. Its environment variables are not read.

    Raises:
        UnreadableObjectError: `raw` is no pod.
    """
    pod, ignored = PodReader((each.name for each in resources), READ_BY_AGENT.__contains__, mig=True).read(raw)
    return pod, scheduling_status(raw, ignored)


def scheduling_status(raw: msgspec.Raw, ignored: Iterable[str]) -> SchedulingStatus:
    """Return the fields of a pod that may explain its scheduling; `ignored` has a sentence for each invalid limit.

    Raises:
        UnreadableObjectError: `raw` is no pod.
    """
    more = decoded(raw, PodObject)
    spec, status = more.spec, more.status
    conditions = status.conditions or ()
    # The node of a mirror pod makes no other pods like it.
    makers = (each for each in more.metadata.owner_references or () if each.controller and each.kind != "Node")
    refused = next((one for one in conditions if one.type == "PodScheduled" and one.status != "True"), Condition())
    return SchedulingStatus(
        scheduler=spec.scheduler_name or DEFAULT_SCHEDULER,
        reason=status.reason or "",
        message=status.message or "",
        condition_reason=refused.reason or "",
        condition=refused.message or "",
        gates=tuple(gate.name for gate in spec.scheduling_gates or ()),
        terms=spec.terms,
        ignored=(*ignored, *_misspelt(more.metadata)),
        annotations=tuple(key for key in more.metadata.annotations or () if key not in READ_BY_AGENT),
        limits=tuple(
            name
            for each in (*(spec.init_containers or ()), *(spec.containers or ()))
            for name in requests.requested(each.resources)
        ),
        claims=tuple(_claims(spec, status)),
        controller=next((f"{each.kind} {each.name}" for each in makers), ""),
        groups=spec.groups,
    )


def brief(status: SchedulingStatus) -> SchedulingStatus:
    """Return a status with as much of what was written about the pod as is kept of each of many pods."""
    terms, ignored = status.terms, status.ignored
    many = terms.entries > _MOST_KEPT
    if many or terms.size > MOST_TERMS:
        why = (
            "its tolerations, nodeSelector and node affinity have more than "
            f"{f'{_MOST_KEPT} entries' if many else f'{MOST_TERMS} characters'} together; "
            "`kubectl inspect gpushare why` compares them with the nodes"
        )
        terms, ignored = NO_TERMS, (*ignored, why)
    claims = (each for each in status.claims if all(fits(name, LONGEST_NAME) for name in astuple(each)))
    return replace(
        status,
        scheduler=bounded(status.scheduler, LONGEST_NAME),
        reason=bounded(status.reason, LONGEST_LABEL),
        message=shortened(status.message, LONGEST_SENTENCE),
        condition_reason=bounded(status.condition_reason, LONGEST_LABEL),
        condition=shortened(status.condition, LONGEST_SENTENCE),
        terms=terms,
        ignored=tuple(shortened(each, LONGEST_SENTENCE) for each in ignored),
        annotations=tuple([name for name in status.annotations if fits(name, LONGEST_KEY)][:_MOST_KEPT]),
        gates=tuple(name for name in status.gates[:_MOST_KEPT] if fits(name, LONGEST_KEY)),
        limits=tuple([name for name in dict.fromkeys(status.limits) if fits(name, LONGEST_KEY)][:_MOST_KEPT]),
        claims=tuple(islice(claims, _MOST_KEPT)),
        controller=bounded(status.controller, LONGEST_KEY),
    )


def _claims(spec: _PodSpec, status: _PodStatus) -> Iterator[PodClaim]:
    """Yield the claims of a pod; those made from templates have their names in its status."""
    made = {each.name: each.resource_claim_name or "" for each in status.resource_claim_statuses or ()}
    for each in spec.resource_claims or ():
        template = each.resource_claim_template_name or ""
        yield PodClaim(each.name, each.resource_claim_name or made.get(each.name, ""), template)
    if status.extended_resource_claim_status is not None:
        yield PodClaim("", status.extended_resource_claim_status.resource_claim_name or "")


def _misspelt(meta: ObjectMeta) -> Iterator[str]:
    """Yield a sentence for each annotation or label that looks like ours and has no meaning."""
    unknown = [key for key in meta.annotations or () if key.startswith(NODE_LABELS) and key not in READ_BY_AGENT]
    for key in sorted(unknown)[:_MOST_MISSPELT]:
        known = f"there are {', '.join(_CHOICES)}"
        yield f"the annotation {key} means nothing ({nearest(key, _CHOICES, known, prefix=NODE_LABELS)})"
    if len(unknown) > _MOST_MISSPELT:
        yield f"{len(unknown) - _MOST_MISSPELT} more annotations like these mean nothing"
    for key in sorted({*_CHOICES} & (meta.labels or {}).keys()):
        yield f"{key} is a label of this pod; write it as an annotation"


# --- Its Events -------------------------------------------------------------------------------------------------------


class _Series(ApiObject):
    count: int | None = None
    last_observed_time: str | None = None


class _Event(ApiObject):
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None

    @property
    def last(self) -> str:
        """When it happened last, in RFC 3339."""
        of_series = None if self.series is None else self.series.last_observed_time
        return self.last_timestamp or of_series or self.event_time or self.first_timestamp or ""


def _events(raw_events: Iterable[msgspec.Raw]) -> Iterator[_Event]:
    """Yield those that can be read, each message on one line. Events are optional."""
    for event in readable(raw_events, partial(decoded, form=_Event)):
        event.message = " ".join((event.message or "").split())
        yield event


def events(raw_events: Iterable[msgspec.Raw], status: SchedulingStatus) -> tuple[str, ...]:
    """Return the latest warnings among a pod's Events, the newest last, without repetitions of the pod's status."""
    latest: dict[tuple[str, str], str] = {}
    for event in _events(raw_events):
        if event.type == "Warning" and event.message and event.message not in {status.message, status.condition}:
            sentence = event.reason or "", event.message
            latest[sentence] = max(latest.get(sentence, ""), event.last)
    newest = sorted(latest, key=lambda sentence: (latest[sentence], sentence))[-_WARNINGS:]
    return tuple(
        f"Event{f' {reason}' if reason else ''}: {shortened(message, _LONGEST_WARNING)}" for reason, message in newest
    )


def event_documents(raw_events: Iterable[msgspec.Raw]) -> list[dict[str, Any]]:
    """Return the latest Events of a pod for the page, the newest first."""
    documents = []
    for event in _events(raw_events):
        of_series = None if event.series is None else event.series.count
        fields = {
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "count": event.count or of_series or 1,
            "last": event.last,
        }
        documents.append({key: value for key, value in fields.items() if value})
    return sorted(documents, key=lambda document: str(document.get("last", "")), reverse=True)[:50]
