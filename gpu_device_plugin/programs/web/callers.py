"""Who calls (the holder of a local page's token, or a user whom the API server has reviewed), and what he may see."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

import msgspec

from gpu_device_plugin.aio.turns import Turns
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import Call, UnavailableError
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.overview_document import redacted

T = TypeVar("T")


class LocalCallers:
    """Knows one random token."""

    def __init__(self, user: str) -> None:
        self._owner = Caller(user)
        self.token = secrets.token_urlsafe(32)
        """For the address that the browser is given; it is never logged."""

    async def caller(self, token: str) -> Caller | None:
        """Return the owner for the right token."""
        return self._owner if hmac.compare_digest(token.encode(), self.token.encode()) else None


KNOWN_S = 30.0
"""How long an answer of the API server is remembered: so long a revoked right lasts."""
MOST_ANSWERS = 1 << 16
"""Of all users together: 200 users who ask about 300 namespaces each."""
_ACCESS = ObjectKind("subjectaccessreviews", group="authorization.k8s.io")
_REVIEWS_AT_ONCE = 8
"""Enough to keep the API server busy, and few enough that the answers of one moment hold up nobody else."""
_MOST_OF_ONE_USER = 256
"""Questions of one user that wait. His browsers ask the same ones, so only who invents namespaces has more."""
_CREDENTIAL = "authentication.kubernetes.io/credential-id"
"""Each token of a service account has another one (Kubernetes 1.32), so it says nothing about the user."""

Question = tuple[str, str, str]
"""Verb, resource (``PLURAL.GROUP`` outside the core group) and namespace; without one the whole cluster is meant."""


class User(msgspec.Struct):
    """A user as a TokenReview describes him."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}

    def identity(self) -> bytes:
        """Return what an authorizer may decide by, as JSON."""
        extra = {key: values for key, values in self.extra.items() if key != _CREDENTIAL}
        return msgspec.json.encode(User(self.username, self.uid, self.groups, extra), order="sorted")


class _Status(msgspec.Struct):
    allowed: bool = False
    """Of a SubjectAccessReview; the others are of a TokenReview."""
    authenticated: bool = False
    user: User = msgspec.field(default_factory=User)


class _Review(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class AccessReviews:
    """What users may do, by SubjectAccessReview.

    Users take turns at the API server. Questions about the whole cluster come first, then those about rights that a
    user had when he was last asked about: without an answer nothing is shown, and a lost right has to show soon.
    """

    def __init__(self, client: Client, clock: Callable[[], float], most: int = MOST_ANSWERS) -> None:
        """Ask through `client`, and remember at most `most` answers; `clock` returns seconds."""
        self._client = client
        self._clock = clock
        self._most = most
        self._answers: dict[bytes, dict[Question, tuple[float, bool]]] = {}
        """By identity; the oldest answer first."""
        self._size = 0
        self._asked: dict[tuple[bytes, Question], asyncio.Task[bool]] = {}
        """The questions that the API server has not answered yet."""
        self._turns = Turns(_REVIEWS_AT_ONCE)

    def __repr__(self) -> str:
        return f"<AccessReviews: {self._size} answers about {len(self._answers)} users>"

    async def allowed(self, identity: bytes, question: Question) -> bool:
        """Return whether a user may do something; `identity` is that of `User`.

        Raises:
            ApiError: the API server did not say.
        """
        asked_at, allowed = self._answers.get(identity, {}).get(question, (float("-inf"), False))
        if self._clock() - asked_at < KNOWN_S:
            return allowed
        asking = self._asked.get((identity, question))
        if asking is None:
            user = msgspec.json.decode(identity, type=User)
            if self._turns.waiting(user.username) >= _MOST_OF_ONE_USER:
                call = Call("create", _ACCESS.plural, _ACCESS.group)
                raise UnavailableError(call, f"too many questions about {user.username} wait; try again", sent=False)
            urgent = allowed or not question[2]
            asking = asyncio.create_task(self._ask(user, identity, question, urgent=urgent), name="review a right")
            self._asked[identity, question] = asking
            asking.add_done_callback(lambda task: self._answered(identity, question, task))
        return await asyncio.shield(asking)

    async def _ask(self, user: User, identity: bytes, question: Question, *, urgent: bool) -> bool:
        verb, resource, namespace = question
        plural, _, group = resource.partition(".")
        in_group = {"group": group} if group else {}
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": {"verb": verb, "resource": plural, "namespace": namespace, **in_group},
        }
        async with self._turns.turn(user.username, urgent=urgent):
            review = await self._client.review(_ACCESS, "SubjectAccessReview", spec, _Review)
        self._remember(identity, question, review.status.allowed)
        return review.status.allowed

    def _answered(self, identity: bytes, question: Question, task: asyncio.Task[bool]) -> None:
        del self._asked[identity, question]
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it

    def _remember(self, identity: bytes, question: Question, allowed: bool) -> None:  # noqa: FBT001 - an answer
        answers = self._answers.setdefault(identity, {})
        self._size += answers.pop(question, None) is None
        answers[question] = self._clock(), allowed
        if self._size > self._most:  # whoever has most answers loses his oldest one
            fullest = max(self._answers, key=lambda each: len(self._answers[each]))
            del self._answers[fullest][next(iter(self._answers[fullest]))]
            if not self._answers[fullest]:
                del self._answers[fullest]
            self._size -= 1


