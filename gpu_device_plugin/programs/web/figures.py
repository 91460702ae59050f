"""Read from agents: the use of nodes for as long as somebody looks, and the past, each answer at most once in 15 s."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn, TypeVar

from gpu_device_plugin.aio.turns import Turns
from gpu_device_plugin.features.history.contract import IncidentSummary, NodeHistory
from gpu_device_plugin.features.history.rules.slowness import MaySee
from gpu_device_plugin.kubernetes.agent_reader import AgentReader, Agents, understood
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, NotFoundError
from gpu_device_plugin.model.contract.keys import AGENT_NAMESPACE, MalformedAnnotationError
from gpu_device_plugin.model.contract.node_use import SERVED, USE_PATH, NodeUse, read_node_use
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.programs.web.watched import missing_right
from gpu_device_plugin.report.rules.finding import Finding, literal, note

Deliver = Callable[[str, NodeUse | None], None]

T = TypeVar("T")

_MOST_BYTES = 2 << 20
"""Of one agent. It writes at most `SERVED`, and a node with 1,000 containers has 200 KiB."""
_SPARED = 2 / 3
"""In this part of the time that figures last they are read again, also where others come first."""
_OURS = "{why}; the figures are those of the nodes' annotations, which are up to some minutes old"
_NONE_READ = note("no-agent-read", "no node agent can be read")


@dataclass(frozen=True, slots=True)
class FiguresState:
    """Where the figures of use come from."""

    source: str
    """``agents``: read from agents now; ``nodes``: from the nodes' annotations, up to some minutes old; ``none``."""
    why: Finding | None = None
    """Why not from agents, as a sentence without names of pods and nodes."""
    detail: Finding | None = None
    """More of it, for callers who see everything."""


class AgentFigures:
    """Reads agents in turn. An agent answers at most every ten seconds, a silent one is asked ever more rarely."""

    every_s = 10.0
    """The time between two readings of an agent."""
    longest_s = 300.0
    """The longest time between two attempts at one that does not answer."""
    at_once = 8
    """Agents that are read at the same time."""
    round_s = 0.8
    """The least time between the beginnings of two rounds of `at_once`: ten agents a second, in any cluster."""
    answer_s = 5.0
    lasts_s = 90.0
    """Figures that were not read again for so long are given up."""
    pods_s = 60.0
    """How old the list of the agents' pods may be."""
    refused_s = 300.0
    """How long nothing is asked after the API server has refused it."""
    idle_s = 0.5

    def __init__(self, client: Client, *, namespace: str = AGENT_NAMESPACE) -> None:
        """Read nothing before `follow`; the rights of `client` decide what is read.

        The agents are in `namespace`, see `kubernetes.agent_reader`.
        """
        self._client = client
        self.reader = AgentReader(client, namespace, pods_s=self.pods_s)
        self._agents = Agents({})
        self._refused_s = float("-inf")
        self._nothing: Finding | None = None
        """Why no agent is read; None: some are, or nobody looks."""
        self._last: dict[str, Attempt] = {}
        self._read_s: dict[str, float] = {}
        """When the present figures of a node were read."""
        self._problems: dict[str, Finding] = {}
        """Why a node's agent cannot be read."""
        self._wanted = 0

    @property
    def state(self) -> FiguresState:
        """Where the figures come from at present."""
        node = min(self._problems, default="")
        first = note("agent-of-node", "node {node}: {why}", node=node, why=self._problems[node]) if node else None
        if self._nothing or not self._read_s:
            why = self._nothing or (_NONE_READ if first else None)
            ours = why and note("figures-of-nodes", _OURS, why=why)
            return FiguresState("nodes", ours, None if self._nothing else first)
        if first:
            known = len(self._problems) + len(self._read_s.keys() - self._problems.keys())
            text = "{n} of {known} node agents cannot be read"
            return FiguresState("agents", note("agents-unread", text, n=len(self._problems), known=known), first)
        if self._wanted <= self._most:
            return FiguresState("agents")
        text = "{n} nodes are too many to read all; {most} are read, those in view first"
        return FiguresState("agents", note("too-many-nodes", text, n=self._wanted, most=self._most))

    @property
    def _most(self) -> int:
        """The most nodes that are read: those of which each is read again before its figures are given up."""
        return int(self.at_once * self.lasts_s / self.round_s / 2)

    async def follow(
        self, nodes: Callable[[], Collection[str]], deliver: Deliver, in_view: Callable[[], Collection[str]] = tuple
    ) -> NoReturn:
        """Read the use of nodes again and again. Ends only by cancellation.

        `nodes` returns the names of the nodes whose use is wanted now, none while nobody looks, and `in_view` those
        that come first among them. `deliver` takes the use of a node; None: its agent cannot be read any more.
        """
        while True:
            began_s = time.monotonic()
            names = nodes()
            if names and began_s - self._refused_s >= self.refused_s:
                await self._round(names, in_view(), deliver)
            self._give_up(names, deliver)
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(self.round_s - took_s, 0) if names else self.idle_s)

    async def _round(self, names: Collection[str], in_view: Collection[str], deliver: Deliver) -> None:
        self._wanted = len(names)
        before = self._agents
        try:
            self._agents = await self.reader.agents()
        except ForbiddenError as error:
            self._refuse(error)
            return
        except ApiError as error:
            if not self._agents.by_node:  # those that are known are read on
                text = "the pods of the node agents cannot be listed ({error})"
                self._nothing = note("agents-unlisted", text, error=str(error))
                return
        for node, pod in self._agents.by_node.items() if self._agents is not before else ():
            if before.by_node.get(node) != pod:  # a new agent has not failed yet
                self._last.pop(node, None)
                self._problems.pop(node, None)
        why, elsewhere = self._agents.why, self._agents.elsewhere
        self._nothing = note("no-agents", literal(why), elsewhere=elsewhere) if why else None
        chosen = self._chosen(names, in_view)
        answers = await asyncio.gather(*(self._read(name) for name in chosen))
        for name, answer in zip(chosen, answers, strict=True):
            if isinstance(answer, ForbiddenError):
                self._refuse(answer)
                return
            if answer is not None:
                self._read_s[name] = time.monotonic()
                deliver(name, answer)

    def _chosen(self, names: Collection[str], in_view: Collection[str]) -> list[str]:
        """Return whose turn it is. Those in view come first; of the others none is left so long that it is given up."""
        there, now_s = {*names}, time.monotonic()
        first = [name for name in in_view if name in there][: self._most]
        ahead = {*first}
        others = [name for name in sorted(there) if name not in ahead][: self._most - len(first)]
        kept = math.ceil(len(others) * self.round_s / (_SPARED * self.lasts_s))
        groups = ([name for name in group if name in self._agents.by_node] for group in (first, others))
        first, others = (
            due(group, self._last, now_s, every_s=self.every_s, longest_s=self.longest_s) for group in groups
        )
        return shared(first, others, kept, self.at_once)

    def _refuse(self, error: ForbiddenError) -> None:
        self._nothing = missing_right(error.call)
        self._refused_s = time.monotonic()
        self._last.clear()
        self._problems.clear()

    async def _read(self, name: str) -> NodeUse | ForbiddenError | None:
        """Read one agent; None: it does not say who uses what."""
        agent = self._agents.by_node[name]
        failures = self._last.get(name, NEVER).failures + 1
        use: NodeUse | None = None
        why: Finding | None = None
        try:
            body = await self._client.from_pod(
                agent.namespace, agent.name, agent.port or 0, USE_PATH, most=_MOST_BYTES, timeout_s=self.answer_s
            )
            # Many containers take longer than others should wait.
            use = await asyncio.to_thread(lambda: read_node_use(body.decode("utf-8", "replace"), SERVED))
            if not (use.gpus or use.blind or any(part.used_mib is not None for part in use.parts)):
                use, why = None, note("agent-knows-nothing", "its agent does not know at present who uses what")
        except ForbiddenError as error:
            return error
        except NotFoundError:
            text = "its agent has no {path}: it is older than this program, or has just ended"
            why = note("agent-without-path", text, path=USE_PATH)
        except MalformedAnnotationError:
            why = note("agent-unreadable", "what its agent says at {path} cannot be read", path=USE_PATH)
        except ApiError as error:
            why = note("api-error", "{error}", error=str(error))
            if not error.sent:  # no agent was asked
                failures -= 1
        if why:
            self._problems[name] = why
        else:
            self._problems.pop(name, None)
        self._last[name] = Attempt(time.monotonic(), failures if why else 0)
        # It is of now, whatever the clock of its node says.
        return None if use is None else replace(use, at=rfc3339(time.time()))

    def _give_up(self, names: Collection[str], deliver: Deliver) -> None:
        """Forget figures that were not read again, and nodes that are not there any more."""
        until_s = time.monotonic() - self.lasts_s
        for name in [name for name, read_s in self._read_s.items() if self._nothing or read_s <= until_s]:
            del self._read_s[name]
            deliver(name, None)
        if names:
            for known in (self._last, self._problems):
                for name in known.keys() - names:
                    del known[name]


