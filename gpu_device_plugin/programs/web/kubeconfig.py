"""Serve the page on this machine, with the rights of whoever's kubeconfig it is: `kubectl inspect gpushare web`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import webbrowser
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import msgspec

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.aio.http import ListenError
from gpu_device_plugin.cluster.client import Client, Timing
from gpu_device_plugin.cluster.errors import ApiError, ForbiddenError, NotFoundError
from gpu_device_plugin.programs.commandline import FAILED
from gpu_device_plugin.programs.lifetime import until_stopped
from gpu_device_plugin.programs.terminal import discard_output, say
from gpu_device_plugin.programs.web.figures import AgentFigures
from gpu_device_plugin.programs.web.kubectl_proxy import ProxyError, running
from gpu_device_plugin.programs.web.local import LocalCallers
from gpu_device_plugin.programs.web.routes import About
from gpu_device_plugin.programs.web.server import DEFAULT_TIMINGS, PageServer, Timings
from gpu_device_plugin.settings.forms import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.core.model.resources import Resource

_HOST = "127.0.0.1"
_HTTP = 80
"""The port that a browser leaves out in the header Host."""
_LOGIN_S = 300.0
"""How long the first request may take: a login plugin may wait for a person."""
_CHOSEN_S = 10.0
"""How long kubectl may take to read the kubeconfig."""


def main(
    flags: Sequence[str],
    resources: Sequence[Resource],
    *,
    port: int,
    browser: bool,
    prog: str,
    kubectl: str = "kubectl",
    environ: Mapping[str, str] = os.environ,
    open_url: Callable[[str], object] = webbrowser.open,
) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Args:
        flags: kubectl's flags that select the cluster and the user.
        resources: the managed resources.
        port: on the loopback address; 0: a free one.
        browser: open the page in the user's browser, where there is a graphical one.
        prog: the command that the user typed, for messages.
        kubectl: the program through which the cluster is read.
        environ: the environment.
        open_url: opens a browser.

    Returns:
        0 once stopped; 1 if the cluster cannot be read, or the port cannot be listened on.
    """

    def ready(url: str) -> None:
        try:
            say(sys.stdout, f"The page is at {url}")
            say(sys.stdout, "It shows what your kubeconfig may read, to whoever has this address. Ctrl-C ends it.")
            sys.stdout.flush()
        except BrokenPipeError as error:
            discard_output(sys.stdout)
            raise _EndedError("the page ends, since nobody reads its address: the output is closed") from error
        if browser and _graphical(environ):
            # A browser that begins may take its time, and some of them stay: nothing waits for it.
            threading.Thread(target=open_url, args=(url,), name="browser", daemon=True).start()

    work = _serve(flags, resources, port=port, kubectl=kubectl, ready=ready)
    try:
        # The terminal is closed: SIGHUP ends us, too.
        return asyncio.run(until_stopped(work, "page", {signal.SIGHUP: lambda: signal.raise_signal(signal.SIGTERM)}))
    except (ProxyError, _EndedError) as error:
        say(sys.stderr, f"{prog}: {error}")
        return FAILED


def _graphical(environ: Mapping[str, str]) -> bool:
    """Return whether a browser would not take the terminal."""
    return sys.platform == "darwin" or any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


class _EndedError(Exception):
    """There is no page; the message is a sentence for the user.

    It is no OSError, which a program under a supervisor is restarted after.
    """


async def _serve(
    flags: Sequence[str],
    resources: Sequence[Resource],
    *,
    port: int,
    kubectl: str,
    ready: Callable[[str], None],
    timings: Timings = DEFAULT_TIMINGS,
) -> NoReturn:
    async with running(flags, kubectl) as proxy:
        async with Client(proxy.config, timing=Timing(request_s=_LOGIN_S)) as first:
            await _log_in(first)
        chosen = await _chosen(flags, kubectl)
        callers = LocalCallers(chosen.user)
        about = About("kubeconfig", chosen.context)
        async with Client(proxy.config, timing=timings.api) as client:
            server = PageServer(
                client,
                resources,
                callers,
                about=lambda: about,
                figures=AgentFigures(client),
                namespace=chosen.namespace,
                timings=timings,
            )
            try:
                async with server.serving(Address(_HOST, port)) as bound:
                    hosts = {f"{_HOST}:{bound}", f"localhost:{bound}"} | (
                        {_HOST, "localhost"} if bound == _HTTP else set()
                    )
                    about = About("kubeconfig", chosen.context, frozenset(hosts))
                    ready(f"http://{_HOST}:{bound}/#token={callers.token}")
                    await proxy.keep()
            except ListenError as error:
                raise _EndedError(str(error)) from error
    raise AssertionError  # pragma: no cover (the proxy is kept until we are cancelled)


async def _log_in(client: Client) -> None:
    """Wait until the API server answers, after a login if it needs one.

    Raises:
        _EndedError: it does not.
    """
    try:
        await client.server()
    except (ForbiddenError, NotFoundError):
        return  # it has answered
    except ApiError as error:
        raise _EndedError(
            f"the cluster cannot be read ({error}); kubectl's message, if any, stands above. See whether kubectl get "
            "nodes works with the same flags"
        ) from error


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What a kubeconfig and kubectl's flags select."""

    context: str = ""
    user: str = ""
    namespace: str = "default"


class _Context(msgspec.Struct):
    user: str = ""
    namespace: str = ""


class _NamedContext(msgspec.Struct):
    name: str = ""
    context: _Context = msgspec.field(default_factory=_Context)


class _View(msgspec.Struct):
    contexts: list[_NamedContext] | None = None


async def _chosen(flags: Sequence[str], kubectl: str) -> _Chosen:
    """Return the context, its user and its namespace. Without a kubeconfig, as in a pod, nothing is selected."""
    process = await asyncio.create_subprocess_exec(
        *(kubectl, *flags, "config", "view", "--minify", "--output=json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    text = b""
    try:
        async with asyncio.timeout(_CHOSEN_S):
            text, _ = await process.communicate()
    except TimeoutError:
        pass  # only names for the page are missing
    finally:
        signal_child(process.pid, process.returncode, signal.SIGKILL)
        await process.wait()
    try:
        found = msgspec.json.decode(text, type=_View).contexts or []
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = []
    context = found[0] if found else _NamedContext()
    impersonated = next((flag.removeprefix("--as=") for flag in flags if flag.startswith("--as=")), "")
    return _Chosen(context.name, impersonated or context.context.user, context.context.namespace or "default")
