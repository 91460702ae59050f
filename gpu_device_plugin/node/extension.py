"""The extension points: where features plug into the node agent.

The agent's own parts (discovery, shares, matching, admission, health, registration) know no feature. They call each
method below for every feature, in the order of the agent's list of features.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeAlias

from gpu_device_plugin.aio.http import Route
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.feature_list import FeatureList
from gpu_device_plugin.kubelet.checkpoint import Checkpoint
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.gauges import Gauges
from gpu_device_plugin.model.limits import GpuEnforcement, LimitMeans
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.admission import Refusal
from gpu_device_plugin.node.rules.container_grants import NOTHING, Delivery, Grant, GrantOwner, Mount
from gpu_device_plugin.node.rules.matching import Match
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics
from gpu_device_plugin.node.rules.serving_mode import Serving

Tasks: TypeAlias = "Iterable[Coroutine[Any, Any, NoReturn]]"


@dataclass(frozen=True, slots=True)
class GrantDraft:
    """What a container is about to be given, as far as it is decided."""

    device_ids: frozenset[str]
    placement: Placement
    owner: GrantOwner
    """The container, as far as it is known, and the most that it may use."""
    delivery: Delivery
    """How it gets its GPUs."""
    enforcements: Mapping[str, GpuEnforcement] = field(default_factory=dict)
    """What is to keep it within its part of each GPU, by UUID; none: nothing is."""
    added: Grant = NOTHING
    """The variables and mounts of features."""


Contribution: TypeAlias = "Callable[[GrantDraft], GrantDraft | Refusal]"
"""Adds a feature's part to a draft, or refuses the container. It may be called more than once, and changes nothing."""


