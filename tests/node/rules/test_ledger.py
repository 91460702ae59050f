"""The device IDs in use, and the evidence by which an ID counts as free."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.node.rules.ledger import (
    FREE,
    SETTLING_S,
    IdState,
    Ledger,
    Reading,
    ReleaseEvidence,
    Reservation,
    Use,
)

A0, A1, B0, WHOLE = "GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-b"
NOBODY: Mapping[str, Reading] = {}


def seen(at: float = 1000.0, **processes: int | None) -> dict[str, Reading]:
    """Processes on GPU-a and GPU-b as the driver reported them, by default later than everything else."""
    return {f"GPU-{letter}": Reading(count, at) for letter, count in processes.items()}


def evidence(
    listed: set[str] | None = None, recorded: set[str] | None = None, *, began: float = 100.0
) -> ReleaseEvidence:
    """The IDs in PodResources and in the checkpoint; by default none."""
    return ReleaseEvidence(frozenset(listed or ()), began, frozenset(recorded or ()))


def held(*names: str) -> Ledger:
    """A ledger of IDs that the kubelet's records have shown."""
    return Ledger().seen(names)


def test_in_an_empty_ledger_every_id_is_free() -> None:
    assert (Ledger().id_states, Ledger().use("GPU-a"), Ledger().certain) == ({}, FREE, True)
    assert Use() == FREE


def test_use_shows_the_shares_and_the_whole_of_each_gpu() -> None:
    ledger = held(A0, A1, "GPU-a::7", WHOLE)
    assert ledger.use("GPU-a") == Use(frozenset({0, 1, 7}))
    assert ledger.use("GPU-b") == Use(whole=True)
    assert ledger.use("GPU-c") == FREE


def test_both_uses_of_one_gpu_are_shown_if_the_kubelet_has_both() -> None:
    assert held(B0).seen([WHOLE]).use("GPU-b") == Use(frozenset({0}), whole=True)
    assert held(WHOLE).seen([B0]).use("GPU-b") == Use(frozenset({0}), whole=True)


def test_a_grant_is_remembered_with_its_time() -> None:
    assert Ledger().granted([A0, A1], 7.5).id_states == {A0: IdState(granted_at=7.5), A1: IdState(granted_at=7.5)}


def test_a_grant_of_a_held_id_is_a_new_grant() -> None:
    """The app container gets the IDs of the init container."""
    assert held(A0).granted([A0], 9.0).id_states == {A0: IdState(granted_at=9.0)}


def test_an_id_that_the_records_show_needs_no_settling() -> None:
    assert Ledger().granted([A0, B0], 7.5).seen([A0]).id_states == {A0: IdState(), B0: IdState(granted_at=7.5)}


def test_seeing_known_ids_changes_nothing() -> None:
    ledger = held(A0)
    assert ledger.seen([A0]) is ledger
    assert ledger.seen([]) is ledger


def test_certainty_is_kept_through_every_change() -> None:
    ledger = held(A0, A1).seen((), certain=False)
    assert not ledger.certain
    assert ledger.use("GPU-a") == Use(frozenset({0, 1}))
    assert ledger.seen((), certain=False) is ledger
    assert not ledger.granted([B0], 1.0).certain
    assert not ledger.seen([B0]).certain
    assert not ledger.reconciled(evidence({A0}), NOBODY, 200.0, 60.0).certain
    assert ledger.seen((), certain=True) == held(A0, A1)


@pytest.mark.parametrize(
    ("listed", "recorded"),
    [({A0}, set()), (set(), {A0}), ({A0}, {A0})],
    ids=["only PodResources", "only the checkpoint", "both"],
)
def test_an_id_stays_while_either_record_shows_it(listed: set[str], recorded: set[str]) -> None:
    """PodResources lists no init containers and is empty after a restart; a checkpoint may be old."""
    ledger = held(A0)
    assert ledger.reconciled(evidence(listed, recorded), NOBODY, 200.0, 60.0) is ledger


def test_an_id_is_free_when_both_records_omit_it() -> None:
    left = held(A0, A1, WHOLE).reconciled(evidence({A0}, {A1}), NOBODY, 200.0, 60.0)
    assert left == held(A0, A1)
    assert (left.use("GPU-a"), left.use("GPU-b")) == (Use(frozenset({0, 1})), FREE)


