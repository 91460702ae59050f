"""The list of features for what terminals do: commands by the rights of a user, and what the doctor reads by them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.capacity.commands import PLAN
from gpu_device_plugin.features.claims.claim_objects import every_claim, extended_resources, our_slices
from gpu_device_plugin.features.cordon.commands import CORDON, UNCORDON
from gpu_device_plugin.features.elastic.commands import RESIZE
from gpu_device_plugin.features.history.commands import HISTORY, INCIDENT, histories
from gpu_device_plugin.features.idle.commands import WAKE
from gpu_device_plugin.features.learning.prices import PRICES
from gpu_device_plugin.features.report_features import together
from gpu_device_plugin.kubernetes.kubectl import Access
from gpu_device_plugin.report.commands import Command

if TYPE_CHECKING:
    import msgspec

    Read = Callable[[Access, Sequence[msgspec.Raw], str], Awaitable[Any]]
    """Reads more of a cluster, given the pods with the labels of agents, and the agents' namespace."""


@dataclass(frozen=True, slots=True)
class TerminalParts:
    """What one feature, or several, add to `kubectl inspect gpushare` beside `ReportParts`."""

    commands: tuple[Command, ...] = ()
    options: tuple[Command, ...] = ()
    """What commands of others do instead, each with a flag."""
    reads: tuple[tuple[str, Read], ...] = ()
    """What the checks need besides nodes and pods, by its name in the symptoms of a cluster."""


TERMINAL_FEATURES: dict[str, TerminalParts] = {
    "claims": TerminalParts(
        reads=(("claims", every_claim), ("slices", our_slices), ("device_classes", extended_resources))
    ),
    "elastic": TerminalParts(commands=(RESIZE,)),
    "history": TerminalParts((INCIDENT,), (HISTORY,), (("histories", histories),)),
    "capacity": TerminalParts(commands=(PLAN,)),
    "cordon": TerminalParts(commands=(CORDON, UNCORDON)),
    "idle": TerminalParts(commands=(WAKE,)),
    "learning": TerminalParts(commands=(PRICES,)),
}

TERMINAL = together(TerminalParts, TERMINAL_FEATURES.values())
"""What all of them add."""
