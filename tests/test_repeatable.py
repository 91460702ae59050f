"""The command that README.md gives a newcomer does not fail by chance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

A_TEST_OF_CHANCE = """
from hypothesis import given, strategies as st

@given(st.lists(st.integers()))
def test_numbers(numbers):
    with open({seen!r}, "a") as file:
        print(numbers, file=file)

def test_seed(chance_seed):
    with open({seen!r}, "a") as file:
        print("seed", chance_seed, file=file)
"""


def examples(folder: Path, *options: str) -> list[str]:
    """What a test with our conftest tries."""
    seen = folder / "seen"
    seen.unlink(missing_ok=True)
    (folder / "test_chance.py").write_text(A_TEST_OF_CHANCE.format(seen=str(seen)), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", ".", "-c", os.devnull, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    return seen.read_text(encoding="utf-8").splitlines()


def test_the_tests_try_the_same_examples_in_every_run(tmp_path: Path) -> None:
    assert examples(tmp_path) == examples(tmp_path)


def test_exploring_tries_what_its_seed_says(tmp_path: Path) -> None:
    one, two, again = (
        examples(tmp_path, "--hypothesis-profile=explore", f"--hypothesis-seed={seed}") for seed in (1, 2, 1)
    )
    assert one == again
    assert not set(one) & {line for line in two if line.startswith("[") and len(line) > 20}
    assert "seed 2" in two
