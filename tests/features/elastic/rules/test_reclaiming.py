"""Borrowers return what others are guaranteed: the least important first, as much as is needed, and not for ever."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.elastic.rules.reclaiming import (
    ReclaimRequest,
    ReclaimState,
    allowed_now,
    borrowed,
    misdirected,
    shortage_mib,
    ultimatum,
    uses_now,
    waits,
)
from gpu_device_plugin.features.eviction.rules import next_victims
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod

GPU = "GPU-0"
SIZE = 16384
GRACE_S = 30


def holding(uid: str, mib: int = 4096, limit: int | None = None, priority: int = 0, **of_pod: str) -> ContainerGpus:
    """Return a container that is guaranteed so much, and may use up to its limit."""
    pod = Pod(uid, of_pod.get("namespace", "default"), uid, priority=priority)
    return ContainerGpus(uid, "main", {GPU: mib}, {GPU: mib}, pod=pod, limits={} if limit is None else {GPU: limit})


A, B, LOW = holding("a", limit=12288), holding("b", limit=12288), holding("low", limit=12288, priority=-1)
NEW = holding("new")


def place(uid: str) -> Place:
    return uid, "main", GPU


def step(
    before: ReclaimState,
    at: float,
    held: Sequence[ContainerGpus],
    used: Mapping[str, int | None],
    *,
    evicts: bool = False,
    starting: Sequence[str] = (),
    gpu_mib: int | None = -1,
) -> ReclaimState:
    """Return what follows from a reading in which the pods use so much, and nobody else anything."""
    read = tuple(AttributedUse(uid, "main", GPU, 0, mib) for uid, mib in used.items())
    gpu = sum(mib or 0 for mib in used.values()) if gpu_mib == -1 else gpu_mib
    reading = UseReading(at, read, {GPU: gpu})
    waits = [AttributedUse(uid, "main", GPU, 4096, 0) for uid in starting]
    uses, starters = uses_now(reading, held, waits), [use.place for use in waits]
    return before.after(reading, uses, {GPU: SIZE}, starters, grace_s=GRACE_S, evicts=evicts)


def asked(found: ReclaimState) -> dict[str, int]:
    return {uid: each.mib for (uid, _, _), each in found.requests.items()}


def test_a_borrower_is_asked_for_what_a_newcomer_lacks_until_that_is_there() -> None:
    alone = step(ReclaimState(), 1, [A], {"a": 12288})
    assert (alone.requests, alone.missing) == ({}, {})
    short = step(alone, 2, [A, NEW, B], {"a": 12288, "b": 0}, starting=["new"])
    assert short.requests == {place("a"): ReclaimRequest(place("a"), 2, 2, 4096, 8192, None, "default/new", A.pod)}
    assert short.missing == {GPU: 4096}
    less = step(short, 3, [A, NEW, B], {"a": 9000, "b": 0})
    assert (asked(less), less.requests[place("a")].since) == ({"a": 808}, 2)
    over = step(less, 4, [A, NEW, B], {"a": 8192, "b": 0})
    assert (over.at, over.requests, over.missing) == (4, {}, {})


def test_the_least_important_goes_first_and_then_who_borrows_most() -> None:
    held = [A, B, LOW, NEW]
    assert asked(step(ReclaimState(), 1, held, {"a": 4500, "b": 6000, "low": 5000})) == {
        "low": 904,
        "b": 1904,
        "a": 404,
    }
    assert asked(step(ReclaimState(), 1, held, {"a": 4500, "b": 4600, "low": 7000})) == {
        "low": 2904,
        "b": 504,
        "a": 404,
    }
    assert asked(step(ReclaimState(), 1, held, {"a": 4096, "b": 6000, "low": 5000})) == {"low": 904, "b": 1904}
    assert asked(step(ReclaimState(), 1, [A, B, LOW], {"a": 4500, "b": 2096, "low": 7788})) == {}
    assert asked(step(ReclaimState(), 1, [A, B, LOW], {"a": 4500, "b": 2096, "low": 8000})) == {"low": 212}


def test_who_was_asked_is_held_back_until_the_shortage_is_over() -> None:
    first = step(ReclaimState(), 1, [A, B, NEW], {"a": 10000, "b": 4096})
    returned = step(first, 2, [A, B, NEW], {"a": 4096, "b": 10000})
    assert asked(returned) == {"b": 1808, "a": 0}
    assert returned.requests[place("a")].since == 1
    again = step(returned, 3, [A, B, NEW], {"a": 6096, "b": 8000})
    assert asked(again) == {"b": 1808, "a": 0}  # the one that borrows most covers it


def test_where_nobody_borrows_nobody_is_asked_and_nobody_waits() -> None:
    over = holding("over")  # may not borrow, so its use is over-use
    found = step(ReclaimState(), 1, [over, NEW, holding("idle", 8192)], {"over": 9000, "idle": 0})
    assert (found.requests, found.missing) == ({}, {})


def test_more_than_borrowers_have_is_not_missing() -> None:
    over = holding("over")
    found = step(ReclaimState(), 1, [over, A, NEW], {"over": 9000, "a": 5000})
    assert (asked(found), found.missing) == ({"a": 904}, {GPU: 904})
    # It has returned all, and may not borrow again: the over-user still has what others lack.
    kept = step(found, 2, [over, A, NEW], {"over": 9000, "a": 4000})
    assert (asked(kept), kept.missing) == ({"a": 0}, {})


def test_unknown_use_is_never_asked_and_a_borrower_whose_use_becomes_unknown_is_not_evicted() -> None:
    assert step(ReclaimState(), 1, [A, NEW], {"a": None}, gpu_mib=SIZE).requests == {}
    first = step(ReclaimState(), 1, [A, NEW, B], {"a": 10000, "b": 4096}, evicts=True)
    unknown = step(first, 40, [A, NEW, B], {"a": None, "b": 4096}, evicts=True, gpu_mib=14096)
    assert unknown.requests[place("a")] == replace(first.requests[place("a")])
    assert unknown.candidates() == ()
    assert [each.pod for each in step(unknown, 41, [A, NEW, B], {"a": 10000, "b": 0}, evicts=True).candidates()] == [
        A.pod
    ]


def test_a_gpu_that_is_not_read_for_the_grace_is_forgotten() -> None:
    first = step(ReclaimState(), 1, [A, NEW], {"a": 13000}, evicts=True)
    unread = step(first, 31, [A, NEW], {}, evicts=True, gpu_mib=None)
    assert (unread.requests, unread.missing, unread.candidates()) == (first.requests, {}, ())
    assert step(unread, 32, [A, NEW], {}, evicts=True, gpu_mib=None).requests == {}


def test_a_reading_that_is_not_newer_is_ignored() -> None:
    first = step(ReclaimState(), 1, [A, NEW], {"a": 13000})
    assert step(first, 1, [A], {"a": 0}) is first


def test_who_ends_is_asked_no_more() -> None:
    first = step(ReclaimState(), 1, [A, NEW], {"a": 13000})
    assert step(first, 2, [NEW], {}, gpu_mib=13000).requests == {}


@pytest.mark.parametrize(
    ("borrower", "evicts", "until"),
    [
        (A, False, None),
        (A, True, 31),
        (replace(A, pod=None), True, None),
        (holding("a", limit=12288, namespace="kube-system"), True, None),
    ],
)
def test_its_time_ends_after_the_grace_where_it_may_be_evicted(
    borrower: ContainerGpus, until: float | None, *, evicts: bool
) -> None:
    first = step(ReclaimState(), 1, [borrower, NEW], {"a": 13000}, evicts=evicts)
    assert first.requests[place("a")].until == until
    assert first.candidates() == ()
    late = step(first, 31, [borrower, NEW], {"a": 13000}, evicts=evicts)
    assert [(each.pod.name, each.weight) for each in late.candidates()] == ([("a", 8904)] if until else [])


def test_who_was_told_the_limit_of_another_container_is_asked_and_never_evicted() -> None:
    lent = replace(holding("a"), started_mib=12288)
    for held, evicted in ((lent, True), (replace(lent, misdirected=True), False)):
        short = step(ReclaimState(), 1, [held, NEW, B], {"a": 12288, "b": 0}, evicts=True)
        assert asked(short) == {"a": 4096}
        assert (short.requests[place("a")].until is not None) is evicted


def test_who_takes_again_what_it_has_returned_has_only_what_is_left_of_its_grace() -> None:
    found, at, short_s = ReclaimState(), 0.0, 0.0
    while not found.candidates():
        borrows = at % 10 < 9  # for one reading in ten it does not, and then it does again
        found = step(found, at, [A, NEW], {"a": 13000 if borrows else 4096}, evicts=True)
        at += 1
        short_s += bool(found.missing)
        assert short_s <= GRACE_S + 2
    assert step(found, at + 1, [A, NEW], {"a": 4096}, evicts=True).candidates() == ()


def test_the_grace_of_a_pod_comes_back_ten_times_more_slowly_than_it_goes() -> None:
    first = step(ReclaimState(), 0, [A, NEW], {"a": 13000}, evicts=True)
    returned = step(first, 20, [A, NEW], {"a": 4096}, evicts=True)
    assert step(returned, 30, [A, NEW], {"a": 13000}, evicts=True).requests[place("a")].until == 30 + 30 - 19
    rested = step(returned, 219, [A, NEW], {"a": 4096}, evicts=True)
    assert rested.spent_s == {("a", GPU): pytest.approx(0.1)}
    assert step(rested, 221, [A, NEW], {"a": 13000}, evicts=True).requests[place("a")].until == 251
    # Who is never evicted owes no more than a grace later.
    reported = step(step(ReclaimState(), 0, [A, NEW], {"a": 13000}), 500, [A, NEW], {"a": 4096})
    assert reported.spent_s == {("a", GPU): 30}


def test_the_containers_of_a_pod_have_one_grace() -> None:
    other = replace(A, container="other")
    reading = [AttributedUse("a", "main", GPU, 0, 13000), AttributedUse("a", "other", GPU, 0, 0)]
    held = [A, other, NEW]

    def read(before: ReclaimState, at: float, main: int, other: int) -> ReclaimState:
        uses = tuple(replace(use, used_mib=mib) for use, mib in zip(reading, (main, other), strict=True))
        now = UseReading(at, uses, {GPU: main + other})
        return before.after(now, uses_now(now, held), {GPU: SIZE}, grace_s=GRACE_S, evicts=True)

    moved = read(read(ReclaimState(), 0, 13000, 0), 20, 0, 13000)
    assert moved.requests["a", "other", GPU].until == 30


def test_who_withdraws_its_limit_has_to_return_what_it_was_lent() -> None:
    """With the limit that it started with it borrowed; without one it would only be reported."""
    withdrawn = holding("a")
    assert asked(step(ReclaimState(), 1, [withdrawn, NEW], {"a": 13000}, evicts=True)) == {}
    assert asked(step(ReclaimState(), 1, [replace(withdrawn, started_mib=12288), NEW], {"a": 13000}, evicts=True)) == {
        "a": 712
    }
    first = step(ReclaimState(), 1, [A, NEW], {"a": 13000}, evicts=True)
    late = step(first, 31, [withdrawn, NEW], {"a": 13000}, evicts=True)
    assert [each.pod for each in late.candidates()] == [A.pod]
    assert step(first, 31, [withdrawn, NEW], {"a": 13000}).missing == {}


def test_it_is_needed_by_who_waits_longest_then_by_who_lacks_most() -> None:
    held = [A, NEW, holding("idle", 6144), holding("full", 2048)]
    used = {"a": 11000, "idle": 0, "full": 2048}

    def needed_by(held: Sequence[ContainerGpus], *starting: str) -> str:
        return step(ReclaimState(), 1, held, used, starting=starting).requests[place("a")].needed_by

    assert needed_by(held) == "default/idle"
    assert needed_by(held, "new") == "default/new"
    assert needed_by([*held, holding("newer")], "newer", "new") == "default/newer"
    assert needed_by([*held, holding("newer")], "unknown", "new") == ""  # the checkpoint does not show it yet
    assert needed_by([A, replace(NEW, pod=None), holding("full", 9000)]) == "default/full"


# --- Any history ------------------------------------------------------------------------------------------------------

_AMOUNTS = st.integers(0, 9000)
_HOLDINGS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8), st.integers(-1, 1)), min_size=1, max_size=4).map(
    lambda drawn: [holding(f"p{n}", g * 1024, (g + more) * 1024, prio) for n, (g, more, prio) in enumerate(drawn)]
)


@given(_HOLDINGS, st.lists(st.lists(st.one_of(st.none(), _AMOUNTS), min_size=4, max_size=4), min_size=1, max_size=8))
def test_who_is_asked_borrows_and_covers_the_shortage_in_order(
    held: list[ContainerGpus], history: list[list[int | None]]
) -> None:
    found = ReclaimState()
    for at, used in enumerate(history):
        before = found
        amounts = {each.pod_uid: mib for each, mib in zip(held, used, strict=False)}
        found = step(before, at, held, amounts)
        uses = uses_now(
            UseReading(at, tuple(AttributedUse(uid, "main", GPU, 0, mib) for uid, mib in amounts.items())), held
        )[GPU]
        short = shortage_mib(uses, sum(mib or 0 for mib in amounts.values()), SIZE)
        borrowed = {use.place: use.borrowed_mib for use in uses}
        due = min(short, sum(borrowed.values()))
        assert found.missing == ({GPU: due} if due else {})
        if not short:
            assert found.requests == {}
            continue
        assert before.requests.keys() <= found.requests.keys()  # asked stays asked
        new = found.requests.keys() - before.requests.keys()
        assert all(borrowed[each] for each in new)  # never within the guarantee, never unknown
        certain = {each: one for each, one in found.requests.items() if one.seen == at}
        assert all(one.mib <= borrowed[each] for each, one in certain.items())
        assert sum(one.mib for one in certain.values()) == due  # what is asked for covers it exactly
        order = sorted((use.pod.priority if use.pod else 0, -borrowed[use.place], use.place) for use in uses)
        passed_over = [each for *_, each in order if borrowed[each] and each not in found.requests]
        if new and passed_over:
            rank = {each: n for n, (*_, each) in enumerate(order)}
            assert max(rank[each] for each in new) < min(rank[each] for each in passed_over)
        now = allowed_now({GPU: uses}, {GPU: SIZE}, found.requests.keys())
        assert all(
            now[use.place] == min(use.allowed_mib, use.granted_mib) for use in uses if use.place in found.requests
        )


@given(_HOLDINGS, st.lists(_AMOUNTS, min_size=4, max_size=4), st.integers(1, 5), st.data())
def test_with_evictions_no_guarantee_suffers_longer_than_the_grace_and_a_reading_for_each_that_refuses(
    held: list[ContainerGpus], used: list[int], every_s: int, data: st.DataObject
) -> None:
    """Some borrowers return what they are asked for, at some time; the others never."""
    amounts = {each.pod_uid: mib for each, mib in zip(held, used, strict=False)}
    helpful = data.draw(st.sets(st.sampled_from([each.pod_uid for each in held])))
    found, at, evicted = ReclaimState(), 0.0, 0
    while True:
        found = step(found, at, held, amounts, evicts=True)
        if not found.missing:
            break
        assert at <= GRACE_S + every_s * (1 + evicted)
        for uid, _, _ in list(found.requests):
            if uid in helpful and data.draw(st.booleans()):
                amounts[uid] -= found.requests[place(uid)].mib
        victims = next_victims(found.candidates(), most_grace_s=60, going={})
        assert len(victims) <= 1
        for uid in victims:
            assert amounts[uid] > next(each for each in held if each.pod_uid == uid).granted[GPU] or uid in helpful
            held = [each for each in held if each.pod_uid != uid]
            del amounts[uid]
            evicted += 1
        if not held:
            break
        at += every_s


NB = Pod("u", "default", "nb-2")


LADDER = ReclaimRequest(("u", "main", "GPU-0"), 100, 110, 3072, 8192, 130, "default/new", NB)


def test_a_borrower_is_told_how_much_is_needed_for_whom() -> None:
    told = "container main borrows 8,192 MiB of GPU 0 beyond its guarantee, of which 3,072 MiB are needed"
    assert borrowed(LADDER, "GPU 0") == f"{told} for default/new"
    assert borrowed(replace(LADDER, needed_by=""), "GPU 0") == told
    assert borrowed(replace(LADDER, needed_by="secret/new"), "GPU 0") == f"{told} for another pod"
    assert borrowed(replace(LADDER, pod=None), "GPU 0") == f"{told} for another pod"


@pytest.mark.parametrize(
    ("asked", "evicts", "told"),
    [
        (LADDER, True, "it may be evicted in 18 s"),
        (replace(LADDER, until=112), True, "it will be evicted"),
        (replace(LADDER, until=None, pod=None), True, "it is not evicted: it is not known in the API"),
        (replace(LADDER, until=None), True, "it is not evicted: it was told the limit of another container"),
        (replace(LADDER, until=None), False, "it is not evicted, because the setting borrowers is report"),
    ],
)
def test_a_borrower_is_told_what_will_happen(asked: ReclaimRequest, told: str, *, evicts: bool) -> None:
    assert ultimatum(asked, 112, evicts=evicts) == told


def test_who_waits_is_told_for_whom_and_what_will_happen() -> None:
    assert waits(3072, "GPU 0", [LADDER], 112, "default") == (
        "waits for 3 GiB that default/nb-2 borrows of GPU 0, asked to return 12 s ago; it may be evicted in 18 s"
    )
    unknown = replace(LADDER, pod=None, mib=4096, until=None)
    assert waits(7168, "GPU 0", [LADDER, unknown], 112, "default") == (
        "waits for 7 GiB that another pod and 1 other borrow of GPU 0, asked to return 12 s ago; "
        "it is not evicted: it is not known in the API"
    )
    assert waits(3072, "GPU 0", [LADDER], 112, "other").startswith("waits for 3 GiB that another pod borrows")


def told_wrongly(
    pod: Pod, started_mib: int | None = 10240, enforcement: Enforcement = Enforcement.ADVISORY
) -> ContainerGpus:
    own = {"GPU-0": 4096}
    return ContainerGpus(
        "u", "main", own, own, enforcement=enforcement, pod=pod, started_mib=started_mib, misdirected=True
    )


def test_who_has_the_variables_of_another_container_is_told_which_and_what_its_own_are() -> None:
    """Names of other namespaces are not told; of two that are told the same nothing is."""
    near, far = Pod("v", "default", "a", annotations={MEMORY_LIMIT: "10"}), Pod("v", "secret", "a")
    note = misdirected(told_wrongly(NB), "first", near)
    assert note.startswith(
        "container main was started with the variables of container first of default/a (a limit of 10,240 MiB, and its "
        "own is 4,096 MiB): the kubelet does not say which pod it asks for"
    )
    for pod, meant in ((NB, far), (NB, None)):
        assert misdirected(told_wrongly(pod), "first", meant).startswith(
            "container main was started with the variables of a container of another pod (a limit of 10,240 MiB"
        )
    assert "of another pod: the kubelet" in misdirected(told_wrongly(NB, 4096), "first", far)
    twin = replace(NB, uid="v", name="nb-3")
    for meant in (twin, None):
        assert misdirected(told_wrongly(NB, 4096), "main", meant) == ""
        assert misdirected(told_wrongly(NB, 4096, Enforcement.CUSTOM), "main", meant)
