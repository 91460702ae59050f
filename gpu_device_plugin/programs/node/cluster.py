"""What the node agent has to do with the Kubernetes API; without one, none of it exists."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.cluster.api import PodReader
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.client import Client
from gpu_device_plugin.cluster.errors import ApiError
from gpu_device_plugin.cluster.events import EventWriter, about_node
from gpu_device_plugin.cluster.node import NodeNotes, NodeSelf
from gpu_device_plugin.cluster.node_pods import NodePods
from gpu_device_plugin.cluster.podwriter import PodWriter
from gpu_device_plugin.core.contract.annotations import (
    ASSUME_TIME,
    NODE_GPUS,
    NODE_LABELS,
    POD_ANNOTATIONS,
    STATIC_POD,
    WISHES,
    assignment,
    going_away,
    node_gpus,
    node_labels,
)
from gpu_device_plugin.core.contract.leaving import SWITCH_LABEL, SWITCHED_ON, our_annotations, our_labels, switched_on
from gpu_device_plugin.core.model.gpus import Inventory
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import TooManySharesError
from gpu_device_plugin.core.node.endings import pods_in_api
from gpu_device_plugin.core.node.positions import last_said
from gpu_device_plugin.core.node.preferring import spread_over
from gpu_device_plugin.programs.node.waiting import WaitingPods, kubelet_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import NoReturn

    from gpu_device_plugin.cluster.api import NodeRecord, PodRecord
    from gpu_device_plugin.cluster.config import ClusterConfig
    from gpu_device_plugin.core.model.gpus import Gpu
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.node.endings import PodsInApi
    from gpu_device_plugin.kubelet.checkpoint import Record
    from gpu_device_plugin.node_state import Book
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_MODELS = f"{NODE_LABELS}product."
"""Labels that name a model. Those of models that are gone would otherwise stay for ever."""
_OF_GPUS = (f"{NODE_LABELS}product", f"{NODE_LABELS}memory-mib", f"{NODE_LABELS}driver")
"""Labels of which a node without GPUs has none."""
_FORGOTTEN_S = 0.5
"""How often an agent that ends looks whether the kubelet has forgotten what it offered."""


class _Readiness(Enum):
    """Whether pods may come to the node. It only goes on, from one to the next."""

    STARTING = auto()
    """The kubelet does not listen to us yet, or what is free is not known."""
    READY = auto()
    SHUTTING_DOWN = auto()
    """We have been told to end. A pod that comes when there is no agent fails."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the hardware showed last."""

    inventory: Inventory
    policy: str
    sentence: str
    withheld: str


async def tidy_up(
    client: Client, ourselves: NodeSelf, within_s: float, resources: Collection[str] = (), forgotten_within_s: float = 0
) -> None:
    """Take from our node what agents wrote on it, unless it has the label by which its GPUs are shared.

    Args:
        client: to be opened, and closed again.
        ourselves: the node.
        within_s: how long each of looking and writing may take.
        resources: what the kubelet has to have forgotten first. As long as its node shows them, schedulers would take
            it for one of another device plugin, were it not for what is written there.
        forgotten_within_s: how long to wait for that. The kubelet writes its node every 10 seconds by default.
    """
    try:
        async with client:
            async with asyncio.timeout(within_s):
                node = await ourselves.read()
            forgotten_by = time.monotonic() + forgotten_within_s
            while (
                not switched_on(node.labels)
                and any(node.allocatable.get(name) for name in resources)
                and time.monotonic() < forgotten_by
            ):
                await asyncio.sleep(min(_FORGOTTEN_S, forgotten_within_s))
                async with asyncio.timeout(within_s):
                    node = await ourselves.read()
            if switched_on(node.labels):
                return
            left = NodeNotes(dict.fromkeys(our_labels(node.labels)), dict.fromkeys(our_annotations(node.annotations)))
            async with asyncio.timeout(within_s):
                if await ourselves.put(left, node):
                    _log.info("the node is no longer labelled %s=%s: ours is removed", SWITCH_LABEL, SWITCHED_ON)
    except (ApiError, TimeoutError) as error:
        why = str(error) or f"no answer within {within_s:g} s"
        _log.warning("whether the node is to share its GPUs any more is not known: what we wrote on it stays: %s", why)