# --- The past ---------------------------------------------------------------------------------------------------------

KEPT_S = 15.0
"""How long an answer, or why there is none, is shown again: agents record every 15 seconds."""
_MOST_KEPT: Final = 256
_MOST_KEPT_BYTES: Final = 32 << 20
"""Of the answers that are kept; the oldest give way."""
_AT_ONCE = 8


class AgentHistory:
    """Keeps answers of agents as they came; who may see what of them say `seen_history` and `seen_summary`."""

    def __init__(self, reader: AgentReader, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask through `reader`; `clock` returns seconds."""
        self._reader = reader
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
        return await understood(await asyncio.shield(self._answer(node, path, user)), node, kind, "page")

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
            return await self._reader.ask(node, path, by="page")

    def _answered(self, task: asyncio.Task[bytes]) -> None:
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it
        sizes = [_size(kept) for _, kept in self._kept.values()]
        while len(sizes) > _MOST_KEPT or sum(sizes) > _MOST_KEPT_BYTES:
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


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last attempt at one."""

    at_s: float
    failures: int = 0
    """In a row."""


NEVER = Attempt(float("-inf"))


def due(
    wanted: Iterable[str], last: Mapping[str, Attempt], now_s: float, *, every_s: float, longest_s: float
) -> list[str]:
    """Return whom to read now: those waiting longest first, then by name.

    Between two attempts at one that answers are `every_s` on the clock of the attempts. After each failure in a row
    that doubles, up to `longest_s`.
    """
    ripe = []
    for name in wanted:
        attempt = last.get(name, NEVER)
        if now_s - attempt.at_s >= min(longest_s, every_s * 2 ** min(attempt.failures, 16)):
            ripe.append((attempt.at_s, name))
    return [name for _, name in sorted(ripe)]


def shared(first: Sequence[str], others: Sequence[str], kept: int, most: int) -> list[str]:
    """Divide `most` turns between two groups in the order of their need, all of one where the other needs less.

    So many turns as are `kept` are for the others, if they need them.
    """
    own = max(most - min(kept, len(others)), 0)
    return [*first[:own], *others[: most - min(own, len(first))]]
