"""Say on our own node what we want to be known of it."""

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
    """What a node should carry; None removes a key, keys not named are left alone."""

    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)

    def missing(self, node: NodeRecord) -> Mapping[str, Mapping[str, str | None]]:
        """Return what has to be patched into the metadata of `node`; empty if it carries all of this."""
        return {
            what: missing
            for what, wanted, present in (
                ("labels", self.labels, node.labels),
                ("annotations", self.annotations, node.annotations),
            )
            if (missing := {key: value for key, value in wanted.items() if present.get(key) != value})
        }


class NodeSelf:
    """The node that we run on."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<NodeSelf {self.name}>"

    async def read(self) -> NodeRecord:
        """Return the node as it is now.

        Raises:
            NotFoundError: there is none of our name: it is not always the host's.
            UnavailableError: what came is no node; a proxy on the way answers so.
        """
        try:
            return NodeReader().read(await self._client.get(NODES, self.name))
        except NotFoundError as error:
            why = f"{error.status} {error.reason}: no such node; set the node's name (NODE_NAME) from spec.nodeName"
            raise NotFoundError(error.call, why, status=error.status, reason=error.reason) from error
        except UnreadableObjectError as error:
            raise UnavailableError(Call("get", NODES.plural, name=self.name), str(error)) from error

    async def publish(self, notes: NodeNotes) -> bool:
        """Make the node carry `notes`; return whether that took a patch.

        Raises:
            ApiError: it does not carry them, or it is unknown whether it does.
        """
        return await self.put(notes, await self.read())

    async def put(self, notes: NodeNotes, node: NodeRecord) -> bool:
        """Make the node, as it was just read, carry `notes`; return whether that took a patch.

        Raises:
            ApiError: it does not carry them, or it is unknown whether it does.
        """
        changes = notes.missing(node)
        if changes:
            # The uid, lest a node that was replaced under our name gets what we know of the old one.
            await self._client.patch(NODES, self.name, {"metadata": {"uid": node.uid, **changes}})
        return bool(changes)

    async def keep(self, wanted: Latest[NodeNotes], *, again_s: float = 600.0, first_retry_s: float = 1.0) -> NoReturn:
        """Publish the newest of `wanted` until it stands, and look again whenever it changes or `again_s` passed.

        Ends only by cancellation; a failure is logged and tried again.
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
                    _log.warning("what we know of the GPUs is not on the node: %s; trying again", error)
                problem = type(error)
                pause_s = backoff.next_s(error.retry_after_s)
            await within(pause_s, wanted.after(version))
