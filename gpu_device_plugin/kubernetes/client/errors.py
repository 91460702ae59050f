"""Errors of calls to the Kubernetes API: one type for each possible reaction of a caller.

The status code determines the type, never the text. No message contains a token, a header or the request's body: a
pod's environment may hold secrets, and the API server quotes rejected objects in its answers to invalid requests.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus

import msgspec

_LONGEST_QUOTE = 300
_LONGEST_DENIAL = 600
"""Characters. An admission denial begins with the policy's name, and a sentence for the sender follows."""
LONGEST_RETRY_AFTER_S = 60.0
"""A longer Retry-After of the server is cut to this."""


_REFUSER = re.compile(
    r"""(?:[a-z.]+ "[^"]*" is forbidden: )?(ValidatingAdmissionPolicy|admission webhook) ['"]([a-z0-9.-]{1,253})['"]"""
)
"""The beginning of the API server's message about an admission denial; the rest may quote the object."""

READING = frozenset({"get", "list", "watch"})
"""Verbs."""
_WITHOUT_ENVIRONMENT = frozenset({"pods/binding", "leases", "nodes", "nodes/status", "events", "resourceslices"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call to the API server, in RBAC's terms."""

    verb: str
    resource: str
    """Plural, with its subresource: ``pods/binding``."""
    group: str = ""
    """API group; empty for the core group."""
    namespace: str = ""
    name: str = ""

    @property
    def harmless(self) -> bool:
        """Whether the request may be quoted: the API server may repeat it in its refusal."""
        return self.verb in READING or self.resource in _WITHOUT_ENVIRONMENT

    @property
    def missing_right(self) -> str:
        """The call, which was forbidden, as the right that is missing."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f"in the namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"the right to {self.verb} {resource} {where} is missing"

    def __str__(self) -> str:
        target = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {self.resource}{' ' if target else ''}{target}"


@dataclass(eq=False, repr=False)
class ApiError(Exception):
    """A call to the API server failed."""

    call: Call
    why: str
    _: KW_ONLY
    status: int = 0
    """HTTP status, or the code of a Status object in a watch; 0 without an answer."""
    reason: str = ""
    """The API's reason (``AlreadyExists``); empty if it gave none."""
    causes: frozenset[str] = frozenset()
    """The API's further reasons (``ResourceVersionTooLarge``)."""
    retry_after_s: float = 0
    """The delay that the server asks for before a retry; 0 if it asks for none."""
    sent: bool = True
    """False: the request was never sent, so it cannot have had any effect."""
    denied: bool = False
    """The account has the right, but an admission policy, a webhook or a quota refused it."""
    said: str = ""
    """The server's own words, which may quote the object: only for the person whose call it was."""

    def __str__(self) -> str:
        return f"{self.call}: {self.why}"


class InvalidError(ApiError):
    """400 or 422: the request is invalid for this server, and a retry cannot help."""


class UnauthorizedError(ApiError):
    """401: the server does not accept our credentials; the token is missing, expired or of another cluster."""


class ForbiddenError(ApiError):
    """403: our account lacks a right, or admission denied the request; the message says which."""


class NotFoundError(ApiError):
    """404: the object does not exist, or this server does not have the API."""


class ConflictError(ApiError):
    """409: the object has another uid or version than the request names; or it already exists."""


class GoneError(ApiError):
    """410: the server no longer keeps the version or page to continue from; list again."""


class TooManyRequestsError(ApiError):
    """429: the server sheds load."""


class UnavailableError(ApiError):
    """5xx, or no complete answer. Whether a write took effect is unknown, unless it was never `sent`."""


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


_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def _answer(status: int, reason: str = "") -> str:
    """Return a status with its reason; 0 and codes that HTTP does not know have no phrase."""
    return f"{status} {reason or _PHRASES.get(status, '')}".strip()


def error_from(
    call: Call, body: bytes | msgspec.Raw, *, status: int = 0, retry_after: str = "", starting: bool = False
) -> ApiError:
    """Return the error for an unsuccessful answer.

    Args:
        call: the call.
        body: a ``Status`` object, or a proxy's answer in its place.
        status: HTTP status; 0 for an error inside a watch, where the Status object carries the code.
        retry_after: the header of that name; only a number of seconds is supported.
        starting: the server has just come back. It may serve before it has read the roles of all accounts, so a right
            that is missing now is no reason to ask anybody for it.
    """
    try:
        parsed = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        parsed = _Status(message=_of_proxy(bytes(body)) if status >= 500 and call.harmless else "")
    status = status or parsed.code
    kind = _TYPES.get(status, UnavailableError if status >= 500 or not status else ApiError)
    details = parsed.details or _Details()
    patience = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    patience = patience or float(max(0, details.retry_after_seconds))
    why = _why(call, kind, status, parsed)
    if starting and kind is ForbiddenError and _lacks_right(call, parsed.message):
        kind = UnavailableError
        why = f"{_answer(status)}; the API server is starting, and may not know the rights of its accounts yet"
    return kind(
        call,
        why,
        status=status,
        reason=parsed.reason,
        causes=frozenset(cause.reason for cause in details.causes or ()),
        retry_after_s=min(patience, LONGEST_RETRY_AFTER_S),
        denied=kind is ForbiddenError and not _lacks_right(call, parsed.message),
        said=parsed.message,
    )


def _of_proxy(body: bytes) -> str:
    """Return why a proxy such as kubectl's could not pass a request on, in one line; empty: it does not say."""
    line = body.decode(errors="replace").strip().partition("\n")[0]
    return line if line.isprintable() and line[:1].isalpha() else ""


def _why(call: Call, kind: type[ApiError], status: int, parsed: _Status) -> str:
    answer = _answer(status, parsed.reason)
    message = " ".join(parsed.message.split())
    if kind is ForbiddenError and _lacks_right(call, message):
        group = f" of the API group {call.group}" if call.group else ""
        return f"{answer}; grant {call.verb!r} on {call.resource!r}{group} to the service account"
    if kind is UnauthorizedError:
        return f"{answer}; the API server does not accept our token or certificate"
    if kind is InvalidError:
        causes = (parsed.details or _Details()).causes or ()
        fields = ", ".join(f"{cause.field} ({cause.reason})" for cause in causes if cause.field)
        if fields:
            return f"{answer}: {fields}"[:_LONGEST_QUOTE]
    if kind in _DENIALS and not call.harmless:
        return f"{answer}{_unquoted(kind, message)}"
    if kind in _DENIALS:
        return f"{answer}: {message[:_LONGEST_DENIAL]}" if message else answer
    return f"{answer}: {message[:_LONGEST_QUOTE]}" if message else answer


def _lacks_right(call: Call, message: str) -> bool:
    """Return whether a refusal is RBAC's: admission checks only writes, and has other words."""
    return not message.strip() or call.verb in READING or f"cannot {call.verb} resource" in message


_DENIALS = (ForbiddenError, InvalidError)


def _unquoted(kind: type[ApiError], message: str) -> str:
    """Return the safe part of a refusal that may quote the request."""
    if refuser := _REFUSER.match(message):
        return f"; {refuser[1]} {refuser[2]} denied it"
    if kind is ForbiddenError:
        return "; the account has the right, but an admission policy, a webhook or a quota denied it"
    return ""
