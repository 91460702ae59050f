"""`make bench` works: each program prints the rows of its first part, whatever the figures are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import stretched


@pytest.mark.parametrize(
    ("command", "measured_on", "among"),
    [
        (
            "bench.node_agent --only standalone --rounds 1 --calls 20 --warm 2",
            "8xH200-141GiB",
            {"start of the process to both resources registered", "Allocate of 8, standalone, p99"},
        ),
        (
            "bench.elastic --only reading wishes --times 4 --nodes 20 --calls 8",
            "a T4",
            {
                "a reading with 48 containers that may borrow, CPU",
                "filter over HTTP, 20 nodes, a pod changes its wish all the time, p99",
                "a wish for more to its promise, meanwhile, worst",
            },
        ),
        (
            "bench.extender --only sizes --nodes 3 --calls 20 --events 50 --pods 3",
            "8 GPUs of 16 GiB a node",
            {"start to ready, 3 nodes", "filter over HTTP, 3 nodes, 3 named, p99", "growth with scrapes, 3 nodes"},
        ),
        (
            "bench.dra --only claims --rounds 1 --pods 3 --wipes 2",
            "8xH200-141GiB",
            {"NodePrepareResources without that read, p99", "deleted slices to 8 GPUs published again, slowest of 2"},
        ),
        (
            "bench.web --only sizes --nodes 3 --calls 3 --events 20 --seconds 1 --pods 2",
            "8 GPUs of 16 GiB a node",
            {"first answer, 3 nodes, p99", "2 waiting pods explained, 3 nodes", "memory, 3 nodes"},
        ),
    ],
)
def test_a_tiny_run_prints_every_row_with_its_verdict(command: str, measured_on: str, among: set[str]) -> None:
    """A verdict stands exactly where a bar does, and the exit code says nothing of either: machines differ."""
    run = subprocess.run(
        [sys.executable, "-m", *command.split()],
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
