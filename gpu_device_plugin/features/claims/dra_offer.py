"""Offer the GPUs of a node to claims: as devices of ResourceSlices, with their health for the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import any_of, together, wait_within
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.features.claims.claim_objects import GROUP, SLICES, read_slice
from gpu_device_plugin.features.claims.contract import DRIVER, device_name
from gpu_device_plugin.features.claims.rules.devices import Order, SliceInputs, devices, plain_devices, reordered
from gpu_device_plugin.features.claims.rules.pool import Content, Present, contents, dropped, writes
from gpu_device_plugin.features.eviction import GpuFailureSettings
from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import NODES, read_metadata, version_number
from gpu_device_plugin.kubernetes.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.kubernetes.store import Store
from gpu_device_plugin.node.feature_context import NodeContext

_log = logging.getLogger(__name__)

_TIMING = ReflectorTiming(longest_retry_s=30.0)


class FieldsDroppedError(Exception):
    """The API server does not know fields that we need; the message names them."""


class DeviceOffer(Store[Present]):
    """What the slices of the node offer. Nothing is offered, and no slice touched, before `offer`.

    Slices that another client removes, or the kubelet at its start, are published again. New ones wait until the
    kubelet can call the driver: kube-scheduler allocates their devices at once, and the kubelet makes a pod that it
    cannot prepare wait for more than a minute.
    """

    def __init__(self, node: NodeContext, reached: Observable[bool]) -> None:
        """Offer the GPUs of `node`; `reached` says whether the kubelet can call the driver."""
        self._state, self._api, self._client = node.state, node.api, node.reached_cluster.client
        self._pool, self._kinds = node.settings.value.node_name, frozenset(node.settings.value.resources)
        self._config, self._settings, self._reached = node.config, node.settings, reached
        self.health: Observable[Mapping[str, str]] = Observable({})
        """Why each device is out of service, by its name; empty: it is healthy."""
        self.again_s = 600.0
        """Seconds until an API server that did not know our fields is tried again."""
        self._held_formerly: frozenset[str] = frozenset()
        self._order = Order()
        self._offering = False
        self._dropped: tuple[str, ...] = ()
        self._dropped_at = 0.0
        self._look = asyncio.Event()
        self._made_of: tuple[object, ...] = ()
        """What the slices that are wanted were made of."""
        self.wanted: Observable[Sequence[Content] | None] = Observable(None)
        """What the slices shall offer, see `features.claims.rules.pool.contents`; None: nothing is touched."""
        self.published: Observable[Sequence[Content] | None] = Observable(None)
        """What they offer, as far as we know; None: that is not known."""
        self._problem = ""
        self._found: dict[str, Present] = {}
        self._changed = asyncio.Event()
        self._known: frozenset[str] = frozenset()
        """The names of fields that the API server is known to store."""
        self._uid = ""
        self.reflector: Reflector[Present] = Reflector(
            self._client,
            SLICES,
            read_slice,
            self,
            fields=f"spec.driver={DRIVER},spec.nodeName={self._pool}",
            what="ResourceSlices of this node",
            timing=_TIMING,
        )

    def hold_formerly(self, uuids: frozenset[str]) -> None:
        """Take note of the GPUs and instances that claims hold by devices which are offered no more."""
        if uuids != self._held_formerly:
            self._held_formerly = uuids
            self._look.set()

    def offer(self, *, offering: bool) -> None:
        """Offer the GPUs, or withdraw the offer: then nothing new is allocated here, and claims go on."""
        if offering is not self._offering:
            self._offering = offering
            self._look.set()

    @property
    def withdrawn(self) -> bool:
        """Whether the API server has no slice of ours, as far as we know."""
        if isinstance(self.reflector.problem, NotFoundError):
            return True  # the API server knows no ResourceSlices
        published = self.published.value
        return published is not None and not published and not self._found

    @property
    def unpublished(self) -> str:
        """Why the offer is not published as it should be, as a sentence; empty if it is."""
        published = self.published.value
        if not self._look.is_set() and published is not None and published == self.wanted.value:
            return ""
        error = None if self.reflector.lists else self.reflector.problem
        unlisted = "" if error is None else self._told(error)
        return self._problem or unlisted or "the ResourceSlices of this node are not published yet"

    async def run(self) -> NoReturn:
        """Keep the offer in step with the node until cancelled."""
        followed: tuple[Observable[Any], ...] = self._state.nodes, self._config, self._settings
        while True:
            versions = [each.version for each in followed]
            self._look.clear()
            pause_s = self._decide(time.monotonic())
            news = (each.after(version) for each, version in zip(followed, versions, strict=True))
            await any_of(pause_s, *news, self._look.wait())

    def _decide(self, now: float) -> float | None:
        """Decide what the slices offer now; return the seconds until that has to be looked at again."""
        node, config, settings = self._state.node, self._config.value, self._settings.value
        self._order = reordered(self._order, node, config.policy, now)
        facts = SliceInputs(
            self._order.uuids,
            config.facts.inventory.driver_version,
            {uuid: gpu.enforcement for uuid, gpu in config.means.gpus.items()},
            isinstance(settings, GpuFailureSettings) and settings.on_gpu_failure == "evict",
            self._kinds,
            self._held_formerly,
        )
        if self._dropped and now - self._dropped_at >= self.again_s:
            self._dropped = ()
        # All that they are made of. Most changes of the node are claims that come and go, and change none of it.
        foreign = frozenset(node.ledger.held_by_other_resource)
        sources = node.shares, node.blocks, node.links, foreign, facts, self._offering, self._dropped
        if sources != self._made_of:
            self._made_of = sources
            wanted: Sequence[Content] = ()
            if self._offering:
                wanted = contents((plain_devices if self._dropped else devices)(node, facts))
            self.wanted.change(wanted)
            gpus = [shared.gpu.uuid for shared in node.shares.gpus if not shared.vacant]
            self.health.change({device_name(uuid): node.block(uuid).everyone for uuid in gpus})
        due = [] if self._order.due is None else [self._order.due]
        if self._dropped:
            due.append(self._dropped_at + self.again_s)
        return max(0.0, min(due) - now) if due else None

    # --- The reflector's store ------------------------------------------------------------------------------------

    def replace(self, objects: Sequence[Present]) -> None:
        """Hold exactly these."""
        self._found = {one.name: one for one in objects}
        self._changed.set()

    def put(self, object: Present) -> None:  # noqa: A002 - the API's word
        """Hold this state of a slice."""
        self._keep(object)
        self._changed.set()

    def remove(self, object: Present) -> None:  # noqa: A002
        """Remove a deleted slice, unless another one has its name by now."""
        held = self._found.get(object.name)
        if held is not None and held.uid == object.uid:
            del self._found[object.name]
            self._changed.set()

    def _keep(self, found: Present) -> None:
        held = self._found.get(found.name)
        if held is None or version_number(found.resource_version) >= version_number(held.resource_version):
            self._found[found.name] = found

    # --- Publishing -----------------------------------------------------------------------------------------------

    async def publish(self) -> NoReturn:
        """Publish what is wanted until cancelled; owns the watch."""
        await together(
            self.reflector.run(),
            self.wanted.follow(self._call),
            self._reached.follow(self._call),
            self._publish(),
        )

    async def _publish(self) -> NoReturn:
        backoff = Backoff(0.2)
        while True:
            version = self.wanted.version
            self._changed.clear()
            pause_s: float | None = None
            try:
                await self._write()
                self._problem = ""
                backoff.reset()
            except ConflictError:
                pause_s = backoff.next_s()  # the watch brings what another client wrote
            except FieldsDroppedError as error:
                _log.warning("%s", error, extra={"once_per_s": 600})
            except ApiError as error:
                before, self._problem = self._problem, self._told(error)
                if self._problem != before:
                    _log.warning("%s; trying again", self._problem)
                pause_s = backoff.next_s(error.retry_after_s)
            await (self._changed.wait() if pause_s is None else wait_within(pause_s, self.wanted.after(version)))

    def _call(self, _value: object) -> None:
        self._changed.set()

    async def _write(self) -> None:
        """Make the slices equal to the wanted ones. Raises ApiError, or FieldsDroppedError if a field is not stored."""
        wanted = self.wanted.value
        if wanted is None or not self.reflector.lists:
            return
        todo = writes(self._pool, wanted, self._found.values())
        if not self._reached.value and any(present is None for _, _, present in todo.put):
            if self.published.value is not None:
                self.published.set(None)
            return
        for name, spec, _ in todo.put:
            if not _fields(spec) <= self._known:
                await self._try(f"{name[:240]}-try", spec)
        for name, spec, present in todo.put:
            body = await self._body(name, spec, present)
            if present is None:
                answer = await self._client.create(SLICES, body)
            else:
                answer = await self._replaced(name, body)
            self._keep(answer.read(read_slice))
            self._check(spec, answer)
        for name in todo.delete:
            with contextlib.suppress(NotFoundError):
                await self._client.delete(SLICES, name)
            self._found.pop(name, None)
        if todo or self.published.value != wanted:
            self.published.set(wanted)

    async def _replaced(self, name: str, body: Mapping[str, Any]) -> ApiAnswer:
        """Replace a slice. Raises ConflictError if it has just been deleted, as by a kubelet that starts."""
        try:
            return await self._client.replace(SLICES, name, body)
        except NotFoundError as error:
            self._found.pop(name, None)
            raise ConflictError(error.call, str(error), status=error.status, reason=error.reason) from error

    async def _try(self, name: str, spec: Mapping[str, Any]) -> None:
        """Create a slice without storing it, and see which fields come back: an older server drops what it ignores.

        Stored without them, a GPU of which parts are offered would be offered whole beside itself.
        """
        self._check(spec, await self._client.create(SLICES, await self._body(name, spec, None), dry_run=True))
        self._known |= _fields(spec)

    def _check(self, spec: Mapping[str, Any], answer: ApiAnswer) -> None:
        """Raise FieldsDroppedError if the server did not store a field; it can be replaced by an older one."""
        if missing := dropped(spec, answer.decoded(dict[str, Any], "a ResourceSlice").get("spec", {})):
            self._known = frozenset()
            self._dropped, self._dropped_at, names = missing, time.monotonic(), ", ".join(missing)
            note = (
                f"The API server does not know {names} of ResourceSlices, which Kubernetes has from 1.36 on: claims "
                "get whole GPUs of this node only. Serve it by device-plugin to share its GPUs."
            )
            self._api.event("GPUSharesUnavailable", note, "Publish")
            self._look.set()
            raise FieldsDroppedError(
                f"the API server does not know {names} of ResourceSlices, which Kubernetes 1.36 brought"
            )

    async def _body(self, name: str, spec: Mapping[str, Any], present: Present | None) -> dict[str, Any]:
        if not self._uid or present is None:  # a node may have been recreated, and with it its uid
            self._uid = (await self._client.get(NODES, self._pool)).read(read_metadata).uid
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._pool, "uid": self._uid, "controller": True}
        version = {} if present is None else {"resourceVersion": present.resource_version}
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [owner], **version},
            "spec": spec,
        }

    def _told(self, error: ApiError) -> str:
        if isinstance(error, NotFoundError):
            return (
                f"the API server has no {GROUP}/v1, which Kubernetes has from 1.34 on, so no GPU can be allocated to "
                f"ResourceClaims; serve this node by device-plugin ({error})"
            )
        if isinstance(error, ForbiddenError):
            return (
                "the agent may not publish the ResourceSlices of this node: apply deploy/optional/dra.yaml (chart: "
                f"agent.dra.enabled=true), or serve this node by device-plugin ({error})"
            )
        return f"the ResourceSlices of this node are not up to date: {error}"


def _fields(value: Any) -> frozenset[str]:
    """Return the names of all fields below a value."""
    if isinstance(value, dict):
        return frozenset(value).union(*map(_fields, value.values()))
    return frozenset().union(*map(_fields, value)) if isinstance(value, list) else frozenset()
