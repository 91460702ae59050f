"""Serve ResourceClaims where that is wanted, and know who holds GPUs by them everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.features.claims.dra_driver import DraDriver
from gpu_device_plugin.features.claims.serving_mode_switch import ServingModeSwitch
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.model.allocations import Allocation
    from gpu_device_plugin.node.extension import Tasks
    from gpu_device_plugin.node.feature_context import NodeContext


class Claims(NodeFeature):
    """The DRA driver, and the switch between it and the device plugin."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`, which has the API."""
        self.dra = DraDriver(node)
        self.switch = ServingModeSwitch(node, self.dra)
        self.dra.changed = self.switch.decide_again

    def recover(self) -> Collection[str]:  # noqa: D102
        return self.dra.holders_of_shares()

    def entries(self) -> list[Observable[tuple[Allocation, ...]]]:  # noqa: D102
        return [self.dra.entries]

    def server(self) -> ServingModeSwitch:  # noqa: D102
        return self.switch

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.dra.follow(), self.dra.run_api()]
