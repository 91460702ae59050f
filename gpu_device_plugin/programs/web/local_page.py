"""Serve the page on a user's machine through `kubectl proxy`, with the rights of whoever's kubeconfig it is."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Sequence
from typing import NoReturn

from gpu_device_plugin.aio.http import ListenError
from gpu_device_plugin.aio.waiting import for_ever
from gpu_device_plugin.commandline import FAILED, discard_output, say
from gpu_device_plugin.features.report_features import REPORT, ReportParts
from gpu_device_plugin.kubernetes.client.api_client import Timing
from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError, reaching
from gpu_device_plugin.lifetime import until_stopped
from gpu_device_plugin.model.contract.keys import AGENT_NAMESPACE
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.web.callers import LocalCallers
from gpu_device_plugin.programs.web.figures import AgentFigures
from gpu_device_plugin.programs.web.web_program import PageServer
from gpu_device_plugin.programs.web.web_routes import AboutPage
from gpu_device_plugin.settings.forms import Address

_HOST = "127.0.0.1"


def on_this_machine(
    flags: Sequence[str],
    resources: Sequence[Resource],
    *,
    port: int,
    browser: bool,
    prog: str,
    kubectl: str = "kubectl",
    agents_namespace: str = AGENT_NAMESPACE,
    parts: ReportParts = REPORT,
) -> int:
    """Serve on the loopback address until SIGINT, SIGTERM or SIGHUP; `port` 0: a free one.

    kubectl's `flags` select the cluster and the user, who typed `prog`. With `browser` the page is opened in the user's
    browser, where there is a graphical one. Pods of `agents_namespace` alone are believed to be node agents.
    `parts` are what features add.

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
            why = "the page ends, since nobody reads its address: the output is closed"
            raise ClusterUnreadableError(why) from error
        # Without a graphical display a browser would take the terminal.
        displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        if browser and (sys.platform == "darwin" or any(os.environ.get(name) for name in displays)):
            # A browser that begins may take its time, and some of them stay: nothing waits for it.
            threading.Thread(target=webbrowser.open, args=(url,), name="browser", daemon=True).start()

    async def serve() -> NoReturn:
        async with reaching(flags, kubectl, read_only=True, timing=Timing()) as access:
            callers = LocalCallers(access.selected.user)
            server = PageServer(
                access.client,
                resources,
                callers,
                about=AboutPage("kubeconfig", access.selected.context, frozenset({_HOST, "localhost"})),
                figures=AgentFigures(access.client, namespace=agents_namespace),
                namespace=access.namespace,
                parts=parts,
            )
            try:
                async with server.serving(Address(_HOST, port)) as bound:
                    ready(f"http://{_HOST}:{bound}/#token={callers.token}")
                    await for_ever()
            except ListenError as error:
                raise ClusterUnreadableError(str(error)) from error

    try:
        # The terminal is closed: SIGHUP ends us, too.
        return asyncio.run(until_stopped(serve(), "page", {signal.SIGHUP: lambda: signal.raise_signal(signal.SIGTERM)}))
    except ClusterUnreadableError as error:
        say(sys.stderr, f"{prog}: {error}")
        return FAILED
