"""Read the file of an administrator with the variables and mounts of extra grants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_device_plugin import files
from gpu_device_plugin.features.limits.rules.limit_grants import (
    ExtraGrant,
    wrong_mount,
    wrong_name,
    wrong_path,
    wrong_text,
)
from gpu_device_plugin.node.rules.container_grants import Mount
from gpu_device_plugin.report.rules.printing import nearest
from gpu_device_plugin.settings.knobs import SettingsError, refuse
from gpu_device_plugin.settings.sources import composed

_LARGEST = 1 << 16
"""Most bytes of the file."""
_MOST = 100
"""Most variables, and most mounts: each container with shares gets them all."""

_KEYS = ("envs", "mounts")
_MOUNT = ("host_path", "container_path", "read_only")
_BOOLS = {"true": True, "false": False}


def read_extra_grant(path: Path | None) -> ExtraGrant | None:
    """Return the content of a YAML or JSON file; None if `path` is.

    Raises:
        SettingsError: the file cannot be read or used; the message names each fault and its line.
    """
    if path is None:
        return None
    where = f"extra_grant: {path}"
    try:
        content, _ = files.read(path, _LARGEST)
    except OSError as error:
        raise SettingsError(f"{where}: {error.strerror or error}; name a YAML or JSON file that is there") from error
    reader = _Reader(where)
    extra = reader.read(composed(where, content))
    refuse(reader.problems)
    return extra


class _Reader:
    """Turns nodes of YAML into an extra grant, and keeps all faults for one message."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[SettingsError] = []

    def read(self, root: Any) -> ExtraGrant:
        sections = self._mapping(root, _KEYS, "lines like envs: and mounts: are needed here")
        envs = tuple(self._envs(sections["envs"])) if "envs" in sections else ()
        mounts = tuple(self._mounts(sections["mounts"])) if "mounts" in sections else ()
        if not envs and not mounts and not self.problems:
            self._wrong(root, "it adds nothing; write envs or mounts into it, or empty the setting extra_grant")
        return ExtraGrant(envs, mounts)

    def _envs(self, node: Any) -> Iterator[tuple[str, str]]:
        for name, value in self._mapping(node, None, "lines like NAME: text are needed here").items():
            wrong = wrong_name(name)
            if not isinstance(value.value, str):
                wrong = wrong or "a text is needed here"
            elif not wrong:
                wrong = wrong_text(value.value)
            if wrong:
                self._wrong(value, wrong, name)
            else:
                yield name, value.value

    def _mounts(self, node: Any) -> Iterator[Mount]:
        items = node.value if isinstance(node.value, list) else [None]
        if len(items) > _MOST or any(isinstance(item, tuple) for item in items) or items == [None]:
            self._wrong(node, f"a list of at most {_MOST} mounts is needed here, each with {' and '.join(_MOUNT[:2])}")
            return
        made: list[Mount] = []
        for item in items:
            before = len(self.problems)
            texts = self._mapping(item, _MOUNT, "lines like host_path: /path are needed here")
            if len(self.problems) > before:
                continue
            paths = [self._path(item, texts, key) for key in _MOUNT[:2]]
            read_only = texts.get("read_only")
            if read_only is not None and str(read_only.value).lower() not in _BOOLS:
                self._wrong(read_only, "write true or false", "read_only")
            if len(self.problems) > before:
                continue
            mount = Mount(paths[0], paths[1], read_only is None or _BOOLS[str(read_only.value).lower()])
            if wrong := wrong_mount(mount, made):
                self._wrong(item, wrong)
            made.append(mount)
            yield mount

    def _path(self, item: Any, texts: dict[str, Any], key: str) -> str:
        value = texts.get(key)
        if value is None:
            self._wrong(item, f"{key} is missing; add it")
            return ""
        wrong = wrong_path(value.value) if isinstance(value.value, str) else "a path is needed here"
        if wrong:
            self._wrong(value, wrong, key)
        return str(value.value)

    def _mapping(self, node: Any, known: Sequence[str] | None, otherwise: str) -> dict[str, Any]:
        """Return the values of a mapping by their keys; `known` are the keys that it may have, None: any."""
        found: dict[str, Any] = {}
        pairs = getattr(node, "value", None)
        if not isinstance(pairs, list) or len(pairs) > _MOST or not all(isinstance(pair, tuple) for pair in pairs):
            self._wrong(node, f"{otherwise}, at most {_MOST}")
            return found
        use = f"use {', '.join(known or ())}"
        for key, value in pairs:
            name = key.value
            if not isinstance(name, str):
                # Not repeated: with aliases a few lines can mean gigabytes.
                self._wrong(key, "this is not a name; write a text before the colon")
            elif name in found:
                self._wrong(key, "it is written twice; remove one of the lines", name)
            elif known is not None and name not in known:
                self._wrong(key, f"there is no such key; {nearest(name, known, use)}", name)
            else:
                found[name] = value
        return found

    def _wrong(self, node: Any, why: str, name: str = "") -> None:
        mark = getattr(node, "start_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        self.problems.append(SettingsError(f"{self._where}{line}{name and f', {name}'}: {why}"))
