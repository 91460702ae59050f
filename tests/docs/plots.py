"""Pictures drawn by `--plot` for docs/img; `python -m tests.docs.plots` draws all of them anew."""

import contextlib
import io
from pathlib import Path

from gpu_device_plugin import cli

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "img"

PLOTS = {
    "simulate.svg": (
        *("simulate", "--nodes", "10x gpus=4 mem=24 cpu=64 memory=256Gi"),
        *("--pods", "40x mem=8 cpu=4 memory=16Gi; 5x count=2 cpu=16; 60x mem=14"),
        *("--policy", "fit,spread", "--until", "130"),
    ),
    "burst.svg": (
        *("simulate", "--nodes", "1x gpus=4 mem=46"),
        *("--pods", str(ROOT / "docs" / "examples" / "recorded-use.json"), "--burst"),
    ),
}
"""The command of each picture."""


def draw(name: str, path: Path) -> None:
    """Draw one of them."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main([*PLOTS[name], "--plot", str(path)]) == 0


if __name__ == "__main__":
    for each in PLOTS:
        draw(each, IMAGES / each)
