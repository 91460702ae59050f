"""Serve pods by the device plugin: keep its device lists, while nobody else hands out GPUs of this node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.kubelet.registration_loop import RegistrationLoop
from gpu_device_plugin.kubelet.servicer import device_list
from gpu_device_plugin.kubelet.statefile import StateFile
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.shares import Listing
from gpu_device_plugin.node.node_api import NodeApi
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.reconciler import Reconciler
from gpu_device_plugin.node.rules.admission import Refusal
from gpu_device_plugin.node.rules.advertised_devices import ADVICE, Offer, RecentRefusals, offers
from gpu_device_plugin.node.rules.node_config import NodeConfig
from gpu_device_plugin.node.rules.serving_mode import Serving, ServingMode

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb

_log = logging.getLogger(__name__)

_LOOK_S = 10.0
"""Seconds after the last change of the node until the limit that refusals set is checked again."""


class Advertiser:
    """The device lists of all resources. A list is sent if the health of an ID changed, or for `resend`."""

    def __init__(self, state: NodeState, config: Observable[NodeConfig], api: NodeApi, refusal_limit: int) -> None:
        """Advertise the resources in `config` of the node in `state`; more may come, and none goes."""
        self._api = api
        self._state = state
        self._config = config
        self.refusals = RecentRefusals(refusal_limit)
        self.offers: dict[Listing, tuple[Offer, ...]] = {}
        """The content of each resource's list."""
        self._lists: dict[Listing, Observable[pb.ListAndWatchResponse]] = {}

    def limit(self, refusals: int) -> None:
        """Set after how many refusals fewer shares are advertised; 0: never."""
        self.refusals = replace(self.refusals, limit=refusals) if refusals else RecentRefusals(refusals)
        self.refresh()

    def refused(self, kind: Kind, amount: int, refusal: Refusal) -> None:
        """Report that a container was refused its devices, and show less if that happens again and again."""
        extra = {"kind": kind.value, "amount": amount, "why": refusal.sentence, "once_per_s": 60}
        _log.warning("refused", extra=extra)
        if kind is Kind.MEMORY and refusal.code in ADVICE:
            before = self.refusals.run
            self.refusals = self.refusals.refused(amount, time.monotonic())
            self.refresh()
            if self.refusals.run not in {None, before}:
                asked = format_mib(amount * self._state.node.shares.share_mib)
                sentence = f"pods of {asked} are refused repeatedly: {ADVICE[refusal.code]}"
                self._api.announce(_log, "GPUMemoryFragmented", sentence, "Refuse")

    def refresh(self) -> None:
        """Advertise the current state of the node."""
        node, now = self._state.node, time.monotonic()
        emptiest = node.emptiest if self.refusals.run is not None else 0
        self.refusals = self.refusals.settled(emptiest, now)
        for resource in self._config.value.resources:
            found = offers(node, resource.listing, self.refusals.most_free(emptiest, now))
            if found != self.offers.get(resource.listing, ()):
                self.offers[resource.listing] = found
                self.list_of(resource).set(device_list(resource, found))

    def list_of(self, resource: Resource) -> Observable[pb.ListAndWatchResponse]:
        """Return the list of one resource."""
        if resource.listing not in self._lists:
            self._lists[resource.listing] = Observable(device_list(resource, ()))
        return self._lists[resource.listing]

    def resend(self) -> None:
        """Send one list again, unchanged: the kubelet then writes its checkpoint."""
        newest = self.list_of(self._config.value.resources[0])
        newest.set(newest.value)

    async def run(self) -> NoReturn:
        """Follow the node, but while it serves claims: then nobody listens. Ends only by cancellation."""
        await Worker(self._follow).run(self._state.nodes)

    def _follow(self) -> float:
        if not self._config.value.claims:
            self.refresh()
        return _LOOK_S


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
        self.registered = Observable(0)
        """How often the kubelet has registered a resource."""

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
