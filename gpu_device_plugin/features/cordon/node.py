"""Tell of cordons, and put GPUs aside that have shown a fault of the setting `cordon_on` for long enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from gpu_device_plugin.features.cordon import CordonSettings
from gpu_device_plugin.features.history.sampling import History
from gpu_device_plugin.model.contract.cordons import Cordon, cordon_of
from gpu_device_plugin.model.telemetry import FAULTS, GpuTelemetry
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.node_config import NodeConfig

_log = logging.getLogger(__name__)

AGENT = "gpu-device-plugin"
"""Who put aside a GPU that an agent puts aside."""
KEPT_FOR_S = 600.0
"""A fault counts once every reading of so many seconds has shown it."""


class Cordons(NodeFeature):
    """Tells of GPUs that are put aside or taken back, by whomever, and puts some aside itself.

    Only a person takes a GPU back into use. A new agent begins anew: it has not seen how long a fault lasts.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`, which has the API."""
        self._settings, self._config, self._api = node.settings, node.config, node.reached_cluster
        self._name_of = node.reports.name_of
        self._told: Mapping[str, Cordon] = {}
        history = node.features.get(History)
        self._telemetry = None if history is None else history.telemetry
        self.clock: Callable[[], float] = time.monotonic
        self._faults = Faults()

    def tasks(self) -> Tasks:  # noqa: D102
        telemetry = self._telemetry
        return [self._follow(), *(() if telemetry is None else (telemetry.follow(self.act_on, initial=True),))]

    async def act_on(self, telemetry: Mapping[str, GpuTelemetry]) -> None:
        """Act on a reading of all GPUs. A cordon that cannot be written is tried again with the next one."""
        now, config = self.clock(), self._config.value
        self._faults = self._faults.after(telemetry, self._settings.value.of(CordonSettings).cordon_on, now)
        shared = {each.gpu.card for each in config.shares.gpus if not each.vacant}
        for uuid, why in self._faults.due(now).items():
            if uuid not in shared:
                continue
            there = cordon_of(config.facts.cordons, uuid, uuid) is not None
            if there or await self._api.cordon(uuid, Cordon(AGENT, rfc3339(time.time()), why)):
                self._faults = self._faults.answer(uuid, now)

    async def _follow(self) -> NoReturn:
        self._told = self._config.value.facts.cordons  # those that an earlier agent told of
        await self._config.follow(self._tell)

    def _tell(self, config: NodeConfig) -> None:
        before, now = self._told, config.facts.cordons
        self._told = now
        for uuid, cordon in now.items():
            if before.get(uuid) != cordon:
                sentence = f"{self._name_of(uuid)} ({uuid}) is {cordon}"
                self._api.announce(_log, "GPUCordoned", sentence, "Cordon")
        for uuid in before.keys() - now.keys():
            sentence = f"{self._name_of(uuid)} ({uuid}) takes pods again"
            self._api.announce(_log, "GPUUncordoned", sentence, "Uncordon", logging.INFO)


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
