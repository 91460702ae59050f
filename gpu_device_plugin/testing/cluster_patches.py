"""Apply JSON merge patches and strategic merge patches like an API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.testing.cluster_kinds import RefusedError

if TYPE_CHECKING:
    from gpu_device_plugin.testing.builders import Json

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
            raise RefusedError(400, "BadRequest", f"map: {entry} does not contain declared merge key: {key}")
        if entry.get("$patch") == "delete":
            merged.pop(entry[key], None)
        else:
            merged[entry[key]] = strategic_merge(merged.get(entry[key]), entry)
    return list(merged.values())