class NodeCluster:
    """Follows this node's pods, writes what became of them, and says on the node what a scheduler needs to know."""

    def __init__(
        self,
        config: ClusterConfig,
        settings: NodeSettings,
        book: Book,
        metrics: m.Metrics,
        *,
        pods_changed: Callable[[], None],
        looked: Callable[[NodeRecord], None],
    ) -> None:
        """Prepare; nothing is sent before `run`.

        Args:
            config: how to reach the API server.
            settings: for node name, resources and policy.
            book: the node.
            metrics: where to count.
            pods_changed: told when a pod that had asked for devices went or ended.
            looked: told how our node is, with all labels and what it offers, again and again.
        """
        self._settings = settings
        self._book = book
        self._metrics = metrics
        self._pods_changed = pods_changed
        self._tell_of_node = looked
        self._client = Client(config, on_error=self._count_error)
        keep = POD_ANNOTATIONS | WISHES | {STATIC_POD}
        reader = PodReader((resource.name for resource in settings.offered), keep.__contains__)
        self.followed = NodePods(self._client, reader, settings.node_name)
        """The pods bound to our node."""
        self.waiting = WaitingPods(self.followed, settings.offered, metrics, lambda: book.node.shares)
        self._writer = PodWriter(self._client, node=settings.node_name, refused=self._refused)
        self._events = EventWriter(self._client, instance=settings.node_name)
        self._self = NodeSelf(self._client, settings.node_name)
        self.look_s = 60.0
        """How often we look at our node: for labels that mean something to us, and whether it says what it should."""
        self.linger_s = 1.0
        """How long after its word an agent stays that is about to end: what is being bound meanwhile comes here."""
        self._shown: _Shown | None = None
        self._readiness = _Readiness.STARTING
        self._forgotten: Mapping[str, None] = {}
        self._before: tuple[Gpu, ...] = ()
        """The GPUs that our node named when we first looked at it."""
        self._looked = asyncio.Event()
        self._kubelet_version = ""
        self._switched_on = False
        """Our node had the label by which people have it share its GPUs."""
        self._asked: dict[str, Mapping[str, str]] = {}
        """What was last to be written on each pod, by UID, as long as it does not stand there."""
        self._notes: Latest[NodeNotes] = Latest(NodeNotes())

    def __repr__(self) -> str:
        return f"<NodeCluster of {self._settings.node_name}: {self.followed!r}>"

    def _count_error(self, error: ApiError) -> None:
        self._metrics.count(m.API_ERRORS, error.call.verb, type(error).__name__)

    async def run(self) -> NoReturn:
        """Do all of it until cancelled; owns the connections."""
        async with self._client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.followed.reflector.run(), name="follow pods")
            tasks.create_task(self._writer.run(), name="annotate pods")
            tasks.create_task(self._events.run(), name="write events")
            tasks.create_task(self._publish(), name="publish the GPUs")
            tasks.create_task(self._look_at_node(), name="read the node's labels")
            tasks.create_task(self._follow_pods(), name="settle promises")
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def announce_shutdown(self, within_s: float) -> None:
        """Say on the node, from now on, that its agent ends, so that no scheduler sends a pod. While `run` still runs.

        Returns when the pods that were on their way have come, which fail where there is no agent; or after `within_s`
        seconds without an answer.
        """
        self._readiness = _Readiness.SHUTTING_DOWN
        self._note()
        if NODE_GPUS not in self._notes.value.annotations:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._self.publish(self._notes.value)
            await asyncio.sleep(self.linger_s)
        except (ApiError, TimeoutError) as error:
            _log.info("the node does not say that its agent ends: %s", str(error) or f"no answer within {within_s:g} s")

    async def leave(self, within_s: float, forgotten_within_s: float) -> None:
        """Take from the node what we wrote on it, if it lost the label by which its GPUs were shared; after `run`.

        To a process that is told to end, a rollout looks the same: there the label stays, and all of it. A node that
        never had the label is shared by some other rule, which we do not know. See `tidy_up`.
        """
        if self._switched_on:
            resources = [resource.name for resource in self._settings.offered]
            await tidy_up(self._client, self._self, within_s, resources, forgotten_within_s)

    def event(self, reason: str, note: str, action: str, *, warning: bool) -> None:
        """Have an Event written on our node."""
        self._events.post(
            about_node(self._settings.node_name), reason=reason, note=note, action=action, warning=warning
        )

    def _refused(self, pod: PodRecord, error: ApiError) -> None:
        """Tell people of a pod on which its GPUs cannot be written."""
        note = (
            f"the annotations that say where pod {pod.namespace}/{pod.name} has its GPUs are not on it, and are tried "
            f"again: {error}. Until they are, schedulers may count the pod on every GPU of this node"
        )
        self.event("PodNotAnnotated", note, "Annotating", warning=True)

    async def gpus_before(self, within_s: float) -> tuple[Gpu, ...]:
        """Return the GPUs that our node named before we ran, by position; none if it cannot be read in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._looked.wait()
        except TimeoutError:
            _log.warning("the positions of the GPUs may differ from before: our node could not be read yet")
        return self._before

    def show(self, inventory: Inventory, policy: str, sentence: str, withheld: str = "") -> None:
        """Have the node say what GPUs it has, and by which policy they are chosen.

        Args:
            inventory: what the driver shows.
            policy: which GPU this node prefers.
            sentence: why no GPU is shared, for a node without one.
            withheld: why none of them is offered though all may be well; empty: they are.
        """
        self._shown = _Shown(inventory, policy, sentence, withheld)
        self._note()

    def arrived(self) -> None:
        """Have the node say that pods may come: its kubelet listens to us, and we know what is free.

        Until then it says what GPUs it has, and that there is no agent yet: what a scheduler promises before may be
        held by a container that ended while nobody was here.
        """
        if self._readiness is _Readiness.STARTING:
            self._readiness = _Readiness.READY
            self._note()

    def learn(self, records: Iterable[Record]) -> None:
        """Take over what the kubelet's checkpoint says of who has what, and settle the promises by it."""
        self.waiting.learn(records)
        self._settle()

    def pods_in_api(self) -> PodsInApi | None:
        """Return what the API shows of our node's pods, see `core.node.endings.pods_in_api`."""
        return pods_in_api(self.followed.pods.values(), self._kubelet_version)

    def _settle(self) -> None:
        """Write on every pod that has all its devices that it has them, and which."""
        pods = self.followed.pods
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in pods}
        sizes = [len(shared.shares) for shared in self._book.node.shares.gpus]
        for pod in pods.values():
            asked = self._asked.pop(pod.uid, {})
            if pod.ended or not (actual := self._actual(pod)):
                continue
            now_ns = int(asked.get(ASSUME_TIME, time.time_ns()))
            if changes := assignment(pod, actual, self._settings.offered, sizes, now_ns):
                self._asked[pod.uid] = changes
                if changes != asked:
                    self._writer.annotate(pod, changes)

    def _actual(self, pod: Pod) -> Mapping[tuple[str, Kind], Mapping[int, int]]:
        """Return on which GPUs a pod's containers are, by the kubelet's books; nothing unless all of it is known."""
        gpus = self._book.node.shares.gpus
        actual = {}
        for container in pod.containers:
            for resource in self._settings.offered:
                if container.limits.get(resource.name, 0) > 0:
                    ids = self.waiting.records.get((kubelet_uid(pod), container.name, resource.kind), frozenset())
                    places = spread_over(self._book.node, ids)
                    if not ids or sum(places.values()) < len(ids):
                        return {}
                    whole = resource.kind is Kind.COUNT
                    actual[container.name, resource.kind] = {
                        position: len(gpus[position].shares) if whole else count for position, count in places.items()
                    }
        return actual

    async def _follow_pods(self) -> NoReturn:
        users: frozenset[str] = frozenset()
        async for pods in self.followed.changes.values():
            before, users = users, frozenset(uid for uid, pod in pods.items() if pod.containers and not pod.ended)
            if before - users:
                self._pods_changed()
            self._settle()
        raise AssertionError  # pragma: no cover (changes never end)

    async def _publish(self) -> NoReturn:
        await self._notes.after(0)  # nothing is said before the GPUs are known
        await self._self.keep(self._notes)

    def _note(self) -> None:
        shown = self._shown
        if shown is None or not self._looked.is_set():
            return  # what the node says of GPUs that cannot be seen now is not to be lost
        shares, unhealthy = self._book.node.shares, self._book.node.unhealthy
        if not shares.gpus:
            with contextlib.suppress(TooManySharesError):
                shares = shares.with_inventory(Inventory(self._before), self._settings.exclude_gpus)
            unhealthy = {shared.gpu.uuid: shown.sentence for shared in shares.gpus}
        if shown.withheld:
            unhealthy = {shared.gpu.uuid: shown.withheld for shared in shares.gpus}
        said = node_gpus(shares, shown.inventory, unhealthy, shown.policy)
        offered = bool(self._book.node.shares.gpus) and not shown.withheld
        if self._readiness is _Readiness.SHUTTING_DOWN or (offered and self._readiness is _Readiness.STARTING):
            said = going_away(said)
        labels = node_labels(shares, shown.inventory, shown.policy)
        notes = NodeNotes(
            labels={**self._forgotten, **dict.fromkeys(_OF_GPUS), **labels},
            annotations={NODE_GPUS: said},
        )
        if notes != self._notes.value:
            self._notes.set(notes)

    async def _look_at_node(self) -> NoReturn:
        backoff = Backoff(1.0)
        while True:
            try:
                node = await self._self.read()
            except ApiError as error:
                _log.warning("the labels of our node are not known: %s", error, extra={"once_per_s": 600})
                await asyncio.sleep(backoff.next_s(error.retry_after_s))
                continue
            backoff.reset()
            self._switched_on = self._switched_on or switched_on(node.labels)
            self._kubelet_version = node.kubelet_version
            self._tell_of_node(node)
            self._forgotten = dict.fromkeys(label for label in node.labels if label.startswith(_MODELS))
            if not self._looked.is_set():
                self._before = last_said(node.annotations.get(NODE_GPUS, ""))
                self._looked.set()
            elif self._notes.value.missing(node):
                self._notes.set(self._notes.value)  # the node was made anew, or somebody else wrote on it
            self._note()
            await asyncio.sleep(self.look_s)
