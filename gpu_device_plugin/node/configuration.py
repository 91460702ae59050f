"""Keep the node's configuration up to date as hardware, settings, labels and MPS daemons change."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView, State
from gpu_device_plugin.hardware.monitor import MonitorTimings
from gpu_device_plugin.kubelet.statefile import StateFile
from gpu_device_plugin.model.contract.cordons import LONGEST_CORDONS, cordons_of, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS
from gpu_device_plugin.model.gpus import NO_LINKS
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares, TooManySharesError
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.reconciler import Reconciler
from gpu_device_plugin.node.rules.gpu_health import HealthRules
from gpu_device_plugin.node.rules.node_config import NodeConfig, NodeFacts, derive
from gpu_device_plugin.node.rules.serving_mode import Serving
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_REMEMBER_S = 2.0
"""How long new GPUs wait for the positions that they had before, in seconds. Pods fail until we register."""


class ListFullError(Exception):
    """The device list is full of MIG instances that are not offered any more; a new process lists them no longer."""


UNIFIED = "its memory is the machine's; --unified-memory says how much of that is shared"


def initial(settings: NodeSettings) -> NodeConfig:
    """Return the configuration of a node of which nothing but the settings is known yet."""
    nothing = NodeConfig(shares=Shares(settings.share_size_mib, settings.reserve_mib))
    return derive(settings, NodeFacts(sentence=HardwareView().sentence), nothing)


class Configuration:
    """Derives the configuration anew whenever something that it follows from has changed, and publishes it."""

    def __init__(self, node: NodeContext, serving: Observable[Serving], reconciler: Reconciler) -> None:
        """Prepare to set the configuration of `node`, which is `initial` until then."""
        self._config, self._settings, self._state, self._metrics = node.config, node.settings, node.state, node.metrics
        self._api, self._features = node.api, node.features
        self._other_plugins, self._hardware = node.other_plugins, node.hardware
        self._serving = serving
        self._reconciler = reconciler
        self._view = HardwareView()
        """The view of the hardware that was taken over last."""
        longest = 4 * LONGEST_CORDONS  # bytes; a character in UTF-8 has 4 at most
        self._saved_cordons = StateFile(self._settings.value.device_plugin_dir, "cordons", longest=longest)
        self._cordons_read: Observable[str | None] = Observable(None)
        """What our node said last, for the next agent; None: nothing that the file does not have."""
        self._set_up_hardware()

    def recover(self) -> None:
        """Take up the cordons that the previous agent read. They hold until our node was read; no GPU is known before.

        Needs the node's lock. To be called before `run`.
        """
        cordons, _ = cordons_of({CORDONS: self._saved_cordons.read() or ""})
        config = self._config.value
        self._config.change(replace(config, facts=replace(config.facts, cordons=cordons)))

    async def run(self) -> NoReturn:
        """Follow all that the configuration follows from, until cancelled.

        Raises:
            UsageError: the share size cuts the first GPUs into more shares than a kubelet can handle, or containers
                cannot get them in the way of the setting.
            ListFullError: only a restart of the process can help.
        """
        await together(
            self._follow_hardware(),
            self._api.node.follow(self._take_node),
            self._other_plugins.others.follow(self.update),
            *(value.follow(self.update) for feature in self._features for value in feature.means_follow()),
            self._serving.follow(self.update),
            self._saved_cordons.keep(self._cordons_read),
        )

    def update(self, _new: object = None) -> None:
        """Derive the configuration from the present state of all that, report what is new, and publish it."""
        before, view, settings, node = self._config.value, self._view, self._settings.value, self._api.node.value
        cordons, fault = ({}, "not read yet") if node is None else cordons_of(node.annotations)
        facts = NodeFacts(
            cordons=before.facts.cordons if fault else cordons,
            inventory=view.inventory.with_unified(settings.unified_memory_mib),
            started=view.state is not State.STARTING,
            watched=view.state is State.WATCHING,
            sentence=view.sentence,
            serving=self._serving.value,
            others=tuple(other.found for other in self._other_plugins.others.value),
        )
        try:
            config = derive(
                settings,
                facts,
                before,
                labels=None if node is None else node.labels,
                health=view.health_by_uuid,
                means=self._features.means,
            )
        except TooManySharesError as error:
            raise (ListFullError if before.shares.gpus else UsageError)(str(error)) from error
        if config.undeliverable and not before.shares.gpus:
            raise UsageError(config.undeliverable)
        if config == before:
            return
        self._report_gpus(config, before)
        self._report(config, before)
        links = config.shares.links(facts.inventory.links)
        self._state.refresh_inventory(config.shares, config.blocks, links)
        self._reconciler.find_held_by_other_resource()  # before anybody else sees the new GPUs
        self._config.set(config)

    def start_with(self, share_mib: int) -> None:
        """Start with another share size than that of the settings, before any GPU is known."""
        settings = self._settings.value
        shares = Shares(share_mib, settings.reserve_mib)
        self._settings.set(replace(settings, share_size_mib=share_mib))
        self._state.refresh_inventory(shares, {}, NO_LINKS)
        self._config.set(replace(self._config.value, shares=shares))

    def reload(self) -> None:
        """Take over changed settings."""
        self._set_up_hardware()
        self._other_plugins.look()
        self.update()

    async def _follow_hardware(self) -> NoReturn:
        logged: tuple[object, ...] = ()
        restarts, remembered = 0, False
        async for view in self._hardware.view.values():
            if view.state is not State.STARTING and (view.state, view.sentence) != logged:
                logged = (view.state, view.sentence)
                usual = view.state in {State.WATCHING, State.PAUSED}
                _log.log(logging.INFO if usual else logging.WARNING, "%s", view.sentence)
            if view.child_restarts > restarts:
                self._metrics.count(m.CHILD_RESTARTS, str(view.state), times=view.child_restarts - restarts)
            restarts = view.child_restarts
            if view.inventory.gpus and not remembered:
                if self._api.published is not None:
                    self._hardware.restore_order(await self._api.published.gpus_before(_REMEMBER_S))
                remembered = True
                self._other_plugins.look()  # which plugins are others depends on whose GPUs these are
            self._view = self._hardware.view.value
            self.update()
        raise AssertionError  # pragma: no cover (an Observable never ends)

    def _set_up_hardware(self) -> None:
        settings = self._settings.value
        self._hardware.timings = MonitorTimings(
            probe_every_s=settings.probe_interval_s,
            answer_within_s=settings.nvml_timeout_s,
            blind_after_s=settings.blind_after_s,
        )
        self._hardware.rules = HealthRules(
            ignored_xids=frozenset(settings.ignored_xids),
            fatal_xids=frozenset(settings.fatal_xids),
            remap_pending_is_fatal=settings.row_remap_pending == "unhealthy",
        )

    def _take_node(self, _new: object) -> None:
        # The node may show another plugin's resources, which is to be reported with its labels.
        self._other_plugins.look()
        self.update()

    def _report_gpus(self, config: NodeConfig, before: NodeConfig) -> None:
        shares = config.shares
        for gpu, reason in shares.left_out:
            if (gpu, reason) not in before.shares.left_out:
                _log.warning("%s is not shared: %s", shares.name_of(gpu), reason, extra={"uuid": gpu.uuid})
        for shared in shares.gpus[len(before.shares.gpus) :]:
            extra = {"uuid": shared.gpu.uuid, "model": shared.gpu.product, "shares": len(shared.shares)}
            if shared.offered:
                whole = shared.gpu.instance is not None and shares.mig is MigMode.WHOLE
                given = (
                    f"allocated whole: {UNIFIED}" if shared.gpu.unified else "allocated whole" if whole else "shared"
                )
                _log.info("%s is %s", shared.name, given, extra=extra)
        if config.too_many not in {"", before.too_many}:
            _log.error("new GPUs are not shared", extra={"why": config.too_many})
        if shares.mig is not before.shares.mig:
            _log.info("how pods get MIG instances changed", extra={"mig": shares.mig.value})

    def _report(self, config: NodeConfig, before: NodeConfig) -> None:
        for remark in config.remarks:
            if remark not in before.remarks:
                _log.log(logging.ERROR if remark in config.facts.inventory.unread else logging.WARNING, "%s", remark)
        if config.policy != before.policy:
            _log.info("the policy for choosing GPUs changed", extra={"policy": config.policy})
        if config.limits_summary not in {"", before.limits_summary}:
            _log.info("memory limits: %s", config.limits_summary)
        if config.means.missing not in {"", before.means.missing}:
            sentence = f"memory limits are not there: {config.means.missing}"
            self._api.announce(_log, "GPULimitsUnavailable", sentence, "Limit")
        if (cordons := config.facts.cordons) != before.facts.cordons:
            self._cordons_read.set(write_cordons(cordons) or "")
