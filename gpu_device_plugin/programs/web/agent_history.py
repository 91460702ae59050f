"""Read what agents remember through the API server, each answer at most once in 15 s, however many people look."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from gpu_device_plugin.aio.turns import Turns
from gpu_device_plugin.cluster.client.errors import NotFoundError, UnavailableError
from gpu_device_plugin.core.cluster.agentpods import Agents
from gpu_device_plugin.features.history.contract import LARGEST_HISTORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.core.report.why.slowness import MaySee
    from gpu_device_plugin.features.history.contract import IncidentSummary, NodeHistory
    from gpu_device_plugin.programs.web.figures import AgentFigures

T = TypeVar("T")

KEPT_S = 15.0
"""How long an answer, or why there is none, is shown again: agents record every 15 seconds."""
_MOST_KEPT: Final = 256
_MOST_BYTES: Final = 32 << 20
"""Of the answers that are kept; the oldest give way."""
_AT_ONCE = 8
_ANSWER_S = 10.0


class AgentUnreadableError(Exception):
    """The agent of a node says nothing of the past. The message is a sentence for people."""

    def __init__(self, sentence: str, status: int = 502) -> None:
        """Keep the HTTP status of the page's answer."""
        super().__init__(sentence)
        self.status = status


class AgentHistory:
    """Keeps answers of agents as they came; who may see what of them say `seen_history` and `seen_summary`."""

    def __init__(
        self, client: Client, figures: AgentFigures | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read with the rights of `client` the agents that `figures` knows, if any; `clock` returns seconds."""
        self._client = client
        self._figures = figures
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], tuple[float, asyncio.Task[bytes]]] = OrderedDict()
        """The oldest first."""
        self._turns = Turns(_AT_ONCE)

    async def read(self, node: str, path: str, kind: type[T], user: str) -> T:
        """Return the answer of a node's agent, decoded; users take turns.

        Raises:
            AgentUnreadableError: there is no agent, or it does not answer, or with something else.
            ApiError: the API server does not list agents, or our account may not read them.
        """
        body = await asyncio.shield(self._answer(node, path, user))
        try:
            return await asyncio.to_thread(msgspec.json.Decoder(kind).decode, body)
        except (ValueError, RecursionError) as error:
            raise AgentUnreadableError(
                f"What the agent of node {node} remembers cannot be understood; upgrade the older of agent and page."
            ) from error

    def _answer(self, node: str, path: str, user: str) -> asyncio.Task[bytes]:
        now_s = self._clock()
        while self._kept and next(iter(self._kept.values()))[0] + KEPT_S <= now_s:
            self._kept.popitem(last=False)
        if (node, path) not in self._kept:
            asking = asyncio.create_task(self._ask(node, path, user), name="read what an agent remembers")
            asking.add_done_callback(self._answered)
            self._kept[node, path] = now_s, asking
        return self._kept[node, path][1]

    async def _ask(self, node: str, path: str, user: str) -> bytes:
        async with self._turns.turn(user):
            agents = Agents({}) if self._figures is None else await self._figures.agents()
            if (agent := agents.by_node.get(node)) is None:
                why = agents.why or "no agent that serves HTTP runs there"
                raise AgentUnreadableError(f"The agent of node {node} cannot be asked: {why}.", 404)
            try:
                return await self._client.from_pod(
                    agent.namespace, agent.name, agent.port or 0, path, most=LARGEST_HISTORY, timeout_s=_ANSWER_S
                )
            except NotFoundError as error:
                why = "it is older than this page, records nothing, or has forgotten it"
                raise AgentUnreadableError(f"The agent of node {node} has nothing of it: {why}.", 404) from error
            except UnavailableError as error:
                raise AgentUnreadableError(f"The agent of node {node} does not answer: {error}.") from error

    def _answered(self, task: asyncio.Task[bytes]) -> None:
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it
        sizes = [_size(kept) for _, kept in self._kept.values()]
        while len(sizes) > _MOST_KEPT or sum(sizes) > _MOST_BYTES:
            self._kept.popitem(last=False)
            del sizes[0]


def _size(task: asyncio.Task[bytes]) -> int:
    return len(task.result()) if task.done() and not task.cancelled() and task.exception() is None else 0


def seen_history(history: NodeHistory, may_see: MaySee, *, nodes: bool, pod: str = "") -> NodeHistory:
    """Return what may be seen of a history, of one pod if it is named; `nodes`: GPUs, with the sums on them, may be."""
    containers = tuple(each for each in history.containers if may_see(each.namespace) and pod in {"", each.pod})
    return replace(history, gpus=history.gpus if nodes else (), containers=containers)


def seen_summary(about: IncidentSummary, may_see: MaySee) -> IncidentSummary:
    """Return an incident; of a pod that may not be seen without names and sentence."""
    if not (about.pod or about.container) or may_see(about.namespace):
        return about
    return replace(about, sentence="", namespace="", pod="", container="")
