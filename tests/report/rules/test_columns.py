"""Cells in columns, within the width of a terminal."""

import pytest

from gpu_device_plugin.report.rules.columns import Layout, Line, Row, Tone, columns, fitted, padded, table

LAYOUT = Layout(("NAME", "N", "NOTE"), right=frozenset({"N"}), shrink={"NOTE": 4, "NAME": 3})


def texts(rows: list[Row], width: int) -> list[str]:
    return [line.text for line in table(LAYOUT, rows, width)]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert texts([Row(("a", "1", "x")), Row(("longer", "100", ""))], 80) == [
        "NAME      N  NOTE",
        "a         1  x",
        "longer  100",
    ]


def test_a_last_column_without_cells_is_left_out() -> None:
    assert texts([Row(("a", "1", ""))], 80) == ["NAME  N", "a     1"]


def test_without_rows_there_is_the_heading() -> None:
    assert table(LAYOUT, [], 80) == [Line("NAME  N", Tone.HEADING)]


def test_columns_give_way_in_their_order() -> None:
    rows = [Row(("node-with-a-name", "1", "a long note"))]
    assert texts(rows, 28)[1] == "node-with-a-name  1  a long…"
    assert texts(rows, 25)[1] == "node-with-a-name  1  a l…"
    assert texts(rows, 14)[1] == "node…  1  a l…"
    assert texts(rows, 1)[1] == "no…  1  a l…", "the rest keeps its width"


def test_tones_stay_with_their_rows() -> None:
    lines = table(LAYOUT, [Row(("a", "1", "x"), Tone.BAD)], 80)
    assert [line.tone for line in lines] == [Tone.HEADING, Tone.BAD]


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    assert columns("显存") == 4
    assert columns("e\N{COMBINING ACUTE ACCENT}") == 1
    assert texts([Row(("显存", "1", "x")), Row(("abcd", "1", "x"))], 80)[1:] == ["显存  1  x", "abcd  1  x"]


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("显存显", 5, "显存…"),
        ("显存显", 4, "显…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_text_is_cut_off_at_a_width(text: str, width: int, shown: str) -> None:
    assert fitted(text, width) == shown
    assert columns(fitted(text, width)) <= width


def test_a_text_is_filled_on_either_side() -> None:
    assert (padded("ab", 4), padded("ab", 4, right=True)) == ("ab  ", "  ab")


def test_characters_that_control_a_terminal_are_escaped_before_they_are_measured() -> None:
    (_, line) = table(LAYOUT, [Row(("\x1b[31m", "1", "x"))], 80)
    assert line.text == "\\x1b[31m  1  x"
