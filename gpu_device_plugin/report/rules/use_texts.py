"""Put the use of GPU memory in words: who uses how much, since when it is too much, and which limit holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.features.eviction.rules import spared
from gpu_device_plugin.features.over_use.rules import Response
from gpu_device_plugin.features.use.contract import exceeds, idle_s, not_held, to_return, trespasses
from gpu_device_plugin.model.contract.keys import FRAMEWORKS, MEMORY_GUARANTEE, MEMORY_LIMIT
from gpu_device_plugin.model.limits import Enforcement, LimitStatus
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.report.rules.columns import aligned
from gpu_device_plugin.report.rules.printing import counted, first, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpu_device_plugin.features.elastic.rules.reclaiming import ReclaimRequest
    from gpu_device_plugin.features.history.contract import ContainerHistory, IncidentProcess, IncidentSummary
    from gpu_device_plugin.features.over_use.rules import Excess
    from gpu_device_plugin.features.use.contract import ContainerUse, NodeReport, NodeUse
    from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.report.rules.node_view import NodeView

_NOTHING = "-"
_UNKNOWN = "unknown"
_HEADING = ("  GPU", "CONTAINER", "USED", "GRANTED", "LIMIT", "")
_UNITS = ((86400, "days"), (3600, "h"), (60, "min"))
"""Seconds of a unit, the largest first."""
_TOLD = (MEMORY_LIMIT, MEMORY_GUARANTEE, FRAMEWORKS)
"""Annotations from which the variables of a pod's containers are made."""
MOST_TOLD = 4
"""The most containers in the sentence about one pod."""


def mib(amount: int | None) -> str:
    """Format an amount that is compared with others, which all have the same unit; None: unknown."""
    return _UNKNOWN if amount is None else f"{amount:,} MiB"


def duration(seconds: float) -> str:
    """Format a duration in the largest unit of which it has two, rounded down: ``119 s``, ``3 min``, ``2 h``."""
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), (1, "s"))
    return f"{int(max(0.0, seconds) // size)} {unit}"


def age(seconds: float | None) -> str:
    """Format how long ago something was read; None: unknown."""
    return "at an unknown time" if seconds is None else f"{duration(seconds)} ago"


def container(part: ContainerUse | ContainerHistory | IncidentProcess | IncidentSummary) -> str:
    """Return ``namespace/pod/container``, with the parts that are known."""
    return "/".join(filter(None, (part.namespace, part.pod, part.container)))


def limit(part: ContainerUse) -> str:
    """Return the limit of a container: the means, whether it holds, and both numbers where they differ."""
    if part.enforcement is None:
        return _NOTHING
    if part.enforcement is Enforcement.ADVISORY or part.held is None:
        return part.enforcement.value
    if part.held is LimitStatus.DIFFERS:
        return f"{part.enforcement}: differs ({mib(part.found_mib)} instead of {mib(part.most_mib)})"
    return f"{part.enforcement}: {part.held}" + (f" ({mib(part.most_mib)})" if part.held is LimitStatus.MISSING else "")


def uses(part: ContainerUse) -> str:
    """Return what a container uses, as the end of a sentence that begins with its name."""
    if trespasses(part):
        return f"uses {mib(part.used_mib)} of GPU {part.gpu}, which it was not given"
    since = f", since {part.over_since}" if part.over_since else ""
    used = "an unknown amount" if part.used_mib is None else mib(part.used_mib)
    if part.limit_mib is None:
        return f"uses {used} of GPU {part.gpu}, was granted {mib(part.granted_mib)}{since}"
    size = f"is guaranteed {mib(part.granted_mib)} and limited to {mib(part.limit_mib)}{since}"
    return "; ".join(filter(None, (f"uses {used} of GPU {part.gpu}, {size}", borrows(part), asked(part))))


def borrows(part: ContainerUse) -> str:
    """Return how much a container borrows, as a clause; empty: nothing, as far as is known."""
    return f"borrows {mib(part.borrowed_mib)}" if part.borrowed_mib else ""


def asked(part: ContainerUse) -> str:
    """Return since when a container is asked to return what it borrows, for whom, and until when; empty: it is not."""
    if not to_return(part):
        return ""
    needed = f" for {part.needed_by}" if part.needed_by else ""
    evicted = f", and is evicted at {part.return_by} otherwise" if part.return_by else ""
    return f"is asked since {part.asked_at} to return it{needed}{evicted}"


def idle(report: NodeReport, parts: Iterable[ContainerUse]) -> float | None:
    """Return how long a pod has left its GPUs idle, by the node's clock, in seconds; None: it has not, or unknown."""
    if report.use is None or report.stale:
        return None
    found = [seconds for part in parts if (seconds := idle_s(report.use, part)) is not None]
    return max(found) + (report.use_age_s or 0.0) if found else None