def test_an_id_is_free_when_the_records_show_it_only_for_an_ended_pod() -> None:
    """The checkpoint of a kubelet up to 1.31 goes on to show the pod that it admitted last."""
    records_of_131 = ReleaseEvidence(frozenset({A1}), 100.0, frozenset({A1, WHOLE}), stale=frozenset({WHOLE}))
    assert records_of_131.held == {A1}
    assert held(A1, WHOLE).reconciled(records_of_131, seen(b=0), 101.0, 60.0) == held(A1)
    waiting = held(A1, WHOLE).reconciled(records_of_131, seen(b=1), 101.0, 60.0)
    assert waiting.id_states == {A1: IdState(), WHOLE: IdState(freed_at=101.0)}
    assert waiting.reconciled(replace(records_of_131, list_began=150.0), seen(b=1), 151.0, 60.0) is waiting


def test_a_grant_is_not_confirmed_by_a_record_for_an_ended_pod() -> None:
    """The grant is of a later pod, which the records do not show yet."""
    stale = ReleaseEvidence(frozenset(), 101.0, frozenset({A0}), stale=frozenset({A0}))
    granted = Ledger().granted([A0], 100.0)
    assert granted.reconciled(stale, NOBODY, 102.0, 60.0) is granted


def test_reconciling_adds_no_ids_to_the_ledger() -> None:
    """It releases IDs. An ID that appears in the records belongs to a grant of ours, or is seen at the start."""
    assert held(A0).reconciled(evidence({A0, A1}, {B0}), NOBODY, 200.0, 60.0) == held(A0)


@pytest.mark.parametrize(
    ("began", "free"), [(99.0, False), (100.0, False), (109.9, False), (110.0, True), (500.0, True)]
)
def test_a_grant_is_only_doubted_by_a_list_that_began_ten_seconds_later(began: float, *, free: bool) -> None:
    """Granted at 100; the kubelet enters the IDs in its records after our answer, not before."""
    assert SETTLING_S == 10.0
    ledger = Ledger().granted([A0], 100.0)
    assert (A0 not in ledger.reconciled(evidence(began=began), NOBODY, 1000.0, 60.0).id_states) is free


def test_a_grant_that_the_records_have_shown_is_free_as_soon_as_they_omit_it() -> None:
    ledger = Ledger().granted([A0], 100.0).reconciled(evidence({A0}, began=100.0), NOBODY, 100.1, 60.0)
    assert ledger == held(A0)
    assert ledger.reconciled(evidence(began=101.0), NOBODY, 101.0, 60.0) == Ledger()


def test_records_read_before_a_grant_do_not_confirm_it() -> None:
    """They show the previous holder. Confirmed by them, the ID could be freed before it is settled."""
    ledger = Ledger().granted([A0], 100.0)
    for stale in (evidence({A0}, began=99.9), evidence(recorded={A0}, began=99.9)):
        assert ledger.reconciled(stale, NOBODY, 100.1, 60.0) is ledger


def test_a_gpu_that_would_be_empty_waits_for_its_processes() -> None:
    """A force-deleted pod: the kubelet frees its IDs at once, its processes end at 125."""
    start = held(A0, A1, WHOLE)
    waiting = start.reconciled(evidence(began=120.0), seen(a=2, b=0), 121.0, 60.0)
    assert waiting.id_states == {A0: IdState(freed_at=121.0), A1: IdState(freed_at=121.0)}
    assert waiting.use("GPU-b") == FREE
    assert waiting.reconciled(evidence(began=122.0), seen(a=1), 123.0, 60.0) is waiting
    assert waiting.reconciled(evidence(began=125.0), seen(a=0), 126.0, 60.0) == Ledger()


@pytest.mark.parametrize(("now", "free"), [(121.0, False), (180.9, False), (181.0, True)])
def test_processes_are_waited_for_no_longer_than_the_limit(now: float, *, free: bool) -> None:
    """First proven free at 121, longest wait 60 s."""
    waiting = held(WHOLE).reconciled(evidence(began=120.0), seen(b=1), 121.0, 60.0)
    later = waiting.reconciled(evidence(began=now), seen(b=1), now, 60.0)
    assert (later == Ledger()) is free


def test_a_wait_counts_from_the_last_id_that_was_free() -> None:
    """A second pod came and went while the first one's processes were waited for."""
    waiting = held(A0).reconciled(evidence(began=120.0), seen(a=1), 121.0, 60.0)
    both = waiting.seen([A1]).reconciled(evidence(began=150.0), seen(a=1), 151.0, 60.0)
    assert both.id_states == {A0: IdState(freed_at=121.0), A1: IdState(freed_at=151.0)}
    assert both.reconciled(evidence(began=181.0), seen(a=1), 210.9, 60.0) is both
    assert both.reconciled(evidence(began=181.0), seen(149.0, a=0), 181.0, 60.0) is both
    assert both.reconciled(evidence(began=181.0), seen(a=1), 211.0, 60.0) == Ledger()


