"""A double of a cloud: groups of nodes with GPUs that the Cluster Autoscaler makes larger and smaller over gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import grpc

from tests import builders
from tests.autoscaler.wire import CALLS, MESSAGES, SERVICE, template
from tests.scheduler.harness import NODE_GPUS, gpus

Json = dict[str, Any]

GPUS, SHARES = 4, 8
"""Of every node of the usual group."""
_RUNNING, _CREATING, _DELETING = 1, 2, 3
_OUT_OF_RESOURCES = 1
"""The autoscaler's class of error."""


@dataclass
class Group:
    """Has nodes that are alike."""

    id: str = "gpu"
    model: str = "Tesla T4"
    gpus: int = GPUS
    shares: int = SHARES
    """Of each GPU."""
    max_nodes: int = 10
    refuses: str = ""
    """``"orders"``: fails when it is to grow, as for lack of quota; ``"later"``: machines are promised, and come to
    nothing, as those of clouds that are out of stock do."""
    knows_products: bool = True
    """Whether the cloud puts our agents' labels on nodes and template; else only the agents do, on nodes."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """More of the cloud's."""

    def node(self, name: str) -> Json:
        """Return a node as its kubelet and its agent describe it."""
        return builders.node(
            name,
            mem=self.gpus * self.shares,
            count=self.gpus,
            labels=self.clouds_labels() | self.agents_labels(),
            annotations={NODE_GPUS: gpus(name, *[self.shares] * self.gpus, model=self.model)},
        )

    def clouds_labels(self) -> dict[str, str]:
        """Return what nodes register with."""
        own = {"gpushare": "true", "pool": self.id, "node.kubernetes.io/instance-type": f"{self.id}.large"}
        return own | (self.agents_labels() if self.knows_products else {}) | dict(self.labels)

    def agents_labels(self) -> dict[str, str]:
        product = self.model.replace(" ", "-")
        return {"gpu-device-plugin/product": product, f"gpu-device-plugin/product.{product}": "true"}

    def template(self) -> Json:
        """Return a node as the cloud tells of it before there is one."""
        node = self.node("template")
        node["metadata"] = {"name": "template", "labels": self.clouds_labels()}
        return node


