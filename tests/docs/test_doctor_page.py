"""The page of the doctor names every check, severity and exit code that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_device_plugin.core import diagnosing_cluster, diagnosing_node
from gpu_device_plugin.core.diagnosing import EXIT_CODES, Severity

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
_, ON_A_NODE, IN_THE_CLUSTER = re.split(r"^## .*$", PAGE, flags=re.MULTILINE)


def rows(text: str, heading: str) -> list[list[str]]:
    (found,) = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


@pytest.mark.parametrize(
    ("text", "checks"), [(ON_A_NODE, diagnosing_node.CHECKS), (IN_THE_CLUSTER, diagnosing_cluster.CHECKS)]
)
def test_every_check_is_explained(text: str, checks: dict[str, object]) -> None:
    told = {name for cell, *_ in rows(text, "Check") for name in re.findall(r"`([^`]+)`", cell)}
    assert told == set(checks) - {"API server"} | ({"API server"} & told)


def test_every_severity_has_its_exit_code() -> None:
    told = {word.strip("`"): int(code) for word, _, code in rows(PAGE, "Word")}
    assert told == {severity.value: EXIT_CODES.get(severity, 0) for severity in Severity}
