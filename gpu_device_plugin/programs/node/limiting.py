"""Keep the means of limiting memory on this node's GPUs up to date, and tell when they change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.mpsfiles import SHM_DIRECTORY
from gpu_device_plugin.core.contract.nodereport import NO_LIMITS, NodeLimits
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.limit_grants import Means
from gpu_device_plugin.core.node.mps import NOT_THERE
from gpu_device_plugin.core.node.rungs import REFUSE, Abilities, rungs, told, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.core.contract.mpsfiles import MpsGpu
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.extra_grant import ExtraGrant
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)


class Limiting:
    """The means in force. They change with settings, hardware, labels and MPS, and are not computed for each call."""

    def __init__(self, extra: ExtraGrant | None, on_missing: Callable[[str], None]) -> None:
        """Begin without GPUs.

        Args:
            extra: the content of the file that the setting `extra_grant` names; None: it names none.
            on_missing: called with a sentence when a wanted means is not there, and not again while that lasts.
        """
        self._extra = extra
        self._on_missing = on_missing
        self._told = self._missing = self._ignored = ""
        self.mps: Mapping[str, MpsGpu] | str = NOT_THERE
        """The daemons of the node's MPS supervisor, by the GPU's UUID, or why there is none; apply after a change."""
        self.node = NO_LIMITS
        """The means on each GPU, for the node's label and annotation."""

    def __repr__(self) -> str:
        return f"<Limiting: {self._told or 'no GPU'}>"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The means and their reasons, in sentences for people."""
        return (f"memory limits: {self._told}",) if self._told else ()

    def apply(self, settings: NodeSettings, shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> Means:
        """Return the means by these settings, GPUs, cgroup version and labels of the node; log what is new."""
        want = wanted(settings.limits, labels, compute=settings.mps_compute == "by-share")
        abilities = Abilities(cgroup, self.mps, self._extra is not None)
        strict = settings.limits_fallback == REFUSE
        there = {shared.position: shared.gpu for shared in shares.gpus if shared.listed and not shared.gone}
        whole = {at for at in there if any(kind is Kind.INSTANCE for kind, _ in shares.gpus[at].offered)}
        made = rungs(there, abilities, want, refuse=strict, partitions=whole)
        self.node = NodeLimits(made.gpus)
        self._tell(told(made.gpus), made.missing, want.ignored)
        return Means(
            rungs={gpu.uuid: made.gpus[position] for position, gpu in there.items()},
            mps={} if isinstance(self.mps, str) else self.mps,
            mps_shm=str(settings.mps_dir / SHM_DIRECTORY),
            mps_compute=want.compute,
            soft_is_share=settings.soft_limit == "share",
            extra=self._extra,
            refuse=strict and want.required,
        )

    def _tell(self, sentence: str, missing: str, ignored: str) -> None:
        if sentence and sentence != self._told:
            _log.info("memory limits: %s", sentence)
        if missing and missing != self._missing:
            self._on_missing(missing)
        if ignored and ignored != self._ignored:
            _log.warning("%s", ignored)
        self._told, self._missing, self._ignored = sentence, missing, ignored
