"""Gauges are written as Prometheus' own library writes them, character for character."""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest

from gpu_device_plugin.core.report.exposition import LINES_AT_ONCE, Gauge, Value, family, histogram, number, samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def by_the_library(gauge: Gauge, values: Sequence[Value]) -> str:
    class Collector:
        def collect(self) -> list[prometheus_client.Metric]:
            kind = CounterMetricFamily if gauge.grows else GaugeMetricFamily
            found = kind(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in values:
                found.add_metric(labels, value)
            return [found]

    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry).decode()


@given(
    help=st.text(st.characters(codec="utf-8")),
    values=st.lists(
        st.tuples(
            st.tuples(st.text(st.characters(codec="utf-8")), st.text(alphabet='a"\\\nn')),
            st.one_of(st.integers(0, 1 << 60), st.floats(0, 1e18), st.booleans(), st.floats(-1e9, 1e9)),
        )
    ),
    grows=st.booleans(),
)
def test_any_text_and_number_is_written_as_by_the_library(help: str, values: list[Value], *, grows: bool) -> None:  # noqa: A002 - the field's name
    gauge = Gauge("gpushare_some", help, ("pod", "container"), grows)
    assert "".join(family(gauge, values)) == by_the_library(gauge, values)


def test_a_gauge_without_labels_and_one_without_values_are_written_as_by_the_library() -> None:
    for gauge, values in ((Gauge("gpushare_one", "One."), [((), 1)]), (Gauge("gpushare_none", "None.", ("a",)), [])):
        assert "".join(family(gauge, values)) == by_the_library(gauge, values)


def test_a_histogram_is_written_as_by_the_library() -> None:
    class Collector:
        def collect(self) -> list[prometheus_client.Metric]:
            found = HistogramMetricFamily("gpushare_took", "Took.", labels=["method"])
            found.add_metric(["Allocate"], buckets, 0.0073)
            return [found]

    buckets = [("0.0005", 1), ("0.01", 2), ("+Inf", 2)]
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector())
    written = "".join(histogram("gpushare_took", "Took.", ("method",), [(("Allocate",), buckets, 0.0073)]))
    assert written == generate_latest(registry).decode()


def test_what_was_written_is_read() -> None:
    gauge = Gauge("gpushare_some", "Some.", ("pod", "container"), grows=True)
    values = [(("a", "b} 1"), 1 << 30), (("c", "d"), 0.5)]
    assert list(samples("".join(family(gauge, values)) + "junk\none 2\n")) == [
        ("gpushare_some_total", {"pod": "a", "container": "b} 1"}, 1 << 30),
        ("gpushare_some_total", {"pod": "c", "container": "d"}, 0.5),
        ("one", {}, 2),
    ]


def test_memory_is_written_as_go_writes_it() -> None:
    assert number(1 << 30) == "1.073741824e+09"
    assert number(0.35) == "0.35"


def test_many_values_come_in_pieces_and_are_read_as_they_are_written() -> None:
    read = []

    def values() -> Iterator[Value]:
        for value in range(2 * LINES_AT_ONCE + 1):
            read.append(value)
            yield (str(value),), value

    pieces = family(Gauge("gpushare_some", "Some.", ("a",)), values())
    assert next(pieces).startswith("# HELP gpushare_some Some.\n# TYPE gpushare_some gauge\n")
    assert read == []
    assert [next(pieces).count("\n"), len(read)] == [LINES_AT_ONCE, LINES_AT_ONCE]
    assert [piece.count("\n") for piece in pieces] == [LINES_AT_ONCE, 1]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_character_cannot_keep_the_page_from_being_sent(text: str) -> None:
    """JSON may hold one; UTF-8 cannot."""
    page = "".join(family(Gauge("gpushare_some", "Some.", ("a",)), [((text,), 1)]))
    assert "?" in page.encode().decode()
