"""Nodes, their GPUs and the pods on them in the types of JSON, with the same keys for programs and for the page.

docs/inspect.md is the contract. The page gets a brief form, because thousands of GPUs are sent at once: it has fewer
fields, leaves out those that are false, zero, empty or unknown, and says nothing of figures that are too old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeReport, trespasses
from gpu_device_plugin.model.contract.nodegpus import ListedInstance
from gpu_device_plugin.report.rules.held_instances import Instances
from gpu_device_plugin.report.rules.node_view import GpuView, NodeView, PodShare, Sums, sums_of
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer

VERSION = 1
"""Increases when a field changes its meaning or is removed. Fields may be added at any time."""

Fields = dict[str, Any]

HIDDEN = "(hidden)"
"""In place of a namespace. No namespace can have this name."""

SHOWN_OF_HIDDEN = (
    *("gpu", "granted_mib", "used_mib", "sm_percent", "enforcement", "held", "found_mib", "why", "over_since"),
    *("limit_mib", "asked_at", "return_by", "needed_by", "idle_since"),
)
"""The fields of a container's use without its names, in their order."""
# A page writes the nodes anew for each group of readers, and `replace` takes three times as long.
_AMOUNTS = attrgetter(*SHOWN_OF_HIDDEN)

_FACTS = frozenset({"index", "largestIndex", "grantedMiB", "usedMiB", "smPercent", "gpus"})
"""What a brief form has even if it is zero or empty: position 0 and 0 MiB in use are facts."""


def document(nodes: Iterable[NodeView]) -> Fields:
    """Return the complete state of the nodes, which are sorted by name."""
    return {"version": VERSION, "nodes": [node_document(node) for node in nodes]}


def node_document(node: NodeView, *, brief: bool = False, live: bool = False) -> Fields:
    """Return one node, `brief` for the page; `live`: its use is read from its agent now, not from its annotation."""
    gpus, report, views, unplaced = node.candidate.gpus, node.report, node.gpus(), node.unplaced
    fields: Fields = {
        "name": node.name,
        "address": node.record.address or None,
        "ready": node.record.ready,
        "unschedulable": node.record.unschedulable,
        "problem": gpus.fault or None,
        "claims": gpus.claims,
        "shareMiB": gpus.share_mib,
        "policy": gpus.policy,
        "driver": gpus.driver,
        "totalShares": node.total,
        "usedShares": sum(view.used for view in views) + unplaced,
        "limits": None if report.limits is None else report.limits.enforcement.value,
        "use": _use(report, brief=brief, live=live),
        "sums": _sums(sums_of([node], {node.name: views}), brief=brief),
        "gpus": [_gpu(view, node, brief=brief) for view in views],
        "instances": [_offer(node, offer, brief=brief) for offer in node.instances()],
        "states": [state.message() for state in node.states(unplaced)],
    }
    if brief:
        return known(fields)
    return fields | {
        "divided": gpus.divided,
        "capacity": dict(node.record.capacity),
        "allocatable": dict(node.record.allocatable),
        "links": [
            {"a": a, "b": b, "closeness": closeness.name.lower(), "nvlinks": nvlinks}
            for a, b, closeness, nvlinks in gpus.links.pairs
        ],
        "unplaced": [
            {**_pod(pod, brief=False), "shares": usage.all_shares, "wholeGpus": usage.all_gpus}
            for pod, usage in node.unassigned_usage().items()
        ],
    }


def known(fields: Mapping[str, object]) -> Fields:
    """Return fields in the brief form: without those that are false, zero, empty or unknown, except facts."""
    return {key: value for key, value in fields.items() if value or (key in _FACTS and value is not None)}


def _use(report: NodeReport, *, brief: bool, live: bool) -> Fields | None:
    use = report.use
    if use is None:
        return None
    # In a brief form the time and not the age, so that a node of which nothing changed has the same document as before.
    fields: Fields = {"at": use.at or None, "blind": use.blind or None, "live": live}
    if brief:
        return known(fields)
    age_s = None if report.use_age_s is None else round(report.use_age_s)
    return fields | {"ageSeconds": age_s, "leftOut": use.left_out}


