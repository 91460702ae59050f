"""Audit records say who had what, and when nobody recorded."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from gpu_device_plugin.core.cost import (
    CARD_MEMORY,
    GIVEN,
    INFO,
    MEMORY,
    POD_OWNER,
    Holder,
    Part,
    Period,
    Series,
    account,
    owners,
    recorded,
)
from gpu_device_plugin.features.audit.contract import AuditKind, AuditRecord
from gpu_device_plugin.model.times import rfc3339
from tests.core.cost.histories import GIB

DAY = Period(0, 86400, 3600)
GPU = AuditRecord(AuditKind.OFFERED, "n1", gpu="a", model="T4", gpu_mib=16384)
POD = AuditRecord(
    AuditKind.GRANTED, "n1", "ml", "web", "u", "Deployment", "web", "main", "a", "T4", shares=4, share_mib=1024,
    memory_mib=4096, whole=False,
)  # fmt: skip


def at(hour: float) -> str:
    return rfc3339(hour * 3600)


def started(away: float | None, hour: float, node: str = "n1") -> AuditRecord:
    return AuditRecord(AuditKind.STARTED, node, began="" if away is None else at(away), ended=at(hour))


def hours(*records: AuditRecord) -> dict[tuple[str, str], Fraction]:
    found = account([*recorded(records, DAY), *owners(records)], DAY)
    return {(key.holder.pod, str(part)): seconds / 3600 for (key, part), seconds in found.parts.items()}


def ended(record: AuditRecord, hour: float) -> AuditRecord:
    return replace(record, kind=AuditKind.ENDED, ended=at(hour))


def test_a_pod_has_its_part_from_its_grant_to_its_end() -> None:
    grant = replace(POD, began=at(2))
    assert hours(started(None, 0), replace(GPU, began=at(0)), grant, ended(grant, 6), started(24, 24)) == {
        ("web", "unmeasured"): Fraction(1), ("", "free"): Fraction(23),
    }  # fmt: skip


def test_a_guarantee_counts_as_it_was_at_each_time() -> None:
    grant = replace(POD, began=at(0))
    grown = replace(grant, kind=AuditKind.RESIZED, memory_mib=8192, before=4, began=at(12))
    found = hours(replace(GPU, began=at(0)), grant, grown, ended(grown, 24))
    assert found["web", "unmeasured"] == Fraction(12, 4) + Fraction(12, 2)


def test_while_no_agent_recorded_nothing_is_given_to_anybody() -> None:
    """The agent was away from 6 to 12 o'clock; the pod that it finds may be there longer."""
    grant, again = replace(POD, began=at(0)), replace(POD, kind=AuditKind.FOUND, began=at(12))
    found = hours(
        replace(GPU, began=at(0)), grant, started(6, 12), replace(GPU, began=at(12)), again, ended(again, 24),
    )  # fmt: skip
    assert found["", "unobserved"] == 6
    assert found["web", "unmeasured"] == Fraction(18, 4)


def test_an_agent_that_does_not_know_since_when_was_away_since_the_last_record() -> None:
    alive = AuditRecord(AuditKind.ALIVE, "n1", began=at(24))
    found = hours(replace(GPU, began=at(0)), replace(POD, began=at(3)), started(None, 12), replace(GPU, began=at(12)),
                  alive)  # fmt: skip
    assert (found["", "unobserved"], found["", "free"]) == (Fraction(9), Fraction(15))


def test_nothing_is_known_after_the_newest_record() -> None:
    found = hours(replace(GPU, began=at(0)), replace(POD, began=at(6)))
    assert found == {("", "free"): Fraction(6), ("", "unobserved"): Fraction(18)}


def test_a_node_that_never_returns_has_nothing_after_its_own_newest_record() -> None:
    alive = AuditRecord(AuditKind.ALIVE, "n1", began=at(9))
    found = hours(replace(GPU, began=at(0)), replace(POD, began=at(6)), alive, started(24, 24, "other"))
    assert found["web", "unmeasured"] == Fraction(3, 4)
    assert found["", "unobserved"] == 15


def test_a_mig_instance_is_a_part_of_its_card_and_a_pod_without_name_goes_by_its_uid() -> None:
    there = replace(GPU, card="c", card_mib=65536, began=at(0))
    found = account([*recorded([there, replace(POD, pod="", began=at(0)), ended(POD, 24)], DAY)], DAY)
    assert {(key.holder, part): seconds / 3600 for (key, part), seconds in found.parts.items()} == {
        (Holder("ml", pod="u"), Part.UNMEASURED): Fraction(24, 16),
        (Holder(), Part.FREE): Fraction(24 * 3, 16),
        (Holder(), Part.STRANDED): Fraction(24 * 3, 4),
    }