@dataclass
class Cloud:
    """Has groups of nodes, which it makes and removes as it is told."""

    groups: Sequence[Group]
    """The first one is meant where none is named."""
    boot: Callable[[Group, str, int], Awaitable[None]]
    """Makes a node, by its group, its name and its place in the order; returns once it is ready."""
    remove: Callable[[str], Awaitable[None]]
    """Removes a node, and what runs there, by its name."""
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    """What the autoscaler ordered: ``("more", 2)``, ``("fewer", 1)``, ``("delete", ("n1",))``; of several groups, with
    the group's ID at the end."""
    bought: Counter[str] = field(default_factory=Counter)
    """Machines that came of the autoscaler's orders, by group."""
    refused: Counter[str] = field(default_factory=Counter)
    """Its orders of which none came, by group."""
    instances: dict[str, int] = field(default_factory=dict)
    """The state of each machine by its name."""
    address: str = ""
    refreshed: int = 0
    """How often the autoscaler has begun to look at the cluster."""
    _of: dict[str, Group] = field(default_factory=dict)
    """The group of each machine that there is or was."""
    _hopeless: set[str] = field(default_factory=set)
    """Machines that come to nothing."""
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _booting: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def max_nodes(self) -> int:
        """The most nodes of the first group."""
        return self.groups[0].max_nodes

    @max_nodes.setter
    def max_nodes(self, number: int) -> None:
        self.groups[0].max_nodes = number

    @property
    def size(self) -> int:
        """How many machines there are to be."""
        return sum(map(self._size, self.groups))

    def group(self, group_id: str = "") -> Group:
        """Return a group by its ID."""
        return next(each for each in self.groups if each.id == group_id or not group_id)

    def group_of(self, name: str) -> Group:
        """Return the group of a machine."""
        return self._of[name]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer the autoscaler within the `with` block, at `address`."""
        server = grpc.aio.server()
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                getattr(self, f"_{name}", self._nothing),
                request_deserializer=MESSAGES[asked].FromString,
                response_serializer=MESSAGES[answered].SerializeToString,
            )
            for name, (asked, answered) in CALLS.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield
        finally:
            await server.stop(0)
            for task in self._booting:
                task.cancel()
            await asyncio.gather(*self._booting, return_exceptions=True)

    def start(self, number: int = 1, group_id: str = "") -> list[str]:
        """Start machines; return their names."""
        group = self.group(group_id)
        names = self._promised(number, group)
        for at, name in enumerate(names):
            task = asyncio.create_task(self._boot(group, name, at))
            self._booting.add(task)
            task.add_done_callback(self._booted)
        return names

    def _promised(self, number: int, group: Group) -> list[str]:
        names = [f"{group.id}-{next(self._numbers)}" for _ in range(number)]
        for name in names:
            self.instances[name], self._of[name] = _CREATING, group
        return names

    async def _boot(self, group: Group, name: str, at: int) -> None:
        await self.boot(group, name, at)
        if name in self.instances:
            self.instances[name] = _RUNNING

    def _booted(self, task: asyncio.Task[None]) -> None:
        self._booting.discard(task)
        if not task.cancelled():
            task.result()

    def _size(self, group: Group) -> int:
        return sum(state != _DELETING and self._of[name] is group for name, state in self.instances.items())

    def _ordered(self, what: str, amount: object, group_id: str) -> None:
        self.calls.append((what, amount, group_id) if len(self.groups) > 1 else (what, amount))

    # The calls of the provider, by their names

    async def _nothing(self, _request: Any, _context: Any) -> Any:
        return MESSAGES["Nothing"]()

    async def _Refresh(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        self.refreshed += 1
        return MESSAGES["Nothing"]()

    async def _NodeGroups(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["NodeGroups"](nodeGroups=list(map(_told, self.groups)))

    async def _NodeGroupForNode(self, request: Any, _context: Any) -> Any:  # noqa: N802
        name = request.node.providerID.removeprefix("double://")
        return MESSAGES["OfNode"](nodeGroup=_told(self._of[name]) if name in self.instances else {"id": ""})

    async def _GPULabel(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["Label"](label="double/accelerator")

    async def _NodeGroupTargetSize(self, request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["Size"](targetSize=self._size(self.group(request.id)))

    async def _NodeGroupIncreaseSize(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._ordered("more", request.delta, request.id)
        group = self.group(request.id)
        if not group.refuses:
            self.bought[group.id] += request.delta
            self.start(request.delta, group.id)
            return MESSAGES["Nothing"]()
        self.refused[group.id] += 1
        if group.refuses == "orders":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no quota is left")
        self._hopeless.update(self._promised(request.delta, group))
        return MESSAGES["Nothing"]()

    async def _NodeGroupDecreaseTargetSize(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self._ordered("fewer", -request.delta, request.id)
        return MESSAGES["Nothing"]()

    async def _NodeGroupDeleteNodes(self, request: Any, _context: Any) -> Any:  # noqa: N802
        names = tuple(each.providerID.removeprefix("double://") for each in request.nodes)
        self._ordered("delete", names, request.id)
        for name in names:
            self.instances[name] = _DELETING
            await self.remove(name)
            del self.instances[name]
        return MESSAGES["Nothing"]()

    async def _NodeGroupNodes(self, request: Any, _context: Any) -> Any:  # noqa: N802
        error = {"errorCode": "OUT_OF_STOCK", "errorMessage": "none is left", "instanceErrorClass": _OUT_OF_RESOURCES}
        instances = [
            {
                "id": f"double://{name}",
                "status": {"instanceState": state} | ({"errorInfo": error} if name in self._hopeless else {}),
            }
            for name, state in self.instances.items()
            if self._of[name].id == request.id
        ]
        return MESSAGES["Instances"](instances=instances)

    async def _NodeGroupTemplateNodeInfo(self, request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["Template"](nodeBytes=template(self.group(request.id).template()))


def _told(group: Group) -> Json:
    return {"id": group.id, "minSize": 0, "maxSize": group.max_nodes, "debug": group.id}
