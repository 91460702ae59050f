"""Turn audit records into the series that Prometheus would have, without what only measuring tells."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cost.accounting import CARD_MEMORY, GIVEN, INFO, MEMORY, POD_OWNER, Series
from gpu_device_plugin.core.cost.audit import AuditKind
from gpu_device_plugin.core.model.times import epoch_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_device_plugin.core.cost.accounting import Period
    from gpu_device_plugin.core.cost.audit import AuditRecord

_OPENING = frozenset({AuditKind.OFFERED, AuditKind.FOUND, AuditKind.GRANTED, AuditKind.RESIZED})
_CLOSING = frozenset({AuditKind.ENDED, AuditKind.WITHDRAWN})


def owners(records: Iterable[AuditRecord]) -> Iterator[Series]:
    """Yield who owns which pod, as kube-state-metrics tells it."""
    for record in {each for each in records if each.owner}:
        names = {"namespace": record.namespace, "pod": record.pod}
        yield Series(POD_OWNER, {**names, "owner_kind": record.owner_kind, "owner_name": record.owner}, {0: 1.0})


def recorded(records: Iterable[AuditRecord], period: Period) -> Iterator[Series]:
    """Yield GPUs, and what containers were given of them.

    While a node's agent did not record there are no samples of it, nor after its newest record: what happened then is
    not known.
    """
    moments = ((at, each) for each in records if (at := _moment(each)) is not None)
    # In the second in which an agent starts it lists what is there, and logs may be in any order.
    in_order = sorted(moments, key=lambda pair: (pair[0], pair[1].kind is not AuditKind.STARTED))
    open_since: dict[tuple[str, ...], tuple[float, AuditRecord]] = {}
    last_of: dict[str, float] = {}
    for at, record in in_order:
        place = (record.node, *record.place)
        if record.kind is AuditKind.STARTED:
            away = epoch_s(record.began)
            # The last life sign of an agent whose clock was ahead is later than the next agent's start.
            until = last_of.get(record.node, at) if away is None else min(away, at)
            for each in [each for each in open_since if each[0] == record.node]:
                yield from _between(*open_since.pop(each), until, period)
        elif record.kind in _OPENING or record.kind in _CLOSING:
            before = open_since.pop(place, None)
            if before is not None:
                yield from _between(*before, at, period)
            if record.kind in _OPENING:
                open_since[place] = at, record
        last_of[record.node] = at
    for since, record in open_since.values():
        yield from _between(since, record, last_of[record.node], period)


def _moment(record: AuditRecord) -> float | None:
    """Return when what a record says became so, in seconds since the epoch; None: it does not say."""
    return epoch_s(record.ended if record.kind in {*_CLOSING, AuditKind.STARTED} else record.began)


def _between(since: float, record: AuditRecord, until: float, period: Period) -> Iterator[Series]:
    """Yield the series of a GPU, or of a container on one, with samples from `since` to before `until`."""
    first, end = (max(0, ceil((at - period.start) / period.step_s)) for at in (since, until))
    times = period.times[first:end]
    gpu = {"gpu": record.gpu}
    if not times:
        return
    if record.kind is AuditKind.OFFERED:
        yield Series(MEMORY, {**gpu, "node": record.node}, dict.fromkeys(times, float((record.gpu_mib or 0) << 20)))
        yield Series(INFO, {**gpu, "model": record.model, "parent": record.card}, {times[0]: 1.0})
        if record.card_mib is not None:
            yield Series(CARD_MEMORY, {"gpu": record.card}, {times[0]: float(record.card_mib << 20)})
        return
    place = {"namespace": record.namespace, "pod": record.pod or record.pod_uid, "container": record.container}
    yield Series(GIVEN, {**place, **gpu}, dict.fromkeys(times, float((record.memory_mib or 0) << 20)))