@pytest.mark.parametrize(("began", "free"), [(90.0, False), (120.9, False), (121.0, True), (122.0, True)])
def test_only_a_reading_from_after_an_id_was_free_says_that_no_process_is_left(began: float, *, free: bool) -> None:
    """The records were read by 121. A container that began after an older reading is not in it."""
    waiting = held(A0).reconciled(evidence(began=120.0), seen(90.0, a=0), 121.0, 60.0)
    assert waiting.id_states == {A0: IdState(freed_at=121.0)}
    assert (waiting.released(seen(began, a=0), 123.0, 60.0) == Ledger()) is free
    assert (waiting.reconciled(evidence(began=122.0), seen(began, a=0), 123.0, 60.0) == Ledger()) is free


def test_a_driver_that_does_not_answer_is_waited_for_as_long_as_for_processes() -> None:
    waiting = held(A0).reconciled(evidence(began=120.0), seen(90.0, a=0), 121.0, 60.0)
    assert waiting.released(seen(90.0, a=0), 180.9, 60.0) is waiting
    assert waiting.released(seen(90.0, a=0), 181.0, 60.0) == Ledger()


def test_nothing_is_released_that_was_not_proven_free() -> None:
    ledger = held(A0).granted([B0], 100.0)
    assert ledger.released(seen(a=0, b=0), 1000.0, 0.0) is ledger


def test_a_waiting_id_is_released_when_another_id_of_its_gpu_is_granted() -> None:
    """The kubelet has since allocated another share, so no fence depends on the first one any more."""
    waiting = held(A0).reconciled(evidence(began=120.0), seen(a=1), 121.0, 60.0)
    assert waiting.granted([A1], 122.0).released(seen(a=1), 123.0, 60.0).id_states == {A1: IdState(granted_at=122.0)}


def test_a_waiting_id_that_is_granted_again_is_not_released() -> None:
    waiting = held(A0).reconciled(evidence(began=120.0), seen(a=1), 121.0, 60.0)
    again = waiting.granted([A0], 122.0)
    assert again.released(seen(a=0), 500.0, 60.0) is again
    assert again.seen([A0]).released(seen(a=0), 500.0, 60.0) == held(A0)


def test_without_waiting_processes_are_ignored() -> None:
    assert held(A0).reconciled(evidence(), seen(a=9), 101.0, 0.0) == Ledger()


def test_where_nvml_reports_no_processes_no_id_waits() -> None:
    assert held(A0).reconciled(evidence(), seen(a=None), 101.0, 60.0) == Ledger()
    assert held(A0).reconciled(evidence(), NOBODY, 101.0, 60.0) == Ledger()


def test_processes_on_a_gpu_that_stays_in_use_explain_themselves() -> None:
    """One of two shares is free; the processes may be those of the other."""
    assert held(A0, A1).reconciled(evidence({A1}), seen(a=1), 101.0, 60.0) == held(A1)


def test_a_whole_gpu_in_use_explains_processes_too() -> None:
    assert held(B0, WHOLE).reconciled(evidence({WHOLE}), seen(b=1), 101.0, 60.0) == held(WHOLE)
    assert held(B0, WHOLE).reconciled(evidence({B0}), seen(b=1), 101.0, 60.0) == held(B0)


def test_both_uses_of_a_gpu_wait_together() -> None:
    waiting = held(B0, WHOLE).reconciled(evidence(), seen(b=1), 101.0, 60.0)
    assert waiting.id_states == {B0: IdState(freed_at=101.0), WHOLE: IdState(freed_at=101.0)}


def test_every_gpu_waits_for_its_own_processes() -> None:
    waiting = held(A0, B0).reconciled(evidence(), seen(a=1, b=1), 101.0, 60.0)
    assert waiting.id_states == {A0: IdState(freed_at=101.0), B0: IdState(freed_at=101.0)}
    assert waiting.reconciled(evidence(), seen(a=1), 102.0, 60.0).id_states == {A0: IdState(freed_at=101.0)}


def test_a_wait_ends_when_the_records_show_the_id_again() -> None:
    waiting = held(A0).reconciled(evidence(), seen(a=1), 101.0, 60.0)
    assert waiting.reconciled(evidence({A0}, began=102.0), seen(a=1), 102.0, 60.0) == held(A0)


