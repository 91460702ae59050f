"""Why a pod waits, and what would make room for it, in one sentence each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.fitting import Fit
from gpu_device_plugin.core.telling.explaining import headline
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpu_device_plugin.core.cluster.nodeview import NodeView
    from gpu_device_plugin.core.cluster.usage import Occupant
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.telling.explaining import NodeAnswer
    from gpu_device_plugin.core.telling.podcauses import SchedulingStatus

_MOST_REASONS = 3
_MOST_PODS = 5
_LONGEST = 300
"""Characters of a scheduler's message."""


def asked_amounts(pod: Pod, resources: Iterable[Resource]) -> str:
    """Return the limits of a pod as they are written; for a demand that no node can ever meet."""
    sums: Counter[str] = Counter()
    for container in pod.containers:
        sums.update(container.limits)
    names = [each.name for each in resources]
    names += sorted(name for name in sums if name not in names)  # those of MIG profiles
    return " and ".join(f"{name}: {sums[name]}" for name in names if sums[name])


def why_waits(status: SchedulingStatus, facts: Sequence[str], found: Sequence[NodeAnswer]) -> str:
    """Return why a pod waits: the most frequent reasons of the nodes with their numbers, if nodes are the reason.

    Args:
        status: its status from schedulers.
        facts: what can be said of the pod itself, in sentences.
        found: every node that shares GPUs.
    """
    if status.gates or not found:
        return _shortened(facts[0]) if facts else "It is not known yet why it waits."
    fitting = sum(_takes(answer) for answer in found)
    if fitting:
        room = f"{counted(fitting, 'node')} {'has' if fitting == 1 else 'have'} room for it now"
        return f"{room}; {_shortened(_said(status))}"
    kinds = sorted(Counter(map(headline, found)).items(), key=lambda kind: (-kind[1], kind[0]))
    if len(found) == 1:
        return f"The only node that shares GPUs, {found[0].node.name}, does not take it: {kinds[0][0]}."
    reasons = [f"{why} ({number})" for why, number in kinds[:_MOST_REASONS]]
    more = sum(number for _, number in kinds[_MOST_REASONS:])
    others = [f"other reasons ({more})"] if more else []
    return f"None of {len(found)} nodes takes it: {'; '.join([*reasons, *others])}."


def _takes(answer: NodeAnswer) -> bool:
    return isinstance(answer.found, Fit) and not answer.kept.excluded and not answer.kept.besides


def _said(status: SchedulingStatus) -> str:
    if not status.condition_reason and not status.condition:
        return f"{status.scheduler} has not looked at it yet; if this persists, no scheduler of this name runs."
    reason = f" ({status.condition_reason})" if status.condition_reason else ""
    return f"{status.scheduler} says{reason}: {status.condition or 'no message'}"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def what_makes_room(found: Sequence[NodeAnswer], may_see: Callable[[str], bool]) -> str:
    """Return what would make room for a pod; empty if a node takes it now, or no node is known.

    Args:
        found: every node that shares GPUs, the nearest to having room first.
        may_see: returns whether the reader may know the names of the pods of a namespace.
    """
    if not found or any(map(_takes, found)):
        return ""
    for answer in found:
        kept = (*answer.kept.excluded, *answer.kept.besides)
        if isinstance(answer.found, Fit):
            return f"The GPUs of {answer.node.name} have room, but {'; '.join(kept)}."
        if answer.ends is not None and answer.ends.pods:
            besides = f", but for the pod: {'; '.join(kept)}" if kept else ""
            return f"{_ends(answer.node, answer.ends.pods, may_see)}{besides}."
    if all(not isinstance(answer.found, Fit) and answer.found.unresolvable for answer in found):
        return "Even if all pods of the nodes ended, none would have room."
    return "Pods would have to end; see the node's GPUs."


def _ends(node: NodeView, pods: Sequence[Occupant], may_see: Callable[[str], bool]) -> str:
    named = [_named(node, pod) for pod in pods if may_see(pod.namespace)]
    hidden = sum(not may_see(pod.namespace) for pod in pods)
    more = hidden + max(0, len(named) - _MOST_PODS)
    what = counted(
        more, "other pod" if named else "pod that you may not see", "" if named else "pods that you may not see"
    )
    names = [*named[:_MOST_PODS], *([what] if more else [])]
    this = "this pod" if len(pods) == 1 else f"these {len(pods)} pods"
    return f"There would be room on {node.name} if {this} ended: {', '.join(names)}"


def _named(node: NodeView, pod: Occupant) -> str:
    ending = ["being deleted"] if pod.terminating else []
    return f"{pod} ({', '.join([*node.amounts(pod.usage), f'priority {pod.priority}', *ending])})"
