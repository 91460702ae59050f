"""Tell of cordons, and put GPUs aside that have shown a fault of the setting `cordon_on` for long enough."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.features.cordon.rules import AGENT, Faults
from gpu_device_plugin.features.history.sampling import History
from gpu_device_plugin.model.contract.cordons import Cordon, cordon_of
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.model.telemetry import GpuTelemetry
    from gpu_device_plugin.node.extension import Tasks
    from gpu_device_plugin.node.feature_context import NodeContext
    from gpu_device_plugin.node.rules.node_config import NodeConfig

_log = logging.getLogger(__name__)


class Cordons(NodeFeature):
    """Tells of GPUs that are put aside or taken back, by whomever, and puts some aside itself.

    Only a person takes a GPU back into use. A new agent begins anew: it has not seen how long a fault lasts.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`, which has the API."""
        self._settings, self._config, self._api = node.settings, node.config, node.api
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
        self._faults = self._faults.after(telemetry, self._settings.value.cordon_on, now)
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
