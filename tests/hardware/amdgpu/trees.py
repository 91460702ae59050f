"""Write small trees of the kernel's files for the driver to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write(root: Path, files: Mapping[str, str | int]) -> None:
    """Write files below `root`, each by its absolute path; a path that ends in ``@`` becomes a link to its text."""
    for path, content in files.items():
        place = root / path.lstrip("/").removesuffix("@")
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("@"):
            place.symlink_to(str(content))
        else:
            place.write_text(f"{content}\n", encoding="utf-8")
