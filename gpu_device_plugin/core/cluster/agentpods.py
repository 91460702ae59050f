"""Say which pod is the agent of each node.

Anybody who may create pods may give them the agent's labels. So only pods of one namespace count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOME = "gpushare"
"""The namespace of our manifests."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """A pod with the labels of an agent."""

    namespace: str
    name: str
    node: str
    """Empty before it is scheduled."""
    port: int | None
    """Of its metrics; None: it has none."""
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
    rivals: tuple[str, ...] = ()
    """The namespaces that contradict each other, a few of them."""


def agents(pods: Iterable[AgentPod]) -> Agents:
    """Return the agent of each node: of several pods the one created last, as while a node's agent is replaced."""
    usable = [pod for pod in pods if pod.node and pod.running and pod.port is not None]
    places = sorted({pod.namespace for pod in usable})
    if not places:
        return Agents({}, "no node agent with metrics runs")
    if len(places) > 1 and HOME not in places:
        why = "pods in several namespaces have the labels of node agents, and those of one alone can be right"
        return Agents({}, why, tuple(places[:3]))
    trusted = places[0] if len(places) == 1 else HOME
    chosen = sorted((pod for pod in usable if pod.namespace == trusted), key=lambda pod: (pod.created, pod.name))
    return Agents({pod.node: pod for pod in chosen})
