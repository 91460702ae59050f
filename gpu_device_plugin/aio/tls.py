"""Serve TLS, and reload certificates that are renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

_log = logging.getLogger(__name__)


def server_tls(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Load the certificates of a TLS server. Changed files are reloaded when the next client connects.

    All are PEM files; `cert` has the intermediate certificates too. With `client_ca` only clients with a certificate
    signed by this authority are served. OSError: a file cannot be read or used; the message names the files.
    """
    files = tuple(file for file in (cert, key, client_ca) if file is not None)
    read, newest = _read(files)
    first = newest

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal read, newest
        try:
            if _stamps(files) != read:
                read, newest = _read(files)
        except OSError as error:
            _log.error("keeps using the certificates read before", extra={"why": str(error), "once_per_s": 60})
        connection.context = newest

    first.sni_callback = renew  # called in every handshake, even if the client sends no server name
    return first


_Stamps = tuple[tuple[int, int], ...]


def _read(files: tuple[Path, ...]) -> tuple[_Stamps, ssl.SSLContext]:
    cert, key, *client_ca = files
    try:
        stamps = _stamps(files)  # taken before the files are read, so that no change is missed
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca[0] if client_ca else None)
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise OSError(f"cannot serve TLS with {', '.join(map(str, files))}: {_why(error)}") from error
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        # Python 3.13 turned on strict checks that certificates of many clusters fail (no Authority Key Identifier).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return stamps, context


def _stamps(files: tuple[Path, ...]) -> _Stamps:
    """Return a value that changes when a file is written or replaced."""
    return tuple((stat.st_ino, stat.st_mtime_ns) for stat in map(Path.stat, files))


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        found = f"{error.reason.replace('_', ' ').lower()}; " if error.reason else ""
        return f"{found}give PEM files, and the key that belongs to the certificate"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
