"""Save memory: prevent imports from loading libraries and data that the agent never uses."""

from __future__ import annotations

import importlib
import os
import sys

_NONE = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


def without_tls() -> None:
    """Make the import of ssl fail: asyncio works without it, and would otherwise load 5 MB of OpenSSL.

    For an agent that speaks over unix sockets only. To be called before asyncio is imported.
    """
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None forbids an import (The import system, 5.3.1)


def import_aiohttp() -> None:
    """Import aiohttp without loading the system's certificates.

    On import aiohttp creates two default TLS contexts with all system certificates: 2.5 MB. Our callers always pass a
    context of their own, with the system's certificates if the kubeconfig names no others.
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
