"""Findings as tests compare them: by severity, code and parameters. Each is put in words on the way."""

from collections.abc import Iterable
from typing import Any

from gpu_device_plugin.report.rules.finding import Finding


def told(findings: Iterable[Finding], show: str = "") -> list[str]:
    """Return each finding as ``error no-agent-on-node nodes=a, b``, with the parameters that `show` names."""
    return [_told(finding, show.split()) for finding in findings]


def _told(finding: Finding, show: Iterable[str]) -> str:
    assert str(finding) != finding.advice, "both can be put in words"
    shown = {name: finding.parameters[name] for name in show if name in finding.parameters}
    values = {
        name: ", ".join(sorted(map(str, value))) if isinstance(value, tuple) else value for name, value in shown.items()
    }
    return " ".join([finding.severity, finding.code, *(f"{name}={value}" for name, value in values.items())])


def facts(findings: Iterable[Finding], show: str = "") -> list[str]:
    """Return the same without the severity, for what is told of a pod or a node."""
    return [line.partition(" ")[2] for line in told(findings, show)]


def case(check: str, *expected: str, **changes: Any) -> tuple[str, dict[str, Any], list[str]]:
    """Return a case of a table: the check, what is changed in a world that is well, and what `told` says then."""
    return check, changes, list(expected)
