"""What an API server keeps, and the changes it refuses: objects, one version counter, and the history for watches.

Nothing here knows HTTP; `cluster` serves it. The rules are those of Kubernetes 1.36, for the kinds that this product
touches, and stricter in one point: the spec of a pod cannot be changed at all.
"""

from __future__ import annotations

import copy
import math
import secrets
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.testing.selectors import SelectorError, field_selector, label_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpu_device_plugin.testing.builders import Json

_CHANGEABLE = ("labels", "annotations", "finalizers")
"""What of an object's metadata may be changed."""
_ENDED = {"Succeeded", "Failed"}
"""Phases in which no kubelet has anything to end."""

Key = tuple[str, str]
"""Namespace and name."""

KEPT_CHANGES = 10_000
"""A watch that is further behind must list again."""


class RefusedError(Exception):
    """A request that the API server answers with an error."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A kind of object that the store keeps."""

    plural: str
    kind: str
    group: str = ""
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    fields: Mapping[str, Callable[[Mapping[str, Any]], str]] = field(default_factory=dict)
    """Field selectors besides those on metadata."""

    @property
    def api_version(self) -> str:
        """As written in objects."""
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def full(self) -> str:
        """As written in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def selector(self, fields: str, labels: str) -> Callable[[Mapping[str, Any]], bool]:
        """Return whether an object is meant by both selectors; raise RefusedError if they cannot be read."""
        known: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "metadata.name": lambda found: found["metadata"]["name"],
            **({"metadata.namespace": lambda found: found["metadata"]["namespace"]} if self.namespaced else {}),
            **self.fields,
        }
        try:
            by_fields, by_labels = field_selector(fields, known), label_selector(labels)
        except SelectorError as error:
            raise RefusedError(400, "BadRequest", str(error)) from error
        return lambda found: by_fields(found) and by_labels(found)


PODS = Served(
    "pods",
    "Pod",
    subresources=frozenset({"status", "binding"}),
    fields={
        "spec.nodeName": lambda found: found["spec"].get("nodeName", ""),
        "spec.schedulerName": lambda found: found["spec"].get("schedulerName", ""),
        "status.phase": lambda found: found.get("status", {}).get("phase", ""),
    },
)
NODES = Served("nodes", "Node", namespaced=False, subresources=frozenset({"status"}))
EVENTS = Served("events", "Event", group="events.k8s.io")
CORE_EVENTS = Served(
    "events", "Event", fields={"involvedObject.uid": lambda found: found["involvedObject"].get("uid", "")}
)
"""The same objects by their older form, only to be listed."""
LEASES = Served("leases", "Lease", group="coordination.k8s.io")
KINDS = {(kind.group, kind.plural): kind for kind in (PODS, NODES, EVENTS, LEASES)}


def core_event(event: Json) -> Json:
    """Return an Event as API group ``""`` has it (Convert_v1_Event_To_core_Event in Kubernetes' pkg/apis/events/v1)."""
    names = {
        "note": "message",
        "regarding": "involvedObject",
        "reportingController": "reportingComponent",
        "deprecatedFirstTimestamp": "firstTimestamp",
        "deprecatedLastTimestamp": "lastTimestamp",
    }
    ours = {names.get(key, key): value for key, value in event.items()}
    return {"involvedObject": {}, "firstTimestamp": None, "lastTimestamp": None, **ours}


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `before` and `after` are None where there was, or is, no object."""

    version: int
    served: Served
    before: Json | None
    after: Json | None

    def seen_by(self, selector: Callable[[Json], bool]) -> tuple[str, Json] | None:
        """Return type and object of the event that a watch with `selector` gets, or None.

        An object that begins to match is added, whether it is new or not; one that ceases to match is deleted.
        """
        was = self.before is not None and selector(self.before)
        match self.after is not None and selector(self.after):
            case True if self.after is not None:
                return "MODIFIED" if was else "ADDED", self.after
            case _ if was and self.before is not None:
                meta = {**self.before["metadata"], "resourceVersion": str(self.version)}
                return "DELETED", {**self.before, "metadata": meta}
            case _:
                return None


@dataclass(frozen=True, slots=True)
class State:
    """All objects as of one version."""

    version: int
    objects: Mapping[Served, Mapping[Key, Json]]


class Store:
    """Objects and their history. Stored objects are never changed, only replaced; do not change what is handed out."""

    def __init__(self) -> None:
        self.changed = Latest(1)
        """The newest version; set for every write."""
        self.oldest = 1
        """A watch can begin here, and at no older version."""
        self._objects: dict[Served, dict[Key, Json]] = {kind: {} for kind in KINDS.values()}
        self._history: list[Change] = []
        self._hide = False
        self._hidden: set[int] = set()

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(found)} {kind.plural}" for kind, found in self._objects.items())
        return f"<Store #{self.version}: {counts}>"

    @property
    def version(self) -> int:
        """The newest version."""
        return self.changed.value

    def state(self) -> State:
        """Return everything as it is now."""
        return State(self.version, {kind: dict(found) for kind, found in self._objects.items()})

    def changes_after(self, version: int, up_to: int) -> Iterator[Change]:
        """Return the changes after `version` that watches are told of, in order."""
        begin = bisect_right(self._history, version, key=lambda change: change.version)
        for change in self._history[begin:]:
            if change.version <= up_to and change.version not in self._hidden:
                yield change

    def compact(self) -> None:
        """Forget the history: whoever continues from an older version is told to list again."""
        self.oldest = self.version
        self._history.clear()
        self._hidden.clear()

    def hide_changes(self, *, hide: bool) -> None:
        """Keep the writes from now on from watches for ever, or stop doing so."""
        self._hide = hide

    def get(self, served: Served, key: Key) -> Json:
        """Return an object; RefusedError if there is none."""
        found = self._objects[served].get(key)
        if found is None:
            details = {"name": key[1], "kind": served.plural}
            raise RefusedError(404, "NotFound", f'{served.full} "{key[1]}" not found', details)
        return found

    def create(self, served: Served, namespace: str, body: Json, *, as_given: bool = False) -> Json:
        """Keep a new object; with `as_given` also what only the API server may choose."""
        new = copy.deepcopy(body)
        meta = new.setdefault("metadata", {})
        if meta.get("generateName") and not meta.get("name"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        if not meta.get("name"):
            raise invalid(served, "", "metadata.name", "FieldValueRequired", "Required value: name is required")
        if served.namespaced:
            if namespace and meta.setdefault("namespace", namespace) != namespace:
                raise RefusedError(
                    400, "BadRequest", "the namespace of the provided object does not match the namespace sent on the"
                    " request"
                )  # fmt: skip
            meta.setdefault("namespace", "default")
        key = (meta.get("namespace", ""), meta["name"])
        if key in self._objects[served]:
            details = {"name": key[1], "kind": served.plural}
            raise RefusedError(409, "AlreadyExists", f'{served.full} "{key[1]}" already exists', details)
        if not as_given:
            for ours in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
                meta.pop(ours, None)
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", _time(datetime.now(UTC)))
        new.update(apiVersion=served.api_version, kind=served.kind)
        _CREATE_RULES.get(served, _no_rule)(new, as_given)
        return self._commit(served, key, None, new)

    def change(
        self,
        served: Served,
        key: Key,
        apply: Callable[[Json], Json],
        *,
        subresource: str = "",
        admit: Callable[[Json, Json], None] = lambda _before, _after: None,
    ) -> Json:
        """Replace an object by what `apply` makes of it, within what `subresource` (or none) may change.

        Once it is known to be valid `admit` may refuse it, whose arguments are how it was and how it would be.
        """
        before = self.get(served, key)
        after = apply(copy.deepcopy(before))
        old, new = before["metadata"], after.get("metadata") or {}
        if (new.get("name", key[1]), new.get("namespace", key[0])) != (key[1], key[0]):
            raise RefusedError(
                400, "BadRequest", f"the name of the object ({new.get('name')}) does not match the name on the URL"
                f" ({key[1]})"
            )  # fmt: skip
        if new.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
            raise _conflict(
                served,
                key,
                "the object has been modified; please apply your changes to the latest version and try again",
            )
        if new.get("uid", old["uid"]) != old["uid"]:
            message = f'Invalid value: "{new["uid"]}": field is immutable'
            raise invalid(served, key[1], "metadata.uid", "FieldValueInvalid", message)
        changeable = {name: new[name] for name in _CHANGEABLE if new.get(name)}
        kept = {name: value for name, value in old.items() if name not in _CHANGEABLE}
        after["metadata"] = kept | changeable
        if "status" in served.subresources:
            part = "spec" if subresource == "status" else "status"
            after.pop(part, None)
            after.update({part: before[part]} if part in before else {})
        _CHANGE_RULES.get(served, _no_change_rule)(before, after)
        admit(before, after)
        if old.get("finalizers") and not new.get("finalizers") and old.get("deletionGracePeriodSeconds") == 0:
            return self._commit(served, key, before, None)
        return before if after == before else self._commit(served, key, before, after)

    def delete(self, served: Served, key: Key, *, grace_s: int | None = None, uid: str = "", version: str = "") -> Json:
        """Delete an object, or mark a running pod for deletion as its kubelet wants it."""
        before = self.get(served, key)
        meta = before["metadata"]
        for what, wanted, there in _preconditions(uid, version, before):
            raise _conflict(
                served,
                key,
                f"the {what} in the precondition ({wanted}) does not match the {what} in record ({there}). "
                "The object might have been deleted and then recreated",
            )
        grace = 0
        if served is PODS and before["spec"].get("nodeName") and before["status"].get("phase") not in _ENDED:
            grace = before["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
        marked = served is PODS or meta.get("finalizers")
        if marked and meta.get("deletionGracePeriodSeconds", math.inf) > grace:
            stamp = _time(datetime.now(UTC) + timedelta(seconds=grace))
            marks = {"deletionTimestamp": stamp, "deletionGracePeriodSeconds": grace}
            before = self._commit(served, key, before, {**before, "metadata": {**meta, **marks}})
        return before if grace or meta.get("finalizers") else self._commit(served, key, before, None)

    def bind(self, key: Key, binding: Json) -> None:
        """Bind a pod to a node: annotations and node name in one write, if the preconditions hold."""
        meta, target = binding.get("metadata") or {}, binding.get("target") or {}
        if meta.get("name") != key[1]:
            raise RefusedError(400, "BadRequest", "name in URL does not match name in Binding object")
        if target.get("kind", "Node") not in {"", "Node"}:
            raise RefusedError(500, "", f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node"')
        if not target.get("name"):
            raise RefusedError(500, "", "target.name: Required value")
        found = self.get(PODS, key)
        for what, wanted, there in _preconditions(meta.get("uid"), meta.get("resourceVersion"), found):
            raise _conflict(
                PODS, key, f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {there}"
            )
        if "deletionTimestamp" in found["metadata"]:
            raise _binding_conflict(key, f"pod {key[1]} is being deleted, cannot be assigned to a host")
        if found["spec"].get("nodeName"):
            node = found["spec"]["nodeName"]
            raise _binding_conflict(key, f'pod {key[1]} is already assigned to node "{node}"')
        if found["spec"].get("schedulingGates"):
            raise _binding_conflict(key, f"pod {key[1]} has non-empty .spec.schedulingGates")
        bound = copy.deepcopy(found)
        bound["spec"]["nodeName"] = target["name"]
        for what in ("annotations", "labels"):
            if meta.get(what):
                bound["metadata"][what] = {**bound["metadata"].get(what, {}), **meta[what]}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _time(datetime.now(UTC))}
        others = [one for one in bound["status"].get("conditions", []) if one["type"] != "PodScheduled"]
        bound["status"]["conditions"] = [*others, scheduled]
        self._commit(PODS, key, found, bound)

    def _commit(self, served: Served, key: Key, before: Json | None, after: Json | None) -> Json:
        version = self.version + 1
        if after is None:
            del self._objects[served][key]
        else:
            after["metadata"] = {**after["metadata"], "resourceVersion": str(version)}
            self._objects[served][key] = after
        self._history.append(Change(version, served, before, after))
        if self._hide:
            self._hidden.add(version)
        if len(self._history) > 2 * KEPT_CHANGES:
            del self._history[:KEPT_CHANGES]
            self.oldest = self._history[0].version - 1
        self.changed.set(version)
        kept = after if after is not None else before
        if kept is None:
            raise AssertionError("a change of nothing into nothing")
        return kept


def _no_rule(_new: Json, _as_given: bool) -> None:  # noqa: FBT001 - shape of a table's entries
    return


def _no_change_rule(_before: Json, _after: Json) -> None:
    return


def _create_pod(new: Json, as_given: bool) -> None:  # noqa: FBT001
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
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if not as_given:
        new.pop("status", None)
    new.setdefault("status", {}).setdefault("phase", "Pending")


def _change_pod(before: Json, after: Json) -> None:
    if before["spec"] != after["spec"]:
        raise invalid(
            PODS,
            before["metadata"]["name"],
            "spec",
            "FieldValueForbidden",
            f"Forbidden: pod updates may not change fields other than `spec.containers[*].image`: {after['spec']}",
        )


def _create_event(new: Json, _as_given: bool) -> None:  # noqa: FBT001
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


def _create_lease(new: Json, _as_given: bool) -> None:  # noqa: FBT001
    _check_lease(new)


def _change_lease(_before: Json, after: Json) -> None:
    _check_lease(after)


def _check_lease(lease: Json) -> None:
    spec = lease.setdefault("spec", {})
    for absent in [key for key, value in spec.items() if value is None]:
        del spec[absent]
    for number, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        if spec.get(number, least) < least:
            message = f"must be greater than {'or equal to ' if not least else ''}0"
            raise invalid(LEASES, lease["metadata"]["name"], f"spec.{number}", "FieldValueInvalid", message)


_CREATE_RULES: dict[Served, Callable[[Json, bool], None]] = {
    PODS: _create_pod,
    EVENTS: _create_event,
    LEASES: _create_lease,
}
_CHANGE_RULES: dict[Served, Callable[[Json, Json], None]] = {
    PODS: _change_pod,
    EVENTS: _change_event,
    LEASES: _change_lease,
}


def canonical_quantity(text: str) -> str:
    """Write a whole number as the API server does: ``1000`` becomes ``1k``; anything else stays."""
    if not (text.isascii() and text.isdigit()):
        return text
    number, suffixes = int(text), iter(("", "k", "M", "G", "T", "P", "E"))
    suffix = next(suffixes)
    while number and number % 1000 == 0 and suffix != "E":
        number, suffix = number // 1000, next(suffixes)
    return f"{number}{suffix}"


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


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic_merge(target: Any, patch: Any, name: str = "") -> Any:
    """Apply a strategic merge patch; of its directives, ``$patch: delete`` in lists and ``$patch: replace``."""
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
            raise RefusedError(400, "BadRequest", f"map: {entry} does not contain declared merge key: {key}")
        if entry.get("$patch") == "delete":
            merged.pop(entry[key], None)
        else:
            merged[entry[key]] = strategic_merge(merged.get(entry[key]), entry)
    return list(merged.values())


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _preconditions(uid: str | None, version: str | None, found: Json) -> Iterator[tuple[str, str, str]]:
    """Yield name, wanted and found value of the preconditions that do not hold."""
    for what, wanted, key in (("UID", uid, "uid"), ("ResourceVersion", version, "resourceVersion")):
        if wanted and wanted != found["metadata"][key]:
            yield what, wanted, found["metadata"][key]


def _conflict(served: Served, key: Key, why: str) -> RefusedError:
    message = f'Operation cannot be fulfilled on {served.full} "{key[1]}": {why}'
    return RefusedError(409, "Conflict", message, {"name": key[1], "kind": served.plural})


def _binding_conflict(key: Key, why: str) -> RefusedError:
    message = f'Operation cannot be fulfilled on pods/binding "{key[1]}": {why}'
    return RefusedError(409, "Conflict", message, {"name": key[1], "kind": "pods/binding"})


def invalid(served: Served, name: str, where: str, why: str, message: str) -> RefusedError:
    """Return the refusal of an object for what stands in one of its fields."""
    cause = {"reason": why, "message": message, "field": where}
    details = {"name": name, "kind": served.kind, "causes": [cause]}
    return RefusedError(422, "Invalid", f'{served.kind} "{name}" is invalid: {where}: {message}', details)