def _sums(sums: Sums, *, brief: bool) -> Fields:
    """Return the sums of a node; its memory is not known in MiB where the size of its shares is not."""
    fields: Fields = {
        "totalMiB": sums.total if sums.sized else None,
        "givenMiB": sums.given if sums.sized else None,
        "freeMiB": sums.free if sums.sized else None,
        "largestMiB": sums.largest if sums.sized else None,
        "largestIndex": None if sums.largest_at is None else sums.largest_at[1],
        "usedMiB": sums.used_mib,
        "measuredGpus": sums.measured,
        "gpus": sums.gpus,
        "freeGpus": sums.whole,
        "instances": sums.instances,
        "freeInstances": sums.free_instances,
    }
    return known(fields) if brief else fields


def _gpu(view: GpuView, node: NodeView, *, brief: bool) -> Fields:
    gpu, report = view.gpu, node.report
    enforcement = report.enforcement(gpu.position)
    used = GpuUse() if brief and report.stale else report.used(gpu.position)
    fields: Fields = {
        "index": gpu.position,
        "uuid": gpu.uuid or None,
        "model": gpu.model or None,
        "memoryMiB": gpu.memory_mib,
        "reason": gpu.unhealthy or None,
        "cordon": None if gpu.cordon is None else asdict(gpu.cordon),
        "mig": None if gpu.instance is None else mig_place(gpu.instance),
        "totalShares": view.room.total,
        "usedShares": view.used,
        "freeShares": view.free,
        "usedMiB": used.used_mib,
        "unattributedMiB": used.unattributed_mib,
        "limits": None if enforcement is None else enforcement.enforcement.value,
        "refusal": None if enforcement is None else enforcement.refusal or None,
        "pods": [_held(held, node, brief=brief) for held in view.held],
        "strangers": [_stranger(parts, node, brief=brief) for parts in view.strangers],
        "states": [state.message() for state in node.gpu_states(view)],
    }
    if brief:
        return known(fields)
    return fields | {
        "numa": gpu.numa,
        "healthy": not gpu.unhealthy,
        "whole": view.room.whole,
        "limitsReason": None if enforcement is None else enforcement.why,
        "containers": [
            _named(part.namespace, pod=part.pod, container=part.container or "") | container_use(part)
            for part in report.parts(gpu.position)
        ],
    }


def mig_place(instance: ListedInstance) -> Fields:
    """Return the place of a MIG instance, whose fields have the names of the keys."""
    return {key: getattr(instance, key) for key in ("parent", "gpu", "number", "profile", "gi")}


def _offer(node: NodeView, offer: Instances, *, brief: bool) -> Fields:
    """Return the MIG instances of one resource that are given whole: each is all in use, or all free."""
    fields: Fields = {
        "resource": offer.resource,
        "instances": [_gpu(view, node, brief=brief) for view in node.instance_views(offer)],
        "unplaced": [
            ({} if brief else _pod(pod, brief=False)) | {"instances": number} for pod, number in offer.unassigned_usage
        ],
    }
    if brief:
        return known(fields)
    return fields | {
        "profile": offer.profile,
        "total": len(offer.instances),
        "used": offer.used,
        "free": offer.free,
    }


def _pod(pod: GpuConsumer, *, brief: bool) -> Fields:
    """Return a pod; its name is not known to a reader who may not see it."""
    fields: Fields = _named(pod.namespace, name=pod.name)
    if not brief:
        fields |= {"uid": pod.uid, "priority": pod.priority}
    return fields | {"deleting": pod.terminating}


def _named(namespace: str, **names: str) -> Fields:
    if namespace == HIDDEN:
        return dict.fromkeys(("namespace", *names))
    return {"namespace": namespace, **names}


def _stranger(parts: Sequence[ContainerUse], node: NodeView, *, brief: bool) -> Fields:
    states = [state.message() for state in node.part_states(parts)]
    fields = _named(parts[0].namespace, name=parts[0].pod) | {"trespassing": True} | _sum(parts) | {"states": states}
    return known(fields) if brief else fields


def _held(held: PodShare, node: NodeView, *, brief: bool) -> Fields:
    pod = held.pod
    known_use = held.use or pod.terminating  # most pods of a node without figures have no state
    states = [state.message() for state in node.part_states(held.use, ending=pod.terminating)] if known_use else []
    fields = {**_pod(pod, brief=brief), "shares": held.shares, "whole": held.whole, **_sum(held.use), "states": states}
    if brief:
        fields = known(fields)
    # The pods that use these claims may be none.
    return fields | ({"claims": list(pod.claims), "pods": list(pod.pods)} if pod.claims else {})


