"""The kinds of objects that the API server double stores: what is the same for all, and the rules of each.

The rules are those of Kubernetes 1.36. Field and label selectors are parsed like by the API server; ValueError: it
would refuse one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_device_plugin.kubernetes.client.errors import Call

Object = Mapping[str, Any]
Test = Callable[[Object], bool]
Json = dict[str, Any]


PAIR = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
"""A requirement of a selector."""


def field_selector(text: str, fields: Mapping[str, Callable[[Object], str]]) -> Test:
    """Read ``spec.nodeName=a,status.phase!=Failed``; `fields` are those that the kind of object supports."""

    def value_of(key: str) -> Callable[[Object], str]:
        if key not in fields:
            raise ValueError(f"field label not supported: {key}")
        return fields[key]

    return _selector(text, value_of)


def label_selector(text: str) -> Test:
    """Read ``a=b,c!=d``."""
    return _selector(text, lambda key: lambda candidate: (candidate["metadata"].get("labels") or {}).get(key))


def _selector(text: str, value_of: Callable[[str], Callable[[Object], str | None]]) -> Test:
    tests: list[tuple[Callable[[Object], str | None], str, bool]] = []
    for term in filter(None, map(str.strip, text.split(","))):
        match = PAIR.fullmatch(term)
        if match is None:
            raise ValueError(f"invalid selector: '{term}'; can't understand '{term}'")
        tests.append((value_of(match["key"]), match["value"], match["sign"] != "!="))
    return lambda candidate: all((read(candidate) == value) is equal for read, value, equal in tests)


class StatusError(Exception):
    """A request that the API server answers with an error."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    @property
    def status(self) -> Json:
        """The ``Status`` object that a client gets."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": dict(self.details),
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class ApiRequest(Call):
    """A request to the server."""

    params: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)


def invalid(served: Served, name: str, where: str, why: str, message: str) -> StatusError:
    """Return the refusal of an object with an invalid field."""
    cause = {"reason": why, "message": message, "field": where}
    details = {"name": name, "kind": served.kind, "causes": [cause]}
    return StatusError(422, "Invalid", f'{served.kind} "{name}" is invalid: {where}: {message}', details)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A kind of object in the store."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    without_status: bool = False
    """The status that a client gives a new object is dropped."""
    fields: Mapping[str, Callable[[Mapping[str, Any]], str]] = field(default_factory=dict)
    """Field selectors besides those on metadata."""
    on_create: Callable[[Json], object] = lambda _new: None
    """Sets the defaults of a new object, or refuses it."""
    on_change: Callable[[Json, Json], object] = lambda _before, _after: None
    """Refuses a forbidden change."""

    @property
    def api_version(self) -> str:
        """The apiVersion of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full(self) -> str:
        """Its name in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def key(self, namespace: str, name: str) -> tuple[str, str]:
        """Return the namespace and name under which an object is stored."""
        return (namespace if self.namespaced else "", name)

    def selector(self, fields: str, labels: str, by_label: Callable[[str], Test]) -> Test:
        """Return a test whether both selectors match an object; raise StatusError if one is invalid."""
        known: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "metadata.name": lambda found: found["metadata"]["name"],
            **({"metadata.namespace": lambda found: found["metadata"]["namespace"]} if self.namespaced else {}),
            **self.fields,
        }
        try:
            by_fields, by_labels = field_selector(fields, known), by_label(labels)
        except ValueError as error:
            raise StatusError(400, "BadRequest", str(error)) from error
        return lambda found: by_fields(found) and by_labels(found)


# --- Pods, nodes and Events -------------------------------------------------------------------------------------------


def core_event(event: Json) -> Json:
    """Convert an Event to API group ``""`` (Convert_v1_Event_To_core_Event in Kubernetes' pkg/apis/events/v1)."""
    names = {
        "note": "message",
        "regarding": "involvedObject",
        "reportingController": "reportingComponent",
        "deprecatedFirstTimestamp": "firstTimestamp",
        "deprecatedLastTimestamp": "lastTimestamp",
    }
    ours = {names.get(key, key): value for key, value in event.items()}
    return {"involvedObject": {}, "firstTimestamp": None, "lastTimestamp": None, **ours}


def _create_pod(new: Json) -> None:
    spec = new.setdefault("spec", {})
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        resources = container.setdefault("resources", {})
        limits = resources.get("limits", {})
        for resource, amount in limits.items():
            limits[resource] = canonical_quantity(str(amount))
        if limits:
            resources["requests"] = {**limits, **resources.get("requests", {})}
    spec.setdefault("schedulerName", "default-scheduler")
    grace_s = spec.get("terminationGracePeriodSeconds", 30)
    spec["terminationGracePeriodSeconds"] = grace_s if grace_s >= 0 else 1
    new.setdefault("status", {}).setdefault("phase", "Pending")


def canonical_quantity(text: str) -> str:
    """Format a whole number like the API server: ``1000`` becomes ``1k``; other text stays as it is."""
    if not (text.isascii() and text.isdigit()):
        return text
    number, suffixes = int(text), iter(("", "k", "M", "G", "T", "P", "E"))
    suffix = next(suffixes)
    while number and number % 1000 == 0 and suffix != "E":
        number, suffix = number // 1000, next(suffixes)
    return f"{number}{suffix}"


PODS = Served(
    "pods",
    "Pod",
    subresources=frozenset({"status", "binding", "eviction"}),
    without_status=True,
    fields={
        "spec.nodeName": lambda found: found["spec"].get("nodeName", ""),
        "spec.schedulerName": lambda found: found["spec"].get("schedulerName", ""),
        "status.phase": lambda found: found.get("status", {}).get("phase", ""),
    },
    on_create=_create_pod,
)
NODES = Served("nodes", "Node", namespaced=False, subresources=frozenset({"status"}))
EVENTS = Served("events", "Event", group="events.k8s.io")
CORE_EVENTS = Served(
    "events", "Event", fields={"involvedObject.uid": lambda found: found["involvedObject"].get("uid", "")}
)
"""The same objects in the older API group, only for lists."""
KINDS = (PODS, NODES, EVENTS)
"""Those of every cluster of the demo; `ApiServer.kinds` may be more."""
