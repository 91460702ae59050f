"""Which ResourceSlices a node has, and how the API server's become equal to them."""

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.claims.contract import device_name
from gpu_device_plugin.features.claims.rules.devices import SliceInputs, devices, plain_devices
from gpu_device_plugin.features.claims.rules.pool import (
    NOTHING,
    Content,
    Present,
    contents,
    dropped,
    slice_name,
    writes,
)
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.resources import OF_GPUS, Kind
from tests.claims import NODE, mig_node, mig_uuid, node, uuid

A: Content = {"devices": [{"name": "a"}]}
B: Content = {"devices": [{"name": "b"}]}
C: Content = {"devices": [{"name": "c"}]}


def stored(number: int, content: Content, generation: int = 1, count: int = 1) -> Present:
    return Present(slice_name(NODE, number), str(number + 10), generation, count, deepcopy(content))


def test_eight_gpus_fit_into_one_slice() -> None:
    (only,) = contents(devices(node(*[16] * 8), SliceInputs(())))
    assert len(only["devices"]) == 16


def test_more_devices_than_a_slice_holds_are_cut() -> None:
    assert [len(each["devices"]) for each in contents(devices(node(*[1] * 40), SliceInputs(())))] == [64, 16]
    assert [len(each["devices"]) for each in contents(devices(mig_node(*[[10] * 7] * 8), SliceInputs(())))] == [64, 48]


def test_a_node_without_gpus_has_an_empty_slice() -> None:
    nothing = SliceInputs(())
    assert contents(devices(node(), nothing)) == contents(plain_devices(node(), nothing)) == ({"devices": []},)


def test_an_older_api_server_gets_whole_devices() -> None:
    (only,) = contents(plain_devices(node(8, 8), SliceInputs(())))
    assert not any("allowMultipleAllocations" in device for device in only["devices"])


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


@given(st.lists(st.sampled_from([A, B, C]), max_size=4), st.lists(st.sampled_from([A, B, C]), max_size=4), st.data())
def test_one_pass_of_writes_leaves_nothing_to_write(wanted: list[Content], before: list[Content], data: Any) -> None:
    present = {
        slice_name(NODE, n): stored(n, content, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)))
        for n, content in enumerate(before)
    }
    found = writes(NODE, wanted, present.values())
    for name, spec, _ in found.put:
        pool = spec["pool"]
        content = {"devices": spec["devices"]}
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
def test_what_is_held_stays_the_same_device_however_it_is_offered(
    kinds: frozenset[Kind], mode: MigMode, holds: str
) -> None:
    """kube-scheduler counts what claims have of a device by its name, so no other name may lead to the same GPU."""
    places = [(1, 0), (1, 1)]
    parts, whole = ({place: [0] for place in places}, ()) if holds == "parts" else ({}, places)
    here = mig_node(8, [10, 20, 10], mode=mode, used=parts, whole=whole)
    gpu = uuid(0)
    here = here.with_ledger(here.ledger.seen([f"{gpu}::0"] if holds == "parts" else [gpu]))
    offered = [each for content in contents(devices(here, SliceInputs((), kinds=kinds))) for each in content["devices"]]
    for held in [gpu, *(mig_uuid(*place) for place in places)]:
        ways = [each["name"] for each in offered if each["attributes"]["uuid"]["string"] == held and "capacity" in each]
        assert ways in ([], [device_name(held)])
