"""The objects of an API server, one version counter, and the history for watches.

This module is independent of HTTP; `api_server` serves the store. `cluster_kinds` has the validation of objects.
"""

from __future__ import annotations

import copy
import math
import secrets
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.model.times import epoch_s, rfc3339
from gpu_device_plugin.testing.cluster.cluster_kinds import KINDS, PODS, Json, Served, StatusError, invalid

_CHANGEABLE = ("labels", "annotations", "finalizers")
"""The metadata fields that clients may change."""
_ENDED = {"Succeeded", "Failed"}
"""Phases in which no container is left for the kubelet to stop."""

Key = tuple[str, str]
"""Namespace and name."""

KEPT_CHANGES = 10_000
"""The changes that are kept at least. The client of a watch that lags further must list again."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `before` is None for a creation, `after` for a deletion."""

    version: int
    served: Served
    before: Json | None
    after: Json | None

    def seen_by(self, selector: Callable[[Json], bool]) -> tuple[str, Json] | None:
        """Return type and object of the event that a watch with `selector` gets, or None.

        An object that begins to match is reported as added, even if it is not new; one that no longer matches, as
        deleted.
        """
        was = self.before is not None and selector(self.before)
        if self.after is not None and selector(self.after):
            return "MODIFIED" if was else "ADDED", self.after
        if self.before is not None and was:
            meta = {**self.before["metadata"], "resourceVersion": str(self.version)}
            return "DELETED", {**self.before, "metadata": meta}
        return None


@dataclass(frozen=True, slots=True)
class State:
    """All objects as of one version."""

    version: int
    objects: Mapping[Served, Mapping[Key, Json]]


class Store:
    """Objects and their history. Stored objects are never changed, only replaced; callers must not change them."""

    def __init__(self, kinds: Iterable[Served] = KINDS) -> None:
        self.changed = Observable(1)
        """The newest version; set for every write."""
        self.oldest = 1
        """The oldest version at which a watch can begin."""
        self._objects: dict[Served, dict[Key, Json]] = {kind: {} for kind in kinds}
        self._history: list[Change] = []

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(found)} {kind.plural}" for kind, found in self._objects.items())
        return f"<Store #{self.version}: {counts}>"

    @property
    def version(self) -> int:
        """The newest version."""
        return self.changed.value

    def state(self) -> State:
        """Return a snapshot of all objects."""
        return State(self.version, {kind: dict(found) for kind, found in self._objects.items()})

    def changes_after(self, version: int, up_to: int) -> Sequence[Change]:
        """Return the changes after `version` that watches get, in order."""
        begin, end = (bisect_right(self._history, one, key=lambda change: change.version) for one in (version, up_to))
        return self._history[begin:end]

    def get(self, served: Served, key: Key) -> Json:
        """Return an object; StatusError if there is none."""
        found = self._objects[served].get(key)
        if found is None:
            details = {"name": key[1], "kind": served.plural}
            raise StatusError(404, "NotFound", f'{served.full} "{key[1]}" not found', details)
        return found

    def create(self, served: Served, namespace: str, body: Json, *, as_given: bool = False, keep: bool = True) -> Json:
        """Store a new object; with `as_given`, keep the fields that normally only the API server sets.

        Without `keep` nothing is stored, as with a dry run.
        """
        new = copy.deepcopy(body)
        meta = new.setdefault("metadata", {})
        if meta.get("generateName") and not meta.get("name"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        if not meta.get("name"):
            raise invalid(served, "", "metadata.name", "FieldValueRequired", "Required value: name is required")
        if served.namespaced:
            if namespace and meta.setdefault("namespace", namespace) != namespace:
                message = "the namespace of the provided object does not match the namespace sent on the request"
                raise StatusError(400, "BadRequest", message)
            meta.setdefault("namespace", "default")
        key = (meta.get("namespace", ""), meta["name"])
        if key in self._objects[served]:
            details = {"name": key[1], "kind": served.plural}
            raise StatusError(409, "AlreadyExists", f'{served.full} "{key[1]}" already exists', details)
        if not as_given:
            for ours in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
                meta.pop(ours, None)
            if served.without_status:
                new.pop("status", None)
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", rfc3339(time.time()))
        new.update(apiVersion=served.api_version, kind=served.kind)
        self.validate(served, None, new)
        return self._commit(served, key, None, new) if keep else new

    def change(
        self,
        served: Served,
        key: Key,
        apply: Callable[[Json], Json],
        *,
        subresource: str = "",
        admit: Callable[[Json, Json], None] = lambda _before, _after: None,
    ) -> Json:
        """Replace an object by the result of `apply`, limited to the fields that `subresource` (or none) may change.

        After the validation, `admit` gets the old and the new object and may refuse the change.
        """
        before = self.get(served, key)
        after = apply(copy.deepcopy(before))
        old, new = before["metadata"], after.get("metadata") or {}
        if (new.get("name", key[1]), new.get("namespace", key[0])) != (key[1], key[0]):
            message = f"the name of the object ({new.get('name')}) does not match the name on the URL ({key[1]})"
            raise StatusError(400, "BadRequest", message)
        if new.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
            message = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(served, key, message)
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
        self.validate(served, before, after)
        admit(before, after)
        if old.get("finalizers") and not new.get("finalizers") and old.get("deletionGracePeriodSeconds") == 0:
            return self._commit(served, key, before, None)
        return before if after == before else self._commit(served, key, before, after)

    def delete(self, served: Served, key: Key, *, grace_s: int | None = None, uid: str = "", version: str = "") -> Json:
        """Delete an object, or mark a running pod for deletion by its kubelet."""
        before = self.get(served, key)
        meta = before["metadata"]
        for what, wanted, there in preconditions(uid, version, before):
            raise conflict(
                served,
                key,
                f"the {what} in the precondition ({wanted}) does not match the {what} in record ({there}). "
                "The object might have been deleted and then recreated",
            )
        grace, until_s = _deletion(before, grace_s) if served is PODS else (0, time.time())
        marked = served is PODS or meta.get("finalizers")
        if marked and meta.get("deletionGracePeriodSeconds", math.inf) > grace:
            marks = {"deletionTimestamp": rfc3339(until_s), "deletionGracePeriodSeconds": grace}
            before = self._commit(served, key, before, {**before, "metadata": {**meta, **marks}})
        return before if grace or meta.get("finalizers") else self._commit(served, key, before, None)

    def bind(self, key: Key, binding: Json) -> None:
        """Bind a pod to a node: annotations, labels and node name in one write."""
        found, meta = self.get(PODS, key), binding.get("metadata") or {}
        bound = copy.deepcopy(found)
        bound["spec"]["nodeName"] = binding["target"]["name"]
        for what in ("annotations", "labels"):
            if meta.get(what):
                bound["metadata"][what] = {**bound["metadata"].get(what, {}), **meta[what]}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(time.time())}
        others = [one for one in bound["status"].get("conditions", []) if one["type"] != "PodScheduled"]
        bound["status"]["conditions"] = [*others, scheduled]
        self._commit(PODS, key, found, bound)

    def disrupt(self, key: Key, found: Json) -> None:
        """Refuse the eviction of a pod whose end disrupts something."""

    def evict(self, key: Key, eviction: Json) -> None:
        """Evict a pod as Kubernetes 1.36 does (pkg/registry/core/pod/storage/eviction.go), or raise StatusError."""
        if (eviction.get("metadata") or {}).get("name", key[1]) != key[1]:
            raise StatusError(400, "BadRequest", "name in URL does not match name in Eviction object")
        found = self.get(PODS, key)
        options = eviction.get("deleteOptions") or {}
        wanted = (options.get("preconditions") or {}).get("uid") or found["metadata"]["uid"]
        deleting = "deletionTimestamp" in found["metadata"]
        # A pod that has not started, has ended, or is being deleted disrupts nothing.
        if wanted == found["metadata"]["uid"] and found["status"].get("phase") == "Running" and not deleting:
            self.disrupt(key, found)
        if wanted == found["metadata"]["uid"] and not deleting:
            self.change(PODS, key, _targeted, subresource="status")
        self.delete(PODS, key, grace_s=options.get("gracePeriodSeconds"), uid=wanted)

    def validate(self, served: Served, before: Json | None, after: Json) -> None:
        """Set the defaults of a new object, or refuse it, or a forbidden change."""
        if before is None:
            served.on_create(after)
        else:
            served.on_change(before, after)

    def _commit(self, served: Served, key: Key, before: Json | None, after: Json | None) -> Json:
        version = self.version + 1
        if after is None:
            kept = self._objects[served].pop(key)
        else:
            after["metadata"] = {**after["metadata"], "resourceVersion": str(version)}
            kept = self._objects[served][key] = after
        self._history.append(Change(version, served, before, after))
        if len(self._history) > 2 * KEPT_CHANGES:
            del self._history[:KEPT_CHANGES]
            self.oldest = self._history[0].version - 1
        self.changed.set(version)
        return kept


