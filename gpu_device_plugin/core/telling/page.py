"""The nodes of a cluster in the JSON that the page shows: short, because thousands of GPUs are sent at once.

Fields that are false, zero, empty or unknown are left out, but for names, positions and sizes. docs/web.md is the
contract.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.cluster.nodeview import Held
from gpu_device_plugin.core.cluster.usage import Occupant, Usage
from gpu_device_plugin.core.contract.nodereport import trespasses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpu_device_plugin.core.cluster.instances import Instances
    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu
    from gpu_device_plugin.core.contract.nodereport import NodeReport, NodeUse, UsedPart

VERSION = 1

Fields = dict[str, Any]


def everyone(_namespace: str) -> bool:
    """Return true: the caller may see the pods of every namespace."""
    return True


def node_document(node: NodeView, may_see: Callable[[str], bool] = everyone, *, live: bool = False) -> Fields:
    """Return one node.

    Args:
        node: the node.
        may_see: returns whether the caller may see the pods of a namespace; other pods are shown without their names.
        live: the figures of use are read from the node's agent now, and not from the node's annotation.
    """
    gpus, report, offers = node.candidate.gpus, node.report, node.instances()
    loose = sum(usage.size(gpus.sizes) for usage in node.loose().values())
    return {
        "name": node.name,
        **_given(
            {
                "ready": node.ready,
                "cordoned": node.unschedulable,
                "problem": gpus.fault,
                "claims": gpus.claims,
                "address": node.address,
                "shareMiB": gpus.share_mib,
                "driver": gpus.driver,
                "policy": gpus.policy,
                "rung": None if report.limits is None else report.limits.rung.value,
                "loose": loose,
                "looseMig": sum(number for offer in offers for _, number in offer.loose),
            }
        ),
        **({} if report.use is None else {"use": _use(report.use, live=live)}),
        "gpus": sorted(
            [
                *(_gpu(view, report, may_see) for view in node.gpus()),
                *(_whole_instance(offer, gpu, report, may_see) for offer in offers for gpu in offer.instances),
            ],
            key=lambda each: each["i"],
        ),
    }


def _use(use: NodeUse, *, live: bool) -> Fields:
    # The time and not the age, so that a node of which nothing changed has the same document as before.
    return _given({"at": use.at, "blind": use.blind, "live": live})


def _gpu(view: GpuView, report: NodeReport, may_see: Callable[[str], bool]) -> Fields:
    gpu = view.gpu
    whole = any(held.whole for held in view.held)
    # A MIG instance is never given as a whole GPU, so that its shares in use keep nobody from that.
    fenced = "shares" if whole else "whole" if view.used and gpu.instance is None else ""
    current = () if report.stale else report.parts(gpu.position)
    facts = {
        "taken": view.used,
        "free": view.free,
        "whole": whole,
        "fenced": fenced,
        "pods": _parts(view.held, current, may_see),
    }
    return _listed(gpu, gpu.shares, report, facts)


def _whole_instance(offer: Instances, gpu: ListedGpu, report: NodeReport, may_see: Callable[[str], bool]) -> Fields:
    """Return a MIG instance that is given out whole: it is all taken, or all free."""
    holders, shares = offer.holders.get(gpu.uuid, ()), max(1, gpu.shares)
    usage = Usage(shares=((gpu.position, shares),))
    held = [
        Held(Occupant(pod.uid, usage, 0, pod.terminating, {}, pod.namespace, pod.name), shares, whole=True)
        for pod in holders
    ]
    current = () if report.stale else report.parts(gpu.position)
    facts = {
        "resource": offer.resource,
        "taken": shares if holders else 0,
        "free": 0 if holders or gpu.unhealthy else shares,
        "whole": bool(holders),
        "pods": _parts(held, current, may_see),
    }
    return _listed(gpu, shares, report, facts)


def _listed(gpu: ListedGpu, shares: int, report: NodeReport, facts: Fields) -> Fields:
    """Return what is known of a GPU or a MIG instance, with the facts of its kind."""
    used, rung, place = report.used(gpu.position), report.rung(gpu.position), gpu.instance
    return {
        "i": gpu.position,
        "shares": shares,
        **_given(
            {
                "uuid": gpu.uuid,
                "model": gpu.model,
                "mig": None if place is None else {"id": place.label, "profile": place.profile, "gpu": place.parent},
                "bad": gpu.unhealthy,
                "memMiB": gpu.memory_mib,
                "rung": None if rung is None else rung.rung.value,
                "refusal": None if rung is None else rung.refusal,
                **facts,
            }
        ),
        # 0 MiB in use is a fact.
        **({} if used.used_mib is None or report.stale else {"usedMiB": used.used_mib}),
        **({} if not used.unattributed_mib or report.stale else {"otherMiB": used.unattributed_mib}),
    }


def _parts(held: Iterable[Held], current: Iterable[UsedPart], may_see: Callable[[str], bool]) -> list[Fields]:
    """Return the pods on one GPU: those that hold a part of it, then those that use it without one."""
    used: dict[tuple[str, str], list[UsedPart]] = defaultdict(list)
    for part in current:
        used[part.namespace, part.pod].append(part)
    # Hidden pods come last: all are in the order of their names, and names nearby would tell something of theirs.
    found = [
        {
            **_name(each.pod.namespace, each.pod.name, may_see),
            **_claims(each.pod, may_see),
            "shares": each.shares,
            **_given({"whole": each.whole, "deleting": each.pod.terminating}),
            **_used([part for user in each.pod.users for part in used.pop((each.pod.namespace, user), [])]),
        }
        for each in sorted(held, key=lambda each: not may_see(each.pod.namespace))
    ]
    others = sorted(used.items(), key=lambda other: (not may_see(other[0][0]), other[0]))
    strangers = {name: parts for name, parts in others if any(map(trespasses, parts))}
    return found + [
        {**_name(*name, may_see), "shares": 0, "trespass": True, **_used(parts)} for name, parts in strangers.items()
    ]


def _name(namespace: str, name: str, may_see: Callable[[str], bool]) -> Fields:
    return {"ns": namespace, "pod": name} if may_see(namespace) else {}


def _claims(pod: Occupant, may_see: Callable[[str], bool]) -> Fields:
    """Return the claims through which it has its devices, and their pods unless its name is that of the only one."""
    if not pod.claims or not may_see(pod.namespace):
        return {}
    return {"claims": list(pod.claims), **({} if pod.pods == (pod.name,) else {"pods": list(pod.pods)})}


def _used(parts: Iterable[UsedPart]) -> Fields:
    """Return the use of one GPU by all containers of a pod together; what one of them lacks is unknown of all."""
    listed = list(parts)
    if not listed:
        return {}
    amounts = [part.used_mib for part in listed]
    percents = [part.sm_percent for part in listed if part.sm_percent is not None]
    worst = max((part.held for part in listed if part.held), key=lambda held: held.severity, default=None)
    rungs = [part.rung for part in listed if part.rung is not None]
    weakest = min(rungs, key=lambda rung: rung.strength, default=None)
    known: Fields = {}
    if None not in amounts:
        known["usedMiB"] = sum(amount for amount in amounts if amount is not None)
    if sum(percents) or len(percents) == len(listed):  # 0 is said only where it is known of all
        known["sm"] = min(100, sum(percents))
    return known | _given(
        {
            "over": min((part.over_since for part in listed if part.over_since), default=""),
            "rung": None if weakest is None else weakest.value,
            "held": None if worst is None else worst.value,
        }
    )


def _given(fields: Mapping[str, object]) -> Fields:
    return {key: value for key, value in fields.items() if value}
