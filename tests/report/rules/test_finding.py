"""What the doctor says: one line for each finding, advice below it, and an exit code by the worst."""

import json

import pytest

from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.finding import (
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
    sentence,
    warning,
    worst,
)

CHECKS = {
    "driver": lambda healthy: [
        ok("driver", "580.95")
        if healthy
        else error("no-driver", "no driver on {nodes}", "see {nodes}", nodes=("b", "a"))
    ],
    "fast GPUs": lambda _: [note("fast", "{gpus:GPU} of them", gpus=8), Unknown("no-pci", "no PCI", "look there")],
    "nothing": lambda _: [],
}


def test_a_table_of_checks_names_its_findings_and_keeps_their_order() -> None:
    assert examine(CHECKS, True) == (
        Finding(Severity.OK, "driver", "580.95", check="driver"),
        Finding(Severity.NOTE, "fast", "{gpus:GPU} of them", parameters={"gpus": 8}, check="fast GPUs"),
        Finding(Severity.UNKNOWN, "no-pci", "no PCI", "look there", check="fast GPUs"),
    )


@pytest.mark.parametrize(
    ("text", "parameters", "words"),
    [
        ("{node} {{x}}", {"node": "{a}"}, "{a} {x}"),
        ("{nodes}", {"nodes": tuple("gfedcba")}, "a, b, c, d, e and 2 more"),
        ("{nodes:node} {count:is|are}", {"nodes": ("a", "b"), "count": 1}, "2 nodes 1 is"),
        ("{seconds} s", {"seconds": 7}, "7 s"),
    ],
)
def test_a_text_is_completed_by_its_parameters(text: str, parameters: dict[str, str | int], words: str) -> None:
    assert sentence(text, parameters) == words


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
