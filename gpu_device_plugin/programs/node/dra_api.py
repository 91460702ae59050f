"""The claims of our node in the Kubernetes API: read them, and write what became of them into their status."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.claims import CLAIMS, read_claim
from gpu_device_plugin.cluster.client import PatchType
from gpu_device_plugin.cluster.errors import ApiError, ConflictError, InvalidError, NotFoundError
from gpu_device_plugin.core.contract.dra import DRIVER
from gpu_device_plugin.core.dra.status import status_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.core.dra.prepared import PreparedClaim
    from gpu_device_plugin.core.model.claims import Claim

_log = logging.getLogger(__name__)


class ClaimsApi:
    """Reads and writes claims, each call once with the client's timeouts."""

    def __init__(self, client: Client, node: str) -> None:
        """Act for the node of this name; the client has to be open."""
        self._client = client
        self._node = node
        self.shown: Latest[Mapping[str, tuple[PreparedClaim, Mapping[str, str]]]] = Latest({})
        """By UID the prepared claims, each with the states of its limits by GPU: what their status shall say."""

    def __repr__(self) -> str:
        return f"<ClaimsApi of {self._node}>"

    async def read(self, namespace: str, name: str) -> Claim | None:
        """Return a claim; None if there is none of this name.

        Raises:
            ApiError: it could not be read.
            UnreadableObjectError: the answer is no claim.
        """
        try:
            return read_claim(await self._client.get(CLAIMS, name, namespace=namespace))
        except NotFoundError:
            return None

    async def allocated(self) -> Mapping[str, Claim]:
        """Return by UID the claims that have devices of our driver on our node. It lists the claims of the cluster.

        Raises:
            ApiError: they could not be listed.
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
        backoff, told = Backoff(1.0), ""
        while True:
            version, shown = self.shown.version, self.shown.value
            written = {uid: status for uid, status in written.items() if uid in shown}
            pause_s: float | None = None
            for uid, status in shown.items():
                if written.get(uid) == status:
                    continue
                try:
                    await self._write(*status)
                    written[uid] = status
                    told = ""
                    backoff.reset()
                except ApiError as error:
                    if str(type(error)) != told:
                        told = str(type(error))
                        _log.warning("the status of claims does not say what they hold: %s; trying again", error)
                    pause_s = backoff.next_s(error.retry_after_s)
                    break
            await within(pause_s, self.shown.after(version))

    async def _write(self, claim: PreparedClaim, held: Mapping[str, str]) -> None:
        body = status_body(claim, held)
        try:
            await self._client.patch(
                CLAIMS, claim.name, body, namespace=claim.namespace, subresource="status", how=PatchType.APPLY
            )
        except (NotFoundError, ConflictError, InvalidError) as error:
            # The claim is gone, is another one by now, or is not allocated to us any more: nobody reads its status.
            _log.debug("the status of claim %s is not written: %s", claim, error)
