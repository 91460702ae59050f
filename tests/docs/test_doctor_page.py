"""The page of the doctor shows what it prints, and names every check, severity and exit code that there is."""

import re
from dataclasses import replace

import pytest

from gpu_device_plugin.programs.doctor.rules.findings_report import EXIT_CODES, lines
from gpu_device_plugin.report.rules.finding import Severity, examine
from tests.docs.pages import DOCS, blocks, text_of
from tests.names import MEM
from tests.programs.doctor.rules.test_node_checks import GPUS, WELL, agent
from tests.reporting import CLUSTER_CHECKS, NODE_CHECKS

PAGE = text_of(DOCS / "doctor.md")
_, ON_A_NODE, IN_THE_CLUSTER = re.split(r"^## .*$", PAGE, flags=re.MULTILINE)


def rows(text: str, heading: str) -> list[list[str]]:
    (found,) = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


@pytest.mark.parametrize(("text", "checks"), [(ON_A_NODE, NODE_CHECKS), (IN_THE_CLUSTER, CLUSTER_CHECKS)])
def test_every_check_is_explained(text: str, checks: dict[str, object]) -> None:
    told = {name for cell, *_ in rows(text, "Check") for name in re.findall(r"`([^`]+)`", cell)}
    assert told == set(checks) - {"API server"} | ({"API server"} & told)


def test_every_severity_has_its_exit_code() -> None:
    told = {word.strip("`"): int(code) for word, _, code in rows(PAGE, "Word")}
    assert told == {severity.value: EXIT_CODES.get(severity, 0) for severity in Severity}


def test_what_is_shown_is_what_a_doctor_prints() -> None:
    """Of a node with an older driver, whose kubelet does not listen to one of the resources."""
    (shown,) = (block.text for block in blocks(PAGE) if "advisory" in block.text)
    assert WELL.inventory is not None
    older = tuple(replace(gpu, memory_limits=False) for gpu in GPUS)
    inventory = replace(WELL.inventory, gpus=older, driver_version="580.95.05")
    ill = replace(WELL, inventory=inventory, agent=agent(streams={MEM: False}))
    assert len(GPUS) == 2
    printed = [line.text for line in lines(examine(NODE_CHECKS, ill))]
    assert [line for line in shown.splitlines() if line not in printed] == []