@dataclass(eq=False)
class GrantRequest:
    """A request for devices: of a container in Allocate, or of a claim in NodePrepareResources."""

    _judge: Callable[[], GrantDraft | Refusal]
    """Decides by the ledger and the health of the GPUs at the moment of the call."""
    running: bool = False
    """Whether the containers of a claim may run already. Then nothing is waited for, and nothing refused."""
    match: Match | None = None
    """The container that Allocate is called for, by the pods that wait; None: unknown, or this is a claim's."""
    contributions: list[Contribution] = field(default_factory=list)
    granted: Allocation | None = None
    """What was given in the end; None: nothing."""

    def draft(self) -> GrantDraft | Refusal:
        """Return the answer as it would be now, with the contributions made so far."""
        draft = self._judge()
        for contribute in self.contributions:
            if isinstance(draft, Refusal):
                break
            draft = contribute(draft)
        return draft


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A container that the kubelet is about to start, or a claim whose containers it is about to start."""

    kind: Kind
    device_ids: Sequence[str]
    deadline: float
    """When the kubelet has to be answered, in monotonic seconds."""
    lost: Callable[[], object] = lambda: ""
    """Returns something true once the container has lost its devices: nothing is to be done for it any more."""


class Server(Protocol):
    """Serves pods, in a way that may change."""

    serving: Observable[Serving]
    """The mode in force. Not set before the first decision."""

    async def alive(self) -> tuple[str, ...]:
        """Return the faults that only a restart can resolve, as sentences."""

    async def ready(self) -> tuple[str, ...]:
        """Return the conditions that this node lacks to serve pods, as sentences."""

    async def run(self) -> NoReturn:
        """Serve until cancelled."""


class NodeFeature:
    """What one capability adds to the node agent. Each method does nothing unless a feature says otherwise.

    All are called on the agent's event loop.
    """

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution] | None:  # noqa: ARG002
        """Take part in the answer to Allocate or NodePrepareResources; None: the feature has no part in this one.

        Before it yields a feature may wait for what the container needs; the kubelet waits meanwhile, so for 25 s at
        most. It refuses by what it yields, and raises nothing. After the yield `request.granted` tells whether the
        devices were given; if not, the feature takes back what it did for the container.
        """
        return None

    def means(self, shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> LimitMeans | None:  # noqa: ARG002
        """Choose what keeps containers within their parts of these GPUs; None: that is not the feature's.

        Called whenever the node's configuration is derived, so it costs little, and gives the same for the same facts.
        `cgroup` is the node's cgroup version, None if unknown; `labels` are the node's.
        """
        return None

    def means_follow(self) -> Iterable[Observable[Any]]:
        """Return the values on whose changes the feature may choose other means. The settings are not needed here."""
        return ()

    def mounts(self, owner: GrantOwner, device_ids: Sequence[str]) -> tuple[Mount, ...]:  # noqa: ARG002
        """Return further mounts of a container whose devices are in the ledger, and make what they show.

        Also called when a claim is prepared anew, as after a boot of the node. Raises nothing.
        """
        return ()

    async def before_start(self, start: StartRequest) -> Refusal | None:  # noqa: ARG002
        """Wait, until the deadline at most, for what a container needs to start; return why it must not start yet."""
        return None

    def recover(self) -> Collection[str]:
        """Take up who held devices before this agent; return the UIDs of those pods and claims beyond the checkpoint.

        Called once, with the node's lock and before the first registration: while one of them may hold shares, the
        share size stays what it was. Raises nothing.
        """
        return ()

    def checkpoint_read(self, found: Checkpoint | None, *, its_own: bool) -> None:
        """Learn from one more reading of the kubelet's checkpoint; None: it cannot be read. Must not wait for anything.

        `its_own`: the kubelet process that runs now has written it, or shows devices in it.
        """

    def unrecorded(self) -> Collection[Allocation]:
        """Return what containers hold although the kubelet's checkpoint does not show it. Asked after each reading."""
        return ()

    def unrecorded_ids(self) -> frozenset[str]:
        """Return the device IDs of `unrecorded` that the kubelet takes for free; they stay in use. Asked as often."""
        return frozenset()

    async def check_unrecorded(self) -> None:
        """Find out which containers of `unrecorded` have ended. Awaited after each reading, before a registration too.

        May read files and processes, in threads. Raises nothing.
        """

    def entries(self) -> Iterable[Observable[tuple[Allocation, ...]]]:
        """Return what containers hold in another way than by the kubelet's checkpoint. Called once, and followed."""
        return ()

    def server(self) -> Server | None:
        """Return who serves pods instead of the device plugin alone. Called once, before `tasks`; the first counts."""
        return None

    def ledger_complete(self) -> None:
        """Take up what needs the whole ledger: the kubelet's records have just been read, and nothing is allocated yet.

        Called before each registration.
        """

    def tasks(self) -> Tasks:
        """Return what runs as long as the agent does. An exception of one ends the agent."""
        return ()

    def routes(self) -> Iterable[Route]:
        """Return the paths at which the agent serves something of the feature, beside its metrics."""
        return ()

    def measured(self, metrics: NodeMetrics) -> Gauges:  # noqa: ARG002
        """Return the gauges of the feature, of a node that is in this state. Called for each scrape."""
        return ()


class Features(FeatureList[NodeFeature]):
    """The features of an agent, in their order."""

    @asynccontextmanager
    async def granting(self, request: GrantRequest) -> AsyncIterator[GrantDraft | Refusal]:
        """Yield the draft of an answer with the contribution of each feature, or why there is none."""
        async with AsyncExitStack() as stack:
            for feature in self._features:
                # Each that takes part costs an answer some microseconds.
                if (part := feature.granting(request)) is not None:
                    request.contributions.append(await stack.enter_async_context(part))
            yield request.draft()

    def means(self, shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> LimitMeans:
        """Return the first feature's choice of what keeps containers within their parts; of none, if there is none."""
        return self.first(NodeFeature.means, shares, cgroup, labels) or LimitMeans()

    def mounts(self, owner: GrantOwner, device_ids: Sequence[str]) -> tuple[Mount, ...]:
        """Return the mounts that the features add."""
        return tuple(mount for feature in self._features for mount in feature.mounts(owner, device_ids))

    async def before_start(self, start: StartRequest) -> Refusal | None:
        """Return a reason why a container must not start.

        The last features are asked first: others may take free memory while a daemon of MPS is waited for.
        """
        for feature in reversed(self._features):
            if (refusal := await feature.before_start(start)) is not None:
                return refusal
        return None

    def measured(self, metrics: NodeMetrics) -> Gauges:
        """Yield the gauges of all features."""
        for feature in self._features:
            yield from feature.measured(metrics)
