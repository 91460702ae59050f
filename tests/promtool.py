"""Have promtool judge a page of metrics, where it is installed."""

import shutil
import subprocess

import pytest

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of Prometheus, is not installed"
)


def complaints(page: str) -> str:
    """Return what promtool says against a page; empty: nothing."""
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    return said or ("" if done.returncode == 0 else f"exit code {done.returncode}")
