"""`make bench` works: it measures everything it names, whatever the figures are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import stretched

AGENT = ["bench.node_agent", "--rounds", "1", "--calls", "20", "--warm", "2", "--pods", "4", "--settle", "0.1"]
CLAIMS = ["bench.dra", "--only", "node", "--rounds", "1", "--pods", "3", "--wipes", "2", "--settle", "0.1"]
INSTANCES = ["bench.mig", "--rounds", "1", "--calls", "20", "--warm", "2", "--settle", "0.1"]
WEB = ["bench.web", "--nodes", "3", "--calls", "3", "--events", "20", "--seconds", "1", "--pods", "2"]
WEB += ["--waiting", "3", "--tenants", "3"]
EXTENDER = ["bench.extender", "--nodes", "3", "5", "--calls", "40", "--events", "100", "--pods", "6"]
EXTENDER += ["--waiting", "3", "--bodies", "2"]


@pytest.mark.parametrize(
    ("command", "measured_on", "among"),
    [
        (
            AGENT,
            "8xH200-141GiB",
            {
                "GPU failure to the list on the stream, slowest of 8",
                "memory, 4 pods watched, idle",
                "growth with scrapes, every share in use",
            },
        ),
        (
            EXTENDER,
            "8 GPUs of 16 GiB a node",
            {
                "start to ready, 3 nodes",
                "filter, 5 nodes, p99",
                "growth with scrapes, 5 nodes",
                "preempt the most hostile pod, 5 nodes, CPU",
                "growth with 3 pods that wait, four lists of 62,500 characters, listed",
                "growth with 2 bodies of 60 MiB at once, at most",
            },
        ),
        (
            CLAIMS,
            "8xH200-141GiB",
            {
                "NodePrepareResources without that read, p99",
                "deleted slices to 8 GPUs published again, slowest of 2",
                "memory, claims, idle",
            },
        ),
        (
            INSTANCES,
            "8xH100:mig=1g.10gb*7",
            {
                "start to the registration, 8 GPUs",
                "Allocate, p99, 56 instances, shared",
                "memory, 56 instances, whole, idle",
            },
        ),
        (
            WEB,
            "8 GPUs of 16 GiB a node",
            {
                "first answer, 3 nodes, p99",
                "2 waiting pods explained, 3 nodes",
                "memory, 3 nodes",
                "growth with 3 pods that wait, four lists of 62,500 characters, listed",
                "3 tenants of 3 namespaces at once, the last page",
            },
        ),
    ],
    ids=["node_agent", "extender", "dra", "mig", "web"],
)
def test_a_tiny_run_prints_every_row_with_its_verdict(command: list[str], measured_on: str, among: set[str]) -> None:
    """A verdict stands exactly where a bar does, and the exit code says nothing of either: machines differ."""
    run = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=Path(__file__).parents[1],
        check=False,
        capture_output=True,
        text=True,
        timeout=stretched(100),
    )
    assert (run.returncode, run.stderr) == (0, "")
    machine, _, head, _, *rows = run.stdout.splitlines()
    assert measured_on in machine
    assert [cell.strip() for cell in head.split("|")] == ["", "What", "Measured", "At most", "Verdict", "Note", ""]
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows if row.startswith("|")]
    assert all(re.fullmatch(r"-?[0-9,.]+( (ms|µs|kB|MiB|%|/s))?", measured) for _, measured, _, _, _ in table)
    assert all((bar == "") is (verdict not in {"met", "MISSED"}) for _, _, bar, verdict, _ in table)
    names = [what for what, *_ in table]
    assert len(names) == len(set(names))
    assert among <= set(names)
