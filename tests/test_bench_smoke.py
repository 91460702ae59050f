"""`make bench` works: it measures everything it names, whatever the figures are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_a_tiny_run_prints_every_row_with_its_verdict() -> None:
    """A verdict stands exactly where a bar does, and the exit code says nothing of either: machines differ."""
    tiny = ["--rounds", "1", "--calls", "20", "--warm", "2", "--pods", "4", "--settle", "0.1"]
    run = subprocess.run(
        [sys.executable, "-m", "bench.node_agent", *tiny],
        cwd=Path(__file__).parents[1],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (run.returncode, run.stderr) == (0, "")
    machine, _, head, _, *rows = run.stdout.splitlines()
    assert "8xH200-141GiB" in machine
    assert [cell.strip() for cell in head.split("|")] == ["", "What", "Measured", "At most", "Verdict", "Note", ""]
    table = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert all(re.fullmatch(r"-?[0-9,.]+( (ms|kB|MiB|%))?", measured) for _, measured, _, _, _ in table)
    assert all((bar == "") is (verdict not in {"met", "MISSED"}) for _, _, bar, verdict, _ in table)
    names = [what for what, *_ in table]
    assert len(names) == len(set(names))
    assert {"GPU failure to the list on the stream, slowest of 8", "memory, 4 pods watched, idle"} <= set(names)
