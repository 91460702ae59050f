"""Say which pod is the agent of each node, and which agents are read next.

Anybody who may create pods may give them the agent's labels. So only pods of one namespace count. Agents are read in
turn, none too often, and a silent one rarely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

AGENT_NAMESPACE = "gpushare"
"""The namespace of our manifests."""


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
        why += f" in the namespace {namespace}; pods in other namespaces are not believed ({', '.join(elsewhere)})"
    return Agents({}, why, elsewhere)


# --- Turns ----------------------------------------------------------------------------------------------------------


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
