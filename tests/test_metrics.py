"""Metrics and probes, asked for over HTTP as Prometheus and the kubelet do."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from gpu_device_plugin import __version__, metrics
from gpu_device_plugin.aio.http import ListenError, Page, page_at, serving_routes
from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.model.gauges import Gauge, Value
from gpu_device_plugin.model.placing import Room
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics
from tests.nodes import node
from tests.reports import idle_metrics

IDLE = idle_metrics(node(8))


def lines(page: Page) -> set[str]:
    return {line for line in str(page.body).splitlines() if line.startswith("gpushare_")}


async def test_others_run_while_a_long_page_is_written() -> None:
    """Of 20,000 nodes; one page is written after the other."""
    nodes = tuple(Candidate(f"node-{n}", NodeGpus(share_mib=1024), (Room(0, total=8, free=8),)) for n in range(20_000))
    seen = extender(lambda: ExtenderMetrics(nodes=nodes))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    one, other = await asyncio.gather(seen.page(), seen.page())
    counting.cancel()
    assert lines(one) == lines(other)
    assert str(one.body).count("gpushare_extender_node_memory_bytes{") == 20_000
    assert turns > 100


async def test_what_happened_is_counted_by_label() -> None:
    seen = metrics.PrometheusMetrics(IDLE.gauges)
    seen.count(metrics.ALLOCATIONS, "aliyun.com/gpu-mem")
    seen.count(metrics.ALLOCATIONS, "aliyun.com/gpu-mem")
    seen.count(metrics.REFUSALS, "aliyun.com/gpu-count", "too little room")
    seen.count(metrics.MALFORMED_ANNOTATIONS, times=3)
    assert lines(await seen.page()) >= {
        'gpushare_allocations_total{resource="aliyun.com/gpu-mem"} 2.0',
        'gpushare_refusals_total{reason="too little room",resource="aliyun.com/gpu-count"} 1.0',
        "gpushare_malformed_annotations_total 3.0",
    }


async def test_how_long_answers_took_falls_into_buckets() -> None:
    """0.3 ms and 7 ms: one is within 0.5 ms, both within 10 ms."""
    seen = metrics.PrometheusMetrics(IDLE.gauges)
    for seconds in (0.0003, 0.007):
        seen.took(metrics.RPCS, seconds, "Allocate")
    assert lines(await seen.page()) >= {
        'gpushare_rpc_duration_seconds_bucket{le="0.0005",method="Allocate"} 1.0',
        'gpushare_rpc_duration_seconds_bucket{le="0.01",method="Allocate"} 2.0',
        'gpushare_rpc_duration_seconds_count{method="Allocate"} 2.0',
    }


async def test_the_state_is_the_one_at_the_moment_of_the_question() -> None:
    states = [IDLE, replace(IDLE, containers_over=2)]
    seen = metrics.PrometheusMetrics(lambda: states.pop(0).gauges())
    assert lines(await seen.page()) >= {
        f'gpushare_build_info{{version="{__version__}"}} 1.0',
        "gpushare_containers_over 0.0",
    }
    assert "gpushare_containers_over 2.0" in lines(await seen.page())


async def test_the_process_shows_its_memory_and_open_files() -> None:
    page = str((await metrics.PrometheusMetrics(IDLE.gauges).page()).body)
    shown = {name for name, value in re.findall(r"^(process_\w+) (.*)$", page, re.MULTILINE) if float(value) > 0}
    assert shown == {
        *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds"),
        *("process_cpu_seconds_total", "process_open_fds", "process_max_fds"),
    }


# --- Values in pieces ------------------------------------------------------------------------------------------------


def test_gauges_and_counters_are_written_as_prometheus_reads_them() -> None:
    gauge = Gauge("gpushare_some", "Some\\\nof it.", ("pod", "container"), grows=True)
    text = "".join(metrics.family(gauge, [(("a", 'b} "1\n'), 1 << 30), (("c", "d"), 0.35)]))
    assert text == (
        "# HELP gpushare_some_total Some\\\\\\nof it.\n"
        "# TYPE gpushare_some_total counter\n"
        'gpushare_some_total{container="b} \\"1\\n",pod="a"} 1.073741824e+09\n'
        'gpushare_some_total{container="d",pod="c"} 0.35\n'
    )
    for gauge, values, line in (
        (Gauge("gpushare_one", "One."), [((), True)], "gpushare_one 1.0\n"),
        (Gauge("gpushare_none", "None.", ("a",)), [], ""),
    ):
        head = f"# HELP {gauge.name} {gauge.help}\n# TYPE {gauge.name} gauge\n"
        assert "".join(metrics.family(gauge, values)) == head + line


def test_many_values_come_in_pieces_and_are_read_as_they_are_written() -> None:
    read = []

    def values() -> Iterator[Value]:
        for value in range(2 * metrics.LINES_AT_ONCE + 1):
            read.append(value)
            yield (str(value),), value

    pieces = metrics.family(Gauge("gpushare_some", "Some.", ("a",)), values())
    assert read == []
    first = next(pieces)
    assert first.startswith("# HELP gpushare_some Some.\n# TYPE gpushare_some gauge\n")
    assert [first.count("\n") - 2, len(read)] == [metrics.LINES_AT_ONCE, metrics.LINES_AT_ONCE]
    assert [piece.count("\n") for piece in pieces] == [metrics.LINES_AT_ONCE, 1]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_character_cannot_keep_the_page_from_being_sent(text: str) -> None:
    """JSON may hold one; UTF-8 cannot."""
    page = "".join(metrics.family(Gauge("gpushare_some", "Some.", ("a",)), [((text,), 1)]))
    assert "?" in page.encode().decode()


# --- The extender's --------------------------------------------------------------------------------------------------


def extender(state: Callable[[], ExtenderMetrics]) -> metrics.PrometheusMetrics:
    return metrics.PrometheusMetrics(lambda: state().gauges(), metrics.OF_EXTENDERS)


# --- Every name ------------------------------------------------------------------------------------------------------


async def explained(seen: metrics.PrometheusMetrics) -> dict[str, str]:
    """Return the help of every metric of ours that a page shows, by name."""
    found = re.findall(r"^# HELP (gpushare_\S+) (.*)$", str((await seen.page()).body), re.MULTILINE)
    return dict(found)


async def test_every_metric_explains_itself_and_stands_in_the_documentation() -> None:
    agent = await explained(metrics.PrometheusMetrics(IDLE.gauges))
    other = await explained(extender(ExtenderMetrics))
    assert [name for name, text in (agent | other).items() if not text[0].isalnum() or not text.endswith(".")] == []
    page = Path(__file__).parents[1] / "docs" / "operations.md"
    documented = set(re.findall(r"`(gpushare_[a-z_]+)`", page.read_text(encoding="utf-8")))
    assert documented == agent.keys() | other.keys()


async def test_each_program_shows_its_own_and_no_others() -> None:
    agent = await explained(metrics.PrometheusMetrics(IDLE.gauges))
    other = await explained(extender(ExtenderMetrics))
    assert agent.keys() & other.keys() == {
        *("gpushare_build_info", "gpushare_api_errors_total", "gpushare_malformed_annotations_total")
    }
    assert [name for name in agent if name.startswith("gpushare_extender_")] == []
    assert [name for name in other.keys() - agent.keys() if not name.startswith("gpushare_extender_")] == []


def test_counting_costs_no_import() -> None:
    """An agent that serves no HTTP has neither aiohttp nor prometheus_client in memory."""
    code = "import sys; from gpu_device_plugin import metrics\nprint({'aiohttp', 'prometheus_client'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- Over HTTP -------------------------------------------------------------------------------------------------------


class Conditions:
    """What a probe finds missing; set by the test."""

    def __init__(self) -> None:
        self.missing: tuple[str, ...] = ()

    async def check(self) -> Sequence[str]:
        return self.missing


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_probe_says_what_is_missing(http: aiohttp.ClientSession) -> None:
    ready = Conditions()
    async with serving_routes("127.0.0.1", 0, [page_at("/readyz", metrics.probe(ready.check))]) as port:
        url = f"http://127.0.0.1:{port}/readyz"
        async with http.get(url) as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        ready.missing = ("no driver on this node", "not registered with the kubelet")
        async with http.get(url) as answer:
            assert answer.status == 503
            assert await answer.text() == "no driver on this node\nnot registered with the kubelet\n"


async def test_metrics_are_served_in_prometheus_format(http: aiohttp.ClientSession) -> None:
    seen = metrics.PrometheusMetrics(IDLE.gauges)
    async with serving_routes("127.0.0.1", 0, [page_at("/metrics", seen.page)]) as port:
        answer = await http.get(f"http://127.0.0.1:{port}/metrics")
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert "gpushare_build_info" in await answer.text()


async def test_an_address_in_use_is_named() -> None:
    async with serving_routes("127.0.0.1", 0, []) as port:
        with pytest.raises(
            ListenError, match=f"cannot listen on 127.0.0.1:{port}: another program listens there already"
        ):
            async with serving_routes("127.0.0.1", port, []):
                pass
