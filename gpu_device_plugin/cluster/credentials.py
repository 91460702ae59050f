"""The token and the certificates for the API server, reloaded because both are rotated."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from gpu_device_plugin.cluster.config import ClusterConfig


class Credentials:
    """The bearer token, reread when it gets old, and the certificates."""

    def __init__(self, config: ClusterConfig, longest_s: float) -> None:
        """Read both as `config` says; a token file is read again after `longest_s` seconds."""
        self._config = config
        self._longest_s = longest_s
        self._token = config.token
        self._token_read_at = -math.inf
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Credentials for {self._config.url}>"

    def token(self) -> str:
        """Return the token; empty if there is none.

        Raises:
            OSError: its file cannot be read.
            UnicodeDecodeError: the file does not contain a token.
        """
        file = self._config.token_file
        if file is not None and time.monotonic() - self._token_read_at >= self._longest_s:
            self._token = file.read_text(encoding="ascii").strip()
            self._token_read_at = time.monotonic()
        return self._token

    def token_changed(self) -> bool:
        """Return whether the file contains a new token, other than the last one used."""
        before, self._token_read_at = self._token, -math.inf
        try:
            return self.token() != before
        except (OSError, UnicodeDecodeError):
            return False

    def tls(self) -> ssl.SSLContext | bool:
        """Return aiohttp's `ssl` argument; the files are read once, until `forget_tls`.

        Raises:
            ClusterConfigError: a file cannot be read.
        """
        if not self._config.url.startswith("https:"):
            return True
        if self._tls is None:
            self._tls = self._config.tls()
        return self._tls

    def forget_tls(self) -> None:
        """Make the next call reload the certificates: an authority is rotated by replacing its file."""
        self._tls = None
