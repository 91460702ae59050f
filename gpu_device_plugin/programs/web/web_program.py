"""Serve the page in a cluster, to callers with tokens of its accounts."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import ListenError, written
from gpu_device_plugin.cluster.client.api_client import Client
from gpu_device_plugin.cluster.client.config import SERVICE_ACCOUNT, ClusterConfigError, config_for
from gpu_device_plugin.programs.lifetime import ReloadingProgram, tls_of
from gpu_device_plugin.programs.web.callers import ReviewedCallers
from gpu_device_plugin.programs.web.figures import DEFAULT_TIMING, AgentFigures, FiguresTiming
from gpu_device_plugin.programs.web.server import CONNECTIONS, DEFAULT_TIMINGS, PageServer, PageTimings
from gpu_device_plugin.programs.web.web_routes import AboutPage
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.web import WebSettings

if TYPE_CHECKING:
    from gpu_device_plugin.cluster.client.config import ClusterConfig
    from gpu_device_plugin.settings.sources import Sources, Texts

_log = logging.getLogger(__name__)


def main(sources: Sources[WebSettings], texts: Texts, settings: WebSettings) -> int:
    """Run the page's server until SIGTERM or SIGINT; return its exit code.

    Raises:
        UsageError: the address, or a certificate, cannot be used.
    """
    try:
        config = config_for(settings.api, os.environ)
    except ClusterConfigError as error:
        raise UsageError(f"api: {error}") from error
    page = ClusterPage(settings, config, agents_in=settings.home(SERVICE_ACCOUNT))
    return asyncio.run(page.follow_settings(sources, texts, page.run(), "page"))


@dataclass(eq=False, repr=False)
class ClusterPage(ReloadingProgram[WebSettings]):
    """The page's server with its settings."""

    settings: WebSettings
    config: ClusterConfig
    agents_in: str = ""
    """The namespace of the node agents; empty: wherever they are."""
    timings: PageTimings = DEFAULT_TIMINGS
    figures_timing: FiguresTiming = DEFAULT_TIMING
    port: int = 0
    """The listening port, once open."""

    async def run(self) -> NoReturn:
        """Serve until cancelled. Owns the listening socket and the connections.

        Raises:
            UsageError: the address cannot be listened on, or a certificate not be used.
        """
        settings = self.settings
        _log.info("the page's server starts", extra={"version": __version__, "http": written(*settings.http)})
        if settings.exposed:
            _log.warning(
                "tokens of callers cross the network unencrypted, unless something in front of this address encrypts; "
                "give tls_cert and tls_key",
                extra={"http": written(*settings.http)},
            )
        tls = tls_of(settings.tls_cert, settings.tls_key)
        async with Client(self.config, timing=self.timings.api, connections=CONNECTIONS) as client:
            server = PageServer(
                client,
                settings.offered,
                ReviewedCallers(client),
                about=AboutPage("cluster"),
                figures=AgentFigures(client, namespace=self.agents_in, timing=self.figures_timing),
                timings=self.timings,
            )
            try:
                async with server.serving(settings.http, tls) as self.port:
                    await asyncio.Event().wait()
            except ListenError as error:
                raise UsageError(f"http: {error}") from error
        raise AssertionError  # pragma: no cover (nobody sets the event)
