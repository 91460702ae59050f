"""Write what our node has to say to the API of DRA: the ResourceSlices of its GPUs, and the status of its claims."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together, wait_within
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.cluster.client.api_client import PatchType
from gpu_device_plugin.cluster.client.errors import ApiError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import NODES, UnreadableObjectError, read_metadata, version_number
from gpu_device_plugin.cluster.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.cluster.store import Store
from gpu_device_plugin.cluster.writers.own_node import keep_written
from gpu_device_plugin.features.claims.claim_objects import CLAIMS, GROUP, SLICES, read_claim, read_slice
from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.features.claims.rules.pool import Content, Present, dropped, writes
from gpu_device_plugin.features.claims.rules.prepared import status_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim

_log = logging.getLogger(__name__)

_TIMING = ReflectorTiming(longest_retry_s=30.0)


class FieldsDroppedError(Exception):
    """The API server does not know fields that we need; the message names them."""


@dataclass(eq=False)
class NodeSlices(Store[Present]):
    """Publishes what is wanted, and publishes it again when another client, or the kubelet at its start, removes it.

    `wanted` None: nothing is touched. An empty sequence: our slices are removed. New slices wait until the kubelet can
    call the driver: kube-scheduler allocates their devices at once, and the kubelet makes a pod that it cannot prepare
    wait for more than a minute.
    """

    _client: Client
    _node: str
    """The name of the node, which is also that of its pool."""
    _: KW_ONLY
    reached: Observable[bool]
    """Whether the kubelet can reach the driver."""
    on_dropped: Callable[[tuple[str, ...]], None]
    """Called with the names of fields that the API server does not know, before anything is stored; `wanted` should
    then be set without them."""
    on_problem: Callable[[str], None] = lambda _why: None
    """Called with a sentence when the slices cannot be published, and with an empty one when they can."""

    def __post_init__(self) -> None:
        self._found: dict[str, Present] = {}
        self._changed = asyncio.Event()
        self._known: frozenset[str] = frozenset()
        """The names of fields that the API server is known to store."""
        self._uid = ""
        self.wanted: Observable[Sequence[Content] | None] = Observable(None)
        """What the slices shall offer, see `features.claims.rules.pool.contents`."""
        self.published: Observable[Sequence[Content] | None] = Observable(None)
        """What they offer, as far as we know; None: that is not known."""
        self.reflector: Reflector[Present] = Reflector(
            self._client,
            SLICES,
            read_slice,
            self,
            fields=f"spec.driver={DRIVER},spec.nodeName={self._node}",
            what="ResourceSlices of this node",
            timing=_TIMING,
        )

    @property
    def there(self) -> int:
        """The number of slices of ours that the API server has, as far as we know."""
        return len(self._found)

    @property
    def problem(self) -> str:
        """Why we do not know which slices are there, as a sentence without a full stop; empty if we do."""
        error = None if self.reflector.lists else self.reflector.problem
        return "" if error is None else self._told(error)

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

    async def run(self) -> NoReturn:
        """Publish until cancelled; owns the watch."""
        await together(
            self.reflector.run(),
            self.wanted.follow(self._call),
            self.reached.follow(self._call),
            self._publish(),
        )

    async def _publish(self) -> NoReturn:
        backoff, problem = Backoff(0.2), ""
        while True:
            version = self.wanted.version
            self._changed.clear()
            pause_s: float | None = None
            try:
                await self._write()
                if problem:
                    problem = ""
                    self.on_problem("")
                backoff.reset()
            except ConflictError:
                pause_s = backoff.next_s()  # the watch brings what another client wrote
            except FieldsDroppedError as error:
                _log.warning("%s", error, extra={"once_per_s": 600})
            except ApiError as error:
                why = self._told(error)
                if why != problem:
                    problem = why
                    self.on_problem(why)
                pause_s = backoff.next_s(error.retry_after_s)
            await (self._changed.wait() if pause_s is None else wait_within(pause_s, self.wanted.after(version)))

    def _call(self, _value: object) -> None:
        self._changed.set()

    async def _write(self) -> None:
        """Make the slices equal to the wanted ones. Raises ApiError, or FieldsDroppedError after `on_dropped`."""
        wanted = self.wanted.value
        if wanted is None or not self.reflector.lists:
            return
        todo = writes(self._node, wanted, self._found.values())
        if not self.reached.value and any(present is None for _, _, present in todo.put):
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
            self._keep(read_slice(answer))
            self._check(spec, answer)
        for name in todo.delete:
            with contextlib.suppress(NotFoundError):
                await self._client.delete(SLICES, name)
            self._found.pop(name, None)
        if todo or self.published.value != wanted:
            self.published.set(wanted)

    async def _replaced(self, name: str, body: Mapping[str, Any]) -> bytes:
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

    def _check(self, spec: Mapping[str, Any], answer: bytes) -> None:
        """Raise FieldsDroppedError if the server did not store a field; it can be replaced by an older one."""
        if missing := dropped(spec, msgspec.json.decode(answer, type=dict[str, Any]).get("spec", {})):
            self._known = frozenset()
            self.on_dropped(missing)
            raise FieldsDroppedError(
                f"the API server does not know {', '.join(missing)} of ResourceSlices, which Kubernetes 1.36 brought"
            )

    async def _body(self, name: str, spec: Mapping[str, Any], present: Present | None) -> dict[str, Any]:
        if not self._uid or present is None:  # a node may have been recreated, and with it its uid
            self._uid = read_metadata(await self._client.get(NODES, self._node)).uid
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._uid, "controller": True}
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
                f"the API server has no {GROUP}/v1, which Kubernetes has from 1.34 on, so no GPU can be given to "
                f"ResourceClaims; serve this node by device-plugin ({error})"
            )
        if isinstance(error, ForbiddenError):
            return (
                "the agent may not publish the ResourceSlices of this node: apply deploy/optional/dra.yaml (chart: "
                f"agent.dra.enabled=true), or serve this node by device-plugin ({error})"
            )
        return f"the ResourceSlices of this node are not up to date: {error}"


def _status_not_written(error: ApiError) -> None:
    _log.warning("the status of claims does not say what they hold: %s; trying again", error)


def _fields(value: Any) -> frozenset[str]:
    """Return the names of all fields below a value."""
    if isinstance(value, dict):
        return frozenset(value).union(*map(_fields, value.values()))
    return frozenset().union(*map(_fields, value)) if isinstance(value, list) else frozenset()


# --- The claims -------------------------------------------------------------------------------------------------------


class ClaimsApi:
    """Reads and writes claims, each call once with the client's timeouts."""

    def __init__(self, client: Client, node: str) -> None:
        """Act for the node of this name; the client has to be open."""
        self._client = client
        self._node = node
        self.shown: Observable[Mapping[str, tuple[PreparedClaim, Mapping[str, str]]]] = Observable({})
        """By UID the prepared claims, each with the states of its limits by GPU: what their status shall say."""

    async def read(self, namespace: str, name: str) -> Claim | None:
        """Return a claim; None if there is none of this name. Raises ApiError, or UnreadableObjectError."""
        try:
            return read_claim(await self._client.get(CLAIMS, name, namespace=namespace))
        except NotFoundError:
            return None

    async def allocated(self) -> Mapping[str, Claim]:
        """Return by UID the claims that have devices of our driver on our node. It lists the claims of the cluster.

        Raises ApiError.
        """
        found: dict[str, Claim] = {}
        async for page in self._client.pages(CLAIMS):
            for raw in page.items or ():
                try:
                    claim = read_claim(raw)
                except UnreadableObjectError as error:
                    _log.warning("a ResourceClaim is left out: %s", error, extra={"once_per_s": 600})
                    continue
                if any(device.pool == self._node for device in claim.devices_of(DRIVER)):
                    found[claim.uid] = claim
        return found

    async def run(self) -> NoReturn:
        """Keep the status of our claims up to date. Ends only by cancellation; failures are logged and retried."""
        written: dict[str, object] = {}

        async def write(shown: Mapping[str, tuple[PreparedClaim, Mapping[str, str]]]) -> None:
            for uid in written.keys() - shown.keys():
                del written[uid]
            for uid, status in shown.items():
                if written.get(uid) != status:
                    await self._write(*status)
                    written[uid] = status

        await keep_written(self.shown, write, _status_not_written, None, Backoff(1.0))

    async def _write(self, claim: PreparedClaim, held: Mapping[str, str]) -> None:
        body = status_body(claim, held)
        try:
            await self._client.patch(
                CLAIMS, claim.name, body, namespace=claim.namespace, subresource="status", how=PatchType.APPLY
            )
        except (NotFoundError, ConflictError, InvalidError) as error:
            # The claim is gone, is another one by now, or is not allocated to us any more: nobody reads its status.
            _log.debug("the status of claim %s is not written: %s", claim, error)
