"""Findings: those of checks in their order, and their sentences."""

import pytest

from gpu_device_plugin.report.rules.finding import Finding, Severity, Unknown, error, examine, note, ok, sentence

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
