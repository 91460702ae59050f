"""The kinds of objects that the API server double stores for tests, besides pods, nodes and Events.

The rules are those of Kubernetes 1.36.
"""

import re
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from gpu_device_plugin.kubernetes.objects.quantity import quantity
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.testing.cluster import cluster_kinds
from gpu_device_plugin.testing.cluster.cluster_kinds import Served, invalid
from tests.builders import Json

# --- ResourceSlices, ResourceClaims and DeviceClasses, with the limits of pkg/apis/resource/validation ----------------
# Expressions in CEL are stored and not checked.

GROUP = "resource.k8s.io"

_MOST_DEVICES, _MOST_WITH_MORE = 128, 64
"""Devices of a slice; and of one with taints or counters."""
_MOST_FACTS = 32
"""Attributes and capacities of a device."""
_LONGEST_TEXT = 64
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SEMVER = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_NEW_FIELDS = frozenset(
    {"allowMultipleAllocations", "requestPolicy", "sharedCounters", "consumesCounters", "taints", "consumedCapacity"}
    | {"shareID", "extendedResourceName"}
)
"""Fields that API servers before 1.36 drop without a word."""


def valid_quantity(text: object) -> Decimal:
    """Return the value of a quantity; raise ValueError if it is none."""
    value = quantity(str(text))
    if value is None:
        raise ValueError(f"{text!r} is no quantity")
    return value


def without_new_fields(body: Any) -> Any:
    """Return an object as an API server before 1.36 reads it."""
    if isinstance(body, dict):
        return {key: without_new_fields(value) for key, value in body.items() if key not in _NEW_FIELDS}
    return [without_new_fields(each) for each in body] if isinstance(body, list) else body


def _check_slice(new: Json) -> None:
    name, spec = new["metadata"]["name"], new.setdefault("spec", {})
    for where, why in _wrong_slice(spec):
        raise invalid(SLICES, name, f"spec.{where}", "FieldValueInvalid", why)
    now = rfc3339(time.time())
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", now)


