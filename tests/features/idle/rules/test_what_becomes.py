"""Idle pods are told first; what they were told happens after the warning, unless they are used."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.idle.rules import (
    TRUSTED_S,
    IdlePod,
    Warned,
    WhenIdle,
    due,
    idle_pod,
    idle_since,
    replicas_before,
    trusted,
    warned_after,
    warning,
)
from gpu_device_plugin.kubernetes.writers.workloads import Workload
from gpu_device_plugin.model.contract.keys import IDLE_SINCE, REPLICAS_BEFORE_IDLE, WHEN_IDLE
from gpu_device_plugin.model.pods import Owner, Pod

SINCE, LATER = "2026-11-22T09:56:00Z", "2026-11-22T10:56:00Z"
OWNER = Owner("ReplicaSet", "web-1", "u-rs", "apps/v1")
POD = Pod("u", "default", "web", phase="Running", annotations={IDLE_SINCE: SINCE}, owner=OWNER)


def wanting(text: str | None, pod: Pod = POD) -> Pod:
    return pod if text is None else replace(pod, annotations={**pod.annotations, WHEN_IDLE: text})


def idle(action: WhenIdle = WhenIdle.EVICT, *, uid: str = "u", since: str = SINCE, why_not: str = "") -> IdlePod:
    return IdlePod(replace(POD, uid=uid), since, action, why_not)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (POD, SINCE),
        (replace(POD, annotations={}), ""),
        (replace(POD, annotations={IDLE_SINCE: "a while ago"}), ""),
        (replace(POD, deleting=True), ""),
        (replace(POD, phase="Succeeded"), ""),
    ],
)
def test_a_pod_is_idle_while_its_agent_says_so_and_it_runs(pod: Pod, expected: str) -> None:
    assert idle_since(pod) == expected


@pytest.mark.parametrize(
    ("own", "namespace", "action"),
    [
        (None, None, WhenIdle.REPORT),
        (None, "evict", WhenIdle.EVICT),
        ("scale-to-zero", "evict", WhenIdle.SCALE_TO_ZERO),
        ("report", "evict", WhenIdle.REPORT),
        ("", "evict", WhenIdle.EVICT),
    ],
)
def test_the_pods_own_wish_goes_before_that_of_its_namespace(
    own: str | None, namespace: str | None, action: WhenIdle
) -> None:
    annotations = {} if namespace is None else {WHEN_IDLE: namespace}
    pod = wanting(own)
    assert idle_pod(pod, annotations) == IdlePod(pod, SINCE, action)


def test_a_word_that_is_none_does_nothing_and_is_told() -> None:
    found = idle_pod(wanting("scale-to-0"), {})
    why = "gpu-device-plugin/when-idle='scale-to-0' is none of report, evict, scale-to-zero"
    assert (found.action, found.why_not) == (WhenIdle.REPORT, why)
    assert warning(found, LATER) == f"is idle since {SINCE}, and is left alone: {why}"
    after, told = warned_after({}, [found], 0.0, 10)
    assert (list(after), told, due(after, [found], 1e9, 0.0)) == (["u"], [found], [])


def test_pods_that_are_never_evicted_and_those_that_nothing_owns_are_told_so() -> None:
    system = replace(POD, namespace="kube-system")
    bare = replace(POD, owner=None)
    assert "kube-system" in idle_pod(wanting("evict", system), {}).why_not
    assert "kube-system" in idle_pod(wanting("scale-to-zero", system), {}).why_not
    assert idle_pod(wanting("scale-to-zero", bare), {}).why_not == (
        "no controller owns it, so there is nothing to scale"
    )
    assert idle_pod(wanting("evict", bare), {}).why_not == ""
    assert idle_pod(system, {}).why_not == ""


def test_a_warning_says_what_will_happen_and_when() -> None:
    evicted, scaled = idle(), idle(WhenIdle.SCALE_TO_ZERO)
    keeps = "unless it uses its GPUs before then; gpu-device-plugin/when-idle=report on the pod keeps it"
    assert warning(evicted, LATER) == f"is idle since {SINCE}, and is evicted at {LATER}, {keeps}"
    bare = replace(evicted, pod=replace(POD, owner=None))
    assert warning(bare, LATER) == (
        f"is idle since {SINCE}, and is evicted at {LATER}, and nothing recreates it, as no controller owns it, {keeps}"
    )
    assert warning(scaled, LATER) == (
        f"is idle since {SINCE}, and its workload is scaled to zero at {LATER} if all of its pods are idle then, "
        f"{keeps}"
    )


def test_a_pod_is_told_once_and_anew_when_it_was_used_or_something_else_is_wanted() -> None:
    first, told = warned_after({}, [idle()], 10.0, 5)
    assert (first, told) == ({"u": Warned(SINCE, WhenIdle.EVICT, 10.0)}, [idle()])
    assert warned_after(first, [idle()], 20.0, 5) == (first, [])
    for changed in (idle(since=LATER), idle(WhenIdle.SCALE_TO_ZERO)):
        after, told = warned_after(first, [changed], 20.0, 5)
        assert (after["u"].at, told) == (20.0, [changed])
    assert warned_after(first, [], 20.0, 5) == ({}, [])
    assert warned_after(first, [idle(WhenIdle.REPORT)], 20.0, 5) == ({}, [])


def test_only_so_many_are_told_at_a_time_the_longest_idle_first() -> None:
    pods = [idle(uid="a", since=LATER), idle(uid="b"), idle(uid="c")]
    after, told = warned_after({}, pods, 0.0, 2)
    assert (list(after), [each.pod.uid for each in told]) == (["b", "c"], ["b", "c"])
    after, told = warned_after(after, pods, 1.0, 2)
    assert (sorted(after), [each.pod.uid for each in told]) == (["a", "b", "c"], ["a"])


def test_it_is_due_after_the_warning_and_never_without_one() -> None:
    warned = {"u": Warned(SINCE, WhenIdle.EVICT, 10.0)}
    assert due(warned, [idle()], 69.9, 60.0) == []
    assert due(warned, [idle()], 70.0, 60.0) == [idle()]
    assert due({}, [idle()], 1e9, 0.0) == []


_STEPS = st.lists(
    st.tuples(
        st.floats(1, 40),
        st.dictionaries(
            st.sampled_from("abc"), st.tuples(st.sampled_from([SINCE, LATER]), st.sampled_from(WhenIdle)), max_size=3
        ),
    ),
    max_size=15,
)


@given(_STEPS)
def test_nothing_happens_to_a_pod_that_was_not_told_just_that_for_the_whole_warning(
    steps: list[tuple[float, Mapping[str, tuple[str, WhenIdle]]]],
) -> None:
    now, warned = 0.0, dict[str, Warned]()
    held: dict[str, tuple[tuple[str, WhenIdle], float]] = {}
    for seconds, found in steps:
        now += seconds
        pods = [idle(action, uid=uid, since=since) for uid, (since, action) in found.items()]
        after, told = warned_after(warned, pods, now, 1)
        warned = dict(after)
        told_now = {each.pod.uid for each in told}
        # The oracle: for how long each pod has been told the same without interruption.
        held = {
            uid: held[uid] if uid in held and held[uid][0] == found[uid] else (found[uid], now)
            for uid in found
            if uid in told_now or (uid in held and held[uid][0] == found[uid])
        }
        for each in due(warned, pods, now, 30.0):
            told_what, at = held[each.pod.uid]
            assert (told_what, each.action is not WhenIdle.REPORT) == ((each.since, each.action), True)
            assert now - at >= 30.0


@pytest.mark.parametrize(
    ("read_at", "expected"), [(None, False), (1000.0 - TRUSTED_S, True), (999.9 - TRUSTED_S, False), (1001.0, True)]
)
def test_an_agent_that_has_been_silent_for_long_is_not_trusted(read_at: float | None, *, expected: bool) -> None:
    assert trusted(read_at, 1000.0) is expected


@pytest.mark.parametrize(
    ("replicas", "running", "idle_pods", "why"),
    [
        (2, 2, 2, ""),
        (2, 2, 1, "1 of the pods of Deployment web is not idle"),
        (2, 4, 2, "2 of the pods of Deployment web are not idle"),
        (3, 1, 1, "2 of the pods of Deployment web are not idle"),
        (0, 1, 1, "Deployment web is scaled to zero already"),
        (1, 1, 2, ""),
    ],
)
def test_a_workload_is_scaled_to_zero_when_all_of_its_pods_are_idle(
    replicas: int, running: int, idle_pods: int, why: str
) -> None:
    assert Workload("Deployment", "web", replicas, running).why_not(idle_pods) == why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3),
        ("0", None),
        ("", None),
        ("-1", None),
        ("three", None),
        ("٣", None),
        ("9" * 9, 999_999_999),
        ("9" * 10, None),
    ],
)
def test_the_replicas_before_are_a_number_above_zero(text: str, expected: int | None) -> None:
    assert replicas_before({REPLICAS_BEFORE_IDLE: text}) == expected
    assert replicas_before({}) is None