def does_not_hold(part: ContainerUse) -> str:
    """Return why the limit of a container does not hold, as the end of a sentence that begins with its name."""
    if part.held is LimitStatus.DIFFERS:
        said = f"is limited to {mib(part.found_mib)} of GPU {part.gpu} instead of {mib(part.most_mib)}"
    else:
        said = f"has no limit on GPU {part.gpu}, where it was granted {mib(part.granted_mib)}"
    return f"{said}{f': {part.why}' if part.why else ''}"


# --- Several nodes ----------------------------------------------------------------------------------------------------


def at_a_glance(nodes: Iterable[NodeView]) -> list[str]:
    """Return what somebody should look at, as at most one line; nothing if all is well or nothing is known."""
    views = tuple(nodes)
    parts = [part for node in views for part in node.report.current]
    strangers = sum(exceeds(part) and trespasses(part) for part in parts)
    over, unassigned_usage = sum(map(exceeds, parts)) - strangers, sum(map(not_held, parts))
    faults = (
        (over, "container uses", "containers use", "more than granted"),
        (strangers, "container uses", "containers use", "a GPU that was not given to it"),
        (unassigned_usage, "limit does", "limits do", "not hold"),
        (sum(map(to_return, parts)), "container is", "containers are", "asked to return borrowed memory"),
        (sum(len(node.candidate.gpus.cordoned) for node in views), "GPU is", "GPUs are", "cordoned"),
    )
    said = "; ".join(f"{counted(number, one, many)} {what}" for number, one, many, what in faults if number)
    return ["", f"{said}: kubectl inspect gpushare -d has the names."] if said else []


def memory_in_use(nodes: Iterable[NodeView]) -> list[str]:
    """Return a table for each node whose agent reports who uses what: used beside granted, by container."""
    return [line for node in nodes if node.report.use is not None for line in _table(node, node.report.use)]


def _table(node: NodeView, use: NodeUse) -> Iterator[str]:
    report = node.report
    yield ""
    yield f"GPU memory in use on {node.name}{f', read {age(report.use_age_s)}' if report.old else ''}:"
    if use.blind:
        yield f"  Who uses it is not known: {use.blind}."
    rows = []
    for gpu in node.candidate.gpus.all:
        used, enforcement = report.used(gpu.position), report.enforcement(gpu.position)
        place = f"  {gpu.position}"
        rows += [
            (place, container(part), mib(part.used_mib), mib(part.granted_mib), limit(part), _remark(part))
            for part in sorted(report.parts(gpu.position), key=lambda part: (-(part.used_mib or 0), container(part)))
        ]
        if used.unattributed_mib:
            rows.append((place, "(processes of no pod)", mib(used.unattributed_mib), _NOTHING, _NOTHING, ""))
        of = _NOTHING if gpu.memory_mib is None else f"of {mib(gpu.memory_mib)}"
        plan = _NOTHING if enforcement is None else enforcement.enforcement.value
        refused = (
            f"shares are refused: {enforcement.refusal}" if enforcement is not None and enforcement.refusal else ""
        )
        remark = "; ".join(filter(None, (refused, "" if gpu.cordon is None else str(gpu.cordon))))
        rows.append((place, "(in all)", mib(used.used_mib), of, plan, remark))
    yield from (line.rstrip() for line in aligned([_HEADING, *rows]))
    if use.left_out:
        yield f"  {counted(use.left_out, 'more container is', 'more containers are')} not listed."


def _remark(part: ContainerUse) -> str:
    if trespasses(part):
        return "was not given this GPU"
    most = "" if part.limit_mib is None else f"may use {mib(part.limit_mib)}"
    over = part.over_since and f"over since {part.over_since}"
    idle_since = part.idle_since and f"idle since {part.idle_since}"
    return "; ".join(filter(None, (most, borrows(part), asked(part), over, idle_since, part.why)))


# --- What an agent writes on a pod that exceeds -----------------------------------------------------------------------


def outlook(excess: Excess, response: Response) -> str:
    """Return what will happen to the pod, as a clause. It does not depend on what others use at the moment."""
    if response is Response.REPORT:
        return "this is only reported (setting over_use)"
    if response is Response.SUSPENDED:
        return "nobody is evicted while another plugin hands out GPUs of this node"
    if why := spared(excess.pod):
        return f"it is not evicted: {why}"
    if excess.pod is not None and excess.pod.deleting:
        return "the pod is ending"
    if response is Response.EVICT:
        return "the pod is evicted, one of its GPU at a time"
    return "the pod is evicted as soon as the GPU has too little free memory for what others were granted"


