"""The command that README.md gives a newcomer does not fail by chance."""

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


def examples(folder: Path, *options: str, ci: bool) -> list[str]:
    """Give the examples that a test with our conftest tries, on a person's machine or where `CI` is set."""
    seen = folder / "seen"
    seen.unlink(missing_ok=True)
    (folder / "test_chance.py").write_text(A_TEST_OF_CHANCE.format(seen=str(seen)), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", ".", "-c", os.devnull, *options],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), **({"CI": "true"} if ci else {})},
        check=True,
        capture_output=True,
    )
    return seen.read_text(encoding="utf-8").splitlines()


def test_the_tests_try_the_same_examples_in_every_run(tmp_path: Path) -> None:
    """Without `CI` Hypothesis would try others each time."""
    assert examples(tmp_path, ci=False) == examples(tmp_path, ci=False)


def test_exploring_tries_what_its_seed_says(tmp_path: Path) -> None:
    """With `CI` Hypothesis would try the same ones each time."""
    one, two, again = (
        examples(tmp_path, "--hypothesis-profile=explore", f"--hypothesis-seed={seed}", ci=True) for seed in (1, 2, 1)
    )
    assert one == again
    assert not set(one) & {line for line in two if line.startswith("[") and len(line) > 20}
    assert "seed 2" in two
