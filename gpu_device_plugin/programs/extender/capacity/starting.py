"""Open new nodes to pods once their GPUs are offered, so that an autoscaler counts them as coming until then."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_device_plugin.cluster.client.answers import translated
from gpu_device_plugin.cluster.client.errors import Call, ConflictError, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import NODES, ObjectMeta, decoded
from gpu_device_plugin.core.contract.keys import STARTUP_TAINT

if TYPE_CHECKING:
    from gpu_device_plugin.programs.extender.capacity.parts import Parts

_log = logging.getLogger(__name__)

_CALL_S = 5.0


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None


class _Node(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


_DECODER = msgspec.json.Decoder(_Node)


@dataclass(eq=False)
class Opener:
    """Removes `STARTUP_TAINT` from nodes whose kubelets offer GPUs."""

    _parts: Parts

    async def open(self) -> None:
        """Remove the taint where it is due. Raises ApiError."""
        candidates = self._parts.fleet.candidates
        for name in tuple(self._parts.followed.starting):
            node, there = self._parts.followed.nodes.get(name), candidates.get(name)
            if node is not None and node.offers and there is not None and there.rooms and not there.gpus.problem:
                with suppress(ConflictError, NotFoundError):  # the watch shows it as it is now
                    await self._open(node.name)

    async def _open(self, name: str) -> None:
        # The list of taints can only be replaced, with all that others have written in it.
        raw = await self._parts.client.get(NODES, name, timeout_s=_CALL_S)
        with translated(Call("get", NODES.plural, name=name)):
            node = decoded(_DECODER, raw, "node")
        taints = [taint for taint in node.spec.taints or () if taint.get("key") != STARTUP_TAINT]
        meta = {"resourceVersion": node.metadata.resource_version}
        await self._parts.client.patch(NODES, name, {"metadata": meta, "spec": {"taints": taints}}, timeout_s=_CALL_S)
        _log.info("a new node offers its GPUs, and is opened to pods", extra={"node": name})
