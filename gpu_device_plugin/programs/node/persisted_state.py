"""State that an agent takes over from its predecessor on the node, and saves for its successor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.node_config import share_size
from gpu_device_plugin.core.node.serving_mode import ServingMode
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError
from gpu_device_plugin.kubelet.statefile import ENDED_PODS, SHARE_SIZE, WAY, StateFile

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpu_device_plugin.kubelet.records import KubeletRecords
    from gpu_device_plugin.settings.node import NodeSettings


class PersistedAgentState:
    """The share size in use, and the pods that have ended although the kubelet's checkpoint still lists them."""

    def __init__(self, settings: NodeSettings, records: KubeletRecords) -> None:
        """Read and write files beside the kubelet's sockets; only the holder of the node's lock writes."""
        self._settings = settings
        self._records = records
        self._share_size = StateFile(settings.device_plugin_dir, SHARE_SIZE)
        self._ended_pods = StateFile(settings.device_plugin_dir, ENDED_PODS)
        self._mode = StateFile(settings.device_plugin_dir, WAY)

    def share_mib(self, others: Collection[str] = ()) -> int:
        """Return the initial share size, in MiB: the one in use as long as a container or a claim holds shares of it.

        `others` are the UIDs of the claims, and of the pods that the kubelet has forgotten, that hold shares.
        """
        ended = (self._ended_pods.read() or "").split()
        try:
            holders = {*self._records.recorded().by_pod({Kind.MEMORY}), *others}
        except CheckpointUnreadableError:
            holders = None
        return share_size(self._settings.share_size_mib, self._share_size.number(), holders, ended)

    @property
    def mode(self) -> ServingMode | None:
        """The serving mode of the previous agent; None if unknown."""
        value = self._mode.read()
        return ServingMode(value) if value in list(ServingMode) else None

    def keep_mode(self, mode: ServingMode) -> None:
        """Save our serving mode for the next agent."""
        self._mode.write(mode.value)

    def keep_share_size(self, share_mib: int) -> None:
        """Save our share size for the next agent."""
        self._share_size.write(str(share_mib))

    def keep_ended_pods(self) -> None:
        """Save the UIDs of the pods that have ended for the next agent, which has not seen them end."""
        ended = " ".join(sorted(self._records.over))
        if ended or self._ended_pods.read():
            self._ended_pods.write(ended)
