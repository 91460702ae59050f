"""Cordons of GPUs are written, read, and survive damage."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.cordons import (
    LONGEST_CORDONS,
    LONGEST_REASON,
    Cordon,
    cordon_of,
    cordons_of,
    read_cordons,
    write_cordons,
)
from gpu_device_plugin.model.contract.keys import CORDONS, MalformedAnnotationError
from gpu_device_plugin.model.gpus import MOST_GPUS

TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=40)
CORDON = Cordon("alice", "2026-11-28T18:00:00Z", "a fan is loud")


@given(st.dictionaries(TEXTS.map("GPU-{}".format), st.builds(Cordon, TEXTS, TEXTS, TEXTS), min_size=1, max_size=9))
def test_cordons_are_read_as_they_were_written(cordons: dict[str, Cordon]) -> None:
    text = write_cordons(cordons)
    assert text is not None
    assert read_cordons(text) == cordons
    assert cordons_of({CORDONS: text}) == (cordons, "")


def test_without_a_cordon_there_is_no_annotation() -> None:
    assert write_cordons({}) is None
    assert cordons_of({}) == ({}, "")


def test_the_longest_cordons_of_the_most_gpus_can_be_read() -> None:
    longest = Cordon("\U0001f600" * 999, "9" * 999, "\U0001f600" * 999)
    text = write_cordons({f"GPU-{n:060}": longest for n in range(MOST_GPUS)})
    assert text is not None
    found = read_cordons(text.ljust(LONGEST_CORDONS))
    assert len(found) == MOST_GPUS
    assert {len(each.why) for each in found.values()} == {LONGEST_REASON}


def test_one_cordon_too_many_is_not_written_as_it_would_lift_all_of_them() -> None:
    with pytest.raises(MalformedAnnotationError, match="uncordon those that are gone"):
        write_cordons({f"GPU-{n}": Cordon() for n in range(MOST_GPUS + 1)})


def test_a_cordon_says_who_when_and_why() -> None:
    assert str(CORDON) == "cordoned by alice at 2026-11-28T18:00:00Z because: a fan is loud"
    assert str(Cordon()) == "cordoned by somebody"


@pytest.mark.parametrize("fields", ['"alice"', "null", "{}", '{"by": 3, "why": ["x"]}', r'{"why": "a\nb"}'])
def test_a_damaged_entry_still_cordons_its_gpu(fields: str) -> None:
    assert read_cordons(f'{{"version": 1, "gpus": {{"GPU-a": {fields}}}}}') == {"GPU-a": Cordon()}


def test_an_entry_without_a_name_of_a_gpu_is_left_out() -> None:
    assert read_cordons(json.dumps({"version": 1, "gpus": {"x" * 65: {}, "a\n": {}}})) == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "is not JSON"),
        ("[" * 5000, "is not JSON"),
        ("[]", "is no JSON object of version 1"),
        ('{"version": 2, "gpus": {}}', "is no JSON object of version 1"),
        ('{"version": 1}', "has no object of at most 128 gpus"),
        (json.dumps({"version": 1, "gpus": dict.fromkeys(map(str, range(129)))}), "has no object of at most 128 gpus"),
        (" " * (LONGEST_CORDONS + 1), f"has more than {LONGEST_CORDONS} characters"),
    ],
)
def test_what_cannot_be_read_cordons_nothing_and_says_why(text: str, fault: str) -> None:
    told = f"the node's annotation gpu-device-plugin/cordons {fault}"
    assert cordons_of({CORDONS: text}) == ({}, told)
    with pytest.raises(MalformedAnnotationError, match="cordons"):
        read_cordons(text)


def test_a_gpu_in_mig_mode_is_put_aside_with_its_instances() -> None:
    found = {"GPU-m": CORDON, "MIG-1": Cordon("bob")}
    assert cordon_of(found, "MIG-0", "GPU-m") is CORDON
    assert cordon_of(found, "MIG-1", "GPU-m") == Cordon("bob")
    assert cordon_of(found, "MIG-1", "GPU-n") == Cordon("bob")
    assert cordon_of(found, "GPU-n", "GPU-n") is None
