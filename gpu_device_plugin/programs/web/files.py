"""The static files of the page, read once."""

from __future__ import annotations

from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.http import Page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable

_FOLDER = "page"
_INDEX = "index.html"
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".json": "application/json",
        ".svg": "image/svg+xml",
        ".png": "image/png",
        ".ico": "image/x-icon",
        ".webmanifest": "application/manifest+json",
    }
)
"""The files that are served, by the end of their names."""


def static_files() -> Mapping[str, Page]:
    """Return the answer for each file by its path, and for the empty path that of the index.

    Works wherever Python imports this package from, a zip file too.
    """
    found = dict(_files(resources.files("gpu_device_plugin.programs.web") / _FOLDER, ""))
    if _INDEX in found:
        found[""] = found[_INDEX]
    return MappingProxyType(found)


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, Page]]:
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.is_dir():
            yield from _files(each, f"{path}{each.name}/")
        elif (content_type := _TYPES.get(f".{each.name.rpartition('.')[2]}")) is not None:
            yield f"{path}{each.name}", Page(each.read_bytes(), content_type=content_type)
