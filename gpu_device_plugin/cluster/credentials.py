"""What proves to the API server who we are, and to us who it is; read anew, because both are rotated."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from gpu_device_plugin.cluster.config import ClusterConfig


class Credentials:
    """The bearer token, never older than allowed, and the certificates."""

    def __init__(self, config: ClusterConfig, longest_s: float) -> None:
        """Take both from where `config` says; a token's file is read again after `longest_s` seconds."""
        self._config = config
        self._longest_s = longest_s
        self._token = config.token
        self._token_read_at = -math.inf
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Credentials for {self._config.url}>"

    def token(self) -> str:
        """Return the token; empty: there is none.

        Raises:
            OSError: its file cannot be read.
            UnicodeDecodeError: the file holds something that is no token.
        """
        file = self._config.token_file
        if file is not None and time.monotonic() - self._token_read_at >= self._longest_s:
            self._token = file.read_text(encoding="ascii").strip()
            self._token_read_at = time.monotonic()
        return self._token

    def token_changed(self) -> bool:
        """Return whether the file holds another token than the one last used."""
        before, self._token_read_at = self._token, -math.inf
        try:
            return self.token() != before
        except (OSError, UnicodeDecodeError):
            return False

    def tls(self) -> ssl.SSLContext | bool:
        """Return what aiohttp is to check and show; the files are read once, until `forget_tls`.

        Raises:
            ClusterConfigError: they cannot be read.
        """
        if not self._config.url.startswith("https:"):
            return True
        if self._tls is None:
            self._tls = self._config.tls()
        return self._tls

    def forget_tls(self) -> None:
        """Read the certificates anew for the next call: an authority is rotated by replacing the file."""
        self._tls = None
