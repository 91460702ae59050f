"""Where a pod is to be moved, as people and programs write it, and the room that is held for its replacement."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.capacity.contract import (
    Destination,
    HeldRoom,
    holdable,
    read_destination,
    read_held,
    write_destination,
    write_held,
)
from gpu_device_plugin.model.contract.keys import HELD_ROOM, MOVE_TO, MalformedAnnotationError

ROOM = HeldRoom("uid-1", "default", "uid-of-rs", ((0, 4), (3, 8)), 1_795_342_000.5)

names = st.text(min_size=1, max_size=253)
shares = st.dictionaries(st.integers(0, 15), st.integers(1, 1 << 20), min_size=1).map(
    lambda d: tuple(sorted(d.items()))
)
times = st.integers(0, 1 << 40).map(lambda milliseconds: milliseconds / 1000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just("gpus"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["node", "gpus", "0", "owner", "namespace", "until"]), inner, max_size=4)
    ),
)
"""Anything that JSON can say, with the keys that matter."""


@given(names, shares)
def test_a_destination_is_read_as_it_was_written(node: str, there: tuple[tuple[int, int], ...]) -> None:
    assert read_destination(write_destination(Destination(node, there))) == Destination(node, there)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "node-2",
        "[]",
        "7",
        "null",
        '{"node": "n2"}',
        '{"gpus": {"0": 4}}',
        '{"node": 2, "gpus": {"0": 4}}',
        '{"node": "", "gpus": {"0": 4}}',
        json.dumps({"node": "n" * 254, "gpus": {"0": 4}}),
        '{"node": "n2", "gpus": {}}',
        '{"node": "n2", "gpus": []}',
        '{"node": "n2", "gpus": [4]}',
        '{"node": "n2", "gpus": "0"}',
        '{"node": "n2", "gpus": null}',
        '{"node": "n2", "gpus": {"first": 4}}',
        '{"node": "n2", "gpus": {"-1": 4}}',
        '{"node": "n2", "gpus": {"999999": 4}}',
        '{"node": "n2", "gpus": {"0": 0}}',
        '{"node": "n2", "gpus": {"0": -4}}',
        '{"node": "n2", "gpus": {"0": 1048577}}',
        '{"node": "n2", "gpus": {"0": "4"}}',
        '{"node": "n2", "gpus": {"0": 4.0}}',
        '{"node": "n2", "gpus": {"0": true}}',
        '{"node": "n2", "gpus": {"0": 4, "00": 4}}',
        "[" * 100_000,
    ],
)
def test_a_destination_that_names_no_place_is_refused_with_an_example(said: str) -> None:
    with pytest.raises(MalformedAnnotationError, match="names no place; write") as refused:
        read_destination(said)
    assert MOVE_TO in str(refused.value)


@given(JSON.map(json.dumps) | st.text())
def test_whatever_is_written_as_a_destination_is_read_or_refused(said: str) -> None:
    try:
        found = read_destination(said)
    except MalformedAnnotationError:
        return
    assert found.node
    assert all(amount > 0 for _, amount in found.shares)


any_room = st.builds(HeldRoom, names, names, names, shares, times, st.none() | times)


@given(st.lists(any_room, max_size=4, unique_by=lambda room: room.uid))
def test_held_room_is_read_as_it_was_written(rooms: list[HeldRoom]) -> None:
    text = write_held(rooms)

    assert (text is None) == (not rooms)
    assert read_held({} if text is None else {HELD_ROOM: text}) == tuple(rooms)


def held(**changed: Any) -> str:
    """Return an annotation that holds one room, but for what is changed; None: it is missing."""
    entry = {"namespace": "default", "owner": "uid-of-rs", "gpus": {"0": 4, "3": 8}, "until": ROOM.until_s} | changed
    return json.dumps({"uid-1": {key: value for key, value in entry.items() if value is not None}})


def test_room_is_held_by_all_that_is_said_of_it() -> None:
    assert read_held({HELD_ROOM: held()}) == (ROOM,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[1]",
        '"uid-1"',
        '{"uid-1": 4}',
        '{"uid-1": []}',
        '{"": {}}',
        *(held(**{key: None}) for key in ("namespace", "owner", "gpus", "until")),
        held(owner=7),
        held(namespace=""),
        held(gpus=[4]),
        held(until="soon"),
        held(until=True),
        held(until=-1),
        held(until=float("inf")),
        held(until=float("nan")),
        held(since="soon"),
        held() + " " * (1 << 16),
        "[" * 60_000,
    ],
)
def test_what_cannot_be_read_holds_nothing(text: str) -> None:
    assert read_held({HELD_ROOM: text}) == ()


def test_a_node_without_the_annotation_holds_nothing() -> None:
    assert read_held({}) == ()


@given(JSON.map(json.dumps) | st.text())
def test_whatever_is_written_on_a_node_is_read_or_holds_nothing(text: str) -> None:
    for room in read_held({HELD_ROOM: text}):
        assert room.uid
        assert 0 <= room.until_s < float("inf")


@given(any_room, st.integers(1, 500))
def test_no_more_room_is_held_than_the_next_leader_can_read(room: HeldRoom, number: int) -> None:
    """Whatever stands in its texts: what is counted is never less than what is written."""
    all_rooms: list[HeldRoom] = []
    for n in range(number):
        one = HeldRoom(f"{n}{room.uid}"[:253], room.namespace, room.owner, room.shares, room.until_s, room.since_s)
        if not holdable(one, all_rooms):
            break
        all_rooms.append(one)
    text = write_held(all_rooms)
    assert text is not None
    assert read_held({HELD_ROOM: text}) == tuple(all_rooms)


def test_a_drained_node_full_of_usual_pods_has_all_of_its_room_held_on_one_node() -> None:
    """As many as a kubelet takes by default, and half as many again."""
    uid = "0fbb9d4c-9c1e-4a0e-9d3a-2f7d4c3b1a{:02x}"
    rooms = [HeldRoom(uid.format(n), "team-a", uid.format(0), ((n % 8, 4),), 1_795_342_000.5, 0.0) for n in range(165)]
    assert all(holdable(room, rooms[:n]) for n, room in enumerate(rooms))


@pytest.mark.parametrize(("length", "held"), [(253, True), (254, False), (0, False)])
def test_room_whose_texts_cannot_be_read_is_not_held(length: int, *, held: bool) -> None:
    text = "x" * length
    for room in (replace(ROOM, uid=text), replace(ROOM, namespace=text), replace(ROOM, owner=text)):
        assert holdable(room, ()) == held
