"""Read how much memory is in use on a node's GPUs, and nothing else of the long annotation that tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.core.model.gpus import MOST_GPUS

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 128 << 10
"""Characters; an agent writes no more than 96 KiB."""


class _Gpu(msgspec.Struct, gc=False):
    index: int = 0
    used: int | None = None


class _Use(msgspec.Struct, gc=False):
    gpus: list[_Gpu] = []


_USE = msgspec.json.Decoder(_Use)


def used_mib(text: str) -> Mapping[int, int]:
    """Return the memory in use on each GPU by position, by the annotation `NODE_USE`; nothing if it is malformed."""
    try:
        gpus = _USE.decode(text).gpus if text and len(text) <= _LONGEST else ()
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {gpu.index: gpu.used for gpu in gpus[:MOST_GPUS] if gpu.used is not None}