_TOLD = attrgetter("used_mib", "sm_percent", "enforcement", "held", "over_since", "idle_since")
_STRENGTH, _SEVERITY = attrgetter("strength"), attrgetter("severity")


def _sum(parts: Sequence[ContainerUse]) -> Fields:
    """Return the use of one GPU by all containers of a pod together; what one of them lacks is unknown of all."""
    if not parts:
        return dict.fromkeys(("usedMiB", "smPercent", "overSince", "idleSince", "enforcement", "held"))
    used_mib, percent, enforcement, held, over_since, idle_since = _TOLD(parts[0])
    if len(parts) > 1:
        amounts, percents, *others = zip(*map(_TOLD, parts), strict=True)
        used_mib = None if None in amounts else sum(amounts)
        # 0 percent is said only where it is known of all.
        percent = sum(filter(None, percents)) or (None if None in percents else 0)
        enforcements, states, over, idle = ([each for each in every if each] for every in others)
        enforcement = min(enforcements, key=_STRENGTH, default=None)
        held = max(states, key=_SEVERITY, default=None)
        over_since, idle_since = min(over, default=None), min(idle, default=None)
    fields: Fields = {
        "usedMiB": used_mib,
        "smPercent": percent and min(100, percent),
        "overSince": over_since or None,
        "idleSince": idle_since or None,
        "enforcement": enforcement and enforcement.value,
        "held": held and held.value,
    }
    if elastic := [part for part in parts if part.limit_mib is not None]:
        borrowed = [part.borrowed_mib for part in elastic if part.borrowed_mib is not None]
        fields |= {
            "limitMiB": sum(part.most_mib for part in parts),
            "borrowedMiB": sum(borrowed) if len(borrowed) == len(elastic) else None,
            "askedAt": min((part.asked_at for part in elastic if part.asked_at), default=None),
            "returnBy": min((part.return_by for part in elastic if part.return_by), default=None),
            "neededBy": next((part.needed_by for part in elastic if part.needed_by), None),
        }
    return fields


def container_use(part: ContainerUse) -> Fields:
    """Return what one container uses of one GPU."""
    return {
        "grantedMiB": part.granted_mib,
        "trespassing": trespasses(part),
        "foundMiB": part.found_mib,
        "why": part.why or None,
    } | _sum([part])


# --- For a reader who may not see all pods ----------------------------------------------------------------------------


def redacted(node: NodeView, may_see: Callable[[str], bool]) -> NodeView:
    """Return a node with the same amounts, in which pods of namespaces that the reader may not see have only numbers.

    They come last: in the order of all names, names nearby would tell something of theirs.
    """
    numbers: dict[tuple[str, str], str] = {}

    def number(namespace: str, name: str) -> str:
        return numbers.setdefault((namespace, name), str(len(numbers) + 1))

    pods = [pod for pod in node.pods if may_see(pod.namespace)]
    # By uid, which is random, so that the numbers tell nothing of the names.
    for pod in sorted((pod for pod in node.pods if not may_see(pod.namespace)), key=lambda pod: pod.uid):
        hidden = number(pod.namespace, pod.name)
        numbers |= dict.fromkeys(((pod.namespace, user) for user in pod.users), hidden)
        pods.append(GpuConsumer("", pod.usage, pod.priority, pod.terminating, pod.requests, HIDDEN, hidden))
    holders = [pod for pod in node.instance_pods if may_see(pod.namespace)]
    for holder in sorted((pod for pod in node.instance_pods if not may_see(pod.namespace)), key=lambda pod: pod.uid):
        hidden = number(holder.namespace, holder.name)
        holders.append(replace(holder, uid=f"{HIDDEN} {hidden}", namespace=HIDDEN, name=hidden))

    def needs_seen(part: ContainerUse) -> ContainerUse:
        seen = not part.needed_by or may_see(part.needed_by.partition("/")[0])
        return part if seen else replace(part, needed_by="")

    report = node.report
    if report.use is not None:
        parts = tuple(
            part
            if may_see(part.namespace)
            else ContainerUse(HIDDEN, number(part.namespace, part.pod), "", *_AMOUNTS(part))
            for part in sorted(map(needs_seen, report.use.parts), key=lambda part: not may_see(part.namespace))
        )
        report = replace(report, use=replace(report.use, parts=parts))
    return replace(node, pods=tuple(pods), report=report, instance_pods=tuple(holders))
