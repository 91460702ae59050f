"""What the agent of a node reports for people: the limits that hold there, and who uses what, with its age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import NODE_LIMITS, NODE_USE, MalformedAnnotationError
from gpu_device_plugin.core.contract.nodelimits import read_node_limits
from gpu_device_plugin.core.contract.nodeuse import UsedGpu, read_node_use
from gpu_device_plugin.core.model.limits import Held
from gpu_device_plugin.core.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.contract.nodelimits import NodeLimits
    from gpu_device_plugin.core.contract.nodeuse import NodeUse, UsedPart
    from gpu_device_plugin.core.model.limits import GpuRung

OLD_S = 180.0
"""The age of older figures is told. They may be right: an agent writes them again when they have changed by much."""
STALE_S = 900.0
"""Older figures show nothing of the present: an agent writes them again after some minutes even if nothing changed."""

_NOT_HELD = frozenset({Held.DIFFERS, Held.MISSING})


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The two annotations of a node; an older agent writes neither."""

    limits: NodeLimits | None = None
    use: NodeUse | None = None
    use_age_s: float | None = None
    """Age of the figures in seconds, by the reader's clock; None: unknown."""

    @property
    def old(self) -> bool:
        """Whether a reader should know how old the figures are."""
        return self.use is not None and (self.use_age_s is None or self.use_age_s > OLD_S)

    @property
    def stale(self) -> bool:
        """Whether the figures are too old to show the present, or of unknown age."""
        return self.use is not None and (self.use_age_s is None or self.use_age_s > STALE_S)

    @property
    def current(self) -> tuple[UsedPart, ...]:
        """The containers, if the figures show the present; otherwise none."""
        return () if self.use is None or self.stale else self.use.parts

    def rung(self, position: int) -> GpuRung | None:
        """Return the means of limiting on one GPU; None: unknown."""
        return None if self.limits is None else self.limits.gpus.get(position)

    def used(self, position: int) -> UsedGpu:
        """Return the memory in use on one GPU."""
        return UsedGpu() if self.use is None else self.use.gpus.get(position, UsedGpu())

    def parts(self, position: int) -> tuple[UsedPart, ...]:
        """Return the containers on one GPU."""
        return () if self.use is None else tuple(part for part in self.use.parts if part.gpu == position)


NO_REPORT = NodeReport()


def node_report(annotations: Mapping[str, str], now_s: float) -> tuple[NodeReport, tuple[str, ...]]:
    """Return the report on a node, and a sentence for each annotation that cannot be parsed, which counts as absent.

    Args:
        annotations: those of the node.
        now_s: seconds since the epoch.
    """
    problems: list[str] = []
    limits: NodeLimits | None = None
    use: NodeUse | None = None
    try:
        limits = read_node_limits(annotations[NODE_LIMITS]) if NODE_LIMITS in annotations else None
    except MalformedAnnotationError as error:
        problems.append(str(error))
    try:
        use = read_node_use(annotations[NODE_USE]) if NODE_USE in annotations else None
    except MalformedAnnotationError as error:
        problems.append(str(error))
    return NodeReport(limits, use, None if use is None else _age_s(use.at, now_s)), tuple(problems)


def _age_s(moment: str, now_s: float) -> float | None:
    """Return the age of an RFC 3339 time; the clocks of node and reader may differ, so it is never negative."""
    at_s = epoch_s(moment)
    return None if at_s is None else max(0.0, now_s - at_s)


def exceeds(part: UsedPart) -> bool:
    """Return whether a container has used more than it was granted, beyond the slack and for the whole grace."""
    return bool(part.over_since)


def trespasses(part: UsedPart) -> bool:
    """Return whether a container uses a GPU that it was not given, however little of it."""
    return not part.granted_mib and bool(part.used_mib)


def not_held(part: UsedPart) -> bool:
    """Return whether the driver was asked to limit a container and does not, or not as asked."""
    return part.held in _NOT_HELD
