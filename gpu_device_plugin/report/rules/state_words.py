"""States: what somebody should know of a node, a GPU or a pod's part of one, decided once for terminal and page.

The kernel's own are here; a node's features add theirs (`ReportFeature.node_states` and its like).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from gpu_device_plugin.model.contract.node_use import ContainerUse
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.node_view import GpuView, NodeView

_TONES = {Tone.BAD: "bad", Tone.WARNING: "warn", Tone.PLAIN: "plain"}


@dataclass(frozen=True, slots=True)
class State:
    """One of them. The code and the parameters say all of it; the page has words of its own for those it knows."""

    rank: int
    """Lower for a worse one, of all that a node, a GPU or a part can have."""
    code: str
    tone: Tone
    """BAD: a problem; WARNING: worth a look; PLAIN: good to know."""
    text: str
    """It in words, as a clause about its subject."""
    parameters: Mapping[str, str | int | None] = field(default_factory=dict)
    """None: unknown. Amounts in MiB have names that end so; `since` and `until` are times in RFC 3339."""
    word: str = ""
    """It in a column of a table; empty: it does not stand there."""
    counted: str = ""
    """It after the number of containers in it, in the row of their GPU; empty: it does not stand there."""

    def message(self) -> dict[str, Any]:
        """Return it in the types of JSON."""
        known = {key: value for key, value in self.parameters.items() if value not in (None, "")}
        said = {"code": self.code, "tone": _TONES[self.tone], "rank": self.rank, "text": self.text}
        return said | ({"parameters": known} if known else {})


def node_states(node: NodeView, unplaced: int = 0) -> list[State]:
    """Return the states of a node itself, the worst first; `unplaced` are its shares on GPUs that are not known."""
    gpus = node.candidate.gpus
    unknown = sum(number for offer in node.instances() for _, number in offer.unassigned_usage)
    found = [State(5, "node-problem", Tone.BAD, gpus.fault)] if gpus.fault else []
    if not node.record.ready:
        found.append(State(6, "not-ready", Tone.BAD, "not ready", word="not ready"))
    if node.record.unschedulable:
        found.append(State(8, "cordoned", Tone.WARNING, "cordoned", word="cordoned"))
    if unplaced:
        text = f"{node.amount(unplaced)} on GPUs not known yet"
        found.append(State(14, "gpus-unknown", Tone.PLAIN, text, {"shares": unplaced}))
    if unknown:
        text = f"{unknown} on instances not known yet"
        found.append(State(14, "instances-unknown", Tone.PLAIN, text, {"n": unknown}))
    for feature in node.features:
        found += feature.node_states(node)
    return _ranked(found)


def gpu_states(node: NodeView, view: GpuView) -> list[State]:
    """Return the states of a GPU itself, the worst first."""
    ill, cordon = view.gpu.unhealthy, view.gpu.cordon
    found = [State(3, "unhealthy", Tone.BAD, why := f"unhealthy: {ill}", {"why": ill}, why)] if ill else []
    if cordon is not None:
        said = {"by": cordon.by, "since": cordon.at, "why": cordon.why}
        found.append(State(8, "cordoned", Tone.WARNING, str(cordon), said, word=str(cordon)))
    for feature in node.features:
        found += feature.gpu_states(node, view)
    return _ranked(found)


def part_states(node: NodeView, parts: Sequence[ContainerUse], *, ending: bool = False) -> list[State]:
    """Return the states of a pod's part of a GPU by what its containers use there, the worst first."""
    found = [State(15, "ending", Tone.PLAIN, "ending", word="ending")] if ending else []
    if parts:
        for feature in node.features:
            found += feature.part_states(node, parts)
    return _ranked(found)


def _ranked(states: list[State]) -> list[State]:
    return sorted(states, key=attrgetter("rank")) if len(states) > 1 else states
