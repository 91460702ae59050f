"""What the terminal and the page read through the API server: the answers of agents, Events, the extender's policy."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpu_device_plugin.cluster.client.errors import ApiError, NotFoundError, UnavailableError
from gpu_device_plugin.cluster.objects.decoding import PODS, ObjectKind, UnreadableObjectError
from gpu_device_plugin.core.cluster.agentpods import AGENT_NAMESPACE, AgentPod, Agents, agents
from gpu_device_plugin.core.report.why.slowness import everyone, gpus_of
from gpu_device_plugin.features.history.contract import (
    LARGEST_HISTORY,
    NodeHistory,
    gpu_path,
    namespace_path,
)
from gpu_device_plugin.view.objects import AGENT_LABELS, ConfigMap, agent_pods, decoded, escaped
from gpu_device_plugin.view.why_pod import CONFIGURATION, assumed, policy_in, why, with_slowness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.report.why.explanations import NodeAnswer
    from gpu_device_plugin.core.report.why.pod_causes import SchedulingStatus
    from gpu_device_plugin.core.report.why.slowness import MaySee
    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.view.why_pod import Policy

T = TypeVar("T")

_EVENTS, _CONFIGMAPS = ObjectKind("events"), ObjectKind("configmaps")
_MOST_EVENTS = 200
_MOST_PODS = 20_000
_AGAIN_S = 10.0
"""How soon the list of agents is asked for again that could not be read."""
_ANSWER_S = 10.0


class AgentUnreadableError(Exception):
    """The agent of a node does not answer. The message is a sentence for people, without a full stop."""

    def __init__(self, sentence: str, status: int = 502) -> None:
        """Keep the HTTP status of the page's answer."""
        super().__init__(sentence)
        self.status = status


class AgentReader:
    """Asks the agents of nodes, through the API server's proxy and with the rights of a client."""

    def __init__(
        self, client: Client, namespace: str = AGENT_NAMESPACE, *, pods_s: float = 60.0, known: Agents | None = None
    ) -> None:
        """Believe only pods of `namespace`, by a list that is at most `pods_s` old; or ask those that are `known`."""
        self._client = client
        self._namespace = namespace
        self._pods_s = pods_s
        self._listed_s = float("-inf") if known is None else float("inf")
        self._listing = asyncio.Lock()
        self.known = known or Agents({})
        """The agents by the last list."""

    async def agents(self) -> Agents:
        """Return the agents of the nodes.

        Raises:
            ApiError: their pods cannot be listed.
        """
        async with self._listing:
            if time.monotonic() - self._listed_s >= self._pods_s:
                self._listed_s = time.monotonic() - self._pods_s + _AGAIN_S
                self.known = await self._listed()
                self._listed_s = time.monotonic()
        return self.known

    async def _listed(self) -> Agents:
        found: list[AgentPod] = []
        async for page in self._client.pages(PODS, namespace=self._namespace, labels=AGENT_LABELS, since="0"):
            found += agent_pods(page.items or ())
            if len(found) > _MOST_PODS:
                break
        return agents(found, self._namespace)

    async def ask(
        self, node: str, path: str, *, most: int = LARGEST_HISTORY, timeout_s: float = _ANSWER_S, by: str = "command"
    ) -> bytes:
        """Return the answer of a node's agent, of at most so many bytes; `by` is what people call this program.

        Raises:
            AgentUnreadableError: the node has no agent, or it does not answer.
            ApiError: the pods of agents cannot be listed, or may not be asked.
        """
        known = await self.agents()
        if (agent := known.by_node.get(node)) is None:
            why = known.why or "no agent that serves HTTP runs there"
            other = "; --agents-namespace names another namespace" if known.elsewhere else ""
            raise AgentUnreadableError(f"the agent of node {node} cannot be asked: {why}{other}", 404)
        try:
            return await self._client.from_pod(
                agent.namespace, agent.name, agent.port or 0, path, most=most, timeout_s=timeout_s
            )
        except NotFoundError as error:
            why = f"it is older than this {by}, records nothing, or has forgotten it"
            raise AgentUnreadableError(f"the agent of node {node} has nothing of it: {why}", 404) from error
        except UnavailableError as error:
            raise AgentUnreadableError(f"the agent of node {node} does not answer: {error}") from error

    async def read(self, node: str, path: str, kind: type[T]) -> T:
        """Return the answer of a node's agent, decoded as `kind`; raises as `ask`."""
        return await understood(await self.ask(node, path), node, kind)


async def understood(body: bytes, node: str, kind: type[T], by: str = "command") -> T:
    """Return what an agent has answered, decoded beside the event loop. Raises AgentUnreadableError."""
    try:
        return await asyncio.to_thread(msgspec.json.Decoder(kind).decode, body)
    except (ValueError, RecursionError) as error:
        raise AgentUnreadableError(
            f"what the agent of node {node} remembers cannot be understood; upgrade the older of agent and {by}"
        ) from error


async def histories_of(pod: Pod, read: Callable[[str], Awaitable[NodeHistory]]) -> list[NodeHistory]:
    """Return the history of each GPU that a pod is or was on, with all containers on it, as its node's agent has it."""
    positions = gpus_of(await read(namespace_path(pod.namespace)), pod.namespace, pod.name)
    return [await read(gpu_path(position)) for position in positions]


async def events_of(client: Client, namespace: str, uid: str) -> Sequence[msgspec.Raw]:
    """Return the Events about a pod. Raises ApiError."""
    fields = f"involvedObject.uid={escaped(uid)}"
    async for page in client.pages(_EVENTS, namespace=namespace, fields=fields, limit=_MOST_EVENTS):
        return page.items or ()
    return ()


async def policy_of(client: Client) -> Policy:
    """Return the extender's policy by its ConfigMap; the built-in one if that cannot be read."""
    found: list[ConfigMap] = []
    try:
        async for page in client.pages(_CONFIGMAPS, fields=f"metadata.name={CONFIGURATION}"):
            found += [decoded(raw, ConfigMap) for raw in page.items or ()]
    except (ApiError, UnreadableObjectError) as error:
        return assumed(f"the ConfigMap {CONFIGURATION} cannot be read ({error})")
    return policy_in(found)


async def explained(
    client: Client,
    pod: Pod,
    status: SchedulingStatus,
    resources: Sequence[Resource],
    nodes: Callable[[], Sequence[NodeView] | None],
    *,
    most: int,
    claims: Iterable[Claim] | None,
    histories: Iterable[NodeHistory] | None,
    may_see: MaySee = everyone,
) -> tuple[list[str], Sequence[NodeAnswer]]:
    """Return why a pod waits, runs where it does or is slow, in sentences, and the answer of each node; see `why`.

    This is done beside the event loop: thousands of nodes take tens of milliseconds.
    """
    loop = asyncio.get_running_loop()

    def told() -> tuple[list[str], Sequence[NodeAnswer]]:
        def policy() -> Policy:
            return asyncio.run_coroutine_threadsafe(policy_of(client), loop).result()

        said = why(pod, status, resources, nodes(), most=most, policy=policy, claims=claims)
        said = with_slowness(said, pod, histories, may_see)
        waits = [f"{pod.namespace}/{pod.name} waits for {said.asks}."] if said.asks else []
        return [*waits, *map(str, said.facts)], said.answers

    return await asyncio.to_thread(told)
