"""The file of a prepared claim."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.dra.prepared import (
    PreparedClaim,
    PreparedDevice,
    PreparedFileError,
    read_prepared,
    write_prepared,
)
from gpu_device_plugin.core.model.claims import Consumer
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.model.resources import Kind
from tests.claims import ids, mig_uuid, uuid

CLAIM = PreparedClaim(
    "u-1",
    "default",
    "c1",
    (PreparedDevice("gpu", "gpu-1", "gpu-x", "share", uuid(0), 4096, 20),),
    ids(0, range(4)),
    Rung.MPS,
    (Consumer("p-1", "pod"),),
    ("gpu-device-plugin/claim=u-1",),
    {"cdiVersion": "0.5.0", "devices": [{"name": "u-1"}]},
)
WHOLE = PreparedClaim("u-2", "default", "c2", (PreparedDevice("gpu", "gpu-1", "gpu-x"),), frozenset({uuid(0)}))


INSTANCES = PreparedClaim(
    "u-3",
    "default",
    "c3",
    (PreparedDevice("gpu", "gpu-1", "mig-x", uuid=mig_uuid(0, 0)),),
    frozenset({mig_uuid(0, 0), mig_uuid(0, 1)}),
    Rung.PARTITION,
)


@pytest.mark.parametrize("claim", [CLAIM, WHOLE, INSTANCES])
def test_what_is_written_is_read(claim: PreparedClaim) -> None:
    assert read_prepared(write_prepared(claim), claim.uid) == claim


def test_a_claim_says_what_it_holds_and_not_its_variables() -> None:
    assert (replace(CLAIM).kind, replace(WHOLE).kind, str(CLAIM)) == (Kind.MEMORY, Kind.COUNT, "default/c1")
    assert (replace(INSTANCES).kind, INSTANCES.rung) == (Kind.INSTANCE, Rung.PARTITION)
    of_instance = replace(CLAIM, device_ids=frozenset({f"{mig_uuid(0, 0)}::3"}))
    assert of_instance.kind is Kind.MEMORY
    assert "cdiVersion" not in repr(CLAIM)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"uid": "u-3"},
        {"uid": 1},
        {"devices": []},
        {"devices": [{}]},
        {"devices": None},
        {"deviceIDs": [1]},
        {"rung": "iron"},
        {"consumers": [["one"]]},
        {"cdi": 1},
        {"cdiNames": 1},
    ],
)
def test_a_damaged_file_is_named_as_such(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(write_prepared(CLAIM)) | change)
    with pytest.raises(PreparedFileError, match=r"damaged|version 2|another claim"):
        read_prepared(text, "u-1")


def test_what_is_wrong_with_a_file_is_said() -> None:
    for text, sentence in (("[]", "it is damaged (TypeError)"), ("{", "it is damaged (JSONDecodeError)")):
        with pytest.raises(PreparedFileError) as caught:
            read_prepared(text, "u-1")
        assert str(caught.value) == sentence
    with pytest.raises(PreparedFileError) as caught:
        read_prepared(write_prepared(CLAIM), "u-3")
    assert str(caught.value) == "it is of another claim, or has no device"


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_nothing_else_is_raised(text: str) -> None:
    with pytest.raises(PreparedFileError):
        read_prepared(text, "u-1")
