"""Keep our labels and annotations on our own node."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.within import within
from gpu_device_plugin.cluster.api import NODES, NodeReader, UnreadableObjectError
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.errors import ApiError, Call, ConflictError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.aio.latest import Latest
    from gpu_device_plugin.cluster.api import NodeRecord
    from gpu_device_plugin.cluster.client import Client

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeNotes:
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


class NodeSelf:
    """The node on which we run."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<NodeSelf {self.name}>"

    async def read(self) -> NodeRecord:
        """Return the current state of the node.

        Raises:
            NotFoundError: no node has our name; a node's name is not always the host's.
            UnavailableError: the answer is not a node, but that of a proxy.
        """
        try:
            return NodeReader().read(await self._client.get(NODES, self.name))
        except NotFoundError as error:
            why = f"{error.status} {error.reason}: no such node; set the node's name (NODE_NAME) from spec.nodeName"
            raise NotFoundError(error.call, why, status=error.status, reason=error.reason) from error
        except UnreadableObjectError as error:
            raise UnavailableError(Call("get", NODES.plural, name=self.name), str(error)) from error

    async def publish(self, notes: NodeNotes) -> bool:
        """Put `notes` on the node; return whether that took a patch.

        Raises:
            ApiError: the patch failed, or its outcome is unknown.
        """
        return await self.put(notes, await self.read())

    async def put(self, notes: NodeNotes, node: NodeRecord) -> bool:
        """Put `notes` on the node, whose state `node` was just read; return whether that took a patch.

        Raises:
            ApiError: the patch failed, or its outcome is unknown.
        """
        changes = notes.missing(node)
        if changes:
            # The uid prevents writing the old node's notes on a new node of the same name.
            await self._client.patch(NODES, self.name, {"metadata": {"uid": node.uid, **changes}})
        return bool(changes)

    async def keep(self, wanted: Latest[NodeNotes], *, again_s: float = 600.0, first_retry_s: float = 1.0) -> NoReturn:
        """Publish the newest of `wanted`; check the node again on every change and after `again_s`.

        Ends only by cancellation; a failure is logged and retried.
        """
        backoff = Backoff(first_retry_s)
        problem: type[ApiError] | None = None
        while True:
            version, notes = wanted.version, wanted.value
            pause_s = again_s
            try:
                await self.publish(notes)
                problem = None
                backoff.reset()
            except ApiError as error:
                if type(error) is not problem and not isinstance(error, ConflictError):
                    _log.warning("the node's labels and annotations are not up to date: %s; trying again", error)
                problem = type(error)
                pause_s = backoff.next_s(error.retry_after_s)
            await within(pause_s, wanted.after(version))