def test_one_gpu_waits_while_another_is_released() -> None:
    left = held(A0, B0).reconciled(evidence(), seen(a=1, b=0), 101.0, 60.0)
    assert left.id_states == {A0: IdState(freed_at=101.0)}
    assert left.use("GPU-a") == Use(frozenset({0}))


NAMES = st.sampled_from([f"GPU-{gpu}::{n}" for gpu in "ab" for n in range(3)] + ["GPU-a", "GPU-b", "junk", "x::y"])
SETS = st.frozensets(NAMES)
TIMES = st.floats(min_value=0, max_value=300)
READINGS = st.dictionaries(
    st.sampled_from(["GPU-a", "GPU-b"]), st.builds(Reading, st.none() | st.integers(0, 3), TIMES)
)


EVIDENCE = st.builds(ReleaseEvidence, SETS, TIMES, SETS, SETS)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    ledger = Ledger(certain=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 4))):
        ledger = ledger.granted(draw(SETS), draw(TIMES)) if draw(st.booleans()) else ledger.seen(draw(SETS))
    return ledger.reconciled(draw(EVIDENCE), draw(READINGS), draw(TIMES), 60.0)


@given(ledgers(), SETS, TIMES)
def test_granting_and_seeing_lose_nothing(ledger: Ledger, names: frozenset[str], now: float) -> None:
    assert ledger.granted(names, now).id_states.keys() == ledger.id_states.keys() | names
    assert ledger.seen(names).id_states.keys() == ledger.id_states.keys() | names


@given(ledgers(), EVIDENCE, READINGS, TIMES, st.floats(0, 100))
def test_an_id_is_freed_only_if_both_records_omit_it_and_it_is_settled(
    ledger: Ledger, evidence: ReleaseEvidence, readings: Mapping[str, Reading], now: float, wait: float
) -> None:
    left = ledger.reconciled(evidence, readings, now, wait)
    assert left.id_states.keys() <= ledger.id_states.keys()
    for name in ledger.id_states.keys() - left.id_states.keys():
        state = ledger.id_states[name]
        granted = -SETTLING_S if state.granted_at is None else state.granted_at
        assert name not in evidence.held or evidence.list_began < granted
        # An ID that newer evidence had proven free may have waited for its processes.
        assert evidence.list_began >= granted + SETTLING_S or state.freed_at is not None


@given(ledgers(), EVIDENCE, TIMES)
def test_an_id_that_both_records_omit_is_freed_once_it_is_settled_and_no_process_runs(
    ledger: Ledger, evidence: ReleaseEvidence, now: float
) -> None:
    evidence = replace(evidence, list_began=300.0 + SETTLING_S)
    left = ledger.reconciled(evidence, NOBODY, now, 60.0)
    assert left.id_states.keys() == ledger.id_states.keys() & evidence.held


@given(ledgers(), EVIDENCE, READINGS, TIMES, st.floats(0, 100))
def test_the_same_evidence_twice_changes_nothing_more(
    ledger: Ledger, evidence: ReleaseEvidence, readings: Mapping[str, Reading], now: float, wait: float
) -> None:
    once = ledger.reconciled(evidence, readings, now, wait)
    assert once.reconciled(evidence, readings, now, wait) is once


@given(ledgers())
def test_use_always_agrees_with_the_ids_held(ledger: Ledger) -> None:
    for uuid in ("GPU-a", "GPU-b", "junk"):
        shares = {int(name.partition("::")[2]) for name in ledger.id_states if name.startswith(f"{uuid}::")}
        assert ledger.use(uuid) == Use(frozenset(shares), whole=uuid in ledger.id_states)


def test_gpus_held_through_other_resources_are_unaffected_by_our_own_ids() -> None:
    ledger = Ledger().with_held_by_other_resource({"GPU-0": "nvidia.com/gpu"})
    assert ledger.with_held_by_other_resource({"GPU-0": "nvidia.com/gpu"}) is ledger
    held = ledger.seen(["GPU-1::0"])
    assert held.held_by_other_resource == {"GPU-0": "nvidia.com/gpu"}
    empty = held.reconciled(ReleaseEvidence(frozenset(), 100.0, frozenset()), {}, 100.0, 60.0)
    assert (dict(empty.id_states), empty.held_by_other_resource) == ({}, {"GPU-0": "nvidia.com/gpu"})
    assert empty.with_held_by_other_resource({}).held_by_other_resource == {}


