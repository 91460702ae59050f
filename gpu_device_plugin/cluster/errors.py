"""What can go wrong between us and the Kubernetes API: one type for each thing a caller can do about it.

Types follow the status code, never the text. No message carries a token, a header or the body we sent: a pod's
environment may hold secrets, and the API server quotes rejected objects in its answers to invalid requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

_LONGEST_QUOTE = 300
_LONGEST_DENIAL = 600
"""What admission has against a request is a sentence for its sender, behind the names of the policy."""
LONGEST_RETRY_AFTER_S = 60.0
"""A server that asks for more patience is asked again after this long."""


_REFUSER = re.compile(
    r"""(?:[a-z.]+ "[^"]*" is forbidden: )?(ValidatingAdmissionPolicy|admission webhook) ['"]([a-z0-9.-]{1,253})['"]"""
)
"""How the API server begins when admission is against a request; what comes after may quote the object."""

_READING = frozenset({"get", "list", "watch"})
_WITHOUT_ENVIRONMENT = frozenset({"pods/binding", "leases", "nodes", "nodes/status", "events"})


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked of the API server, in the words of RBAC."""

    verb: str
    resource: str
    """Plural, with its subresource: ``pods/binding``."""
    group: str = ""
    """API group; empty for the core group."""
    namespace: str = ""
    name: str = ""

    @property
    def harmless(self) -> bool:
        """Whether what was sent can be quoted: the API server may repeat it in its refusal."""
        return self.verb in _READING or self.resource in _WITHOUT_ENVIRONMENT

    def __str__(self) -> str:
        target = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {self.resource}{' ' if target else ''}{target}"


class ApiError(Exception):
    """The API server did not do what it was asked."""

    def __init__(
        self,
        call: Call,
        why: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: frozenset[str] = frozenset(),
        retry_after_s: float = 0,
        sent: bool = True,
    ) -> None:
        super().__init__(f"{call}: {why}")
        self.call = call
        self.status = status
        """HTTP status, or the code of a Status object in a watch; 0 without an answer."""
        self.reason = reason
        """The API's own word for it (``AlreadyExists``), empty if it gave none."""
        self.causes = causes
        """More such words (``ResourceVersionTooLarge``)."""
        self.retry_after_s = retry_after_s
        """How long the server wants to be left alone; 0 if it did not say."""
        self.sent = sent
        """False: the request never left us, so that nothing can have come of it."""


class InvalidError(ApiError):
    """400 or 422: the request makes no sense to this server and never will."""


class UnauthorizedError(ApiError):
    """401: the server does not know us; the token is missing, expired or of another cluster."""


class ForbiddenError(ApiError):
    """403: the server knows us and our account lacks a right, or admission is against it; the message says which."""


class NotFoundError(ApiError):
    """404: there is no such object (or no such API on this server)."""


class ConflictError(ApiError):
    """409: the object is another one, or another version, than the one we spoke of; or it exists already."""


class GoneError(ApiError):
    """410: the version or page we wanted to continue from is no longer kept; list again."""


class TooManyRequestsError(ApiError):
    """429: the server sheds load."""


class UnavailableError(ApiError):
    """5xx, or no complete answer at all. Whether a write took effect is unknown, unless it was never `sent`."""


TRANSIENT = (TooManyRequestsError, UnavailableError)
"""The same request may succeed later."""

_TYPES: dict[int, type[ApiError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


class _Cause(msgspec.Struct):
    reason: str = ""
    field: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] | None = None
    retry_after_seconds: int = 0


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_EMPTY = _Status()
_NO_DETAILS = _Details()


def error_from(call: Call, body: bytes | msgspec.Raw, *, status: int = 0, retry_after: str = "") -> ApiError:
    """Say what an answer other than success means.

    Args:
        call: what was asked.
        body: a ``Status`` object, or whatever a proxy on the way sent instead.
        status: HTTP status; 0 for an error inside a watch, where the Status object carries the code.
        retry_after: the header of that name; only a number of seconds is understood.
    """
    try:
        told = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = _EMPTY
    status = status or told.code
    kind = _TYPES.get(status, UnavailableError if status >= 500 or not status else ApiError)
    details = told.details or _NO_DETAILS
    patience = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    patience = patience or float(max(0, details.retry_after_seconds))
    return kind(
        call,
        _why(call, kind, status, told),
        status=status,
        reason=told.reason,
        causes=frozenset(cause.reason for cause in details.causes or ()),
        retry_after_s=min(patience, LONGEST_RETRY_AFTER_S),
    )


def _why(call: Call, kind: type[ApiError], status: int, told: _Status) -> str:
    answer = f"{status} {told.reason or _phrase(status)}".strip()
    message = " ".join(told.message.split())
    # Admission looks at writing alone; the words are RBAC's.
    unlawful = not message or call.verb in _READING or f"cannot {call.verb} resource" in message
    if kind is ForbiddenError and unlawful:
        group = f" of the API group {call.group}" if call.group else ""
        return f"{answer}; grant {call.verb!r} on {call.resource!r}{group} to the service account"
    if kind is UnauthorizedError:
        return f"{answer}; the API server does not accept our token or certificate"
    if kind is InvalidError:
        causes = (told.details or _NO_DETAILS).causes or ()
        fields = ", ".join(f"{cause.field} ({cause.reason})" for cause in causes if cause.field)
        if fields:
            return f"{answer}: {fields}"[:_LONGEST_QUOTE]
    if kind in _DENIALS and not call.harmless:
        return f"{answer}{_unquoted(kind, message)}"
    if kind in _DENIALS:
        return f"{answer}: {message[:_LONGEST_DENIAL]}" if message else answer
    return f"{answer}: {message[:_LONGEST_QUOTE]}" if message else answer


_DENIALS = (ForbiddenError, InvalidError)


def _unquoted(kind: type[ApiError], message: str) -> str:
    """Return what can be said of a refusal that may quote what was sent."""
    if refuser := _REFUSER.match(message):
        return f"; {refuser[1]} {refuser[2]} is against it"
    if kind is ForbiddenError:
        return "; the right is there, but an admission policy, a webhook or a quota is against it"
    return ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
