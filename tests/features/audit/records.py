"""Read audit records back from the fields of log lines."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gpu_device_plugin.features.audit.contract import AuditKind, AuditRecord


def record_of(attributes: Mapping[str, Any]) -> AuditRecord:
    """Return the record in the fields of a log line, which has to hold one."""
    names = {each.name: _attribute(each.name) for each in fields(AuditRecord) if each.name != "kind"}
    values = {field: attributes[name] for field, name in names.items() if name in attributes}
    return AuditRecord(AuditKind(attributes["event.name"].removeprefix("gpushare.")), **values)


def _attribute(field: str) -> str:
    """Return the name of a field in a log line."""
    filled: dict[str, Any] = {field: "x"}
    (name,) = AuditRecord(AuditKind.ALIVE, **filled).attributes().keys() - AuditRecord(AuditKind.ALIVE).attributes()
    return name
