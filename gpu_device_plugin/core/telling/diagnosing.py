"""The doctor's findings: severity, check, sentence and advice, and the report made of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_device_plugin.core.telling.printing import counted
from gpu_device_plugin.core.telling.tones import Line, Tone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Severity(StrEnum):
    """The severity of a finding, in ascending order."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    UNKNOWN = "unknown"
    """It could not be checked from here."""
    WARNING = "warning"
    """Works, but with a flaw."""
    ERROR = "error"
    """GPUs are not shared, or not safely."""


EXIT_CODES: Mapping[Severity, int] = MappingProxyType({Severity.WARNING: 3, Severity.ERROR: 4})
"""The exit code by the worst finding, if not 0. Exit codes 1 and 2 mean that the doctor itself failed."""

_TONES: Mapping[Severity, Tone] = MappingProxyType(
    {
        Severity.OK: Tone.GOOD,
        Severity.NOTE: Tone.PLAIN,
        Severity.UNKNOWN: Tone.FAINT,
        Severity.WARNING: Tone.WARNING,
        Severity.ERROR: Tone.BAD,
    }
)

_UNCOUNTABLE: Mapping[Severity, str] = MappingProxyType({Severity.OK: "ok", Severity.UNKNOWN: "could not be checked"})
"""Severities whose count has no plural; the others are counted by their names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check."""

    severity: Severity
    found: str
    """A sentence, without the full stop."""
    advice: str = ""
    """The remedy; empty where none is needed."""
    check: str = ""
    """The name of the check."""


class Unknown(Finding):
    """Stands in place of a fact that could not be determined; the advice says how to determine it."""

    __slots__ = ()

    def __init__(self, found: str, advice: str = "") -> None:
        super().__init__(Severity.UNKNOWN, found, advice)


def ok(found: str) -> Finding:
    """Return a finding without fault."""
    return Finding(Severity.OK, found)


def note(found: str, advice: str = "") -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(Severity.NOTE, found, advice)


def warning(found: str, advice: str) -> Finding:
    """Return a flaw with its remedy."""
    return Finding(Severity.WARNING, found, advice)


def error(found: str, advice: str) -> Finding:
    """Return a fault with its remedy."""
    return Finding(Severity.ERROR, found, advice)


S = TypeVar("S")


def examine(checks: Mapping[str, Callable[[S], Iterable[Finding]]], symptoms: S) -> tuple[Finding, ...]:
    """Return the findings of all checks about `symptoms`, in the order of the checks."""
    return tuple(
        Finding(finding.severity, finding.found, finding.advice, name)
        for name, check in checks.items()
        for finding in check(symptoms)
    )


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity of the findings."""
    severities = {finding.severity for finding in findings}
    return next((severity for severity in reversed(Severity) if severity in severities), Severity.OK)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code of the program: 0, or one of `EXIT_CODES`."""
    return EXIT_CODES.get(worst(findings), 0)


def lines(findings: Sequence[Finding]) -> list[Line]:
    """Return a table for people: a line for each finding, the advice below it, and a summary."""
    width = max((len(finding.check) for finding in findings), default=0)
    rows: list[Line] = []
    for finding in findings:
        rows.append(Line(f"{finding.severity:<8} {finding.check:<{width}}  {finding.found}", _TONES[finding.severity]))
        if finding.advice:
            rows.append(Line(f"{'':<{width + 11}}-> {finding.advice}"))
    count = Counter(finding.severity for finding in findings)
    parts = [
        counted(number, _UNCOUNTABLE.get(each, each), _UNCOUNTABLE.get(each, ""))
        for each in Severity
        if (number := count[each])
    ]
    summary = f"{counted(len(findings), 'finding')}: {', '.join(parts)}."
    return [*rows, Line(""), Line(summary, _TONES[worst(findings)])]


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as a JSON document. Fields may be added; `version` increases if one changes its meaning."""
    return {
        "version": 1,
        "severity": worst(findings).value,
        "findings": [{"check": finding.check, **asdict(finding)} for finding in findings],
    }


def report(findings: Sequence[Finding], *, as_json: bool) -> list[Line]:
    """Return the findings as lines, for people or for machines."""
    if as_json:
        return [Line(text) for text in json.dumps(document(findings), indent=2).splitlines()]
    return lines(findings)
