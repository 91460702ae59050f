"""Memory that changes while a pod runs: the annotations."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.elastic import contract as elastic
from gpu_device_plugin.features.elastic.contract import NO_ANSWER, NO_WISH, Answer, Wish
from gpu_device_plugin.model.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
    TOO_LONG,
    kept,
)
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
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


@given(st.builds(Answer, st.dictionaries(NAMES, SHARES, max_size=64), NAMES, NAMES))
def test_an_answer_is_read_as_it_was_written(answer: Answer) -> None:
    assert elastic.read_answer({MEMORY_HELD: elastic.write_answer(answer)}, MEMORY_HELD) == answer


def test_an_answer_that_says_nothing_is_short() -> None:
    assert elastic.write_answer(NO_ANSWER) == "{}"
    assert elastic.read_answer({}, MEMORY_HELD) is NO_ANSWER


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


def test_an_answer_that_names_a_container_twice_is_malformed() -> None:
    twice = '{"guarantees":{"a":2,"a":60}}'
    assert elastic.read_answer({MEMORY_PROMISED: twice}, MEMORY_PROMISED) is NO_ANSWER
    wish = elastic.read_wish({MEMORY_LIMIT: '{"a":2,"a":60}'}, MEMORY_LIMIT)
    assert wish.malformed == "the annotation gpu-device-plugin/memory-limit names something twice"


@pytest.mark.parametrize("text", ["", "[]", '{"guarantees": 6}', '{"guarantees": {"a": 0}}', '{"wish": 3}', TOO_LONG])
def test_a_malformed_answer_is_none(text: str) -> None:
    assert elastic.read_answer({MEMORY_PROMISED: text}, MEMORY_PROMISED) is NO_ANSWER


def test_an_answer_is_about_one_wish() -> None:
    before, after = {MEMORY_GUARANTEE: "6"}, {MEMORY_GUARANTEE: "8"}
    answer = elastic.answer_to(before, {"main": 6})
    assert answer.answers(before)
    assert not answer.answers(after)
    assert elastic.answer_to({}, {}).answers({})


def test_a_long_wish_is_answered_too() -> None:
    long = {MEMORY_GUARANTEE: '{"' + "a" * 4000 + '": 6}'}
    assert elastic.answer_to(long, {}, "w" * 1000).answers(long)


def test_what_is_promised_counts_and_not_what_anybody_wrote_as_held() -> None:
    promised = elastic.write_answer(Answer({"main": 6, "side": 3}))
    held = elastic.write_answer(Answer({"main": 8}))
    assert elastic.guarantees({MEMORY_PROMISED: promised, MEMORY_HELD: held}) == {"main": 6, "side": 3}
    assert elastic.guarantees({MEMORY_PROMISED: "{}", MEMORY_HELD: held}) == {}


def test_what_the_agent_holds_counts_where_no_extender_promises() -> None:
    assert elastic.guarantees({MEMORY_HELD: elastic.write_answer(Answer({"main": 8}))}) == {"main": 8}
    assert elastic.guarantees({MEMORY_HELD: "nonsense"}) == {}
    assert elastic.guarantees({}) == {}


@pytest.mark.parametrize("odd", ['"', "\n", "é", "\x00", "🙂", "\\"])
def test_an_answer_to_any_wish_is_short_enough_to_be_kept(odd: str) -> None:
    """A program that reads its own answer as too long would write it again for ever."""
    annotations = {MEMORY_GUARANTEE: odd * 512}
    answer = elastic.answer_to(annotations, {}, odd * 5000)
    text = elastic.write_answer(answer)
    assert kept(MEMORY_PROMISED, text, 1) == kept(MEMORY_HELD, text, 0) == text
    assert answer.answers(annotations)
    assert elastic.read_answer({MEMORY_HELD: text}, MEMORY_HELD) == answer


def test_an_answer_for_as_many_containers_as_there_may_be_is_kept() -> None:
    names = {f"{n}".ljust(63, "x"): MOST_SHARES for n in range(MOST_CONTAINERS)}
    text = elastic.write_answer(elastic.answer_to({MEMORY_GUARANTEE: '"' * 512}, names, '"' * 512))
    assert kept(MEMORY_PROMISED, text, MOST_CONTAINERS) == text
