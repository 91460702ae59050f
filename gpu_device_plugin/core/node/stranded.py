"""Find the containers that hold MIG instances which exist no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.holdings import Holding


@dataclass(frozen=True, slots=True)
class Stranded:
    """A container that holds an instance which exists no more."""

    pod_uid: str
    container: str
    uuid: str
    """Of the instance."""
    name: str
    """The instance for people."""
    pod: Pod | None
    """None: not known (yet), or the agent runs without the API."""

    @property
    def sentence(self) -> str:
        """The finding, for the owner of the pod."""
        return (
            f"container {self.container} was given {self.name} ({self.uuid}), a MIG instance that exists no more: "
            "delete the pod, so that it gets another"
        )


def stranded(holdings: Iterable[Holding], shares: Shares) -> tuple[Stranded, ...]:
    """Return the containers of a node that hold instances which exist no more."""
    gone = {shared.gpu.uuid: shared for shared in shares.gpus if shared.gone and shared.gpu.instance is not None}
    if not gone:
        return ()
    return tuple(
        Stranded(holding.pod_uid, holding.container, uuid, gone[uuid].name, holding.pod)
        for holding in holdings
        for uuid in sorted(holding.granted)
        if uuid in gone
    )
