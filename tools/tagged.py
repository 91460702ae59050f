"""Say whether a tag may be published, and with which notes: `python -m tools.tagged`, run by the workflow of a release.

It prints the notes as lines for GITHUB_OUTPUT, or why nothing may be published for this tag: the names in release.env
are not those of the repository that runs it, or the programs have another version.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

from tools.publishing import PARAMETERS, Published
from tools.release import CHANGELOG, version_of

ROOT = Path(__file__).parents[1]
_REGISTRY = re.compile(r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
"""Names of images have no capital letters (the distribution specification of OCI, "Pulling manifests")."""


class NotPublishedError(Exception):
    """Why this tag is not published, as a sentence that says what to do."""


def publishable(tree: Path, tag: str, repository: str) -> str:
    """Return the notes of the release, if it may be published.

    Args:
        tree: the checkout of the tag.
        tag: its name.
        repository: the address of the repository that runs the workflow.

    Raises:
        NotPublishedError: the tag, or release.env, is not one to publish.
        ValueError: release.env lacks a line.
    """
    version, published = version_of(tree), Published.of(tree)
    if tag != f"v{version}":
        raise NotPublishedError(
            f"the tag is {tag}, and the programs have version {version}: make both with `make release VERSION=x.y.z`"
        )
    # Owners' names differ in case between pages and Git addresses.
    if published.repository.lower() != repository.lower():
        raise NotPublishedError(
            f"{PARAMETERS} says REPOSITORY={published.repository}, and this is {repository}: write yours there, with "
            "REGISTRY, before the release"
        )
    if not _REGISTRY.fullmatch(published.registry):
        raise NotPublishedError(
            f"{PARAMETERS} says REGISTRY={published.registry}, which cannot begin the name of an image: write "
            "host/owner, in small letters"
        )
    return notes((tree / CHANGELOG).read_text(encoding="utf-8"), version)


def notes(changelog: str, version: str) -> str:
    """Return the section of a version, without its heading.

    Raises:
        NotPublishedError: there is none.
    """
    found = re.search(rf"^## {re.escape(version)}, .*\n(?s:(.*?))(?=^## |\Z)", changelog, re.MULTILINE)
    if found is None or not found[1].strip():
        raise NotPublishedError(f"{CHANGELOG} has no section of {version}: `make release` dates it")
    return found[1].strip()


def written(name: str, value: str) -> str:
    """Return the lines by which GitHub's runner reads an output of a step; the value may have several lines."""
    # No line of the value is this one.
    end = hashlib.sha256(value.encode()).hexdigest()
    return f"{name}<<{end}\n{value}\n{end}\n"


def main() -> str | None:
    """Return the reason of a refusal, for the exit."""
    environ = os.environ
    try:
        repository = f"{environ['GITHUB_SERVER_URL']}/{environ['GITHUB_REPOSITORY']}"
        print(written("notes", publishable(ROOT, environ["GITHUB_REF_NAME"], repository)), end="")
    except KeyError as missing:
        return f"not published: the variable {missing.args[0]} is not set; GitHub's runner sets it"
    except (NotPublishedError, ValueError) as refusal:
        return f"not published: {refusal}"
    return None


if __name__ == "__main__":
    sys.exit(main())
