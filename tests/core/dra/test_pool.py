"""Which ResourceSlices a node has, and how the API server's become equal to them."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.dra import device_name
from gpu_device_plugin.core.dra.devices import SliceInputs
from gpu_device_plugin.core.dra.pool import (
    NOTHING,
    Content,
    Present,
    contents,
    dropped,
    plain_contents,
    slice_name,
    writes,
)
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.model.resources import OF_GPUS, Kind
from tests.claims import NODE, mig_node, mig_uuid, node, uuid

A: Content = {"devices": [{"name": "a"}]}
B: Content = {"devices": [{"name": "b"}]}
C: Content = {"devices": [{"name": "c"}]}


def stored(number: int, content: Content, generation: int = 1, count: int = 1) -> Present:
    return Present(slice_name(NODE, number), str(number + 10), generation, count, deepcopy(content))


def test_eight_gpus_fit_into_one_slice_beside_that_of_their_counters() -> None:
    locks, offered = contents(node(*[16] * 8), SliceInputs(()))
    assert [(each["name"], len(each["counters"])) for each in locks["sharedCounters"]] == [("gpus-0", 8)]
    assert len(offered["devices"]) == 24


def test_more_gpus_than_a_slice_or_a_set_holds_are_cut() -> None:
    here = node(*[1] * 40)
    locks, first, second = contents(here, SliceInputs(()))
    assert [len(each["counters"]) for each in locks["sharedCounters"]] == [32, 8]
    assert [len(each["devices"]) for each in (first, second)] == [64, 56]
    every = first["devices"] + second["devices"]
    used = {each["consumesCounters"][0]["counterSet"] for each in every if "consumesCounters" in each}
    assert used == {"gpus-0", "gpus-1"}


def test_a_node_without_gpus_has_an_empty_slice() -> None:
    assert contents(node(), SliceInputs(())) == plain_contents(node(), SliceInputs(())) == ({"devices": []},)


def test_the_instances_of_a_gpu_have_a_set_of_counters_and_eight_gpus_full_of_them_fit() -> None:
    slices = contents(mig_node(*[[10] * 7] * 8), SliceInputs(()))
    locks, *offered = slices
    names = {card: uuid(card).lower() for card in range(8)}
    assert {each["name"]: len(each["counters"]) for each in locks["sharedCounters"]} == dict.fromkeys(names.values(), 7)
    assert [len(each["devices"]) for each in offered] == [64, 64, 40]
    every = [device for each in offered for device in each["devices"]]
    taken = [each["consumesCounters"] for each in every if "consumesCounters" in each]
    assert len(taken) == 2 * 56
    for card, number in ((0, 0), (7, 6)):
        counter = {mig_uuid(card, number).lower(): {"value": "1"}}
        assert taken.count([{"counterSet": names[card], "counters": counter}]) == 2


def test_a_slice_has_eight_sets_of_counters_at_most() -> None:
    slices = contents(mig_node(8, *[[10]] * 8, 8), SliceInputs(()))
    sets = [each["sharedCounters"] for each in slices if "sharedCounters" in each]
    assert [len(each) for each in sets] == [8, 1]
    assert [(each["name"], len(each["counters"])) for each in (sets[0][0], sets[1][0])] == [
        ("gpus-0", 2),
        (uuid(8).lower(), 1),
    ]
    assert sum(len(each["devices"]) for each in slices if "devices" in each) == 30


def test_instances_that_are_given_whole_only_need_no_counters() -> None:
    (only,) = contents(mig_node([10, 10], [10], mode=MigMode.WHOLE), SliceInputs(()))
    assert len(only["devices"]) == 6
    locks, offered = contents(mig_node([10, 10], 8, mode=MigMode.WHOLE), SliceInputs(()))
    assert [list(each["counters"]) for each in locks["sharedCounters"]] == [[uuid(1).lower()]]
    assert len(offered["devices"]) == 7


@pytest.mark.parametrize("kind", OF_GPUS)
def test_one_kind_of_devices_needs_no_counters(kind: Kind) -> None:
    (only,) = contents(node(8, 8), SliceInputs((), kinds=frozenset({kind})))
    assert len(only["devices"]) == 4
    assert not any("consumesCounters" in device for device in only["devices"])


def test_an_older_api_server_gets_no_counters() -> None:
    (only,) = plain_contents(node(8, 8), SliceInputs(()))
    assert len(only["devices"]) == 4


def test_names_sort_like_their_numbers_and_are_never_too_long() -> None:
    assert slice_name("n1", 0) == "n1-gpu-device-plugin-0"
    long = [slice_name("n" * 250 + end, number) for end in ("a", "b") for number in (0, 1)]
    assert len(set(long)) == 4
    assert all(len(name) <= 253 for name in long)
    fits = "n" * (253 - len("-gpu-device-plugin-0"))
    assert slice_name(fits, 0) == f"{fits}-gpu-device-plugin-0"
    cut = slice_name("n" * 254, 0)
    assert len(cut) == 253
    assert cut.startswith("n" * 216 + "-")
    # No part of a name may end with a dash or a dot.
    assert re.fullmatch(r"n{214}-[0-9a-f]{16}-gpu-device-plugin-0", slice_name(f"{'n' * 214}-.{'m' * 40}", 0))
    assert re.fullmatch(r"n{214}X-[0-9a-f]{16}-gpu-device-plugin-0", slice_name(f"{'n' * 214}X.{'m' * 40}", 0))


def test_what_is_there_already_is_not_written() -> None:
    assert not writes(NODE, [A, B], [stored(0, A, 3, 2), stored(1, B, 3, 2)])
    assert writes(NODE, [], []) == NOTHING


def test_a_change_of_one_slice_keeps_the_generation() -> None:
    before = stored(1, B, 3, 2)
    found = writes(NODE, [A, C], [stored(0, A, 3, 2), before])
    pool = {"name": NODE, "generation": 3, "resourceSliceCount": 2}
    spec = {"driver": "gpu-device-plugin", "nodeName": NODE, "pool": pool, **C}
    assert found.put == ((slice_name(NODE, 1), spec, before),)
    assert found.delete == ()


@pytest.mark.parametrize(
    "present",
    [
        [],
        [stored(0, A, 3, 2)],
        [stored(0, A, 3, 2), stored(1, B, 2, 2)],
        [stored(0, A, 3, 1), stored(1, B, 3, 2)],
        [stored(0, C, 3, 2), stored(1, C, 3, 2)],
        [stored(0, A, 3, 2), stored(1, B, 3, 2), replace(stored(0, A, 3, 2), name="of-an-older-agent")],
    ],
)
def test_any_other_change_raises_the_generation_of_all(present: list[Present]) -> None:
    found = writes(NODE, [A, B], present)
    newest = max((each.generation for each in present), default=0)
    assert [spec["pool"] for _, spec, _ in found.put] == [
        {"name": NODE, "generation": newest + 1, "resourceSliceCount": 2}
    ] * 2
    assert found.delete == tuple(each.name for each in present if each.name == "of-an-older-agent")


def test_without_an_offer_the_slices_go() -> None:
    assert writes(NODE, [], [stored(1, A), stored(0, A)]).delete == (slice_name(NODE, 0), slice_name(NODE, 1))


def test_the_time_of_a_taint_stays_as_long_as_the_taint() -> None:
    def tainted(value: str, **more: str) -> Content:
        taint = {"key": "k", "value": value, "effect": "NoExecute", **more}
        return {"devices": [{"name": "a", "taints": [taint]}, {"name": "b"}]}

    present = stored(0, tainted("xid-79", timeAdded="2026-01-01T00:00:00Z"))
    assert not writes(NODE, [tainted("xid-79")], [present])
    ((_, other, _),) = writes(NODE, [tainted("xid-48")], [present]).put
    assert other["devices"] == tainted("xid-48")["devices"]
    moved: Content = {"devices": [{"name": "c"}, *tainted("xid-79")["devices"]]}
    ((_, spec, _),) = writes(NODE, [moved], [present]).put
    assert spec["devices"][1] == tainted("xid-79", timeAdded="2026-01-01T00:00:00Z")["devices"][0]
    assert writes(NODE, [{"devices": [{"name": "a"}, {"name": "b"}]}], [present]).put


def test_each_of_several_taints_keeps_its_own_time() -> None:
    def taint(key: str, effect: str, **more: str) -> dict[str, str]:
        return {"key": key, "value": "v", "effect": effect, **more}

    kinds = [("k", "NoExecute"), ("k", "NoSchedule"), ("l", "NoExecute")]
    there = [taint(*kind, timeAdded=f"2026-01-0{day}T00:00:00Z") for day, kind in enumerate(kinds, 1)]
    present = stored(0, {"devices": [{"name": "a", "taints": there}, {"name": "b"}]})
    wanted: Content = {"devices": [{"name": "a", "taints": [taint(*kind) for kind in reversed(kinds)]}]}
    ((_, spec, _),) = writes(NODE, [wanted], [present]).put
    assert spec["devices"][0]["taints"] == list(reversed(there))


def test_counters_that_take_the_place_of_devices_are_written() -> None:
    locks: Content = {"sharedCounters": [{"name": "gpus-0", "counters": {}}]}
    assert writes(NODE, [locks], [stored(0, A)]).put
    assert not writes(NODE, [locks], [stored(0, locks)])
    assert writes(NODE, [A], [stored(0, locks)]).put


@given(st.lists(st.sampled_from([A, B, C]), max_size=4), st.lists(st.sampled_from([A, B, C]), max_size=4), st.data())
def test_one_pass_of_writes_leaves_nothing_to_write(wanted: list[Content], before: list[Content], data: Any) -> None:
    present = {
        slice_name(NODE, n): stored(n, content, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)))
        for n, content in enumerate(before)
    }
    found = writes(NODE, wanted, present.values())
    for name, spec, _ in found.put:
        pool = spec["pool"]
        content = {key: spec[key] for key in ("devices", "sharedCounters") if key in spec}
        present[name] = Present(name, "", pool["generation"], pool["resourceSliceCount"], content)
    for name in found.delete:
        del present[name]
    assert not writes(NODE, wanted, present.values())
    assert len({each.generation for each in present.values()}) <= 1


@pytest.mark.parametrize(
    ("stored_spec", "missing"),
    [
        ({"devices": [{"name": "a", "shared": True, "x": {"y": 1}}]}, ()),
        ({"devices": [{"name": "a", "shared": True, "x": {"y": 1}, "added": 1}], "more": 2}, ()),
        ({"devices": [{"name": "a", "x": {"y": 1}}]}, ("shared",)),
        ({"devices": [{"name": "a", "x": {}}]}, ("shared", "y")),
        ({"devices": [{"name": "a", "x": "text"}]}, ("shared", "y")),
        ({"devices": []}, ("devices",)),
        ({"devices": "text"}, ("devices",)),
        ({}, ("devices",)),
    ],
)
def test_fields_that_an_older_api_server_drops_are_found(stored_spec: Any, missing: tuple[str, ...]) -> None:
    sent = {"devices": [{"name": "a", "shared": True, "x": {"y": 1}}]}
    assert dropped(sent, stored_spec) == missing


KINDS = [frozenset(OF_GPUS), frozenset({Kind.MEMORY}), frozenset({Kind.COUNT})]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("mode", list(MigMode))
@pytest.mark.parametrize("holds", ["parts", "whole"])
def test_a_device_that_leaves_the_slices_while_it_is_held_leaves_no_way_to_its_gpu(
    kinds: frozenset[Kind], mode: MigMode, holds: str
) -> None:
    """kube-scheduler counts what a held device takes of a counter only while a slice has it (kubernetes#140806).

    So of a GPU that is held in one way the device for the other way is gone, or tainted, or shares a counter with the
    device by which it is held, which then has to be in a slice.
    """
    places = [(1, 0), (1, 1)]
    parts, whole = ({place: [0] for place in places}, ()) if holds == "parts" else ({}, places)
    here = mig_node(8, [10, 20, 10], mode=mode, used=parts, whole=whole)
    gpu = uuid(0)
    here = here.with_ledger(here.ledger.seen([f"{gpu}::0"] if holds == "parts" else [gpu]))
    offered = {
        each["name"]: each for content in contents(here, SliceInputs((), kinds=kinds)) for each in _devices(content)
    }
    for held in [gpu, *(mig_uuid(*place) for place in places)]:
        by, other = (device_name(held, whole=(holds == "whole") is same) for same in (True, False))
        if other in offered and not offered[other].get("taints"):
            assert by in offered
            assert offered[by]["consumesCounters"] == offered[other]["consumesCounters"]


def _devices(content: Content) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content.get("devices", [])
    return found
