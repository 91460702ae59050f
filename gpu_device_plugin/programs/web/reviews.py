"""The API server's answers about what users may see: each is asked for once, and remembered for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpu_device_plugin.aio.turns import Turns
from gpu_device_plugin.cluster.api import Kind
from gpu_device_plugin.cluster.errors import Call, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.cluster.client import Client

T = TypeVar("T")

KNOWN_S = 30.0
"""How long an answer of the API server is remembered: so long a revoked right lasts."""
MOST_ANSWERS = 1 << 16
"""Of all users together: 200 users who ask about 300 namespaces each."""
_ACCESS = Kind("subjectaccessreviews", group="authorization.k8s.io")
_AT_ONCE = 8
"""Enough to keep the API server busy, and few enough that the answers of one moment hold up nobody else."""
_MOST_OF_ONE_USER = 256
"""Questions of one user that wait. His browsers ask the same ones, so only who invents namespaces has more."""
_CREDENTIAL = "authentication.kubernetes.io/credential-id"
"""Each token of a service account has another one (Kubernetes 1.32), so it says nothing about the user."""

Question = tuple[str, str, str]
"""Verb, resource and namespace; without a namespace the whole cluster is meant."""


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


class _Verdict(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _Verdict = msgspec.field(default_factory=_Verdict)


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
        self._turns = Turns(_AT_ONCE)

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
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": {"verb": verb, "resource": resource, "namespace": namespace},
        }
        async with self._turns.turn(user.username, urgent=urgent):
            review = await reviewed(self._client, _ACCESS, "SubjectAccessReview", spec, _AccessReview)
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


async def reviewed(client: Client, kind: Kind, name: str, spec: Mapping[str, Any], answer: type[T]) -> T:
    """Have the API server review something.

    Raises:
        ApiError: it did not.
    """
    body = {"apiVersion": f"{kind.group}/{kind.version}", "kind": name, "spec": spec}
    try:
        return msgspec.json.decode(await client.create(kind, body), type=answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnavailableError(Call("create", kind.plural, kind.group), "the answer is not a review") from None