def test_owners_are_those_of_the_records() -> None:
    names = {"namespace": "ml", "pod": "web", "owner_kind": "Deployment", "owner_name": "web"}
    assert list(owners([POD, GPU])) == [Series(POD_OWNER, names, {0: 1.0})]


def test_the_series_are_those_that_prometheus_would_have() -> None:
    there = replace(GPU, card="c", card_mib=65536, began=at(22))
    place = {"namespace": "ml", "pod": "web", "container": "main", "gpu": "a"}
    assert list(recorded([there, replace(POD, began=at(22)), ended(POD, 24)], DAY)) == [
        Series(GIVEN, place, dict.fromkeys((79200, 82800), 4.0 * GIB)),
        Series(MEMORY, {"node": "n1", "gpu": "a"}, dict.fromkeys((79200, 82800), 16.0 * GIB)),
        Series(INFO, {"gpu": "a", "model": "T4", "parent": "c"}, {79200: 1.0}),
        Series(CARD_MEMORY, {"gpu": "c"}, {79200: 64.0 * GIB}),
    ]


def test_a_record_without_an_amount_is_of_nothing() -> None:
    there, grant = replace(GPU, began=at(0)), replace(POD, memory_mib=None, began=at(0))
    assert hours(there, grant, ended(grant, 24)) == {("", "free"): Fraction(24)}
    assert hours(replace(there, gpu_mib=None), grant, ended(grant, 24)) == {}


def test_a_record_without_a_time_says_nothing_about_the_past() -> None:
    assert list(recorded([POD, AuditRecord(AuditKind.MOVED, "n1", began="soon")], DAY)) == []


def test_evictions_and_moves_change_nothing_by_themselves() -> None:
    grant = replace(POD, began=at(0))
    evicted = replace(grant, kind=AuditKind.EVICTED, began=at(3))
    assert hours(replace(GPU, began=at(0)), grant, evicted, ended(grant, 24))["web", "unmeasured"] == 6


def test_instances_that_were_made_anew_are_not_there_twice() -> None:
    there = replace(GPU, card="c", card_mib=32768, began=at(0))
    gone = replace(there, kind=AuditKind.WITHDRAWN, ended=at(12))
    others = [replace(there, gpu=name, gpu_mib=8192, began=at(12)) for name in ("b1", "b2")]
    grant = replace(POD, gpu="b1", memory_mib=8192, began=at(12))
    assert hours(there, gone, *others, grant, ended(grant, 24)) == {
        ("web", "unmeasured"): Fraction(12, 4), ("", "free"): Fraction(12, 2) + Fraction(12, 4),
        ("", "stranded"): Fraction(12),
    }  # fmt: skip


def test_what_is_listed_in_the_second_of_a_start_is_there_in_whatever_order_it_comes() -> None:
    there, grant = replace(GPU, began=at(6)), replace(POD, kind=AuditKind.FOUND, began=at(6))
    assert hours(ended(grant, 24), grant, there, started(None, 6)) == {
        ("web", "unmeasured"): Fraction(18, 4), ("", "free"): Fraction(18 * 3, 4), ("", "unobserved"): Fraction(6),
    }  # fmt: skip


def test_a_record_counts_at_the_times_of_the_period_from_its_beginning_to_before_its_end() -> None:
    for began, until in ((0, 1), (0.5, 1), (1, 1.5), (-3, 2), (22.5, 30), (-2, -1), (25, 26), (3, 2)):
        there = replace(GPU, began=at(began + 48), ended="")
        gone = replace(there, kind=AuditKind.WITHDRAWN, ended=at(until + 48))
        period = Period(2 * 86400, 3 * 86400, 3600)
        found = [time for each in recorded([there, gone], period) if each.name == MEMORY for time in each.values]
        expected = [time for time in period.times if began <= time / 3600 - 48 < until]
        assert found == expected


def test_a_life_sign_of_a_clock_that_was_ahead_gives_nobody_time_after_the_start_of_the_next_agent() -> None:
    found = hours(
        replace(GPU, began=at(0)), replace(POD, began=at(0)), started(20, 6), replace(GPU, began=at(6)),
        started(24, 24),
    )  # fmt: skip
    assert found == {("web", "unmeasured"): Fraction(6, 4), ("", "free"): Fraction(24) - Fraction(6, 4)}
