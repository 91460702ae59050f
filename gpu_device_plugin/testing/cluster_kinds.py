"""The kinds of objects that the API server double stores, and the validation of each.

The rules are those of Kubernetes 1.36, and stricter in one point: the spec of a pod cannot be changed at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import STATIC_POD
from gpu_device_plugin.testing.cluster_resources import CLAIMS, CLASSES, SLICES
from gpu_device_plugin.testing.cluster_served import Served, invalid

if TYPE_CHECKING:
    from gpu_device_plugin.testing.builders import Json


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
    name, spec = new["metadata"]["name"], new.setdefault("spec", {})
    if not spec.get("containers"):
        raise invalid(PODS, name, "spec.containers", "FieldValueRequired", "Required value")
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        resources = container.setdefault("resources", {})
        limits = resources.get("limits", {})
        for resource, quantity in limits.items():
            limits[resource] = canonical_quantity(str(quantity))
        if limits:
            resources["requests"] = {**limits, **resources.get("requests", {})}
    spec.setdefault("schedulerName", "default-scheduler")
    spec["terminationGracePeriodSeconds"] = _grace_s(spec.get("terminationGracePeriodSeconds", 30))
    if STATIC_POD in new["metadata"].get("annotations", {}) and not spec.get("nodeName"):
        why = "must set spec.nodeName if mirror pod annotation is set"
        raise invalid(PODS, name, f"metadata.annotations[{STATIC_POD}]", "FieldValueInvalid", why)
    new.setdefault("status", {}).setdefault("phase", "Pending")


def _change_pod(before: Json, after: Json) -> None:
    if before["spec"] != after["spec"]:
        why = f"Forbidden: pod updates may not change fields other than `spec.containers[*].image`: {after['spec']}"
        raise invalid(PODS, before["metadata"]["name"], "spec", "FieldValueForbidden", why)
    was, now = (each["metadata"].get("annotations", {}).get(STATIC_POD) for each in (before, after))
    if was != now:
        why = f"Forbidden: may not {'add' if was is None else 'remove or update'} mirror pod annotation"
        field = f"metadata.annotations[{STATIC_POD}]"
        raise invalid(PODS, before["metadata"]["name"], field, "FieldValueForbidden", why)


def _grace_s(seconds: int) -> int:
    """Return the seconds that a pod has to end: the API server turns negative ones into 1."""
    return seconds if seconds >= 0 else 1


def _create_event(new: Json) -> None:
    name, namespace = new["metadata"]["name"], new["metadata"]["namespace"]
    for required in ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type"):
        if not new.get(required):
            raise invalid(EVENTS, name, required, "FieldValueRequired", "Required value")
    for limited, longest in (("note", 1024), ("reason", 128), ("action", 128), ("reportingInstance", 128)):
        if len(new.get(limited, "").encode()) > longest:
            raise invalid(EVENTS, name, limited, "FieldValueInvalid", f"can have at most {longest} characters")
    if new["type"] not in {"Normal", "Warning"}:
        raise invalid(EVENTS, name, "type", "FieldValueInvalid", "has invalid value")
    if not (new.get("regarding") or {}).get("namespace") and namespace not in {"default", "kube-system"}:
        raise invalid(EVENTS, name, "involvedObject.namespace", "FieldValueInvalid", "does not match event.namespace")
    _check_series(name, new)


def _change_event(before: Json, after: Json) -> None:
    name = before["metadata"]["name"]
    for part in before.keys() | after.keys():
        if part not in {"metadata", "series"} and before.get(part) != after.get(part):
            raise invalid(EVENTS, name, part, "FieldValueInvalid", "field is immutable")
    _check_series(name, after)


def _check_series(name: str, event: Json) -> None:
    series = event.get("series")
    if series is not None and (series.get("count", 0) < 2 or not series.get("lastObservedTime")):
        raise invalid(EVENTS, name, "series.count", "FieldValueInvalid", "should be at least 2")


def _check_lease(lease: Json) -> None:
    spec = lease.setdefault("spec", {})
    for absent in [key for key, value in spec.items() if value is None]:
        del spec[absent]
    for number, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        if spec.get(number, least) < least:
            message = f"must be greater than {'or equal to ' if not least else ''}0"
            raise invalid(LEASES, lease["metadata"]["name"], f"spec.{number}", "FieldValueInvalid", message)


def _create_budget(new: Json) -> None:
    new["metadata"].setdefault("generation", 1)
    new.setdefault("status", {})


def _change_budget(before: Json, after: Json) -> None:
    if before.get("spec") != after.get("spec"):  # its controller has to look at it again
        after["metadata"]["generation"] = before["metadata"]["generation"] + 1


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
    fields={
        "spec.nodeName": lambda found: found["spec"].get("nodeName", ""),
        "spec.schedulerName": lambda found: found["spec"].get("schedulerName", ""),
        "status.phase": lambda found: found.get("status", {}).get("phase", ""),
    },
    on_create=_create_pod,
    on_change=_change_pod,
)
NODES = Served("nodes", "Node", namespaced=False, subresources=frozenset({"status"}))
EVENTS = Served("events", "Event", group="events.k8s.io", on_create=_create_event, on_change=_change_event)
CORE_EVENTS = Served(
    "events", "Event", fields={"involvedObject.uid": lambda found: found["involvedObject"].get("uid", "")}
)
"""The same objects in the older API group, only for lists."""
LEASES = Served(
    "leases",
    "Lease",
    group="coordination.k8s.io",
    on_create=_check_lease,
    on_change=lambda _before, after: _check_lease(after),
)
BUDGETS = Served(
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    group="policy",
    subresources=frozenset({"status"}),
    on_create=_create_budget,
    on_change=_change_budget,
)
KINDS = {(kind.group, kind.plural): kind for kind in (PODS, NODES, EVENTS, LEASES, BUDGETS, SLICES, CLAIMS, CLASSES)}


def kind_of(plural: str) -> Served:
    """Return the kind with this plural name."""
    return next(kind for kind in KINDS.values() if kind.plural == plural)
