"""Translate the errors of a connection to the API server into errors of the call."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_exceptions import UnixClientConnectorError

from gpu_device_plugin.cluster.client.config import ClusterConfigError
from gpu_device_plugin.cluster.client.errors import Call, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def translated(call: Call) -> Iterator[None]:
    """Translate every transport error into an UnavailableError; its cause stays attached."""
    try:
        yield
    except TimeoutError as error:
        sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
        raise UnavailableError(call, "no answer in time", sent=sent) from error
    except aiohttp.ClientConnectorError as error:
        where = error.path if isinstance(error, UnixClientConnectorError) else f"{error.host}:{error.port}"
        why = f"cannot connect to {where}: {_no_connection(error.os_error)}"
        raise UnavailableError(call, why, sent=False) from error
    except (aiohttp.ClientError, OSError, ClusterConfigError) as error:
        sent = not isinstance(error, ClusterConfigError)
        raise UnavailableError(call, str(error) or type(error).__name__, sent=sent) from error


def _no_connection(error: OSError) -> str:
    # asyncio replaces the system's message by one with the address; errors of name resolution and of TLS do not carry
    # a system error number.
    if error.errno and not isinstance(error, (ssl.SSLError, socket.gaierror)):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
