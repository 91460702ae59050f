"""A double of a cloud: one group of nodes with GPUs that the Cluster Autoscaler makes larger and smaller over gRPC."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc

from tests.autoscaler.wire import CALLS, MESSAGES, SERVICE, template

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

Json = dict[str, Any]

GROUP = "gpus"
_RUNNING, _CREATING, _DELETING = 1, 2, 3


@dataclass
class Cloud:
    """Has a group of nodes, which it makes and removes as it is told."""

    node: Callable[[str], Json]
    """Returns what a node of the group is like, by its name."""
    boot: Callable[[Json], Awaitable[None]]
    """Makes a node; returns once it is ready."""
    remove: Callable[[str], Awaitable[None]]
    """Removes a node, and what runs there, by its name."""
    max_nodes: int = 10
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """What the autoscaler ordered: ``("more", 2)``, ``("fewer", 1)``, ``("delete", ("n1",))``."""
    instances: dict[str, int] = field(default_factory=dict)
    """The state of each machine by its name."""
    address: str = ""
    refreshed: int = 0
    """How often the autoscaler has begun to look at the cluster."""
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _booting: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def size(self) -> int:
        """How many machines there are to be."""
        return sum(state != _DELETING for state in self.instances.values())

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

    def start(self, number: int = 1) -> list[str]:
        """Start machines; return their names."""
        names = [f"gpu-{next(self._numbers)}" for _ in range(number)]
        for name in names:
            self.instances[name] = _CREATING
            task = asyncio.create_task(self._boot(name))
            self._booting.add(task)
            task.add_done_callback(self._booted)
        return names

    async def _boot(self, name: str) -> None:
        await self.boot(self.node(name))
        if name in self.instances:
            self.instances[name] = _RUNNING

    def _booted(self, task: asyncio.Task[None]) -> None:
        self._booting.discard(task)
        if not task.cancelled():
            task.result()

    # The calls of the provider, by their names

    async def _nothing(self, _request: Any, _context: Any) -> Any:
        return MESSAGES["Nothing"]()

    def _group(self) -> Json:
        return {"id": GROUP, "minSize": 0, "maxSize": self.max_nodes, "debug": GROUP}

    async def _Refresh(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        self.refreshed += 1
        return MESSAGES["Nothing"]()

    async def _NodeGroups(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["NodeGroups"](nodeGroups=[self._group()])

    async def _NodeGroupForNode(self, request: Any, _context: Any) -> Any:  # noqa: N802
        ours = request.node.providerID.removeprefix("double://") in self.instances
        return MESSAGES["OfNode"](nodeGroup=self._group() if ours else {"id": ""})

    async def _GPULabel(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["Label"](label="double/accelerator")

    async def _NodeGroupTargetSize(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["Size"](targetSize=self.size)

    async def _NodeGroupIncreaseSize(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self.calls.append(("more", request.delta))
        self.start(request.delta)
        return MESSAGES["Nothing"]()

    async def _NodeGroupDecreaseTargetSize(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self.calls.append(("fewer", -request.delta))
        return MESSAGES["Nothing"]()

    async def _NodeGroupDeleteNodes(self, request: Any, _context: Any) -> Any:  # noqa: N802
        names = tuple(each.providerID.removeprefix("double://") for each in request.nodes)
        self.calls.append(("delete", names))
        for name in names:
            self.instances[name] = _DELETING
            await self.remove(name)
            del self.instances[name]
        return MESSAGES["Nothing"]()

    async def _NodeGroupNodes(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        instances = [
            {"id": f"double://{name}", "status": {"instanceState": state}} for name, state in self.instances.items()
        ]
        return MESSAGES["Instances"](instances=instances)

    async def _NodeGroupTemplateNodeInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return MESSAGES["Template"](nodeBytes=template(self.node("template")))
