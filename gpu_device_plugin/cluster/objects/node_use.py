"""Read how much memory is in use on a node's GPUs, and when, and nothing else of the long annotation that tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.core.model.gpus import MOST_GPUS
from gpu_device_plugin.core.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 128 << 10
"""Characters; an agent writes no more than 96 KiB."""


class _Gpu(msgspec.Struct, gc=False):
    index: int = 0
    used: int | None = None


class _Use(msgspec.Struct, gc=False):
    at: str = ""
    gpus: list[_Gpu] = []


_USE = msgspec.json.Decoder(_Use)


def used_mib(text: str) -> tuple[Mapping[int, int], float | None]:
    """Return the memory in use on each GPU by position, and when it was read, in seconds since the epoch.

    By the annotation `NODE_USE`; nothing and None if it is malformed.
    """
    try:
        use = _USE.decode(text) if text and len(text) <= _LONGEST else _Use()
    except (msgspec.DecodeError, RecursionError):
        return {}, None
    return {gpu.index: gpu.used for gpu in use.gpus[:MOST_GPUS] if gpu.used is not None}, epoch_s(use.at)
