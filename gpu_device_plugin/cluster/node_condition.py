"""Keep one condition in the status of our own node."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.cluster.api import NODES
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.client import PatchType
from gpu_device_plugin.cluster.errors import ApiError, Call, ForbiddenError, UnavailableError
from gpu_device_plugin.core.contract.keys import GPU_CONDITION

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.core.node.gpu_condition import GpuCondition

_log = logging.getLogger(__name__)

HEARTBEAT_S = 300.0


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class NodeCondition:
    """Writes the condition `GPU_CONDITION` on a node: on every change, and as a heartbeat.

    The patch merges the list of conditions by their types, so that the kubelet's stay. The time of the last transition
    is written only when the status differs from that on the node, and so outlives the agent.
    """

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        forbidden: Callable[[str], None] = lambda _why: None,
        heartbeat_s: float = HEARTBEAT_S,
        first_retry_s: float = 1.0,
    ) -> None:
        """Write on `node`; `forbidden` is called once with a sentence while the account lacks the right."""
        self._client = client
        self._node = node
        self._forbidden = forbidden
        self._heartbeat_s = heartbeat_s
        self._first_retry_s = first_retry_s
        self.wanted: Latest[GpuCondition | None] = Latest(None)
        """The condition; None: the node shall have none. Nothing is written before it is first set."""

    def __repr__(self) -> str:
        return f"<NodeCondition of {self._node}: {self.wanted.value}>"

    def want(self, condition: GpuCondition | None) -> None:
        """Have a condition written, or removed, unless that is what is wanted already."""
        if self.wanted.version == 0 or condition != self.wanted.value:
            self.wanted.set(condition)

    async def run(self) -> NoReturn:
        """Keep the condition. Ends only by cancellation; a failure is logged and retried."""
        await self.wanted.after(0)
        backoff = Backoff(self._first_retry_s, self._heartbeat_s)
        problem: type[ApiError] | None = None
        while True:
            version, condition = self.wanted.version, self.wanted.value
            pause_s = self._heartbeat_s if condition is not None else None
            try:
                await self.put(condition)
                problem = None
                backoff.reset()
            except ApiError as error:
                if type(error) is not problem:
                    self._told(error)
                problem = type(error)
                pause_s = backoff.next_s(error.retry_after_s)
            await within(pause_s, self.wanted.after(version))

    async def put(self, condition: GpuCondition | None) -> bool:
        """Write the condition now, None removes it; return whether that took a patch.

        Raises:
            ApiError: it is not written, or the outcome is unknown.
        """
        before = await self._status()
        if condition is None:
            if before is None:
                return False
            return await self._patch({"type": GPU_CONDITION, "$patch": "delete"})
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        moved = {} if before == condition.status else {"lastTransitionTime": now}
        return await self._patch(
            {
                "type": GPU_CONDITION,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastHeartbeatTime": now,
                **moved,
            }
        )

    async def _status(self) -> str | None:
        """Return the status that the node's condition has now; None if it has no such condition."""
        try:
            node = msgspec.json.decode(await self._client.get(NODES, self._node), type=_Node)
        except (msgspec.DecodeError, UnicodeDecodeError):
            call = Call("get", NODES.plural, name=self._node)
            raise UnavailableError(call, "the answer is not a node") from None
        return next((one.status for one in node.status.conditions or () if one.type == GPU_CONDITION), None)

    async def _patch(self, condition: dict[str, Any]) -> bool:
        body = {"status": {"conditions": [condition]}}
        await self._client.patch(NODES, self._node, body, subresource="status", how=PatchType.STRATEGIC)
        return True

    def _told(self, error: ApiError) -> None:
        _log.warning("the node's condition %s is not up to date: %s; trying again", GPU_CONDITION, error)
        if isinstance(error, ForbiddenError):
            self._forbidden(
                f"The node's condition {GPU_CONDITION} cannot be written: {error}; apply deploy/optional/evict.yaml "
                "(chart: agent.nodeCondition), or set node_condition to false"
            )
