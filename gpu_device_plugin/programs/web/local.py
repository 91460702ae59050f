"""The one caller of a page on somebody's own machine: whoever has the address with the token."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """The user of the kubeconfig. The API server decides what is read for this user; all of that may be seen."""

    user: str

    async def may_see(self, _namespace: str) -> bool:
        """Return true."""
        return True

    async def may_see_nodes(self) -> bool:
        """Return true."""
        return True


class LocalCallers:
    """Knows one random token."""

    def __init__(self, user: str) -> None:
        self._owner = Owner(user)
        self.token = secrets.token_urlsafe(32)
        """For the address that the browser is given; it is never logged."""

    def __repr__(self) -> str:
        return f"<LocalCallers of {self._owner.user!r}>"

    async def caller(self, token: str) -> Owner | None:
        """Return the owner for the right token."""
        return self._owner if hmac.compare_digest(token.encode(), self.token.encode()) else None
