"""What others wrote, as it is shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.report.rules.printing import age, duration, json_line, mib, nearest, printable, ranges


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("größer 显存 🙂", "größer 显存 🙂"),
        ("a\nb", r"a\nb"),
        ("\x1b[2J \x9b2J \x7f", r"\x1b[2J \x9b2J \x7f"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("exe.\u202egpj\u2066", r"exe.\u202egpj\u2066"),
        ("\U000e0041\ud800", r"\U000e0041\ud800"),
        ("C:\\n", "C:\\n"),
    ],
)
def test_what_has_no_glyph_is_escaped_and_the_rest_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_is_shown_can_steer_a_terminal_or_end_a_line(text: str) -> None:
    assert printable(text).isprintable()
    assert len(printable(text).splitlines()) <= 1


@given(st.dictionaries(st.text(), st.text(st.characters(codec=None)) | st.lists(st.text()) | st.integers()))
def test_json_on_a_line_is_printable_and_says_the_same(value: dict[str, object]) -> None:
    line = json_line(value)
    assert line.isprintable()
    assert json.loads(line) == value


def test_what_json_has_no_form_for_is_text() -> None:
    assert json_line({"a": 1j}) == '{"a": "1j"}'


@pytest.mark.parametrize(
    ("numbers", "shown"), [((), ""), ((3,), "3"), ((0, 1, 2, 3, 6), "0-3,6"), ((0, 2, 4), "0,2,4"), ((1, 2), "1-2")]
)
def test_numbers_in_a_row_are_written_as_a_range(numbers: tuple[int, ...], shown: str) -> None:
    assert ranges(numbers) == shown


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        *((-1, "0 s"), (59.9, "59 s"), (119, "119 s"), (120, "2 min"), (185, "3 min"), (7199, "119 min")),
        *((7200, "2 h"), (400_000, "4 days")),
    ],
)
def test_a_duration_is_told_in_a_unit_of_which_it_has_two(seconds: float, told: str) -> None:
    assert (duration(seconds), age(seconds)) == (told, f"{told} ago")
    assert age(None) == "at an unknown time"


def test_amounts_that_are_compared_have_one_unit() -> None:
    assert [mib(amount) for amount in (None, 0, 4096, 143_771)] == ["unknown", "0 MiB", "4,096 MiB", "143,771 MiB"]


def test_the_nearest_word_is_suggested_whatever_its_case_and_common_beginning() -> None:
    assert nearest("gpushare/Colr", ["gpushare/color", "gpushare/size"], "no", prefix="gpushare/") == (
        "did you mean gpushare/color?"
    )
    assert nearest("zzz", ["color"], "see the manual") == "see the manual"