def test_ids_that_the_kubelet_has_forgotten_stay_whatever_its_records_say() -> None:
    ledger = Ledger().with_forgotten(frozenset({"GPU-0::1"}))
    assert ledger.with_forgotten(frozenset({"GPU-0::1"})) is ledger
    assert ledger.use("GPU-0") == Use(frozenset({1}))
    nothing = ReleaseEvidence(frozenset(), 100.0, frozenset())
    still = ledger.reconciled(nothing, {}, 100.0, 0.0)
    assert still.id_states.keys() == {"GPU-0::1"}
    ended = still.with_forgotten(frozenset())
    assert ended.id_states.keys() == {"GPU-0::1"}, "until both records omit it, and its processes are gone"
    assert not ended.reconciled(nothing, {}, 101.0, 0.0).id_states


# --- The driver's readings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "used_mib", "expected"),
    [(None, None, None), (0, 99, 0), (0, 100, 1), (2, 0, 2), (2, 5000, 3), (None, 5000, 1), (None, 3, 0), (1, None, 1)],
)
def test_memory_in_use_counts_as_a_process(processes: int | None, used_mib: int | None, expected: int | None) -> None:
    """NVML does not list the processes of other PID namespaces."""
    assert Reading.of(processes, used_mib, 7.0) == Reading(expected, 7.0)


def test_ids_that_were_given_back_are_free_at_once() -> None:
    ledger = Ledger().seen(["GPU-0::0", "GPU-0::1", "GPU-1"])
    assert ledger.without(["GPU-0::0", "GPU-1", "GPU-7"]) == Ledger().seen(["GPU-0::1"])
    assert ledger.without(["GPU-0::0", "GPU-1"]).use("GPU-1") == Use()
    assert ledger.without(["GPU-7"]) is ledger


# --- guarantees beyond requests

MAIN, SIDE = ("uid-a", "main"), ("uid-a", "side")


def reservation(shares: int, *own: str) -> Reservation:
    return Reservation("GPU-a", shares, frozenset(own))


def test_a_guarantee_beyond_the_request_counts_as_used_and_has_no_number() -> None:
    ledger = held(A0, A1, B0).with_reservations({MAIN: reservation(3, A0), SIDE: reservation(1, A1)})
    assert ledger.use("GPU-a") == Use(frozenset({0, 1}), reserved=4)
    assert ledger.use("GPU-a").taken == 6
    assert ledger.use("GPU-b") == Use(frozenset({0}))
    smaller = ledger.with_reservations({MAIN: reservation(2, A0), SIDE: reservation(0, A1)})
    assert (smaller.reservations, smaller.use("GPU-a").taken) == ({MAIN: reservation(2, A0)}, 4)
    assert smaller.with_reservations(smaller.reservations) is smaller
    assert smaller.with_reservations({}) == held(A0, A1, B0)
    assert smaller.with_reservations({}).use("GPU-a") == Use(frozenset({0, 1}))


def test_it_stays_whatever_happens_to_other_ids() -> None:
    ledger = held(A0, A1).with_reservations({MAIN: reservation(3, A0)})
    for later in (
        ledger.seen([B0, "GPU-a::2"]),
        ledger.granted(["GPU-a::2"], 1.0),
        ledger.without([A1]),
        ledger.reconciled(evidence({A0}), NOBODY, 200.0, 60.0),
    ):
        assert (later.reservations, later.use("GPU-a").reserved) == ({MAIN: reservation(3, A0)}, 3)


def test_it_ends_with_the_last_id_of_its_container() -> None:
    ledger = held(A0, A1, "GPU-a::2").with_reservations({MAIN: reservation(3, A0, A1)})
    after = ledger.without([A0])
    assert (after.reservations, after.use("GPU-a")) == ({MAIN: reservation(3, A1)}, Use(frozenset({1, 2}), reserved=3))
    assert (after.without([A1]).reservations, after.without([A1]).use("GPU-a")) == ({}, Use(frozenset({2})))
    freed = ledger.reconciled(evidence({"GPU-a::2"}), NOBODY, 200.0, 60.0)
    assert (freed.reservations, freed.use("GPU-a")) == ({}, Use(frozenset({2})))


def test_an_id_given_to_another_container_is_not_its_own_any_more() -> None:
    """The kubelet knows that a pod has ended before its IDs leave the ledger."""
    ledger = held(A0, A1).with_reservations({MAIN: reservation(3, A0, A1)})
    assert ledger.granted([A0], 5.0).reservations == {MAIN: reservation(3, A1)}
    assert ledger.granted([A0], 5.0).granted([A1], 6.0).use("GPU-a") == Use(frozenset({0, 1}))
