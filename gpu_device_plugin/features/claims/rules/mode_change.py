"""Decide when a node changes its serving mode: once nobody holds GPUs in the other one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.node.rules.serving_mode import Serving, ServingMode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_NAMED = 3
"""The number of holders that a sentence names."""


def serving(wanted: ServingMode, before: ServingMode | None, holders: Mapping[ServingMode, Collection[str]]) -> Serving:
    """Return the mode in force: the wanted one as soon as nobody holds GPUs in the other.

    `before` is the mode in force until now, None: the agent has just started; `holders` are the pods or claims that
    hold GPUs in each mode, by name.
    """
    (other,) = (mode for mode in ServingMode if mode is not wanted)
    if before is None:
        before = other if holders[other] and not holders[wanted] else wanted
    if before is wanted or not holders[before]:
        return Serving(wanted)
    names = sorted(holders[before])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    hold = "hold" if len(names) > 1 else "holds"
    return Serving(
        before,
        f"this node waits to serve by {wanted} instead of {before}: {', '.join(names[:_NAMED])}{more} still {hold} "
        f"GPUs of it, and new pods get none until {'they have' if len(names) > 1 else 'it has'} ended",
    )
