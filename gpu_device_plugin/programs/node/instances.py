"""Wire into the agent how pods get MIG instances: by which resources, and in which way at present."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import MIG_LABEL
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.node.equipping import mig_mode
from gpu_device_plugin.core.node.holdings import INSTANCE
from gpu_device_plugin.programs.node.stranding import Stranding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.holdings import Stranded
    from gpu_device_plugin.programs.node.agent import NodeAgent


_log = logging.getLogger(__name__)


class Instances:
    """The MIG instances of an agent's node."""

    def __init__(self, agent: NodeAgent) -> None:
        """Prepare; `agent` is not complete yet."""
        self._agent = agent
        self._stranding = Stranding(agent, self._gone)

    def __repr__(self) -> str:
        return f"<Instances: {self._agent.state.node.shares.mig}, {self._stranding!r}>"

    @property
    def there(self) -> bool:
        """Whether the node has instances, or had some that somebody may hold."""
        shares, entries = self._agent.state.node.shares, self._agent.entries.value
        return any(shared.gpu.instance is not None for shared in shares.gpus) or any(
            device.startswith(INSTANCE) for entry in entries for device in entry.device_ids
        )

    def apply(self, labels: Mapping[str, str]) -> None:
        """Give instances in the way that the settings and the labels of the node want, and tell of pods without."""
        agent = self._agent
        label = labels.get(MIG_LABEL, "")
        if label and label not in list(MigMode):
            extra = {"value": label, "known": sorted(MigMode), "once_per_s": 3600}
            _log.warning(
                "the node label %s names no way of giving MIG instances, and is ignored", MIG_LABEL, extra=extra
            )
        agent.equipment.give_instances(mig_mode(agent.settings.mig, label))
        wanted = {resource.name for resource in resources(agent)}
        if not agent.advertiser.idle and not agent.registration.registrations.keys() >= wanted:
            agent.advertiser.refresh()
            agent.registration.serve_more()
        self._stranding.look()

    def _gone(self, found: Stranded) -> None:
        agent = self._agent
        agent.reports.instance_gone(found)
        if agent.cluster is not None and found.pod is not None:
            agent.cluster.pod_event(found.pod, "MigInstanceGone", f"{found.sentence}.", "Observe")


def resources(agent: NodeAgent) -> tuple[Resource, ...]:
    """Return the resources of a node: those of GPUs, and one for each MIG profile that it gives, or has given."""
    settings = agent.settings
    return (*settings.offered, *(settings.of_profile(profile) for profile in agent.state.node.shares.profiles))
