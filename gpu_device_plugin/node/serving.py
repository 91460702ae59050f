"""Serve pods by the device plugin, while nobody else hands out GPUs of this node."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.node.rules.serving_mode import Serving, ServingMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from gpu_device_plugin.kubelet.registration_loop import RegistrationLoop
    from gpu_device_plugin.kubelet.statefile import StateFile
    from gpu_device_plugin.node.node_api import NodeApi
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.reconciler import Reconciler
    from gpu_device_plugin.node.rules.node_config import NodeConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OtherPlugin:
    """Another program that hands out GPUs of this node."""

    found: str
    """The finding, as a sentence without the full stop."""
    advice: str
    """The finding and instructions, likewise."""


class OtherPlugins:
    """The other programs that hand out GPUs of this node, for which ours are withheld.

    Without a feature that looks for them there are none.
    """

    def __init__(self, api: NodeApi) -> None:
        self._api = api
        self.others: Observable[tuple[OtherPlugin, ...]] = Observable(())
        """Those found last. To be set by the feature."""
        self.look: Callable[[], None] = lambda: None
        """Looks at once, and sets `others` if they differ. To be replaced by the feature."""

    def alone(self) -> bool:
        """Look at once, and return whether no other program hands out GPUs of this node."""
        self.look()
        return not self.others.value

    def report(self) -> None:
        """Tell of each that its GPUs are why ours are not shared."""
        for other in self.others.value:
            sentence = f"GPUs of this node are not shared: {other.advice}"
            self._api.announce(_log, "OtherDevicePlugin", sentence, "Refuse", logging.ERROR)

    def unmet(self) -> tuple[str, ...]:
        """Return a sentence for each, for readiness."""
        return tuple(other.advice for other in self.others.value)


@dataclass(eq=False, repr=False)
class DevicePlugin:
    """Keeps the resources registered and the ledger reconciled, once there is a GPU."""

    _config: Observable[NodeConfig]
    _state: NodeState
    _: KW_ONLY
    registration: RegistrationLoop
    reconciler: Reconciler
    other_plugins: OtherPlugins
    last_mode: StateFile
    """The serving mode of the last agent, and then ours."""

    def __post_init__(self) -> None:
        self.serving = Observable(Serving(ServingMode.DEVICE_PLUGIN))
        self.deregistering = False
        """The plugin registers for the last time, and has the kubelet call nothing before containers start."""
        self.registered = asyncio.Event()
        """Set when the kubelet has registered a resource."""

    async def alive(self) -> tuple[str, ...]:
        """Return the faults that only a restart can resolve, as sentences."""
        serves = self._config.value.shares.any_listed and not self.other_plugins.others.value
        works = not serves or await self.registration.answer_ourselves()
        return () if works else ("the agent's sockets do not answer",)

    async def ready(self) -> tuple[str, ...]:
        """Return the conditions that this node lacks to serve pods, as sentences."""
        return self.lacking(*self.registration.unmet())

    def lacking(self, *unmet: str) -> tuple[str, ...]:
        """Return the same for a server that lacks `unmet`."""
        config = self._config.value
        if not config.shares.any_listed:
            return (config.why_none,)
        unseen = () if config.facts.watched else (config.why_none,)
        certain = self._state.node.ledger.certain
        unread = () if certain else ("the kubelet's checkpoint cannot be read; see the log",)
        return (*unseen, *self.other_plugins.unmet(), *unread, *unmet)

    async def run(self) -> NoReturn:
        """Serve by nothing but the plugin, until cancelled."""
        await self.any_gpu()
        self.last_mode.write(ServingMode.DEVICE_PLUGIN)
        await self.serve()

    async def any_gpu(self) -> None:
        """Wait until there is a GPU; without one nothing is registered."""
        await self._config.wait_until(lambda config: config.shares.any_listed)

    async def serve(self) -> NoReturn:
        """Keep resources registered and the ledger reconciled while there is no other plugin; report others.

        Beside another plugin the kubelet's records are read on: ours end, and its pods get GPUs of ours.
        """
        await self.any_gpu()
        self.other_plugins.look()  # before the first registration, whichever task runs first
        task: asyncio.Task[NoReturn] | None = None
        refused = False
        version = -1
        async with asyncio.TaskGroup() as tasks:
            while True:
                version, others = await self.other_plugins.others.after(version)
                self.other_plugins.report()
                if task is None or bool(others) != refused:
                    if task is not None:
                        task.cancel()
                        await asyncio.wait({task})
                    if refused and not others:
                        _log.info("GPUs are shared again: no other plugin hands them out")
                    doing = self._read_on() if others else together(self.registration.run(), self.reconciler.run())
                    task = tasks.create_task(doing, name="read on" if others else "offer and reconcile")
                refused = bool(others)

    async def _read_on(self) -> NoReturn:
        while True:
            await self.reconciler.prepare()
            await asyncio.sleep(self.reconciler.interval_s)