def use_of(excess: Excess, gpu: str) -> str:
    """Return the numbers, as a clause; `gpu` is the GPU as people call it, like ``GPU 0``."""
    container = f"container {printable(excess.place[1])}" if excess.place[1] else "a container"
    granted = f"was given {excess.granted_mib:,} MiB" if excess.granted_mib else "was not given that GPU"
    if excess.limit_mib is not None:
        granted = f"may use up to {excess.limit_mib:,} MiB"
    return f"{container} uses {excess.used_mib:,} MiB of {gpu}, {granted}"


def event_note(excess: Excess, gpu: str, now: float, response: Response) -> str:
    """Return the note of the Event about one container; `now` in monotonic seconds."""
    return f"{use_of(excess, gpu)}, for {duration(now - excess.since)}; {outlook(excess, response)}"


def annotation(told: Iterable[tuple[Excess, str, str]], response: Response) -> str:
    """Return the sentence about one pod: for each of its containers the excess, its GPU and RFC 3339 since when."""
    told = sorted(told, key=lambda each: (-each[0].excess_mib, each[0].place))
    parts = [f"{use_of(excess, gpu)}, since {since}" for excess, gpu, since in told]
    return f"{first(parts, MOST_TOLD, '; ')}; {outlook(told[0][0], response)}"


# --- What an agent says about memory that is borrowed -----------------------------------------------------------------


def borrowed(request: ReclaimRequest, gpu: str) -> str:
    """Return what a container borrows, and who needs it, as a clause for its owner; `gpu` as for `use_of`."""
    needed_by = f" for {request.told_needed_by or 'another pod'}" if request.needed_by else ""
    return (
        f"container {printable(request.place[1])} borrows {request.borrowed_mib:,} MiB of {gpu} beyond its guarantee, "
        f"and {request.mib:,} MiB of that are needed{needed_by}"
    )


def ultimatum(request: ReclaimRequest, now: float, *, evicts: bool) -> str:
    """Return what happens to a pod that does not return what is needed, as a clause; `now` in monotonic seconds."""
    if not evicts:
        return "nothing evicts it, since the setting borrowers is report"
    if request.until is None:
        return f"nothing evicts it: {spared(request.pod) or 'it was told the limit of another container'}"
    if request.until > now:
        return f"in {duration(request.until - now)} it may be evicted"
    return "it is to be evicted"


def misdirected(holder: ContainerGpus, container: str, meant: Pod | None) -> str:
    """Say that a container was started with the answer that was made for another; empty if both are told the same.

    `meant` is the pod of that other one, None: it is gone, and `container` its name there.
    """
    pod = holder.pod
    uuid = next(iter(holder.granted))
    told_mib, own_mib = holder.started_mib, holder.limit_mib(uuid)
    alike = meant is None or (pod is not None and _told(pod) == _told(meant))
    if alike and told_mib in {None, own_mib} and holder.enforcement is not Enforcement.CUSTOM:
        return ""
    near = meant is not None and pod is not None and meant.namespace == pod.namespace
    whose = (
        f"container {container} of {meant.namespace}/{meant.name}" if near and meant else "a container of another pod"
    )
    limits = "" if told_mib in {None, own_mib} else f" (a limit of {mib(told_mib)}, and its own is {mib(own_mib)})"
    return (
        f"container {holder.container} was started with the variables of {whose}{limits}: the kubelet does not say "
        "for which pod it asks, and asked in another order than expected. Its memory file is right, and it is not "
        "evicted for this; delete the pod to give it its own variables"
    )


def _told(pod: Pod) -> tuple[object, ...]:
    """Return what of a pod decides what its containers are told, beside the amount for each."""
    shares = sorted(sum(each.limits.values()) for each in pod.containers if not each.devices_reused_by_later)
    return pod.namespace, shares, *(pod.annotations.get(key) for key in _TOLD)


def waits(missing_mib: int, gpu: str, requests: Sequence[ReclaimRequest], now: float, namespace: str) -> str:
    """Return why a container does not start while others borrow what it is guaranteed, as the end of a sentence.

    `requests` are those that have to return something of the GPU, at least one, on a node that evicts them; `namespace`
    is that of the container's pod, whose owner learns no names of other namespaces.
    """
    first = max(requests, key=lambda each: each.mib)
    pod = "another pod"
    if first.pod is not None and first.pod.namespace == namespace:
        pod = f"{first.pod.namespace}/{first.pod.name}"
    more = f" and {counted(len(requests) - 1, 'other')} borrow" if len(requests) > 1 else " borrows"
    return (
        f"waits for {format_mib(missing_mib)} that {pod}{more} of {gpu}, asked to return {duration(now - first.since)} "
        f"ago; {ultimatum(first, now, evicts=True)}"
    )
