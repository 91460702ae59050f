"""Write the files that pin what images and releases are made of: `.venv/bin/python -m tests.deploy.locks`.

Every package has the hashes of its wheels for each machine and each Python that may build them, and of nothing else, so
that nothing is ever compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[2]
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Debian 12 and the slim images made of it have glibc 2.36; a wheel for 2.28 runs on RHEL 8 too.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
HEAD = """\
# {what}
# CPython {first} to {last} on Linux with glibc, {machines}.
# Written by: .venv/bin/python -m tests.deploy.locks
"""

Lock = dict[str, tuple[str, frozenset[str]]]
"""By the name of the package: its version, and the SHA-256 of its files."""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def wanted() -> Mapping[str, tuple[str, list[str]]]:
    """Return the lock files: what each is of, and what it has to satisfy."""
    described = project()
    programs, build = described["project"]["dependencies"], described["build-system"]["requires"]
    return {
        "requirements.lock": ("What the programs need.", programs),
        "requirements-build.lock": ("What it takes to make a wheel of them.", build),
        "requirements-release.lock": (
            "What it takes to make the files of a release.",
            [*programs, *build, *described["dependency-groups"]["release"]],
        ),
    }


def read(path: Path) -> Lock:
    """Parse a lock file."""
    found: Lock = {}
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        pinned, *hashes = line.split()
        name, version = pinned.split("==")
        found[name] = (version, frozenset(each.removeprefix("--hash=sha256:") for each in hashes))
    return found


def written(lock: Lock, what: str) -> str:
    """Return a lock as the text of its file."""
    head = HEAD.format(what=what, first=PYTHONS[0], last=PYTHONS[-1], machines=" and ".join(MACHINES))
    return head + "".join(
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in sorted(hashes))]) + "\n"
        for name, (version, hashes) in sorted(lock.items())
    )


def resolve(requirements: Iterable[str]) -> Lock:
    """Ask pip which wheels it would install, for every machine and Python in turn."""
    found: Lock = {}
    for machine, python in product(MACHINES, PYTHONS):
        for each in _report(requirements, machine, python)["install"]:
            name = canonicalize_name(each["metadata"]["name"])
            version, hashes = found.get(name, (each["metadata"]["version"], frozenset[str]()))
            if version != each["metadata"]["version"]:
                raise SystemExit(f"{name} would be of another version with Python {python}: pin it in constraints.txt")
            found[name] = (version, hashes | {each["download_info"]["archive_info"]["hashes"]["sha256"]})
    return found


def _report(requirements: Iterable[str], machine: str, python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as nowhere:
        command = [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report=-", f"--target={nowhere}"),
            *(f"--constraint={ROOT / 'constraints.txt'}", "--only-binary=:all:", f"--python-version={python}"),
            *(f"--platform={platform}_{machine}" for platform in PLATFORMS),
            *requirements,
        ]
        report: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return report


if __name__ == "__main__":
    for file, (what, requirements) in wanted().items():
        (ROOT / file).write_text(written(resolve(requirements), what), encoding="utf-8")
