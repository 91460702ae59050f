"""Ask the API server who a token belongs to, and which pods that user may see."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpu_device_plugin.cluster.api import Kind
from gpu_device_plugin.cluster.errors import Call, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.cluster.client import Client

T = TypeVar("T")

_TOKENS = Kind("tokenreviews", group="authentication.k8s.io")
_ACCESS = Kind("subjectaccessreviews", group="authorization.k8s.io")
_KNOWN_S = 30.0
"""How long an answer of the API server is remembered: so long a revoked right lasts."""
_REFUSED_S = 5.0
"""The same for a token that is not valid: an account may just have been made."""
_MOST_TOKENS = 1024
_MOST_ASKED = 64
"""Tokens that are reviewed at a time. Whoever reaches the port can send any number of invented ones."""
_NOBODY = frozenset({"", "system:anonymous"})
_MOST_NAMESPACES = 4096
"""Of one caller, whose answers are remembered."""


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _Identity(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _Identity = msgspec.field(default_factory=_Identity)


class _Verdict(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _Verdict = msgspec.field(default_factory=_Verdict)


@dataclass(eq=False)
class ReviewedCaller:
    """A user of the cluster, who may see the pods of a namespace where he may get pods."""

    client: Client = field(repr=False)
    identity: _User
    clock: Callable[[], float]
    _known: dict[tuple[str, str, str], tuple[float, bool]] = field(default_factory=dict, repr=False)

    @property
    def user(self) -> str:
        """The user's name."""
        return self.identity.username

    async def may_see(self, namespace: str) -> bool:
        """Return whether the user may get the pods of a namespace, or of all if it is empty.

        Raises:
            ApiError: the API server did not say.
        """
        return await self._may("get", "pods", namespace)

    async def may_see_nodes(self) -> bool:
        """Return whether the user may list nodes.

        Raises:
            ApiError: the API server did not say.
        """
        return await self._may("list", "nodes", "")

    async def _may(self, verb: str, resource: str, namespace: str) -> bool:
        question = verb, resource, namespace
        asked_at, allowed = self._known.get(question, (0.0, False))
        if question in self._known and self.clock() - asked_at < _KNOWN_S:
            return allowed
        user = self.identity
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": {"verb": verb, "resource": resource, "namespace": namespace},
        }
        review = await _reviewed(self.client, _ACCESS, "SubjectAccessReview", spec, _AccessReview)
        if len(self._known) >= _MOST_NAMESPACES:
            self._known.clear()
        self._known[question] = self.clock(), review.status.allowed
        return review.status.allowed


class ReviewedCallers:
    """Tells by TokenReview who calls."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask through `client`; `clock` returns seconds."""
        self._client = client
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, ReviewedCaller | None]] = OrderedDict()
        """By the digest of the token; tokens are not kept."""
        self._asked: dict[bytes, asyncio.Task[ReviewedCaller | None]] = {}
        """The questions that the API server has not answered yet."""

    def __repr__(self) -> str:
        return f"<ReviewedCallers: {len(self._known)} tokens>"

    async def caller(self, token: str) -> ReviewedCaller | None:
        """Return the user of a token; None: it is not valid, or nobody's.

        Raises:
            ApiError: the API server did not say.
        """
        if not token:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        asked_at, known = self._known.get(digest, (0.0, None))
        lasts_s = _REFUSED_S if known is None else _KNOWN_S
        if digest in self._known and self._clock() - asked_at < lasts_s:
            return known
        # A page opens several connections at once: one question is enough for all of them.
        if digest not in self._asked:
            if len(self._asked) >= _MOST_ASKED:
                raise UnavailableError(
                    Call("create", _TOKENS.plural, _TOKENS.group), "too many tokens are reviewed now"
                )
            self._asked[digest] = asyncio.create_task(self._review(token, digest), name="review a token")
            self._asked[digest].add_done_callback(lambda _: self._asked.pop(digest))
        return await asyncio.shield(self._asked[digest])

    async def _review(self, token: str, digest: bytes) -> ReviewedCaller | None:
        review = await _reviewed(self._client, _TOKENS, "TokenReview", {"token": token}, _TokenReview)
        identity, known = review.status.user, self._known.get(digest, (0.0, None))[1]
        caller = None
        if review.status.authenticated and identity.username not in _NOBODY:
            # The same user keeps the answers about namespaces, which have an age of their own.
            same = known is not None and known.identity == identity
            caller = known if same else ReviewedCaller(self._client, identity, self._clock)
        self._known[digest] = self._clock(), caller
        self._known.move_to_end(digest)
        if len(self._known) > _MOST_TOKENS:
            self._known.popitem(last=False)
        return caller


async def _reviewed(client: Client, kind: Kind, name: str, spec: Mapping[str, Any], answer: type[T]) -> T:
    body = {"apiVersion": f"{kind.group}/{kind.version}", "kind": name, "spec": spec}
    try:
        return msgspec.json.decode(await client.create(kind, body), type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnavailableError(Call("create", kind.plural, kind.group), "the answer is not a review") from None