def _wrong_slice(spec: Json) -> Iterator[tuple[str, str]]:
    pool, devices, sets = spec.get("pool") or {}, spec.get("devices") or [], spec.get("sharedCounters")
    if not spec.get("driver"):
        yield "driver", "Required value"
    if not pool.get("name") or pool.get("resourceSliceCount", 0) < 1 or pool.get("generation", -1) < 0:
        yield "pool", "Invalid value: it needs a name, a generation and a resourceSliceCount above 0"
    if sum(bool(spec.get(one)) for one in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")) != 1:
        yield "", "Invalid value: exactly one of nodeName, nodeSelector, allNodes, perDeviceNodeSelection is required"
    if devices and sets:
        yield "", "Invalid value: a slice has devices or sharedCounters"
    more = any(device.get("taints") for device in devices)
    if len(devices) > (_MOST_WITH_MORE if more else _MOST_DEVICES):
        yield "devices", f"Too many: {len(devices)}"
    names = [device.get("name", "") for device in devices]
    if len(set(names)) < len(names) or not all(_LABEL.fullmatch(name) for name in names):
        yield "devices.name", "Invalid value: it has to be a DNS label, and no other device may have it"
    for device in devices:
        yield from _wrong_device(device)


def _wrong_device(device: Json) -> Iterator[tuple[str, str]]:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > _MOST_FACTS:
        yield "devices.attributes", "Too many"
    for name, value in attributes.items():
        if why := _wrong_attribute(value):
            yield f"devices.attributes[{name}]", why
    for name, found in capacity.items():
        policy = found.get("requestPolicy")
        if policy and not device.get("allowMultipleAllocations"):
            yield f"devices.capacity[{name}].requestPolicy", "Forbidden: it needs allowMultipleAllocations"
        if policy:
            yield from _wrong_policy(f"devices.capacity[{name}].requestPolicy", found["value"], policy)
    for taint in device.get("taints") or ():
        if taint.get("effect") not in {"NoSchedule", "NoExecute", "None"} or len(taint.get("value", "")) > 63:
            yield "devices.taints", "Invalid value"


def _wrong_attribute(value: Json) -> str:
    if len(value) != 1:
        return "Invalid value: exactly one value is required"
    if len(str(value.get("string", ""))) > _LONGEST_TEXT:
        return "Too long"
    if "version" in value and not _SEMVER.fullmatch(value["version"]):
        return "Invalid value: it is no semantic version"
    if "int" in value and type(value["int"]) is not int:
        return "Invalid value: it is no whole number"
    return ""


def _wrong_policy(where: str, value: str, policy: Json) -> Iterator[tuple[str, str]]:
    valid = policy.get("validRange") or {}
    try:
        total, least = valid_quantity(value), valid_quantity(valid.get("min", "0"))
        most, step = valid_quantity(valid.get("max", value)), valid_quantity(valid.get("step", "0"))
        default = valid_quantity(policy["default"])
    except (ValueError, KeyError):
        yield where, "Required value: default, and quantities"
        return
    if not least <= default <= most <= total or (step and least + step > total):
        yield where, "Invalid value: min <= default <= max <= value, min + step <= value"
    if step and ((default - least) % step or (most - least) % step):
        yield where, "Invalid value: default and max have to be min and a multiple of step"


def _check_claim_status(_before: Json, after: Json) -> None:
    status = after.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    given = {_place(result) for result in results}
    for found in status.get("devices") or ():
        if _place(found) not in given:
            name = after["metadata"]["name"]
            why = "Invalid value: must be an allocated device in the claim"
            raise invalid(CLAIMS, name, "status.devices", "FieldValueInvalid", why)


def _place(found: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(found.get(key) for key in ("driver", "pool", "device", "shareID"))


def applied(found: Json, patch: Json) -> Json:
    """Apply the devices of a claim's status on the server's side: they replace those of the same place.

    Fields of an earlier apply that this one lacks stay, other than in Kubernetes.
    """
    meta = found["metadata"] | {"uid": patch.get("metadata", {}).get("uid", found["metadata"]["uid"])}
    status = found.get("status") or {}
    ours = patch.get("status", {}).get("devices") or []
    places = {_place(each) for each in ours}
    others = [each for each in status.get("devices") or () if _place(each) not in places]
    return {**found, "metadata": meta, "status": {**status, "devices": [*others, *ours]}}


SLICES = Served(
    "resourceslices",
    "ResourceSlice",
    group=GROUP,
    namespaced=False,
    fields={
        "spec.driver": lambda found: found["spec"].get("driver", ""),
        "spec.nodeName": lambda found: found["spec"].get("nodeName", ""),
    },
    on_create=_check_slice,
    on_change=lambda _before, after: _check_slice(after),
)
CLAIMS = Served(
    "resourceclaims",
    "ResourceClaim",
    group=GROUP,
    subresources=frozenset({"status"}),
    on_change=_check_claim_status,
)
CLASSES = Served("deviceclasses", "DeviceClass", group=GROUP, namespaced=False)


# --- Leases, budgets and workloads ------------------------------------------------------------------------------------


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


def _count_generation(before: Json, after: Json) -> None:
    if before.get("spec") != after.get("spec"):  # its controller has to look at it again
        after["metadata"]["generation"] = before["metadata"]["generation"] + 1


def _create_workload(served: Served, new: Json) -> None:
    spec = new.setdefault("spec", {})
    for required in ("selector", "template"):
        if not spec.get(required):
            raise invalid(served, new["metadata"]["name"], f"spec.{required}", "FieldValueRequired", "Required value")
    spec.setdefault("replicas", 1)
    new["metadata"].setdefault("generation", 1)
    new.setdefault("status", {} if served.kind == "Deployment" else {"replicas": 0})


def _change_workload(served: Served, before: Json, after: Json) -> None:
    if (replicas := after["spec"]["replicas"]) < 0:
        why = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid(served, after["metadata"]["name"], "spec.replicas", "FieldValueInvalid", why)
    _count_generation(before, after)


def _create_template(new: Json) -> None:
    template = new.get("template") or {}
    if not (template.get("spec") or {}).get("containers"):
        where, why = "template.spec.containers", "Required value"
        raise invalid(TEMPLATES, new["metadata"]["name"], where, "FieldValueRequired", why)


def _create_buffer(new: Json) -> None:
    name, spec = new["metadata"]["name"], new.get("spec")
    if not isinstance(spec, dict):
        raise invalid(BUFFERS, name, "spec", "FieldValueRequired", "Required value")
    if spec.get("replicas", 0) < 0:
        why = f"Invalid value: {spec['replicas']}: spec.replicas in body should be greater than or equal to 0"
        raise invalid(BUFFERS, name, "spec.replicas", "FieldValueInvalid", why)
    spec.setdefault("provisioningStrategy", "buffer.x-k8s.io/active-capacity")
    new["metadata"].setdefault("generation", 1)
    new.pop("status", None)


def scale_of(found: Json) -> Json:
    """Return the subresource ``scale`` of a workload."""
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    labels = found["spec"]["selector"].get("matchLabels", {})
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: found["metadata"][key] for key in kept},
        "spec": {"replicas": replicas} if (replicas := found["spec"]["replicas"]) else {},
        "status": {"replicas": found["status"].get("replicas", 0), "selector": selector},
    }


def scaled(found: Json, scale: Json) -> Json:
    """Return a workload as it is after a change of its subresource ``scale``."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    meta = found["metadata"] | {key: scale["metadata"][key] for key in ("uid", "resourceVersion")}
    return {**found, "metadata": meta, "spec": {**found["spec"], "replicas": replicas}}


NAMESPACES = Served("namespaces", "Namespace", namespaced=False)
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
    without_status=True,
    on_create=_create_budget,
    on_change=_count_generation,
)


def _workload(plural: str, kind: str) -> Served:
    served = Served(
        plural,
        kind,
        group="apps",
        subresources=frozenset({"status", "scale"}),
        without_status=True,
        on_create=lambda new: _create_workload(served, new),
        on_change=lambda before, after: _change_workload(served, before, after),
    )
    return served


WORKLOADS = tuple(_workload(f"{kind.lower()}s", kind) for kind in ("Deployment", "ReplicaSet", "StatefulSet"))
NOTEBOOKS = Served("notebooks", "Notebook", group="kubeflow.org")
"""Of Kubeflow, whose schema is not checked."""
CONFIG_MAPS = Served("configmaps", "ConfigMap")
TEMPLATES = Served("podtemplates", "PodTemplate", on_create=_create_template)
BUFFERS = Served(
    "capacitybuffers",
    "CapacityBuffer",
    group="autoscaling.x-k8s.io",
    version="v1beta1",
    subresources=frozenset({"status"}),
    on_create=_create_buffer,
    on_change=_count_generation,
)
"""Of the Cluster Autoscaler, by its CustomResourceDefinition; see `ApiServer.without`."""
KINDS = (
    *(*cluster_kinds.KINDS, NAMESPACES, LEASES, CONFIG_MAPS, TEMPLATES, BUDGETS, SLICES, CLAIMS, CLASSES),
    *(*WORKLOADS, NOTEBOOKS, BUFFERS),
)
