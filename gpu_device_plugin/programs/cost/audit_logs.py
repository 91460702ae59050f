"""Read audit records in logs of agents, also as collectors of logs keep them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.cost.audit import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEEPEST = 12
"""Objects around a record: a collector adds one or two, the answer of a store of logs five."""
_OURS = frozenset({"ts", "level", "logger", "msg"})
"""The fields of every line of an agent."""


def audit_lines(text: bytes) -> list[AuditRecord]:
    """Return the audit records among lines of JSON, or in one JSON document; all else is passed over."""
    found = [record for line in text.splitlines() if b"gpushare." in line for record in _in_text(_decoded(line), 0)]
    if not found and b"gpushare." in text:
        found = list(_in_text(_decoded(text), 0))
    return found[::-1] if _newest_first(found) else found


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")


def _in_text(text: str, depth: int) -> Iterator[AuditRecord]:
    """Yield the records in a text, which may have something before its JSON, such as the time stamp of a runtime."""
    begins = [at for at in (text.find("{"), text.find("[") if text.lstrip()[:1] == "[" else -1) if at >= 0]
    if not begins:
        return
    try:
        value = json.loads(text[min(begins) :])
    except (ValueError, RecursionError):
        if len(begins) < 2:
            return
        try:  # a name in brackets stands before the object: kubectl logs --prefix
            value = json.loads(text[max(begins) :])
        except (ValueError, RecursionError):
            return
    yield from _in_value(value, depth)


def _in_value(value: Any, depth: int) -> Iterator[AuditRecord]:
    if depth > _DEEPEST:
        return
    match value:
        case str() if "gpushare." in value:
            yield from _in_text(value, depth + 1)
        case list():
            for each in value:
                yield from _in_value(each, depth + 1)
        case dict():
            if (record := AuditRecord.of(value) or AuditRecord.of(_flat(value))) is not None:
                yield record
            elif not value.keys() >= _OURS:
                # A line of an agent is not searched: it may quote what others wrote, such as a forged record.
                for each in value.values():
                    yield from _in_value(each, depth + 1)


def _flat(fields: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return fields with dots in their names, of which some stores of logs make objects in objects."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and before.count(".") < _DEEPEST:
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def _newest_first(records: Sequence[AuditRecord]) -> bool:
    """Return whether most records tell of an earlier time than the one before, as tools that show logs print them."""
    times = [each.ended or each.began for each in records]
    pairs = list(pairwise(times))
    return sum(later < earlier for earlier, later in pairs) > sum(later > earlier for earlier, later in pairs)