def _targeted(found: Json) -> Json:
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": rfc3339(time.time()),
    }
    others = [one for one in found["status"].get("conditions", ()) if one["type"] != target["type"]]
    found["status"]["conditions"] = [*others, target]
    return found


def preconditions(uid: str | None, version: str | None, found: Json) -> Iterator[tuple[str, str, str]]:
    """Yield name, expected value and found value of each failed precondition."""
    for what, wanted, key in (("UID", uid, "uid"), ("ResourceVersion", version, "resourceVersion")):
        if wanted and wanted != found["metadata"][key]:
            yield what, wanted, found["metadata"][key]


def _deletion(found: Json, asked_s: int | None) -> tuple[int, float]:
    """Return how many seconds a pod has to end, and until when, if its deletion is requested with `asked_s`.

    Another request can only shorten a deletion, and not into the past (BeforeDelete in apiserver's
    pkg/registry/rest/delete.go, CheckGracefulDelete in Kubernetes' pkg/registry/core/pod/strategy.go).
    """
    meta, spec, now_s = found["metadata"], found["spec"], time.time()
    asked_s = 1 if asked_s is not None and asked_s < 0 else asked_s
    if before_s := meta.get("deletionGracePeriodSeconds"):
        until_s = epoch_s(meta["deletionTimestamp"]) or now_s
        if asked_s is None or asked_s >= before_s:
            return before_s, until_s
        until_s -= before_s - asked_s
        return (asked_s, until_s) if until_s >= now_s else (min(1, asked_s), now_s)
    if not spec.get("nodeName") or found["status"].get("phase") in _ENDED:
        return 0, now_s
    grace_s = spec["terminationGracePeriodSeconds"] if asked_s is None else asked_s
    return grace_s, now_s + grace_s


def conflict(served: Served, key: Key, why: str, subresource: str = "") -> StatusError:
    """Return the refusal of a write that came too late."""
    message = f'Operation cannot be fulfilled on {served.full}{subresource} "{key[1]}": {why}'
    return StatusError(409, "Conflict", message, {"name": key[1], "kind": served.plural + subresource})


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    merged |= {key: merge(merged.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in merged.items() if key not in patch or value is not None}
