"""Where a pod is to be moved, as people and programs write it, and the room that is held for its replacement."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.keys import HELD_ROOM, MOVE_TO, MalformedAnnotationError
from gpu_device_plugin.core.contract.moves import (
    Destination,
    HeldRoom,
    read_destination,
    read_held,
    write_destination,
    write_held,
)

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


@given(st.lists(st.builds(HeldRoom, names, names, names, shares, times), max_size=4, unique_by=lambda room: room.uid))
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
