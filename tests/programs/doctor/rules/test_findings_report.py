"""What the doctor says: one line for each finding, advice below it, and an exit code by the worst."""

import json

import pytest

from gpu_device_plugin.programs.doctor.rules.findings_report import document, exit_code, lines, report, worst
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, examine, note, ok, warning
from tests.report.rules.test_finding import CHECKS


def test_people_read_a_line_for_each_with_what_to_do_below() -> None:
    shown = lines(examine(CHECKS, False))
    assert [line.text for line in shown] == [
        "error    driver     no driver on a, b",
        "                    -> see a, b",
        "note     fast GPUs  8 GPUs of them",
        "unknown  fast GPUs  no PCI",
        "                    -> look there",
        "",
        "3 findings: 1 note, 1 could not be checked, 1 error.",
    ]
    tones = [Tone.BAD, Tone.PLAIN, Tone.PLAIN, Tone.FAINT, Tone.PLAIN, Tone.PLAIN, Tone.BAD]
    assert [line.tone for line in shown] == tones
    several = [ok("a", "a"), ok("b", "b"), error("c", "c"), error("e", "e")]
    assert lines(several)[-1].text == "4 findings: 2 ok, 2 errors."


def test_machines_read_the_same_with_the_codes_and_the_parameters() -> None:
    findings = examine(CHECKS, False)
    read = json.loads("".join(line.text for line in report(findings, as_json=True)))
    assert read == document(findings) | {"findings": read["findings"]}
    assert {key: read[key] for key in ("version", "severity")} == {"version": 1, "severity": "error"}
    assert read["findings"][0] == {
        "check": "driver",
        "severity": "error",
        "code": "no-driver",
        "parameters": {"nodes": ["b", "a"]},
        "found": "no driver on a, b",
        "advice": "see a, b",
    }
    assert [finding["code"] for finding in read["findings"]] == ["no-driver", "fast", "no-pci"]
    assert report(findings, as_json=False) == lines(findings)


@pytest.mark.parametrize(
    ("findings", "severity", "code"),
    [
        ([], "ok", 0),
        ([ok("a", "a")], "ok", 0),
        ([note("a", "a"), ok("b", "b")], "note", 0),
        ([Unknown("a"), note("b", "b")], "unknown", 0),
        ([warning("a", "a"), Unknown("c")], "warning", 3),
        ([ok("a", "a"), error("b", "b"), warning("d", "d")], "error", 4),
    ],
)
def test_the_worst_decides_and_what_nobody_could_see_is_not_bad(
    findings: list[Finding], severity: str, code: int
) -> None:
    assert worst(findings) == severity
    assert exit_code(findings) == code
