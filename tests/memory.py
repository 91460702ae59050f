"""The memory file as a program in a container reads it."""

import json
from typing import Any

from gpu_device_plugin.features.elastic.contract import MemoryFile


def read_memory_file(text: str) -> MemoryFile:
    fields: Any = json.loads(text)
    assert fields.pop("version") == 1
    asked = fields.pop("return") or {"mib": 0, "by": None, "needed_by": None}
    return MemoryFile(
        **fields, return_mib=asked["mib"], return_by=asked["by"] or "", needed_by=asked["needed_by"] or ""
    )