_TOKENS = ObjectKind("tokenreviews", group="authentication.k8s.io")
_REFUSED_S = 5.0
"""How long a token is remembered that is not valid: an account may just have been made."""
_MOST_TOKENS = 1024
"""Valid ones that are remembered, and as many others: whoever reaches the port can send any number of invented ones."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody whose token is valid: a user who may see the pods of a namespace where he may get pods.

    What he may see is asked again and again, so answers are remembered for a while. Questions raise ApiError if the API
    server did not say.
    """

    user: str
    """The user's name, for the page."""
    identity: bytes = field(default=b"", repr=False)
    reviews: AccessReviews | None = None
    """None: for the user of the kubeconfig the API server decides what is read, and all of that may be seen."""

    async def may_see(self, namespace: str) -> bool:
        """Return whether the user may get the pods of a namespace, or of `ALL_NAMESPACES`."""
        return await self.may("get", "pods", namespace)

    async def may(self, verb: str, resource: str, namespace: str) -> bool:
        """Return whether the user may do something, see `Question`."""
        return self.reviews is None or await self.reviews.allowed(self.identity, (verb, resource, namespace))


class ReviewedCallers:
    """Tells by TokenReview who calls."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._reviews = AccessReviews(client, clock)
        # By the digest of the token; tokens are not kept. Invented ones push out no others.
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, None]] = OrderedDict()
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._turns = asyncio.Semaphore(4)

    async def caller(self, token: str) -> Caller | None:
        """Return the user of a token; None: it is not valid, or nobody's.

        Raises:
            ApiError: the API server did not say.
        """
        if not token:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        # A page opens several connections at once: one question is enough for all of them.
        async with self._locks.setdefault(digest, asyncio.Lock()):
            for known, lasts_s in ((self._known, KNOWN_S), (self._refused, _REFUSED_S)):
                if digest in known and self._clock() - known[digest][0] < lasts_s:
                    return known[digest][1]
            async with self._turns:
                return await self._review(token, digest)

    async def _review(self, token: str, digest: bytes) -> Caller | None:
        status = (await self._client.review(_TOKENS, "TokenReview", {"token": token}, _Review)).status
        user = status.user
        now_s = self._clock()
        if not status.authenticated or user.username in {"", "system:anonymous"}:
            self._known.pop(digest, None)
            _remember(self._refused, digest, (now_s, None))
            return None
        self._refused.pop(digest, None)
        caller = Caller(user.username, user.identity(), self._reviews)
        _remember(self._known, digest, (now_s, caller))
        return caller


def _remember(known: OrderedDict[bytes, T], digest: bytes, answer: T) -> None:
    known[digest] = answer
    known.move_to_end(digest)
    if len(known) > _MOST_TOKENS:
        known.popitem(last=False)


Callers: TypeAlias = LocalCallers | ReviewedCallers
"""Tell from a token who calls, also now and then while a stream is open."""


# --- The part of the cluster that one caller may see: nodes or none, and the pods of some namespaces ------------------

ALL_NAMESPACES = ""
"""In place of a namespace: all of them, as in the Kubernetes API."""
_AT_ONCE = 16
"""Questions to the API server at a time."""


class CallerScope:
    """What one caller may see; it learns of namespaces as they come. What the API server has not said is not seen."""

    def __init__(self, caller: Caller) -> None:
        """Begin without rights; see `learn`."""
        self.caller = caller
        self._nodes: bool | None = None
        self._seen: set[str] = set()
        self._unseen: set[str] = set()

    @property
    def everything(self) -> bool:
        """Whether the pods of all namespaces may be seen."""
        return ALL_NAMESPACES in self._seen

    @property
    def seen(self) -> frozenset[str]:
        """The namespaces whose pods may be seen, if not all."""
        return frozenset(self._seen)

    @property
    def nodes(self) -> bool:
        """Whether nodes may be seen; false before `learn` has asked."""
        return bool(self._nodes)

    def may_see(self, namespace: str) -> bool:
        """Return whether the pods of a namespace may be seen; false before `learn` has asked about it."""
        return self.everything or namespace in self._seen

    def of(self, node: NodeView) -> NodeView:
        """Return a node without the names that may not be seen."""
        return node if self.everything else redacted(node, self.may_see)

    def knows(self, namespaces: Collection[str]) -> bool:
        """Return whether the API server has said which of these namespaces' pods may be seen."""
        return self.everything or all(each in self._seen or each in self._unseen for each in namespaces)

    async def learn(self, namespaces: Iterable[str] = ()) -> None:
        """Ask what is not known yet; each answer counts as soon as it is there.

        Raises:
            ApiError: the API server did not say.
        """
        if self._nodes is None:
            self._nodes, _ = await asyncio.gather(self.caller.may("list", "nodes", ""), self._ask(ALL_NAMESPACES))
        unknown = [] if self.everything else sorted({*namespaces} - self._seen - self._unseen)
        for first in range(0, len(unknown), _AT_ONCE):
            await asyncio.gather(*map(self._ask, unknown[first : first + _AT_ONCE]))

    async def still_holds(self, caller: Caller, within_s: float) -> bool:
        """Return whether the same user, asked anew, has the same rights. A right not confirmed in time is lost.

        Raises:
            ApiError: the API server did not say.
        """
        seen, unseen, now = self.seen, frozenset(self._unseen), CallerScope(caller)
        await now.learn()
        if await wait_within(within_s, now.learn(seen)):  # lost rights have to show, and come first
            await wait_within(within_s / 2, now.learn(unseen))
        return now.nodes == self.nodes and seen <= now.seen and unseen.isdisjoint(now.seen)

    async def _ask(self, namespace: str) -> None:
        allowed = await self.caller.may_see(namespace)
        (self._seen if allowed else self._unseen).add(namespace)
