"""Which held room is over: that whose replacement is bound in it, and that which no pod waits for."""

from __future__ import annotations

from gpu_device_plugin.core.capacity.held import BoundPod, taken, unclaimed
from gpu_device_plugin.core.contract.moves import HeldRoom
from gpu_device_plugin.core.model.pods import Owner, Pod

HELD_AT, CREATED, BEFORE = 1_764_410_400.4, "2025-11-29T10:00:00Z", "2025-11-29T09:59:59Z"


def room(uid: str = "p", *gpus: int, owner: str = "rs", since_s: float | None = HELD_AT) -> HeldRoom:
    return HeldRoom(uid, "team", owner, tuple((gpu, 4) for gpu in gpus or (0,)), HELD_AT + 330, since_s)


def bound(*gpus: int, created: str = CREATED, owner: str = "rs", namespace: str = "team", uid: str = "new") -> BoundPod:
    return BoundPod(uid, namespace, owner, created, frozenset(gpus or (0,)))


def waiting(owner: str = "rs", namespace: str = "team") -> Pod:
    return Pod("w", namespace, "w", owner=Owner("ReplicaSet", "x", owner, "apps/v1"))


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
        bound(1),
        bound(0, 1),
        bound(uid="p"),
    ):
        assert taken([room()], [other]) == [], other
    assert taken([room(since_s=None)], [bound()]) == [], "an earlier version did not say since when it is held"
    assert taken([room()], [BoundPod("new", "team", "rs", CREATED, frozenset())]) == [], "its GPU is not known"


def test_one_pod_takes_one_room() -> None:
    rooms = [room("p"), room("q"), room("r", 1)]
    assert taken(rooms, [bound()]) == ["p"]
    assert taken(rooms, [bound(), bound(uid="other")]) == ["p", "q"]


def test_a_pod_that_waits_claims_one_room_of_its_controller_the_newest_first() -> None:
    old, new, others = room("old", since_s=HELD_AT - 9), room("new"), room("others", owner="other")
    unknown = room("unknown", since_s=None)
    rooms = [new, old, unknown, others]
    assert unclaimed(rooms, []) == rooms
    assert unclaimed(rooms, [waiting()]) == [old, unknown, others]
    assert unclaimed(rooms, [waiting(), waiting(), waiting("other")]) == [unknown]
    assert unclaimed(rooms, [waiting(namespace="x"), Pod("w", "team", "w")]) == rooms
