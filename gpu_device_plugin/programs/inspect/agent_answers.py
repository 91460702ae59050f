"""Read what the agent of a node answers, through the API server and kubectl."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import msgspec

from gpu_device_plugin.core.cluster.agentpods import agents
from gpu_device_plugin.core.contract.history import HISTORY_PATH, LARGEST_HISTORY, NodeHistory
from gpu_device_plugin.programs.kubectl import MISSING_RIGHT, ClusterUnreadableError, unread
from gpu_device_plugin.view.agent_pods import AGENT_LABELS, agent_pods

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.cluster.agentpods import Agents
    from gpu_device_plugin.core.report.finding import Unknown
    from gpu_device_plugin.programs.kubectl import Kubectl

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AgentAnswers:
    """The agents of a cluster, as kubectl reaches them."""

    kubectl: Kubectl
    agents: Agents

    @classmethod
    def of(cls, kubectl: Kubectl) -> AgentAnswers:
        """Find the agents.

        Raises:
            ClusterUnreadableError: pods cannot be listed.
        """
        return cls(kubectl, agents(agent_pods(kubectl.items("/api/v1/pods", labels=AGENT_LABELS))))

    def read(self, node: str, path: str, kind: type[T], *, most: int) -> T:
        """Return the answer of a node's agent, decoded as `kind`.

        Raises:
            ClusterUnreadableError: the node has no agent, or it does not answer, with more than `most` bytes, or with
                something else. The message says so for people.
        """
        agent = self.agents.by_node.get(node)
        if agent is None:
            why = self.agents.why or "no agent that serves HTTP runs there (the setting http)"
            raise ClusterUnreadableError(f"the agent of node {node} cannot be asked: {why}")
        pod = f"/api/v1/namespaces/{agent.namespace}/pods/{agent.name}:{agent.port}/proxy"
        answer = self.kubectl.raw(pod + quote(path))
        if len(answer) > most:
            raise ClusterUnreadableError(f"the agent of node {node} answers {path} with more than {most >> 10} KiB")
        try:
            return msgspec.json.decode(answer, type=kind)
        except (ValueError, RecursionError) as error:
            raise ClusterUnreadableError(
                f"the answer of the agent of node {node} at {path} cannot be read ({error}); "
                "upgrade the older of agent and this command"
            ) from error


_MOST_HISTORIES = 50


def histories(
    kubectl: Kubectl, raw_agents: Iterable[msgspec.Raw], within_s: float = 30.0
) -> dict[str, NodeHistory | str] | Unknown:
    """Return the histories of the first nodes by name, given the pods of the agents.

    In place of a history stands why it cannot be read, as of an older agent; of all, if a right is missing. After
    `within_s` no further agent is asked.
    """
    answers = AgentAnswers(kubectl, agents(agent_pods(raw_agents)))
    found: dict[str, NodeHistory | str] = {}
    until_s = time.monotonic() + within_s
    for node in sorted(answers.agents.by_node)[:_MOST_HISTORIES]:
        if time.monotonic() > until_s:
            break
        try:
            found[node] = answers.read(node, HISTORY_PATH, NodeHistory, most=LARGEST_HISTORY)
        except ClusterUnreadableError as error:
            if (problem := unread(error)).code == MISSING_RIGHT:
                return problem
            found[node] = str(error)
    return found
