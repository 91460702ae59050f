"""What the doctor says: one line for each finding, advice below it, and an exit code by the worst."""

from __future__ import annotations

import json

import pytest

from gpu_device_plugin.core.telling.diagnosing import (
    Finding,
    Severity,
    Unknown,
    document,
    error,
    examine,
    exit_code,
    lines,
    note,
    ok,
    report,
    warning,
    worst,
)
from gpu_device_plugin.core.telling.tones import Tone

CHECKS = {
    "driver": lambda healthy: [ok("580.95")] if healthy else [error("no driver", "install one")],
    "fast GPUs": lambda _: [note("8 of them"), Unknown("no PCI", "look there")],
    "nothing": lambda _: [],
}


def test_a_table_of_checks_names_its_findings_and_keeps_their_order() -> None:
    assert examine(CHECKS, True) == (
        Finding(Severity.OK, "580.95", check="driver"),
        Finding(Severity.NOTE, "8 of them", check="fast GPUs"),
        Finding(Severity.UNKNOWN, "no PCI", "look there", check="fast GPUs"),
    )


def test_people_read_a_line_for_each_with_what_to_do_below() -> None:
    shown = lines(examine(CHECKS, False))
    assert [line.text for line in shown] == [
        "error    driver     no driver",
        "                    -> install one",
        "note     fast GPUs  8 of them",
        "unknown  fast GPUs  no PCI",
        "                    -> look there",
        "",
        "3 findings: 1 note, 1 could not be checked, 1 error.",
    ]
    tones = [Tone.BAD, Tone.PLAIN, Tone.PLAIN, Tone.FAINT, Tone.PLAIN, Tone.PLAIN, Tone.BAD]
    assert [line.tone for line in shown] == tones


def test_several_of_a_kind_are_counted_as_several() -> None:
    assert lines([ok("a"), ok("b"), error("c", "d"), error("e", "f")])[-1].text == "4 findings: 2 ok, 2 errors."


def test_machines_read_the_same() -> None:
    assert document(examine(CHECKS, False)) == {
        "version": 1,
        "severity": "error",
        "findings": [
            {"check": "driver", "severity": "error", "found": "no driver", "advice": "install one"},
            {"check": "fast GPUs", "severity": "note", "found": "8 of them", "advice": ""},
            {"check": "fast GPUs", "severity": "unknown", "found": "no PCI", "advice": "look there"},
        ],
    }
    findings = examine(CHECKS, True)
    assert json.loads("".join(line.text for line in report(findings, as_json=True))) == document(findings)
    assert report(findings, as_json=False) == lines(findings)


@pytest.mark.parametrize(
    ("findings", "severity", "code"),
    [
        ([], "ok", 0),
        ([ok("a")], "ok", 0),
        ([note("a"), ok("b")], "note", 0),
        ([Unknown("a"), note("b")], "unknown", 0),
        ([warning("a", "b"), Unknown("c")], "warning", 3),
        ([ok("a"), error("b", "c"), warning("d", "e")], "error", 4),
    ],
)
def test_the_worst_decides_and_what_nobody_could_see_is_not_bad(
    findings: list[Finding], severity: str, code: int
) -> None:
    assert worst(findings) == severity
    assert exit_code(findings) == code
