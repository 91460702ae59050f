"""Decide which GPUs the agent itself cordons: those that have shown a chosen fault for long enough."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.model.telemetry import FAULTS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpu_device_plugin.model.telemetry import GpuTelemetry

AGENT = "gpu-device-plugin"
"""Who put aside a GPU that an agent puts aside."""
KEPT_FOR_S = 600.0
"""A fault counts once every reading of so many seconds has shown it."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a node's GPUs, each by the GPU's UUID and its code."""

    since: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """In monotonic seconds. A reading that does not show a fault, or not its GPU, ends it."""
    answered: frozenset[tuple[str, str]] = frozenset()
    """Those of GPUs that are put aside, or were: the agent does not put a GPU aside again that a person has taken back
    into use, until the fault has ended and come again."""

    def after(self, telemetry: Mapping[str, GpuTelemetry], codes: Collection[str], now: float) -> Faults:
        """Return the faults after a reading of all GPUs at `now`; only those with these codes count.

        A reading without any GPU is none: the driver did not answer, or is not asked. That ends no fault, but nobody
        knows then how long it lasts.
        """
        if not telemetry:
            return Faults(answered=self.answered)
        since = {
            (uuid, code): self.since.get((uuid, code), now)
            for uuid, gpu in telemetry.items()
            for code in codes
            if FAULTS[code][1](gpu)
        }
        return Faults(since, self.answered & since.keys())

    def due(self, now: float) -> Mapping[str, str]:
        """Return by UUID why a GPU is to be put aside: the codes and clauses of its lasting faults."""
        found: dict[str, list[str]] = {}
        for uuid, code in sorted(self._lasting(now) - self.answered):
            found.setdefault(uuid, []).append(f"{code}: {FAULTS[code][0]}")
        return {uuid: "; ".join(why) for uuid, why in found.items()}

    def answer(self, uuid: str, now: float) -> Faults:
        """Return the faults once a GPU is put aside."""
        return replace(self, answered=self.answered | {key for key in self._lasting(now) if key[0] == uuid})

    def _lasting(self, now: float) -> frozenset[tuple[str, str]]:
        return frozenset(key for key, since in self.since.items() if now - since >= KEPT_FOR_S)
