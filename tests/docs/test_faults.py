"""The catalogue of faults names tests that are there, and every number that a test bears is in it."""

import re
from itertools import groupby

from tests.docs.pages import ROOT, text_of

CATALOGUE = text_of(ROOT / "tests" / "FAULTS.md")
ROWS = re.findall(r"^\| ([A-Z])(\d+) \| (.+?) \| (.+) \|$", CATALOGUE, re.MULTILINE)


def test_every_test_that_is_named_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", CATALOGUE))
    texts = {file: text_of(ROOT / file) for file, _ in named}
    assert {(file, name) for file, name in named if f"def {name}(" not in texts[file]} == set()


def test_every_table_is_numbered_without_a_gap() -> None:
    tables = [[int(number) for _, number, *_ in rows] for _, rows in groupby(ROWS, key=lambda row: row[0])]
    sizes = [22, 26, 14, 8, 5, 12, 6, 20]
    assert [len(numbers) for numbers in tables] == sizes, "a fault that came or went changes the sum here"
    assert tables == [list(range(1, size + 1)) for size in sizes]


def test_every_fault_has_a_test_or_a_reason_for_none() -> None:
    reasons = ("Does not apply: ", "Not checked here: ", "Not tested: ")
    without = {f"{letter}{number}" for letter, number, _, told in ROWS if "::" not in told}
    assert without == {f"{letter}{number}" for letter, number, _, told in ROWS if told.startswith(reasons)}


def test_every_number_that_a_test_bears_is_in_the_catalogue() -> None:
    borne = {
        number
        for path in (ROOT / "tests").rglob("test_*.py")
        for numbers in re.findall(r"def test_((?:[a-z]\d+_(?:and_)?)+)", text_of(path))
        for number in re.findall(r"[a-z]\d+", numbers)
    }
    assert len(borne) > 70
    assert borne <= {f"{letter}{number}".lower() for letter, number, *_ in ROWS}
