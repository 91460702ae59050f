"""Ask the agents of nodes through the API server, as the terminal and the page do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import NotFoundError, UnavailableError
from gpu_device_plugin.kubernetes.objects.api_objects import Pod, readable
from gpu_device_plugin.kubernetes.objects.decoding import PODS, decoded
from gpu_device_plugin.model.contract.keys import AGENT_NAMESPACE, LARGEST_ANSWER

T = TypeVar("T")

_MOST_PODS = 20_000
_AGAIN_S = 10.0
"""How soon the list of agents is asked for again that could not be read."""
_ANSWER_S = 10.0


class AgentUnreadableError(Exception):
    """The agent of a node does not answer. The message is a sentence for people, without a full stop."""

    def __init__(self, code: str, sentence: str, status: int = 502, **parameters: str | tuple[str, ...]) -> None:
        """Keep what the sentence is made of, for other languages, and the HTTP status of the page's answer."""
        super().__init__(sentence)
        self.code, self.status, self.parameters = code, status, parameters


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
                found: list[AgentPod] = []
                async for page in self._client.pages(PODS, namespace=self._namespace, labels=AGENT_LABELS, since="0"):
                    found += agent_pods(page.items or ())
                    if len(found) > _MOST_PODS:
                        break
                self.known = agents(found, self._namespace)
                self._listed_s = time.monotonic()
        return self.known

    async def ask(
        self, node: str, path: str, *, most: int = LARGEST_ANSWER, timeout_s: float = _ANSWER_S, by: str = "command"
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
            said = f"the agent of node {node} cannot be asked: {why}{other}"
            code = "agent-nowhere" if known.why else "agent-not-there"
            raise AgentUnreadableError(code, said, 404, node=node, elsewhere=known.elsewhere)
        try:
            return await self._client.from_pod(
                agent.namespace, agent.name, agent.port or 0, path, most=most, timeout_s=timeout_s
            )
        except NotFoundError as error:
            why = f"it is older than this {by}, records nothing, or has forgotten it"
            said = f"the agent of node {node} has nothing of it: {why}"
            raise AgentUnreadableError("agent-has-nothing", said, 404, node=node) from error
        except UnavailableError as error:
            said = f"the agent of node {node} does not answer: {error}"
            raise AgentUnreadableError("agent-silent", said, node=node, why=str(error)) from error

    async def read(self, node: str, path: str, kind: type[T]) -> T:
        """Return the answer of a node's agent, decoded as `kind`; raises as `ask`."""
        return await understood(await self.ask(node, path), node, kind)


async def understood(body: bytes, node: str, kind: type[T], by: str = "command") -> T:
    """Return what an agent has answered, decoded beside the event loop. Raises AgentUnreadableError."""
    try:
        return await asyncio.to_thread(msgspec.json.Decoder(kind).decode, body)
    except (ValueError, RecursionError) as error:
        said = f"what the agent of node {node} remembers cannot be understood; upgrade the older of agent and {by}"
        raise AgentUnreadableError("agent-not-understood", said, node=node) from error


AGENT_LABELS = "app.kubernetes.io/name=gpushare,app.kubernetes.io/component=node"
"""Of an agent's pod, in our manifests."""


def agent_pods(raw_pods: Iterable[msgspec.Raw]) -> Iterator[AgentPod]:
    """Yield the agents among these pods, which have their labels."""
    for pod in readable(raw_pods, lambda raw: decoded(raw, Pod)):
        meta = pod.metadata
        ports = [port for container in pod.spec.containers for port in container.ports or ()]
        yield AgentPod(
            meta.namespace,
            meta.name,
            pod.spec.node_name,
            next((port.container_port for port in ports if port.name == "http"), None),
            pod.status.phase == "Running" and meta.deletion_timestamp is None,
            meta.creation_timestamp or "",
        )


@dataclass(frozen=True, slots=True)
class AgentPod:
    """A pod with the labels of an agent."""

    namespace: str
    name: str
    node: str
    """Empty before it is scheduled."""
    port: int | None
    """Of its HTTP server; None: it has none."""
    running: bool = True
    """Neither ended nor being deleted."""
    created: str = ""
    """RFC 3339."""


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents of the nodes."""

    by_node: Mapping[str, AgentPod]
    why: str = ""
    """Why there are none, as a sentence without a full stop; empty if there are some."""
    elsewhere: tuple[str, ...] = ()
    """Some of the other namespaces that have pods with the labels of agents, if there are none."""


def agents(pods: Iterable[AgentPod], namespace: str = AGENT_NAMESPACE) -> Agents:
    """Return the agent of each node: of several pods the one created last, as while a node's agent is replaced.

    Pods in other namespaces than `namespace` are no agents, whatever labels they have.
    """
    usable = [pod for pod in pods if pod.node and pod.running and pod.port is not None]
    chosen = sorted((pod for pod in usable if pod.namespace == namespace), key=lambda pod: (pod.created, pod.name))
    if chosen:
        return Agents({pod.node: pod for pod in chosen})
    elsewhere = tuple(sorted({pod.namespace for pod in usable})[:3])
    why = "no node agent that serves HTTP runs"
    if elsewhere:
        why += f" in the namespace {namespace}; pods in other namespaces are ignored ({', '.join(elsewhere)})"
    return Agents({}, why, elsewhere)
