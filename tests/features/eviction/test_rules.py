"""One pod at a time leaves a GPU, the least important first; some pods are never evicted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.eviction.rules import CRITICAL_PRIORITY, Candidate, next_victims, spared
from gpu_device_plugin.model.pods import Pod


def pod(uid: str, priority: int = 0, **rest: object) -> Pod:
    return replace(Pod(uid, "default", uid, priority=priority), **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "it is not known in the API"),
        (pod("a", static_uid="hash"), "it is a static pod, which its kubelet would start again"),
        (pod("a", namespace="kube-system"), "it is in the namespace kube-system"),
        (pod("a", CRITICAL_PRIORITY), "its priority of 2000000000 is that of a critical pod"),
        (pod("a", CRITICAL_PRIORITY - 1), ""),
        (pod("a"), ""),
    ],
)
def test_some_pods_are_never_evicted(found: Pod | None, why: str) -> None:
    assert spared(found) == why
    if found is not None:
        assert bool(next_victims([Candidate(found, "g")], most_grace_s=30, going={})) is not bool(why)


def first(*candidates: Candidate, **how: object) -> list[str]:
    return list(next_victims(candidates, **{"most_grace_s": 30, "going": {}, **how}))  # type: ignore[arg-type]


def test_the_lowest_priority_goes_first_then_the_largest_excess_then_the_uid() -> None:
    a, b, c = pod("a", 10), pod("b"), pod("c")
    assert first(Candidate(a, "g", 9000), Candidate(b, "g", 10), Candidate(c, "g", 20)) == ["c"]
    assert first(Candidate(a, "g", 9000), Candidate(b, "g", 10)) == ["b"]
    assert first(Candidate(c, "g", 10), Candidate(b, "g", 10)) == ["b"]


def test_one_pod_on_each_gpu_and_a_pod_only_once() -> None:
    a, b, c = pod("a"), pod("b"), pod("c")
    both = [Candidate(a, "g", 9), Candidate(a, "h", 1), Candidate(b, "h", 5), Candidate(c, "i")]
    assert next_victims(both, most_grace_s=30, going={}) == {"a": (a, frozenset("gh")), "c": (c, frozenset("i"))}


def test_a_pod_that_is_on_its_way_holds_up_its_gpus_alone() -> None:
    there = [Candidate(pod("b"), "g"), Candidate(pod("c"), "h")]
    assert first(*there, going={"x": frozenset("g")}) == ["c"]
    assert first(*there, Candidate(pod("a", deleting=True), "g")) == ["c"]
    assert first(*there, going={"b": frozenset()}) == ["c"], "it was ordered for another GPU"


def test_a_pod_whose_owner_deletes_it_with_years_to_end_is_evicted() -> None:
    """It ignores SIGTERM, and would keep its GPU busy, so that nobody there was evicted."""
    years = pod("a", deleting=True, grace_s=10**9)
    assert first(Candidate(years, "g"), Candidate(pod("b", 1), "g")) == ["a"]
    assert first(Candidate(replace(years, grace_s=30), "g"), Candidate(pod("b", 1), "g")) == []


def test_a_pod_that_should_have_ended_keeps_no_gpu_busy_and_is_not_evicted_again() -> None:
    late, other = pod("a", deleting=True), pod("b", 1)
    assert first(Candidate(late, "g"), Candidate(other, "g"), overdue={"a"}) == ["b"]
    assert first(Candidate(replace(late, deleting=False), "g"), overdue={"a"}) == []


def test_a_pod_that_was_refused_lets_the_next_go() -> None:
    assert first(Candidate(pod("a"), "g"), Candidate(pod("b", 5), "g"), put_off={"a"}) == ["b"]


def test_a_pod_that_has_ended_is_not_evicted() -> None:
    assert first(Candidate(pod("a", phase="Failed"), "g"), Candidate(pod("b", 1), "g")) == ["b"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"),
            st.sampled_from("ghij"),
            st.integers(0, 3),
            st.sampled_from([None, 0, 30, 31, 10**9]),
        ),
        max_size=12,
    ),
    st.dictionaries(st.sampled_from("abcxyz"), st.frozensets(st.sampled_from("ghij")), max_size=3),
    st.frozensets(st.sampled_from("abcdef")),
    st.frozensets(st.sampled_from("def")),
)
def test_no_gpu_ever_loses_two_pods_at_once(
    listed: list[tuple[str, str, int, int | None]],
    going: dict[str, frozenset[str]],
    put_off: frozenset[str],
    overdue: frozenset[str],
) -> None:
    pods = {
        uid: pod(uid, ord(uid) % 3, deleting=grace_s is not None, grace_s=grace_s or 0) for uid, _, _, grace_s in listed
    }
    candidates = [Candidate(pods[uid], gpu, weight) for uid, gpu, weight, _ in listed]
    victims = next_victims(candidates, most_grace_s=30, going=going, put_off=put_off, overdue=overdue)
    leaving = [gpu for _, gpus in victims.values() for gpu in gpus]
    assert len(leaving) == len(set(leaving))
    assert not set(leaving) & {gpu for gpus in going.values() for gpu in gpus}
    assert not victims.keys() & (put_off | going.keys() | overdue)
    assert not any(found.deleting and found.grace_s <= 30 for found, _ in victims.values())
    # And the other way round: whoever was not chosen had a reason.
    busy = {gpu for gpus in going.values() for gpu in gpus} | set(leaving)
    candidates = [each for each in candidates if each.pod.uid not in overdue]
    busy |= {
        each.uuid for each in candidates if (each.pod.deleting and each.pod.grace_s <= 30) or each.pod.uid in going
    }
    wanted = {uid: {each.uuid for each in candidates if each.pod.uid == uid} for uid in pods}
    assert all(wanted[each.pod.uid] & busy or each.pod.uid in put_off for each in candidates)
