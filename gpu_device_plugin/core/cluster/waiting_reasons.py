"""Say in one word why a pod waits, by what its scheduler was last told, and for how long pods have waited."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.cluster.fitting import Unfit


class Reason(StrEnum):
    """Why a pod waits."""

    NOT_ASKED = "not_asked"
    """No scheduler has asked about it yet."""
    NO_ROOM = "no_room"
    """No node has room now."""
    NEVER_FITS = "never_fits"
    """No eviction helps on any node."""
    FITS = "fits"
    """There was a node for it; something else holds it up."""


def by_verdicts(verdicts: Iterable[Unfit | None]) -> Reason:
    """Return why a pod waits by the verdicts on all nodes; None: it fits."""
    reason = Reason.NEVER_FITS
    for unfit in verdicts:
        if unfit is None:
            return Reason.FITS
        if not unfit.unresolvable:
            reason = Reason.NO_ROOM
    return reason


def after_preemption(before: Reason | None, *, helps: bool) -> Reason:
    """Return why a pod waits after its scheduler has asked whom to evict for it.

    Args:
        before: the reason by its last filter; None: there was none, because the sums of no node are sufficient.
        helps: an eviction that the scheduler proposed makes room. It proposes only pods of a lower priority, so without
            one other pods may still end.
    """
    return Reason.NEVER_FITS if before is Reason.NEVER_FITS and not helps else Reason.NO_ROOM


def oldest_s(created: Iterable[str], now: float) -> float:
    """Return the age of the oldest of some objects in seconds; 0 if there is none.

    Args:
        created: when they were created, in RFC 3339 and UTC; texts that are not are ignored.
        now: seconds since the epoch, by our clock. That of the API server may be ahead: then the age is 0.
    """
    first_s = epoch_s(min((text for text in created if text.endswith("Z")), default=""))
    return 0.0 if first_s is None else max(0.0, now - first_s)
