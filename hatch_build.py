"""Builds the package by hatchling, with its README as description, whose links work on PyPI, where no other file is.

They lead to the repository as soon as pyproject.toml knows it (`Source` among `[project.urls]`, one of GitHub's form).
Until then they are paths in the source distribution, which has these pages.
"""

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036 - pip asks here first, and has installed nothing yet
    raise SystemExit(f"gpu-device-plugin needs Python 3.11 or newer, and this is {sys.version.split()[0]}")

from hatchling.build import *  # noqa: F403 - the backend: it has other functions for pip than for other programs
from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"!\[[^\]]*\]\((?!https?://)[^)\s]+\)\n*")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")


def description(readme: str, pages: str) -> str:
    """Return the README for readers elsewhere.

    Args:
        readme: its text, in Markdown.
        pages: what its relative links are relative to, a URL that ends with a slash; empty where nobody knows one.
    """
    if not pages:
        readme = _IMAGE.sub("", readme)  # a path shows no picture
    return _LINK.sub(rf"[\1]({pages}\2)" if pages else r"\1 (`\2`)", readme)


class DescriptionHook(MetadataHookInterface):
    """Found by hatchling under this file's name."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description."""
        source = metadata.get("urls", {}).get("Source")
        pages = f"{source}/blob/v{metadata['version']}/" if source else ""
        text = description(Path(self.root, "README.md").read_text(encoding="utf-8"), pages)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
