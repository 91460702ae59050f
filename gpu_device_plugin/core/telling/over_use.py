"""Tell people that a container uses more GPU memory than it was granted, for how long, and what will happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.evicting import spared
from gpu_device_plugin.core.node.over_use import Response
from gpu_device_plugin.core.telling.printing import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.node.over_use import Excess

MOST_TOLD = 4
"""The most containers in the sentence about one pod."""


def duration(seconds: float) -> str:
    """Return a duration for people, rounded down: ``45 s``, ``3 min``, ``2 h``."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"


def outlook(excess: Excess, response: Response) -> str:
    """Return what will happen to the pod, as a clause. It does not depend on what others use at the moment."""
    if response is Response.REPORT:
        return "this is only reported (setting over_use)"
    if why := spared(excess.pod):
        return f"it is not evicted: {why}"
    if excess.pod is not None and excess.pod.deleting:
        return "the pod is ending"
    if response is Response.EVICT:
        return "the pod is evicted, one of its GPU at a time"
    return "the pod is evicted as soon as the GPU has too little free memory for what others were granted"


def use_of(excess: Excess, gpu: str) -> str:
    """Return the numbers, as a clause; `gpu` is the GPU as people call it, like ``GPU 0``."""
    container = f"container {printable(excess.place[1])}" if excess.place[1] else "a container"
    granted = f"was given {excess.granted_mib:,} MiB" if excess.granted_mib else "was not given that GPU"
    return f"{container} uses {excess.used_mib:,} MiB of {gpu}, {granted}"


def event_note(excess: Excess, gpu: str, now: float, response: Response) -> str:
    """Return the note of the Event about one container; `now` in monotonic seconds."""
    return f"{use_of(excess, gpu)}, for {duration(now - excess.since)}; {outlook(excess, response)}"


def annotation(told: Iterable[tuple[Excess, str, str]], response: Response) -> str:
    """Return the sentence about one pod: for each of its containers the excess, its GPU and RFC 3339 since when."""
    told = sorted(told, key=lambda each: (-each[0].excess_mib, each[0].place))
    parts = [f"{use_of(excess, gpu)}, since {since}" for excess, gpu, since in told[:MOST_TOLD]]
    more = [f"and {len(told) - MOST_TOLD} more"] if len(told) > MOST_TOLD else []
    return "; ".join([*parts, *more, outlook(told[0][0], response)])
