"""A store for tests: it refuses what the API server refuses, forgets its history, and hides changes.

The rules are those of Kubernetes 1.36, and stricter in one point: the spec of a pod cannot be changed at all.
"""

from typing import Any

from gpu_device_plugin.model.contract.keys import STATIC_POD
from gpu_device_plugin.testing.cluster import cluster_store
from gpu_device_plugin.testing.cluster.cluster_kinds import EVENTS, PODS, Served, StatusError, invalid
from gpu_device_plugin.testing.cluster.cluster_store import Key, conflict, preconditions
from tests.builders import Json
from tests.cluster_double.budgets import take_from_budget


class Store(cluster_store.Store):
    """Objects and their history."""

    hide_changes = False
    """While true, writes are never reported to watches."""

    def compact(self) -> None:
        """Forget the history: a watch from an older version gets 410 Expired."""
        self.oldest = self.version
        self._history.clear()

    def validate(self, served: Served, before: Json | None, after: Json) -> None:
        if served is PODS:
            _check_new_pod(after) if before is None else _change_pod(before, after)
        if served is EVENTS:
            _create_event(after) if before is None else _change_event(before, after)
        super().validate(served, before, after)

    def bind(self, key: Key, binding: Json) -> None:
        """Bind a pod to a node if the preconditions hold."""
        meta, target = binding.get("metadata") or {}, binding.get("target") or {}
        if meta.get("name") != key[1]:
            raise StatusError(400, "BadRequest", "name in URL does not match name in Binding object")
        if target.get("kind", "Node") not in {"", "Node"}:
            raise StatusError(500, "", f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node"')
        if not target.get("name"):
            raise StatusError(500, "", "target.name: Required value")
        found = self.get(PODS, key)
        for what, wanted, there in preconditions(meta.get("uid"), meta.get("resourceVersion"), found):
            raise conflict(
                PODS, key, f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {there}"
            )
        if "deletionTimestamp" in found["metadata"]:
            raise conflict(PODS, key, f"pod {key[1]} is being deleted, cannot be assigned to a host", "/binding")
        if node := found["spec"].get("nodeName"):
            raise conflict(PODS, key, f'pod {key[1]} is already assigned to node "{node}"', "/binding")
        if found["spec"].get("schedulingGates"):
            raise conflict(PODS, key, f"pod {key[1]} has non-empty .spec.schedulingGates", "/binding")
        super().bind(key, binding)

    def disrupt(self, key: Key, found: Json) -> None:
        take_from_budget(self, key, found)

    def _commit(self, served: Served, key: Key, before: Json | None, after: Json | None) -> Json:
        kept = super()._commit(served, key, before, after)
        if self.hide_changes:
            self._history.pop()
        return kept


def _check_new_pod(new: Json) -> None:
    name, spec = new["metadata"]["name"], new.get("spec") or {}
    if not spec.get("containers"):
        raise invalid(PODS, name, "spec.containers", "FieldValueRequired", "Required value")
    if STATIC_POD in new["metadata"].get("annotations", {}) and not spec.get("nodeName"):
        why = "must set spec.nodeName if mirror pod annotation is set"
        raise invalid(PODS, name, f"metadata.annotations[{STATIC_POD}]", "FieldValueInvalid", why)


def _change_pod(before: Json, after: Json) -> None:
    if before["spec"] != after["spec"]:
        why = f"Forbidden: pod updates may not change fields other than `spec.containers[*].image`: {after['spec']}"
        raise invalid(PODS, before["metadata"]["name"], "spec", "FieldValueForbidden", why)
    was, now = (each["metadata"].get("annotations", {}).get(STATIC_POD) for each in (before, after))
    if was != now:
        why = f"Forbidden: may not {'add' if was is None else 'remove or update'} mirror pod annotation"
        field = f"metadata.annotations[{STATIC_POD}]"
        raise invalid(PODS, before["metadata"]["name"], field, "FieldValueForbidden", why)


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


# --- Strategic merge patches ------------------------------------------------------------------------------------------

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "taints": "key",
    "volumes": "name",
}
"""Lists that a strategic merge patch merges, with the field that identifies an entry."""


def strategic_merge(target: Any, patch: Any, name: str = "") -> Any:
    """Apply a strategic merge patch, with the directives ``$patch: delete`` in lists and ``$patch: replace``."""
    if isinstance(patch, list) and name in _MERGE_KEYS:
        return _merge_lists(target or [], patch, _MERGE_KEYS[name])
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif not key.startswith("$"):
            merged[key] = strategic_merge(merged.get(key), value, key)
    return merged


def _merge_lists(target: list[Json], patch: list[Json], key: str) -> list[Json]:
    merged = {entry[key]: entry for entry in target}
    for entry in patch:
        if entry.get(key) is None:
            raise StatusError(400, "BadRequest", f"map: {entry} does not contain declared merge key: {key}")
        if entry.get("$patch") == "delete":
            merged.pop(entry[key], None)
        else:
            merged[entry[key]] = strategic_merge(merged.get(entry[key]), entry)
    return list(merged.values())
