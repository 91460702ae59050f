"""Decide which audit records follow from what containers held before and hold now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from gpu_device_plugin.features.audit.contract import AuditKind, AuditRecord
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus, granted_by_place
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.shares import SharedGpu, Shares

Grants: TypeAlias = "Mapping[tuple[str, str, str], AuditRecord]"
"""What containers have, by `AuditRecord.place`, each since its `began`."""


def offered(node: str, shares: Shares, inventory: Inventory, now: str) -> Iterator[AuditRecord]:
    """Yield a record for each GPU and MIG instance that containers can get."""
    cards = inventory.cards_mib
    for shared in shares.gpus:
        if shared.offered and not shared.gpu.mig:
            record = AuditRecord(AuditKind.OFFERED, node, card_mib=cards.get(shared.gpu.card), began=now)
            yield _gpu(record, shared)


def grants(node: str, holders: Iterable[ContainerGpus], shares: Shares, before: Grants, now: str) -> Grants:
    """Return what containers have, by what they had `before`, and since when: RFC 3339 `now`, if that is new.

    What was known of a pod stays: the kubelet keeps its devices for a moment after the API has deleted it.
    """
    found: dict[tuple[str, str, str], AuditRecord] = {}
    for place, (mib, holder) in granted_by_place(holders).items():
        if (shared := shares.by_uuid(place[2])) is None:
            continue
        known = before.get(place) or AuditRecord(
            AuditKind.GRANTED, node, pod_uid=holder.pod_uid, container=holder.container, began=now
        )
        named = _gpu(known if holder.pod is None else known.naming(holder.pod), shared)
        count, size = len(shared.shares) if holder.whole else mib // shares.share_mib, shares.share_mib
        found[place] = replace(named, shares=count, share_mib=size, memory_mib=mib, whole=holder.whole)
    return found


def changes(
    before: Grants, now: Grants, evicted: Mapping[str, str], at: str, *, first: bool = False
) -> list[AuditRecord]:
    """Return the records of what has changed from `before` to `now`, at `at` (RFC 3339).

    `evicted` are the pods whose eviction was accepted meanwhile, each with the reason of its Event, by UID. What an
    agent finds when it looks `first` is older than it knows.
    """
    records = [
        replace(grant, kind=AuditKind.EVICTED, event=evicted[grant.pod_uid])
        for grant in {**now, **before}.values()
        if grant.pod_uid in evicted
    ]
    records += [replace(grant, kind=AuditKind.ENDED, ended=at) for place, grant in before.items() if place not in now]
    for place, grant in now.items():
        was = before.get(place)
        if was is None:
            records.append(replace(grant, kind=AuditKind.FOUND if first else AuditKind.GRANTED))
        elif grant.memory_mib != was.memory_mib:
            records.append(
                replace(grant, kind=AuditKind.RESIZED, before=was.shares, event="GPUMemoryResized", began=at)
            )
        elif grant.pod != was.pod:
            records.append(replace(grant, kind=AuditKind.FOUND))
    return records


def decision(record: AuditRecord) -> str:
    """Return a grant or its end as a sentence, for the records of incidents; empty: it is neither."""
    verb = {AuditKind.GRANTED: "was allocated", AuditKind.ENDED: "released"}.get(record.kind)
    who = f"{record.namespace}/{record.pod}" if record.pod else f"the pod with UID {record.pod_uid}"
    amount = format_mib(record.memory_mib or 0)
    return f"container {record.container} of {who} {verb} {amount} of {record.gpu}" if verb else ""


def _gpu(record: AuditRecord, shared: SharedGpu) -> AuditRecord:
    gpu = shared.gpu
    card = "" if gpu.instance is None else gpu.instance.parent
    return replace(record, gpu=gpu.uuid, model=gpu.product, gpu_mib=gpu.total_mib, card=card)
