"""Ask the API server who a token belongs to."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpu_device_plugin.cluster.api import Kind
from gpu_device_plugin.programs.web.reviews import KNOWN_S, AccessReviews, User, reviewed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.cluster.client import Client

T = TypeVar("T")

_TOKENS = Kind("tokenreviews", group="authentication.k8s.io")
_REFUSED_S = 5.0
"""How long a token is remembered that is not valid: an account may just have been made."""
_MOST_TOKENS = 1024
"""Valid ones that are remembered, and as many others: whoever reaches the port can send any number of invented ones."""
_AT_ONCE = 4
_NOBODY = frozenset({"", "system:anonymous"})


class _Identity(msgspec.Struct):
    authenticated: bool = False
    user: User = msgspec.field(default_factory=User)


class _TokenReview(msgspec.Struct):
    status: _Identity = msgspec.field(default_factory=_Identity)


@dataclass(frozen=True, slots=True)
class ReviewedCaller:
    """A user of the cluster, who may see the pods of a namespace where he may get pods."""

    user: str
    identity: bytes = field(repr=False)
    reviews: AccessReviews

    async def may_see(self, namespace: str) -> bool:
        """Return whether the user may get the pods of a namespace, or of all if it is empty.

        Raises:
            ApiError: the API server did not say.
        """
        return await self.reviews.allowed(self.identity, ("get", "pods", namespace))

    async def may_see_nodes(self) -> bool:
        """Return whether the user may list nodes.

        Raises:
            ApiError: the API server did not say.
        """
        return await self.reviews.allowed(self.identity, ("list", "nodes", ""))


@dataclass(eq=False, slots=True)
class _Asked:
    """A question about a token."""

    review: asyncio.Task[ReviewedCaller | None]
    waiting: int = 0
    """Callers that wait for the answer."""
    sent: bool = False


class ReviewedCallers:
    """Tells by TokenReview who calls."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask through `client`; `clock` returns seconds."""
        self._client = client
        self._clock = clock
        self._reviews = AccessReviews(client, clock)
        # By the digest of the token; tokens are not kept. Invented ones push out no others.
        self._known: OrderedDict[bytes, tuple[float, ReviewedCaller]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, None]] = OrderedDict()
        self._asked: dict[bytes, _Asked] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def __repr__(self) -> str:
        return f"<ReviewedCallers: {len(self._known)} tokens, and {len(self._refused)} that are not valid>"

    async def caller(self, token: str) -> ReviewedCaller | None:
        """Return the user of a token; None: it is not valid, or nobody's.

        Raises:
            ApiError: the API server did not say.
        """
        if not token:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        for known, lasts_s in ((self._known, KNOWN_S), (self._refused, _REFUSED_S)):
            if digest in known and self._clock() - known[digest][0] < lasts_s:
                return known[digest][1]
        # A page opens several connections at once: one question is enough for all of them.
        asked = self._asked.get(digest) or self._ask(token, digest)
        asked.waiting += 1
        try:
            return await asyncio.shield(asked.review)
        finally:
            asked.waiting -= 1
            # A question that was sent goes on: to cancel it would break a connection to the API server.
            if not asked.waiting and not asked.sent:
                self._forget(digest, asked)
                asked.review.cancel()

    def _ask(self, token: str, digest: bytes) -> _Asked:
        async def review() -> ReviewedCaller | None:
            async with self._turns:
                asked.sent = True
                return await self._review(token, digest)

        asked = self._asked[digest] = _Asked(asyncio.create_task(review(), name="review a token"))
        asked.review.add_done_callback(lambda _: self._answered(digest, asked))
        return asked

    def _answered(self, digest: bytes, asked: _Asked) -> None:
        self._forget(digest, asked)
        if not asked.review.cancelled():
            asked.review.exception()  # nobody may be waiting for it

    def _forget(self, digest: bytes, asked: _Asked) -> None:
        if self._asked.get(digest) is asked:
            del self._asked[digest]

    async def _review(self, token: str, digest: bytes) -> ReviewedCaller | None:
        review = await reviewed(self._client, _TOKENS, "TokenReview", {"token": token}, _TokenReview)
        user = review.status.user
        now_s = self._clock()
        if not review.status.authenticated or user.username in _NOBODY:
            self._known.pop(digest, None)
            _remember(self._refused, digest, (now_s, None))
            return None
        self._refused.pop(digest, None)
        caller = ReviewedCaller(user.username, user.identity(), self._reviews)
        _remember(self._known, digest, (now_s, caller))
        return caller


def _remember(known: OrderedDict[bytes, T], digest: bytes, answer: T) -> None:
    known[digest] = answer
    known.move_to_end(digest)
    if len(known) > _MOST_TOKENS:
        known.popitem(last=False)
