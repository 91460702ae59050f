"""The doctor's report of its findings, for people and for programs, and its exit code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_device_plugin.report.rules.columns import Line, Tone
from gpu_device_plugin.report.rules.finding import Finding, Severity
from gpu_device_plugin.report.rules.printing import counted

EXIT_CODES: Mapping[Severity, int] = {Severity.WARNING: 3, Severity.ERROR: 4}
"""The exit code by the worst finding, if not 0. Exit codes 1 and 2 mean that the doctor itself failed."""

_TONES: Mapping[Severity, Tone] = {
    Severity.OK: Tone.GOOD,
    Severity.NOTE: Tone.PLAIN,
    Severity.UNKNOWN: Tone.FAINT,
    Severity.WARNING: Tone.WARNING,
    Severity.ERROR: Tone.BAD,
}

_UNCOUNTABLE: Mapping[Severity, str] = {Severity.OK: "ok", Severity.UNKNOWN: "could not be checked"}
"""Severities whose count has no plural; the others are counted by their names."""


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
        rows.append(Line(f"{finding.severity:<8} {finding.check:<{width}}  {finding}", _TONES[finding.severity]))
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
        "findings": [
            {
                "check": finding.check,
                "severity": finding.severity.value,
                "code": finding.code,
                "parameters": finding.parameters,
                "found": str(finding),
                "advice": finding.advice,
            }
            for finding in findings
        ],
    }


def report(findings: Sequence[Finding], *, as_json: bool) -> list[Line]:
    """Return the findings as lines, for people or for machines."""
    if as_json:
        return [Line(text) for text in json.dumps(document(findings), indent=2).splitlines()]
    return lines(findings)
