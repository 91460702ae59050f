"""The troubles that one can have with an API server, and which requests they strike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpu_device_plugin.testing.cluster_requests import Request


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with an error."""

    code: int
    retry_after_s: int | None = None
    reason: str = ""
    message: str = "trouble, as ordered"
    causes: tuple[str, ...] = ()
    done: bool = False
    """What was asked is done nevertheless."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Take the request and never answer, whether it is done or not."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection, before or after doing what was asked."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Wait, then do what was asked."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Garbage:
    """Answer 200 with something that no API server says, as a proxy on the way might."""

    body: bytes = b"<html>sign in, please</html>"


@dataclass(frozen=True, slots=True)
class Late:
    """Take the request and never answer; it is carried out when `ApiServer.carry_out` says so, or never.

    An API server goes on with a request that its client has given up, for up to 60 s by default.
    """


Trouble: TypeAlias = Answer | Hang | Reset | Slow | Garbage | Late


@dataclass(eq=False, slots=True)
class Fault:
    """A trouble that stays until it has happened `times` times, or for ever."""

    trouble: Trouble
    verbs: frozenset[str]
    resources: frozenset[str]
    tokens: frozenset[str] = frozenset()
    times: float = math.inf
    happened: int = 0

    def strikes(self, request: Request) -> bool:
        """Whether this request is hit; counts it."""
        hit = (
            self.happened < self.times
            and (not self.verbs or request.verb in self.verbs)
            and (not self.resources or request.resource in self.resources)
            and (not self.tokens or request.token in self.tokens)
        )
        self.happened += hit
        return hit
