"""The faults that the API server double can inject, and the requests that they match."""

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
    """The request is executed nevertheless."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Accept the request and never answer; with `done`, execute it."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection; with `done`, after executing the request."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Wait, then execute the request."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Garbage:
    """Answer 200 with a body that no API server sends, like a proxy."""

    body: bytes = b"<html>sign in, please</html>"


@dataclass(frozen=True, slots=True)
class Late:
    """Accept the request and never answer; `ApiServer.carry_out` executes it later.

    An API server continues a request that its client has given up, for up to 60 s by default.
    """


Trouble: TypeAlias = Answer | Hang | Reset | Slow | Garbage | Late


@dataclass(eq=False, slots=True)
class Fault:
    """A trouble that ends after `times` matching requests; infinite by default."""

    trouble: Trouble
    verbs: frozenset[str]
    resources: frozenset[str]
    tokens: frozenset[str] = frozenset()
    times: float = math.inf
    happened: int = 0

    def strikes(self, request: Request) -> bool:
        """Return whether this request matches, and count it."""
        hit = (
            self.happened < self.times
            and (not self.verbs or request.verb in self.verbs)
            and (not self.resources or request.resource in self.resources)
            and (not self.tokens or request.token in self.tokens)
        )
        self.happened += hit
        return hit
