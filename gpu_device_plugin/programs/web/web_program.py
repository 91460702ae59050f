"""The page's server, which follows the cluster and answers browsers; and the program that serves it in a cluster."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import __version__
from gpu_device_plugin.aio.http import BROWSERS, ListenError, page_at, serving_routes, written
from gpu_device_plugin.aio.waiting import for_ever, wait_within
from gpu_device_plugin.features.report_features import REPORT, ReportParts
from gpu_device_plugin.kubernetes.agent_reader import AgentReader, Agents
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import SERVICE_ACCOUNT, ClusterConfig, ClusterConfigError, config_for
from gpu_device_plugin.lifetime import ReloadingProgram, tls_of
from gpu_device_plugin.metrics import alive, probe
from gpu_device_plugin.model.contract.keys import AGENT_NAMESPACE
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.web.callers import Callers, ReviewedCallers
from gpu_device_plugin.programs.web.figures import AgentFigures, AgentHistory, FiguresState
from gpu_device_plugin.programs.web.page_plans import PagePlans
from gpu_device_plugin.programs.web.page_state import PageState
from gpu_device_plugin.programs.web.streams import Streams
from gpu_device_plugin.programs.web.watched import Watched
from gpu_device_plugin.programs.web.web_routes import HEADERS, LARGEST_VIEW, AboutPage, PageRoutes
from gpu_device_plugin.report.rules.finding import note
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources, Texts
from gpu_device_plugin.settings.web import WebSettings

if TYPE_CHECKING:
    import ssl


_log = logging.getLogger(__name__)

CONNECTIONS = 64
"""To the API server. Reviews take 12 at most, details 16, figures 8, the past 8, a plan 1, and what follows the cluster
8, so none waits."""
_SOON_S = 0.02
"""Until the cluster has been read the page shows nothing, and waits for it."""


class PageServer:
    """Wires the parts of the page's server together."""

    refresh_s = 0.5
    """Changes are batched for this long."""
    hear_s = 4.0
    """How often the API server is asked for its version while somebody looks."""
    look_s = 1.0
    """How often what changes by time alone is looked at."""

    def __init__(
        self,
        client: Client,
        resources: Sequence[Resource],
        callers: Callers,
        *,
        about: AboutPage,
        figures: AgentFigures | None = None,
        namespace: str = "",
        parts: ReportParts = REPORT,
    ) -> None:
        """Prepare; nothing is sent before `serving`.

        Pods are read in `namespace` if they cannot be read in all namespaces. Without `figures` the use of nodes is
        known only by their annotations. `parts` are what features add.
        """
        self._figures = figures
        self.watched = Watched(client, resources, namespace, parts)
        self.page_state = PageState(self.watched, self._figures_state)
        self.streams = Streams(self.page_state)
        plans = PagePlans(client, self.page_state)
        history = AgentHistory(AgentReader(client, known=Agents({})) if figures is None else figures.reader)
        self.routes = PageRoutes(callers, self.page_state, self.streams, plans, history, client, about, parts)

    def _figures_state(self) -> FiguresState:
        if not self.watched.nodes_readable:
            return FiguresState("none", note("nodes-unreadable", "nodes cannot be read"))
        return FiguresState("nodes") if self._figures is None else self._figures.state

    @asynccontextmanager
    async def serving(self, address: Address, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """Serve for as long as the block runs; yield the port.

        Raises:
            ListenError: the address cannot be listened on.
        """
        routes = [*self.routes.all(), page_at("/healthz", probe(alive)), page_at("/readyz", probe(self._unready))]
        async with (
            serving_routes(
                *address,
                routes,
                tls=tls,
                limits=BROWSERS,
                headers=HEADERS,
                most_headers=48,
                longest_header=32 << 10,
                largest_body=LARGEST_VIEW,
                body_within_s=10.0,
            ) as port,
            asyncio.TaskGroup() as tasks,
        ):
            work = {
                "watch the cluster": self.watched.run(),
                "explain waiting pods": self.page_state.waiting.run(),
                "write changes": self._refresh(),
                "hear the API server": self.watched.keep_hearing(lambda: bool(self.streams.readers), self.hear_s),
            }
            if self._figures is not None:
                work["read figures of agents"] = self._figures.follow(
                    lambda: self.page_state.names if self.streams.readers else (),  # all while somebody looks
                    self.page_state.use,
                    lambda: self.streams.views.nodes,
                )
            working = [tasks.create_task(each, name=name) for name, each in work.items()]
            try:
                yield port
            finally:
                for each in working:
                    each.cancel()

    async def _refresh(self) -> NoReturn:
        while True:
            await wait_within(self.look_s if self.page_state.complete else _SOON_S, self.page_state.dirty.wait())
            await self.page_state.refresh()
            await asyncio.sleep(self.refresh_s if self.page_state.complete else _SOON_S)

    async def _unready(self) -> Sequence[str]:
        return () if self.page_state.complete else ("the cluster is being read",)


# --- In a cluster -----------------------------------------------------------------------------------------------------


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
    agents_in: str = AGENT_NAMESPACE
    """The namespace of the node agents."""
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
        async with Client(self.config, connections=CONNECTIONS) as client:
            server = PageServer(
                client,
                settings.offered,
                ReviewedCallers(client),
                about=AboutPage("cluster", dashboard=settings.dashboard),
                figures=AgentFigures(client, namespace=self.agents_in),
            )
            try:
                async with server.serving(settings.http, tls) as self.port:
                    await for_ever()
            except ListenError as error:
                raise UsageError(f"http: {error}") from error
