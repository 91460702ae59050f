"""What is held for a running pod beside its requests: the answers of extender and agent, and which of them counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_PROMISED, TOO_LONG, kept
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.contract.reservations import (
    NO_ANSWER,
    Answer,
    answer_to,
    guarantees,
    read_answer,
    write_answer,
)
from gpu_device_plugin.model.gpus import MOST_SHARES

NAMES = st.text(st.characters(codec="ascii", categories=("Ll", "Nd")), min_size=1, max_size=10)
SHARES = st.integers(1, MOST_SHARES)


@given(st.builds(Answer, st.dictionaries(NAMES, SHARES, max_size=64), NAMES, NAMES))
def test_an_answer_is_read_as_it_was_written(answer: Answer) -> None:
    assert read_answer({MEMORY_HELD: write_answer(answer)}, MEMORY_HELD) == answer


def test_an_answer_that_says_nothing_is_short() -> None:
    assert write_answer(NO_ANSWER) == "{}"
    assert read_answer({}, MEMORY_HELD) is NO_ANSWER


def test_an_answer_that_names_a_container_twice_is_malformed() -> None:
    twice = '{"guarantees":{"a":2,"a":60}}'
    assert read_answer({MEMORY_PROMISED: twice}, MEMORY_PROMISED) is NO_ANSWER


@pytest.mark.parametrize("text", ["", "[]", '{"guarantees": 6}', '{"guarantees": {"a": 0}}', '{"wish": 3}', TOO_LONG])
def test_a_malformed_answer_is_none(text: str) -> None:
    assert read_answer({MEMORY_PROMISED: text}, MEMORY_PROMISED) is NO_ANSWER


def test_an_answer_is_about_one_wish() -> None:
    before, after = {MEMORY_GUARANTEE: "6"}, {MEMORY_GUARANTEE: "8"}
    answer = answer_to(before, {"main": 6})
    assert answer.answers(before)
    assert not answer.answers(after)
    assert answer_to({}, {}).answers({})


def test_a_long_wish_is_answered_too() -> None:
    long = {MEMORY_GUARANTEE: '{"' + "a" * 4000 + '": 6}'}
    assert answer_to(long, {}, "w" * 1000).answers(long)


def test_what_is_promised_counts_and_not_what_anybody_wrote_as_held() -> None:
    promised = write_answer(Answer({"main": 6, "side": 3}))
    held = write_answer(Answer({"main": 8}))
    assert guarantees({MEMORY_PROMISED: promised, MEMORY_HELD: held}) == {"main": 6, "side": 3}
    assert guarantees({MEMORY_PROMISED: "{}", MEMORY_HELD: held}) == {}


def test_what_the_agent_holds_counts_where_no_extender_promises() -> None:
    assert guarantees({MEMORY_HELD: write_answer(Answer({"main": 8}))}) == {"main": 8}
    assert guarantees({MEMORY_HELD: "nonsense"}) == {}
    assert guarantees({}) == {}


@pytest.mark.parametrize("odd", ['"', "\n", "é", "\x00", "🙂", "\\"])
def test_an_answer_to_any_wish_is_short_enough_to_be_kept(odd: str) -> None:
    """A program that reads its own answer as too long would write it again for ever."""
    annotations = {MEMORY_GUARANTEE: odd * 512}
    answer = answer_to(annotations, {}, odd * 5000)
    text = write_answer(answer)
    assert kept(MEMORY_PROMISED, text, 1) == kept(MEMORY_HELD, text, 0) == text
    assert answer.answers(annotations)
    assert read_answer({MEMORY_HELD: text}, MEMORY_HELD) == answer


def test_an_answer_for_as_many_containers_as_there_may_be_is_kept() -> None:
    names = {f"{n}".ljust(63, "x"): MOST_SHARES for n in range(MOST_CONTAINERS)}
    text = write_answer(answer_to({MEMORY_GUARANTEE: '"' * 512}, names, '"' * 512))
    assert kept(MEMORY_PROMISED, text, MOST_CONTAINERS) == text
