"""The file that tells a program in a container how much memory it may use now, and how much to return.

The agent of the node replaces it atomically whenever something changes. A program finds it at `IN_CONTAINER`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTORY = "/run/gpushare"
"""In the container: a read-only mount of a directory that no other container has."""
NAME = "memory.json"
IN_CONTAINER = f"{DIRECTORY}/{NAME}"
VERSION = 1
SLOT = re.compile(r"[0-9a-f]{16}")
"""What `slot` returns."""


@dataclass(frozen=True, slots=True)
class MemoryFile:
    """The memory of a container on its GPU, in MiB."""

    guaranteed_mib: int
    limit_mib: int
    """The most that it may use now: beyond the guarantee only what nobody else is guaranteed."""
    most_mib: int
    """The limit that its owner asked for: `limit_mib` never exceeds it."""
    return_mib: int = 0
    """The memory beyond the guarantee that is needed back; 0: none."""
    return_by: str = ""
    """RFC 3339: when the pod may be evicted if it is not back; empty: it is not asked, or nobody evicts it."""
    needed_by: str = ""
    """``namespace/name`` of the pod that needs it, the first of several; empty: of another namespace, or not known."""


def slot(device_ids: Iterable[str]) -> str:
    """Return the name of the node's directory that a container with these devices sees as `DIRECTORY`.

    Before a container starts the kubelet tells its devices, and nothing else of it.
    """
    # It loads OpenSSL: 4 MiB that an agent without the API, which has no such containers, does not pay.
    import hashlib  # noqa: PLC0415

    return hashlib.sha256("\n".join(sorted(device_ids)).encode()).hexdigest()[:16]


def write_memory_file(memory: MemoryFile) -> str:
    """Return the text of the file."""
    document: dict[str, object] = {
        "version": VERSION,
        "guaranteed_mib": memory.guaranteed_mib,
        "limit_mib": memory.limit_mib,
        "most_mib": memory.most_mib,
        "return": None,
    }
    if memory.return_mib:
        document["return"] = {
            "mib": memory.return_mib,
            "by": memory.return_by or None,
            "needed_by": memory.needed_by or None,
        }
    return json.dumps(document, indent=1) + "\n"
