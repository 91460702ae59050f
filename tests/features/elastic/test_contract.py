"""Memory that changes while a pod runs: the annotations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.elastic import contract as elastic
from gpu_device_plugin.features.elastic.contract import NO_WISH, Wish
from gpu_device_plugin.model.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_LIMIT,
    TOO_LONG,
)
from gpu_device_plugin.model.gpus import MOST_SHARES

NAMES = st.text(st.characters(codec="ascii", categories=("Ll", "Nd")), min_size=1, max_size=10)
SHARES = st.integers(1, MOST_SHARES)


def test_a_number_is_for_every_container() -> None:
    wish = elastic.read_wish({MEMORY_LIMIT: " 12 "}, MEMORY_LIMIT)
    assert (wish.of("main"), wish.of("side")) == (12, 12)


def test_an_object_is_by_container() -> None:
    wish = elastic.read_wish({MEMORY_LIMIT: '{"main": 12}'}, MEMORY_LIMIT)
    assert (wish.of("main"), wish.of("side")) == (12, None)


def test_without_the_annotation_there_is_no_wish() -> None:
    assert elastic.read_wish({}, MEMORY_GUARANTEE) is NO_WISH
    assert elastic.read_wish({MEMORY_LIMIT: "3"}, MEMORY_LIMIT) == Wish(3)


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-1", "1.5", "12Gi", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 30, str(MOST_SHARES + 1)),
        *("{", '{"main": 0}', '{"main": true}', '{"main": [1]}', '{"a":' * 3000, "[" * 5000, TOO_LONG),
        # Each reading of use reads it: a thousand names would take a millisecond of the kubelet's time.
        json.dumps({str(number): 1 for number in range(65)}, separators=(",", ":")),
    ],
)
def test_any_other_wish_is_refused_with_an_example(text: str) -> None:
    wish = elastic.read_wish({MEMORY_LIMIT: text}, MEMORY_LIMIT)
    assert wish == Wish(malformed=wish.malformed)
    assert wish.malformed.startswith("the annotation gpu-device-plugin/memory-limit ")


@given(st.builds(Wish, SHARES) | st.builds(Wish, st.none(), st.dictionaries(NAMES, SHARES, min_size=1, max_size=64)))
def test_a_wish_is_read_as_it_was_written(wish: Wish) -> None:
    assert elastic.read_wish({MEMORY_LIMIT: elastic.write_wish(wish)}, MEMORY_LIMIT) == wish


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 2, "a": 60}',
        '{"a": 60, "a": 2}',
        '{"\\u0061": 60}',
        '{"a": "\\u0036\\u0030"}',
        '{"a": "\N{NO-BREAK SPACE}60"}',
        "\x1c60",
        '\x1c{"a": 60}',
    ],
)
def test_a_wish_that_an_admission_policy_would_read_otherwise_is_malformed(text: str) -> None:
    """The policy reads it by expressions, which know neither the last of two values nor escapes."""
    wish = elastic.read_wish({MEMORY_GUARANTEE: text}, MEMORY_GUARANTEE)
    assert wish == Wish(malformed=wish.malformed)
    assert wish.malformed.startswith("the annotation gpu-device-plugin/memory-guarantee ")


def test_a_wish_that_names_a_container_twice_is_malformed() -> None:
    wish = elastic.read_wish({MEMORY_LIMIT: '{"a":2,"a":60}'}, MEMORY_LIMIT)
    assert wish.malformed == "the annotation gpu-device-plugin/memory-limit names something twice"
