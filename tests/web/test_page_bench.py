"""The measurement of the page works, whatever the figures are."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.browser import CHROMIUM


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH: install Debian's package chromium")
def test_the_page_is_measured() -> None:
    command = [sys.executable, "-m", "bench.page", "--nodes", "70", "--gpus", "2", "--rounds", "2"]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True).stdout
    lines = found.splitlines()
    assert "70 nodes with 2 GPUs" in lines[0]
    assert [line.split()[:3] for line in lines[1::4]] == [["map", "first", "paint"], ["cards", "first", "paint"]]
    assert sum("nodes change: main thread" in line for line in lines) == 6
