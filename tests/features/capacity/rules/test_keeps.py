"""Nodes that the extender keeps from autoscalers, beside what people wrote; and GPUs that people put aside."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.capacity.contract import kept, let_go, own_keeps
from gpu_device_plugin.model.contract.keys import KEEPS, KEPT_NODE

CA, KARPENTER = KEEPS


def applied(annotations: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**annotations, **changes}
    return {key: text for key, text in merged.items() if text is not None}


@pytest.mark.parametrize(
    ("theirs", "written"),
    [
        ({}, {CA, KARPENTER}),
        ({CA: "true"}, {KARPENTER}),
        ({CA: "false"}, {KARPENTER}),
        ({CA: "", KARPENTER: "true"}, set()),
    ],
)
def test_what_a_person_wrote_stays_and_only_ours_goes(theirs: dict[str, str], written: set[str]) -> None:
    there = applied(theirs, kept(theirs, "full"))

    assert {key for key in KEEPS if there.get(key) != theirs.get(key)} == written
    assert set(own_keeps(there)) == written
    assert applied(there, let_go(there)) == theirs


def test_a_kept_node_tells_why_and_is_not_written_again() -> None:
    there = applied({}, kept({}, "no GPU has room"))

    assert json.loads(there[KEPT_NODE])["why"] == "no GPU has room"
    assert kept(there, "another reason") == {}


def test_an_annotation_that_was_changed_since_is_not_ours_any_more() -> None:
    there = applied({}, kept({}, "full")) | {CA: "false"}

    assert own_keeps(there) == (KARPENTER,)
    assert applied(there, let_go(there)) == {CA: "false"}


@given(st.text() | st.sampled_from(["{}", "[]", "null", '{"keys": 3}', '{"keys": null}', "[" * 5000, "x" * 2000]))
def test_any_text_in_our_mark_is_survived(text: str) -> None:
    there = {KEPT_NODE: text, CA: "true"}

    assert KEPT_NODE not in applied(there, let_go(there))
    assert applied(there, let_go(there)) == {CA: "true"} or own_keeps(there) == (CA,)
