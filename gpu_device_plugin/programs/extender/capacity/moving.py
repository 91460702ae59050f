"""Move running pods: hold room for the replacement, evict the pod, and have the replacement bound there."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.cluster.client.errors import ApiError
from gpu_device_plugin.cluster.objects.decoding import PODS
from gpu_device_plugin.cluster.writers.evictions import EvictionOutcome, evict
from gpu_device_plugin.core.cluster.fitting import Unfit, fit
from gpu_device_plugin.core.cluster.pod_demand import Impossible, ask
from gpu_device_plugin.core.contract.keys import MOVE_REFUSED, MOVE_TO, MalformedAnnotationError
from gpu_device_plugin.core.contract.moves import Destination, HeldRoom, read_destination
from gpu_device_plugin.programs.extender.capacity.followed import replaceable

if TYPE_CHECKING:
    from gpu_device_plugin.core.model.pods import Owner, Pod
    from gpu_device_plugin.programs.extender.capacity.parts import Parts

    Shares = tuple[tuple[int, int], ...]

_log = logging.getLogger(__name__)

HELD_S = 300.0
"""How long room is held once the pod has ended: its controller makes the replacement within seconds."""
_CALL_S = 5.0
_POLICY = "binpack"
MANIFEST = "deploy/optional/capacity.yaml (chart: scheduler.capacity)"


@dataclass(eq=False)
class Mover:
    """Moves one pod after the other."""

    _parts: Parts
    moving: set[str] = field(default_factory=set, init=False)
    """The UIDs of the pods that are being moved."""

    async def obey(self) -> None:
        """Move the pods that somebody wants to move, or write on them why not. Raises ApiError."""
        for pod in self._parts.followed.to_move():
            try:
                why = await self.move(pod, read_destination(pod.annotations[MOVE_TO]))
            except MalformedAnnotationError as error:
                why = str(error)
            if why:
                body = {"metadata": {"uid": pod.uid, "annotations": {MOVE_TO: None, MOVE_REFUSED: why[:1000]}}}
                await self._parts.client.patch(PODS, pod.name, body, namespace=pod.namespace, timeout_s=_CALL_S)

    async def move(self, pod: Pod, to: Destination) -> str:
        """Hold room for the replacement of a pod and evict the pod; return an empty text, or why it stays."""
        owner, place = replaceable(pod), self._place(pod, to)
        if owner is None:
            why = "no controller would replace it on another node"
        elif isinstance(place, str):
            why = place
        else:
            self.moving.add(pod.uid)
            try:
                why = await self._evicted(pod, owner, to.node, place)
            finally:
                self.moving.discard(pod.uid)
        where = {"pod": f"{pod.namespace}/{pod.name}", "from": pod.node_name, "to": to.node}
        self._parts.metrics.count(m.MOVES, "refused" if why else "evicted")
        if why:
            _log.warning("a pod is not moved", extra=where | {"why": why})
        else:
            _log.info("a pod is moved: room for its replacement is held, and it is evicted", extra=where)
        return why

    def _place(self, pod: Pod, to: Destination) -> Shares | str:
        """Return the shares that the replacement takes, by position and no more than asked for, or why it cannot."""
        asked = ask(pod, self._parts.resources)
        if isinstance(asked, Impossible):
            return asked.sentence
        there, node = self._parts.fleet.candidates.get(to.node), self._parts.followed.nodes.get(to.node)
        if there is None or node is None:
            return f"node {to.node} is not known to the GPU scheduler"
        if not node.open:
            return f"node {to.node} is cordoned, not ready, or about to be removed"
        if there.left is not None and pod.node_name != to.node and not there.left.cover(pod.amounts):
            return f"node {to.node} has too little CPU or memory left"
        # An extender that was active before may have held it already.
        held = self._parts.holds.room_of(pod.uid, to.node)
        found = fit(asked, there.restricted(dict(to.shares)) if held is None else held, _POLICY)
        if isinstance(found, Unfit):
            return f"node {to.node} has not the room any more: {found.sentence}"
        return tuple(sorted(each for placement in found.placements for each in placement.shares))

    async def _evicted(self, pod: Pod, owner: Owner, node: str, shares: Shares) -> str:
        until_s = self._parts.wall() + HELD_S + pod.grace_s
        self._parts.holds.hold(node, HeldRoom(pod.uid, pod.namespace, owner.uid, shares, until_s))
        try:
            # The next active extender has to know of the room before the pod goes.
            await self._parts.holds.write()
        except ApiError as error:
            self._parts.holds.let_go(pod.uid)
            return f"the room could not be held: {error}; apply {MANIFEST}"
        done = await evict(self._parts.client, pod, most_grace_s=pod.grace_s, timeout_s=_CALL_S, manifest=MANIFEST)
        if done.outcome is EvictionOutcome.EVICTED:
            return ""
        if done.outcome is not EvictionOutcome.FAILED:
            # After an answer that was lost, the pod may be ending: the room stays until the watch shows it.
            self._parts.holds.let_go(pod.uid)
        return done.why or "it is gone already"
