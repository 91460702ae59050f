"""Have the objects in the cluster by which its autoscaler learns which room is wanted: these, and no others.

New nodes are opened to pods once their GPUs are offered, so that the autoscaler counts them as coming until then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache
from gpu_device_plugin.features.capacity.rules.node_requests import (
    UNSCHEDULABLE,
    WANTED_FOR,
    Wanted,
    buffer_of,
    named,
    pod_of,
)
from gpu_device_plugin.kubernetes.client.api_client import PatchType
from gpu_device_plugin.kubernetes.client.errors import ConflictError, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS, ObjectKind, ObjectMeta, read_metadata
from gpu_device_plugin.model.contract.keys import STAND_IN, STARTUP_TAINT
from gpu_device_plugin.scheduler.controller_context import ControllerContext

Templates = Mapping[str, dict[str, Any]]

_log = logging.getLogger(__name__)

_BUFFERS: Mapping[str, ObjectKind] = MappingProxyType(
    {each: ObjectKind("capacitybuffers", "autoscaling.x-k8s.io", each) for each in ("v1beta1", "v1alpha1")}
)
"""CapacityBuffers by version, the newest first."""
_TEMPLATES = ObjectKind("podtemplates")
_LOOK_S = 10.0
"""How often to look which buffers there are, and whether the API server has any."""
_CALL_S = 5.0


@dataclass(eq=False)
class Autoscaler:
    """The cluster's autoscaler, as far as it can be asked."""

    _context: ControllerContext
    _cache: CapacityCache
    namespace: str
    """In which the objects are made."""

    def __post_init__(self) -> None:
        self._client = self._context.client
        self._own_pod = self._context.settings().holder()
        """The name of this extender's pod, which owns the objects: they end with it. Without it nothing owns them."""
        self._looked_at: float | None = None
        self._version = ""
        """Of the CapacityBuffers that the API server has; empty: it has none."""
        self._buffers: dict[str, str] = {}
        """By name of ours, what is asked by it (`node_requests.named`)."""
        self._wanted: Collection[str] | None = None
        """The names under which something was wanted last; None: another extender knows."""
        self._owners: list[dict[str, Any]] | None = None
        self._told: set[str] = set()
        """UIDs of the pods whose condition is written."""

    def forget(self) -> None:
        """Look at everything again: another extender has been active."""
        self._looked_at = self._wanted = None
        self._told.clear()

    async def ask(self, wanted: Sequence[Wanted], how: str) -> None:
        """Have it know what is wanted: by ``buffers``, by ``stand-ins``, or as the API server allows (``auto``).

        What is not wanted any more goes first, so that at no time more is asked for than was or is wanted.
        Raises ApiError: among others where ``buffers`` are to be used and the API server has none.
        """
        if how != "stand-ins":
            await self._look(must=how == "buffers")
        elif self._looked_at is None:  # there may be buffers of a time when the setting was another
            try:
                await self._look(must=False)
            except ForbiddenError:
                self._looked_at = self._context.clock()  # who may not list them has not made any
        by_buffers = bool(self._version) and how != "stand-ins"
        # Pods may have found a place, and nodes come, while it was worked out: what is new has to be wanted twice.
        if self._wanted is None:  # what another extender has asked for was wanted before
            self._wanted = {*self._buffers, *(pod.name for pod in self._cache.stand_ins.values())}
        all_wanted = named(wanted)
        templates = {name: template for name, template in all_wanted.items() if name in self._wanted}
        self._wanted = all_wanted.keys()
        await self._have_pods({} if by_buffers else templates)
        if self._version:
            await self._have_buffers(self._version, templates if by_buffers else {})

    async def clear(self) -> None:
        """Remove what was asked for while the setting was another. Raises ApiError."""
        if self._looked_at is None or self._cache.stand_ins or self._buffers:
            await self.ask([], "stand-ins")

    # --- Pods ---------------------------------------------------------------------------------------------------------

    async def _have_pods(self, templates: Templates) -> None:
        there = [pod for pod in self._cache.stand_ins.values() if pod.namespace == self.namespace]
        for pod in there:
            if not pod.deleting and pod.annotations.get(STAND_IN) != _asked(templates.get(pod.name)):
                with suppress(NotFoundError, ConflictError):
                    await self._client.delete(PODS, pod.name, namespace=self.namespace, uid=pod.uid)
            elif pod.uid not in self._told and not pod.deleting:
                await self._tell(pod.name, pod.uid)
        self._told.intersection_update(self._cache.stand_ins)
        right = {(pod.name, pod.annotations.get(STAND_IN)) for pod in there}
        for name, template in templates.items():
            if (name, _asked(template)) not in right:
                # One of this name that the watch does not show yet is that which is wanted.
                with suppress(ConflictError):
                    body = pod_of(name, self.namespace, template, await self._owned())
                    made = await self._client.create(PODS, body, namespace=self.namespace, timeout_s=_CALL_S)
                    await self._tell(name, made.read(read_metadata).uid)
                    self._log(name, template)

    async def _tell(self, name: str, uid: str) -> None:
        body = {"metadata": {"uid": uid}, "status": {"conditions": [UNSCHEDULABLE]}}
        with suppress(NotFoundError, ConflictError):
            await self._client.patch(
                PODS, name, body, namespace=self.namespace, subresource="status", how=PatchType.STRATEGIC
            )
            self._told.add(uid)

    # --- Buffers ------------------------------------------------------------------------------------------------------

    async def _look(self, *, must: bool) -> None:
        """Find out which buffers there are. Raises ApiError."""
        if self._looked_at is not None and self._context.clock() - self._looked_at < _LOOK_S:
            return
        self._version = ""
        for version in _BUFFERS:
            found = self._client.objects(_BUFFERS[version], read_metadata, namespace=self.namespace, labels=STAND_IN)
            try:
                self._buffers = {meta.name: (meta.annotations or {}).get(STAND_IN, "") async for meta in found}
                self._version = version
                break
            except NotFoundError:
                if must and version == list(_BUFFERS)[-1]:
                    raise
        self._looked_at = self._context.clock()

    async def _have_buffers(self, version: str, templates: Templates) -> None:
        for name in [name for name, asked in self._buffers.items() if asked != _asked(templates.get(name))]:
            with suppress(NotFoundError):
                await self._client.delete(_BUFFERS[version], name, namespace=self.namespace)
            with suppress(NotFoundError):
                await self._client.delete(_TEMPLATES, name, namespace=self.namespace)
            del self._buffers[name]
        for name in templates.keys() - self._buffers:
            template, buffer = buffer_of(name, self.namespace, templates[name], await self._owned(), version)
            try:
                await self._client.create(_TEMPLATES, template, namespace=self.namespace, timeout_s=_CALL_S)
            except ConflictError:  # an extender ended before it had removed this one, which may leave out other nodes
                await self._client.delete(_TEMPLATES, name, namespace=self.namespace)
                await self._client.create(_TEMPLATES, template, namespace=self.namespace, timeout_s=_CALL_S)
            with suppress(ConflictError):
                await self._client.create(_BUFFERS[version], buffer, namespace=self.namespace, timeout_s=_CALL_S)
            self._buffers[name] = _asked(templates[name])
            self._log(name, templates[name])

    # --- Nodes --------------------------------------------------------------------------------------------------------

    async def remove_startup_taints(self) -> None:
        """Open new nodes to pods: remove `STARTUP_TAINT` from nodes whose kubelets offer GPUs. Raises ApiError."""
        candidates = self._context.fleet.candidates
        for node in tuple(self._cache.unsettled.values()):
            there = candidates.get(node.name)
            if node.starting and node.offers and there is not None and there.rooms and not there.gpus.problem:
                with suppress(ConflictError, NotFoundError):  # the watch shows it as it is now
                    await self._open(node.name)

    async def _open(self, name: str) -> None:
        # The list of taints can only be replaced, with all that others have written in it.
        raw = await self._context.client.get(NODES, name, timeout_s=_CALL_S)
        node = raw.decoded(_Node, "a node")
        taints = [taint for taint in node.spec.taints or () if taint.get("key") != STARTUP_TAINT]
        meta = {"resourceVersion": node.metadata.resource_version}
        await self._context.client.patch(NODES, name, {"metadata": meta, "spec": {"taints": taints}}, timeout_s=_CALL_S)
        _log.info("a new node offers its GPUs, and is opened to pods", extra={"node": name})

    # --- Both ---------------------------------------------------------------------------------------------------------

    async def _owned(self) -> list[dict[str, Any]]:
        """Return the references to what owns the objects: this extender's pod, if it runs in one."""
        if self._owners is None:
            try:
                own = await self._context.client.get(PODS, self._own_pod, namespace=self.namespace, timeout_s=_CALL_S)
                meta = own.read(read_metadata)
                self._owners = [{"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}]
            except NotFoundError:
                self._owners = []
        return self._owners

    def _log(self, name: str, template: Mapping[str, Any]) -> None:
        pods = template["metadata"]["annotations"][WANTED_FOR]
        _log.info("a new node is requested", extra={"object": name, "pods": pods})


def _asked(template: Mapping[str, Any] | None) -> str:
    """Return what is asked by a template; empty: nothing is."""
    return "" if template is None else str(template["metadata"]["annotations"][STAND_IN])


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None


class _Node(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)
