"""Read what the agent of a node answers, through the API server and kubectl."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import msgspec

from gpu_device_plugin.core.cluster.agentpods import AGENT_NAMESPACE, agents
from gpu_device_plugin.core.report.finding import Unknown
from gpu_device_plugin.core.report.why.slowness import gpus_of
from gpu_device_plugin.features.history.contract import (
    HISTORY_PATH,
    LARGEST_HISTORY,
    NodeHistory,
    gpu_path,
    namespace_path,
)
from gpu_device_plugin.programs.kubectl import MISSING_RIGHT, NO_SUCH_PATH, ClusterUnreadableError, unread
from gpu_device_plugin.view.objects import AGENT_LABELS, agent_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.agentpods import Agents
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.programs.kubectl import Kubectl

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AgentAnswers:
    """The agents of a cluster, as kubectl reaches them."""

    kubectl: Kubectl
    agents: Agents

    @classmethod
    def of(cls, kubectl: Kubectl, namespace: str) -> AgentAnswers:
        """Find the agents, which are in this namespace.

        Raises:
            ClusterUnreadableError: pods cannot be listed.
        """
        with kubectl.needing("pods", why="agents are found among all of them"):
            pods = kubectl.items("/api/v1/pods", labels=AGENT_LABELS)
        return cls(kubectl, agents(agent_pods(pods), namespace))

    def read(self, node: str, path: str, kind: type[T]) -> T:
        """Return the answer of a node's agent, decoded as `kind`.

        Raises:
            ClusterUnreadableError: the node has no agent, or it does not answer, or with something else. The message
                says so for people.
        """
        agent = self.agents.by_node.get(node)
        if agent is None:
            why = self.agents.why or "no agent that serves HTTP (the setting http) runs there, or there is no such node"
            other = "; --agents-namespace names another namespace" if self.agents.elsewhere else ""
            raise ClusterUnreadableError(f"the agent of node {node} cannot be asked: {why}{other}")
        pod = f"/api/v1/namespaces/{agent.namespace}/pods/{agent.name}:{agent.port}/proxy"
        try:
            answer = self.kubectl.raw(pod + quote(path))
        except ClusterUnreadableError as error:
            if NO_SUCH_PATH not in str(error):
                raise
            why = "it is older than this command, or remembers nothing of it"
            raise ClusterUnreadableError(f"the agent of node {node} does not serve {path}: {why}") from error
        if len(answer) > LARGEST_HISTORY:
            most = f"{LARGEST_HISTORY >> 10} KiB"
            raise ClusterUnreadableError(f"the agent of node {node} answers {path} with more than {most}")
        try:
            return msgspec.json.decode(answer, type=kind)
        except (ValueError, RecursionError) as error:
            raise ClusterUnreadableError(
                f"the answer of the agent of node {node} at {path} cannot be read ({error}); "
                "upgrade the older of agent and this command"
            ) from error


MOST_NODES = 64
"""The most nodes that one command reads."""
_AT_ONCE = 8
BEGUN_WITHIN_S = 30.0
"""No node is asked later than that, so that silent ones do not hold up a command for ever."""


def of_each(nodes: Sequence[str], read: Callable[[str], T]) -> tuple[Mapping[str, T], Mapping[str, Unknown]]:
    """Ask a bounded number of nodes within a bounded time; return the answers, and why others did not answer."""
    until = time.monotonic() + BEGUN_WITHIN_S
    beyond = Unknown("node-not-read", "one command reads {most} nodes; name this one", most=MOST_NODES)
    silent: dict[str, Unknown] = dict.fromkeys(nodes[MOST_NODES:], beyond)

    def one(node: str) -> T | None:
        try:
            if time.monotonic() < until:
                return read(node)
            silent[node] = Unknown("node-not-read", f"others took {BEGUN_WITHIN_S:g} s; name this one")
        except ClusterUnreadableError as error:
            silent[node] = unread(error)
        return None

    with ThreadPoolExecutor(_AT_ONCE, "read an agent") as pool:
        answers = zip(nodes, pool.map(one, nodes[:MOST_NODES]), strict=False)
        return {node: answer for node, answer in answers if answer is not None}, silent


def histories(
    kubectl: Kubectl, raw_agents: Iterable[msgspec.Raw], namespace: str = AGENT_NAMESPACE
) -> dict[str, NodeHistory | str] | Unknown:
    """Return the histories of nodes, given pods with the labels of agents, and the agents' namespace.

    In place of a history stands why it cannot be read, as of an older agent; of all, if a right is missing.
    """
    answers = AgentAnswers(kubectl, agents(agent_pods(raw_agents), namespace))
    read = partial(answers.read, path=HISTORY_PATH, kind=NodeHistory)
    found, silent = of_each(sorted(answers.agents.by_node), read)
    denied = next((why for why in silent.values() if why.code == MISSING_RIGHT), None)
    return denied or {**found, **{node: str(why) for node, why in silent.items()}}


def histories_of(kubectl: Kubectl, pod: Pod, missing: list[str], namespace: str) -> tuple[NodeHistory, ...] | None:
    """Return the history of each GPU that a pod is or was on, with all containers on it, from its node's agent.

    Agents are in `namespace`.
    None: it cannot be read, and why is added to `missing`.
    """
    try:
        answers = AgentAnswers.of(kubectl, namespace)
        read = partial(answers.read, pod.node_name, kind=NodeHistory)
        gpus = gpus_of(read(namespace_path(pod.namespace)), pod.namespace, pod.name)
        return tuple(read(gpu_path(gpu)) for gpu in gpus)
    except ClusterUnreadableError as error:
        missing.append(str(unread(error)))
        return None
