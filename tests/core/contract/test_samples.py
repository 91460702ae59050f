"""Chosen series of a page of metrics, from a machine that may send anything."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gpu_device_plugin.core.contract.samples import (
    LONGEST_LINE,
    MOST_LABELS,
    MalformedMetricsError,
    Sample,
    samples,
)


def read(text: str, *names: str) -> list[Sample]:
    return list(samples(text, frozenset(names or ("a",))))


def test_chosen_series_are_read_and_others_are_not() -> None:
    text = (
        '# HELP a What.\n# TYPE a gauge\na{x="1",y="2"} 1.073741824e+09\nb{x="not closed\na 3 1700000000000\n\na{} -0\n'
    )
    assert read(text) == [Sample("a", {"x": "1", "y": "2"}, float(1 << 30)), Sample("a", {}, 3), Sample("a", {}, 0)]


def test_a_value_that_is_not_finite_is_none() -> None:
    assert read("a NaN\na +Inf\na -Inf\na Inf\na 1e999\na 1\n") == [Sample("a", {}, 1)]


def test_spaces_commas_and_carriage_returns_are_those_of_the_format() -> None:
    assert read('a{ x = "1" , } 2\r\n') == [Sample("a", {"x": "1"}, 2)]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_whatever_a_client_library_writes_is_read(texts: list[str], value: float) -> None:
    registry = CollectorRegistry()
    labels = [f"l{number}" for number in range(len(texts))]
    gauge = Gauge("a", "Help.", labels, registry=registry)
    (gauge.labels(*texts) if texts else gauge).set(value)
    assert read(generate_latest(registry).decode()) == [Sample("a", dict(zip(labels, texts, strict=True)), value)]


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "a one",
        "a 1_000",
        "a 0x10",
        "a 1.2.3",
        "a 1 2 3",
        'a{x="1"}',
        'a{x="1" 1',
        'a{x="1"y="2"} 1',
        'a{x="1",x="2"} 1',
        "a{x=1} 1",
        'a{x="1\\"} 1',
        "a{,} 1",
        "a{",
        " a 1",
        "<html>",
        'a{x="' + "y" * LONGEST_LINE + '"} 1',
        "a{" + ",".join(f'l{number}="1"' for number in range(MOST_LABELS + 1)) + "} 1",
    ],
)
def test_a_line_out_of_the_format_is_named_by_its_number_alone(line: str) -> None:
    with pytest.raises(
        MalformedMetricsError,
        match=r"^line 2 (is none of Prometheus' text format|is longer than 4096 characters|has [a-z ]+)$",
    ):
        read(f"a 1\n{line}\n")


@given(st.text(), st.text(alphabet='a{}"\\=, 1x\n', max_size=200))
def test_no_text_does_anything_else_than_being_read_or_refused(free: str, near: str) -> None:
    for text in (free, near, f'a{{x="{near}"}} 1'):
        with contextlib.suppress(MalformedMetricsError):
            assert all(math.isfinite(sample.value) for sample in read(text))


def test_a_long_page_of_backslashes_is_read_once() -> None:
    """A pattern that tries every way to read them would not end."""
    line = 'a{x="' + "\\\\" * (LONGEST_LINE // 2 - 20)
    with pytest.raises(MalformedMetricsError):
        read(line)
