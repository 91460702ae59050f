"""Keep out of memory what libraries load while they are imported and the agent never uses."""

from __future__ import annotations

import importlib
import os
import sys

_NONE = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


def without_tls() -> None:
    """Have asyncio do without ssl, which it supports and takes wherever it is: 5 MB of OpenSSL.

    For an agent that speaks over unix sockets only, and before asyncio is imported.
    """
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None forbids an import (The import system, 5.3.1)


def import_aiohttp() -> None:
    """Import aiohttp without the system's certificates.

    It makes two TLS contexts with all of them, for callers that bring none: 2.5 MB. Ours always bring one, and read the
    system's certificates for it where a kubeconfig names no others.
    """
    if "aiohttp" in sys.modules:
        return
    before = {name: os.environ.get(name) for name in _NONE}
    os.environ.update(_NONE)
    try:
        importlib.import_module("aiohttp")
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
