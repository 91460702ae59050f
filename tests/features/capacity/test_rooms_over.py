"""Which held room is over: that whose replacement is bound, and that which no pod waits for."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import pytest

from gpu_device_plugin.features.capacity.contract import HeldRoom
from gpu_device_plugin.features.capacity.held_room import over_rooms
from gpu_device_plugin.model.pods import Owner, Pod
from gpu_device_plugin.scheduler.cluster_state import FleetEntry
from gpu_device_plugin.scheduler.rules.usage import Usage

HELD_AT, CREATED, BEFORE = 1_764_410_400.4, "2025-11-29T10:00:00Z", "2025-11-29T09:59:59Z"


def room(uid: str = "p", *gpus: int, owner: str = "rs", since_s: float | None = HELD_AT) -> HeldRoom:
    return HeldRoom(uid, "team", owner, tuple((gpu, 4) for gpu in gpus or (0,)), HELD_AT + 330, since_s)


def bound(
    *gpus: int, created: str = CREATED, owner: str = "rs", namespace: str = "team", uid: str = "new", node: str = "a"
) -> FleetEntry:
    usage = Usage(tuple((gpu, 1) for gpu in gpus or (0,)))
    return FleetEntry(uid, namespace, uid, node, usage, owner=owner, created=created)


def waiting(owner: str = "rs", namespace: str = "team") -> Pod:
    return Pod("w", namespace, "w", owner=Owner("ReplicaSet", "x", owner, "apps/v1"))


def taken(
    rooms: Iterable[HeldRoom], pods: Iterable[FleetEntry], wait: Iterable[Pod] = (), leave: Collection[str] = ()
) -> list[str]:
    """Return the pods whose room on `a` is over: the replacement is bound; `leave` are those that end or have gone."""
    return [*over_rooms({each.uid: ("a", each) for each in rooms}, pods, wait, leave.__contains__)[0]]


def unclaimed(rooms: Iterable[HeldRoom], wait: Iterable[Pod], leave: Collection[str] = ()) -> Sequence[HeldRoom]:
    return over_rooms({each.uid: ("a", each) for each in rooms}, (), wait, leave.__contains__)[1]


def test_room_is_taken_by_a_pod_of_its_controller_that_was_made_since_it_is_held() -> None:
    """The API server says when a pod was made in whole seconds."""
    assert taken([room()], [bound()]) == ["p"]
    assert taken([room("p", 0, 1)], [bound(1)]) == ["p"], "it asks for less by now"


def test_no_other_pod_takes_it() -> None:
    for other in (
        bound(created=BEFORE),
        bound(created="soon"),
        bound(owner="other"),
        bound(namespace="other"),
        bound(uid="p"),
    ):
        assert taken([room()], [other], leave={"p"}) == [], other
    assert taken([room(since_s=None)], [bound()], leave={"p"}) == [], "who wrote it did not say since when it is held"


ELSEWHERE = {
    "another GPU": bound(1),
    "one GPU more": bound(0, 1),
    "another node": bound(node="b"),
    "an unknown GPU": replace(bound(), usage=Usage(unplaced_shares=1)),
}


@pytest.mark.parametrize("pod", ELSEWHERE.values(), ids=ELSEWHERE)
def test_room_is_over_wherever_its_replacement_is_bound_once_its_pod_ends(pod: FleetEntry) -> None:
    assert taken([room()], [pod]) == [], "before that it replaces none"
    assert taken([room()], [pod], leave={"p"}) == ["p"]
    assert taken([room()], [pod], [waiting()], {"p"}) == [], "the one that waits is the replacement"
    assert taken([room("q", 2), room()], [pod], [waiting()], {"p"}) == [], "likewise: q has not been replaced yet"
    assert taken([room("q", 2), room()], [pod], [waiting()], {"p", "q"}) == ["p"]


def test_one_pod_takes_one_room() -> None:
    rooms = [room("p"), room("q"), room("r", 1)]
    assert taken(rooms, [bound()]) == ["p"]
    assert taken(rooms, [bound(), bound(uid="other")]) == ["p", "q"]
    assert taken(rooms, [bound()], leave={"p", "q", "r"}) == ["p"]
    assert taken(rooms, [bound(), bound(uid="other", node="b")], leave={"p", "q", "r"}) == ["p", "r"]


def test_a_pod_takes_no_room_that_was_held_after_it_was_made() -> None:
    rooms = [room("old", 1, since_s=HELD_AT - 1), room("new", 2, since_s=HELD_AT + 9)]
    assert taken(rooms, [bound()], leave={"old", "new"}) == ["old"]


def test_a_pod_that_waits_claims_one_room_of_its_controller_the_newest_first() -> None:
    old, new, others = room("old", since_s=HELD_AT - 9), room("new"), room("others", owner="other")
    unknown = room("unknown", since_s=None)
    rooms = [new, old, unknown, others]
    assert unclaimed(rooms, []) == rooms
    assert unclaimed(rooms, [waiting()]) == [old, unknown, others]
    assert unclaimed(rooms, [waiting(), waiting(), waiting("other")]) == [unknown]
    assert unclaimed(rooms, [waiting(namespace="x"), Pod("w", "team", "w")]) == rooms
    assert unclaimed(rooms, [waiting()], {"unknown"}) == [new, old, others], "that of a pod that ends before all"
