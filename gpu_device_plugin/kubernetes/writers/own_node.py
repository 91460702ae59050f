"""Keep our part of our own node: labels, annotations and one condition of its status."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.kubernetes.client.api_client import Client, PatchType
from gpu_device_plugin.kubernetes.client.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, NodeReader
from gpu_device_plugin.model.contract.cordons import Cordon, read_cordons, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS, GPU_CONDITION
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.rules.gpu_health import NodeCondition

if TYPE_CHECKING:
    from gpu_device_plugin.aio.observable import Observable

_log = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_S = 300.0


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """The labels and annotations that a node should have; None removes a key, other keys are not touched."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)

    def missing(self, node: NodeRecord) -> Mapping[str, Mapping[str, str | None]]:
        """Return the patch for the metadata of `node`; empty if the node already has all of this."""
        return {
            field_name: missing
            for field_name, wanted, present in (
                ("labels", self.labels, node.labels),
                ("annotations", self.annotations, node.annotations),
            )
            if (missing := {key: value for key, value in wanted.items() if present.get(key) != value})
        }


@dataclass(frozen=True, slots=True)
class OwnNode:
    """The node on which we run."""

    _client: Client
    name: str

    async def read(self) -> NodeRecord:
        """Return the current state of the node.

        Raises:
            NotFoundError: no node has our name; a node's name is not always the host's.
            UnavailableError: the answer is not a node, but that of a proxy.
        """
        try:
            return (await self._client.get(NODES, self.name)).read(NodeReader().read)
        except NotFoundError as error:
            why = f"{error.status} {error.reason}: no such node; set the node's name (NODE_NAME) from spec.nodeName"
            raise NotFoundError(error.call, why, status=error.status, reason=error.reason) from error

    async def publish(self, notes: NodeMetadata) -> bool:
        """Put `notes` on the node; return whether that took a patch. Raises ApiError."""
        return await self.put(notes, await self.read())

    async def put(self, notes: NodeMetadata, node: NodeRecord) -> bool:
        """Put `notes` on the node, whose state `node` was just read; return whether that took a patch.

        Raises ApiError.
        """
        changes = notes.missing(node)
        if changes:
            # The uid prevents writing the old node's notes on a new node of the same name.
            await self._client.patch(NODES, self.name, {"metadata": {"uid": node.uid, **changes}})
        return bool(changes)

    async def change_cordons(
        self, change: Callable[[Mapping[str, Cordon]], Mapping[str, Cordon]], *, attempts: int = 5
    ) -> NodeRecord:
        """Change the cordons of the node as it is now, if `change` makes others of them; return it as it is then.

        Written only on the node as it was read, so that nobody's change is lost; several `attempts` in case it changes.

        Raises:
            MalformedAnnotationError: the cordons there cannot be read, and are left as they are; or not written.
            ApiError: it was not written.
        """
        while True:
            node, attempts = await self.read(), attempts - 1
            before = read_cordons(node.annotations[CORDONS]) if CORDONS in node.annotations else {}
            cordons = change(before)
            if cordons == before:
                return node
            marks = {CORDONS: write_cordons(cordons)}
            there = {"uid": node.uid, "resourceVersion": node.resource_version}
            try:
                await self._client.patch(NODES, self.name, {"metadata": {**there, "annotations": marks}})
            except ConflictError:
                if not attempts:
                    raise
                continue
            others = {key: text for key, text in node.annotations.items() if key != CORDONS}
            return replace(node, annotations=others | {key: text for key, text in marks.items() if text is not None})

    async def keep(self, wanted: Observable[NodeMetadata], *, again_s: float = 600.0) -> NoReturn:
        """Publish the newest of `wanted`; check the node again on every change and after `again_s`.

        Ends only by cancellation; a failure is logged and retried.
        """
        await keep_written(wanted, self.publish, self._log_failure, again_s, Backoff(1.0))

    def _log_failure(self, error: ApiError) -> None:
        if not isinstance(error, ConflictError):
            _log.warning("the node's labels and annotations are not up to date: %s; trying again", error)

    async def keep_condition(
        self,
        wanted: Observable[NodeCondition | None],
        forbidden: Callable[[str], None] = lambda _why: None,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        first_retry_s: float = 1.0,
    ) -> NoReturn:
        """Keep the condition once `wanted` is set, which is None for no condition: on every change, and as a heartbeat.

        Ends only by cancellation; a failure is logged and retried. `forbidden` is called once with a sentence while the
        account lacks the right.
        """

        def failed(error: ApiError) -> None:
            _log.warning("the node's condition %s is not up to date: %s; trying again", GPU_CONDITION, error)
            if isinstance(error, ForbiddenError):
                forbidden(
                    f"The node's condition {GPU_CONDITION} cannot be written: {error}; apply deploy/optional/evict.yaml"
                    " (chart: agent.nodeCondition), or set node_condition to false"
                )

        await wanted.after(0)
        await keep_written(wanted, self.put_condition, failed, heartbeat_s, Backoff(first_retry_s, heartbeat_s))

    async def put_condition(self, condition: NodeCondition | None) -> bool:
        """Write the condition `GPU_CONDITION` now, None removes it; return whether that took a patch. Raises ApiError.

        The patch merges the list of conditions by their types, so that the kubelet's stay. The time of the last
        transition is written only when the status differs from that on the node, and so outlives the agent.
        """
        before = (await self.read()).gpu_condition
        patch: dict[str, Any] = {"type": GPU_CONDITION}
        if condition is None:
            if not before:
                return False
            patch["$patch"] = "delete"
        else:
            now = rfc3339(time.time())
            told = {"status": condition.status, "reason": condition.reason, "message": condition.message}
            moved = {} if before == condition.status else {"lastTransitionTime": now}
            patch |= {**told, "lastHeartbeatTime": now, **moved}
        body = {"status": {"conditions": [patch]}}
        await self._client.patch(NODES, self.name, body, subresource="status", how=PatchType.STRATEGIC)
        return True


async def keep_written(
    wanted: Observable[T],
    write: Callable[[T], Awaitable[object]],
    failed: Callable[[ApiError], None],
    again_s: float | None,
    backoff: Backoff,
) -> NoReturn:
    """Write the newest of `wanted`, on every change and, unless it is None, after `again_s` again.

    A failure is retried; `failed` is called for each kind of them once in a row.
    """
    problem: type[ApiError] | None = None
    while True:
        version, value = wanted.version, wanted.value
        pause_s = None if value is None else again_s
        try:
            await write(value)
            problem = None
            backoff.reset()
        except ApiError as error:
            if type(error) is not problem:
                failed(error)
            problem = type(error)
            pause_s = backoff.next_s(error.retry_after_s)
        await wait_within(pause_s, wanted.after(version))
