"""The running agent is found by its command line, and asked over its own pages."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpu_device_plugin.aio.http import Page, page_at, serving_routes
from gpu_device_plugin.programs.doctor.node_reading import Running, agents, ask
from gpu_device_plugin.programs.doctor.rules.symptoms import AgentSeen
from gpu_device_plugin.report.rules.finding import Unknown
from gpu_device_plugin.settings.forms import Address
from tests.names import COUNT, MEM
from tests.node.harness import world
from tests.patience import stretched
from tests.ports import free_port


def process(proc: Path, number: int, words: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    folder = proc / str(number)
    folder.mkdir()
    (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    if environ is not None:
        (folder / "environ").write_bytes("".join(f"{name}={value}\0" for name, value in environ.items()).encode())


@pytest.mark.parametrize(
    "words",
    [
        ["/usr/bin/python", "/usr/local/bin/gpu-device-plugin", "node", "--http=:9445"],
        ["gpu-device-plugin", "node", "--http=:9445"],
        ["python", "-m", "gpu_device_plugin", "node", "--http=:9445"],
    ],
)
def test_an_agent_is_known_however_it_was_started(tmp_path: Path, words: list[str]) -> None:
    environ = {"NODE_NAME": "node-a", "GPUSHARE_POLICY": "spread", "TOKEN": "s3cret"}
    process(tmp_path, 1, words, environ)
    (tmp_path / "self").mkdir()
    ours = {"NODE_NAME": "node-a", "GPUSHARE_POLICY": "spread"}
    assert agents(tmp_path) == [(["node", "--http=:9445"], ours, tmp_path / "1" / "root")]


def test_other_processes_are_none_and_the_first_agent_comes_first(tmp_path: Path) -> None:
    """Neither are other programs of ours, nor somebody who reads its log; and /proc/10 comes after /proc/9."""
    process(tmp_path, 1, ["gpu-device-plugin", "extender"])
    process(tmp_path, 2, ["less", "gpu-device-plugin"])
    process(tmp_path, 3, ["gpu_device_plugin", "node"])
    process(tmp_path, 10, ["gpu-device-plugin", "node", "b"])
    process(tmp_path, 9, ["gpu-device-plugin", "node", "a"])
    (tmp_path / "11").mkdir()
    assert [each.arguments for each in agents(tmp_path) or ()] == [["node", "a"], ["node", "b"]]


def test_where_no_process_is_to_be_seen_nobody_knows(tmp_path: Path) -> None:
    assert agents(tmp_path) is None
    assert agents(tmp_path / "none") is None


async def test_an_agent_that_serves_tells_that_the_kubelet_listens() -> None:
    port = free_port()
    async with world(http=f"0.0.0.0:{port}") as node:
        await node.start_agent()
        seen = await ask(Address("0.0.0.0", port), stretched())  # noqa: S104 - what a setting may say
        assert isinstance(seen, AgentSeen)
        assert (seen.where, seen.missing, seen.api_errors) == (f"http://127.0.0.1:{port}", (), 0)
        assert seen.streams == {MEM: True, COUNT: True}
        assert seen.version


async def test_one_that_is_not_ready_says_why() -> None:
    async def ready() -> Page:
        return Page("paused: so that GPUs can be reset\n", status=503)

    async def metrics() -> Page:
        return Page('gpushare_api_errors_total{verb="get"} 2\ngpushare_api_errors_total{verb="list"} 1\n')

    async def garbage() -> Page:
        return Page("<html>{")

    port = free_port()
    async with serving_routes("127.0.0.1", port, [page_at("/readyz", ready), page_at("/metrics", metrics)]):
        seen = await ask(Address("127.0.0.1", port), stretched())
    assert seen == AgentSeen(f"http://127.0.0.1:{port}", ("paused: so that GPUs can be reset",), api_errors=3)
    async with serving_routes("127.0.0.1", port, [page_at("/readyz", ready), page_at("/metrics", garbage)]):
        seen = await ask(Address("127.0.0.1", port), stretched())
    assert isinstance(seen, AgentSeen)
    assert seen.streams == {}


async def test_one_that_does_not_answer_is_ill_and_one_that_is_not_there_is_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seen = await ask(Address("127.0.0.1", silent.getsockname()[1]), 0.1)
    assert isinstance(seen, AgentSeen)
    assert "does not answer within 0.1 s" in seen.missing[0]
    refused = await ask(Address("", free_port()), stretched())
    assert isinstance(refused, Unknown)
    assert refused.code == "agent-unreachable"
    assert isinstance(await ask(None, 5), Unknown)


def test_an_agent_is_told_by_its_process_node_and_command_line() -> None:
    named = Running(["node", "--http=:9445"], {"NODE_NAME": "a"}, Path("/proc/42/root"))
    assert str(named) == "process 42 of node a (gpu-device-plugin node --http=:9445)"
    assert str(Running(["node"], {}, Path("/proc/7/root"))) == "process 7 (gpu-device-plugin node)"
    assert [Running([], {}, Path(f"/proc/{pid}/root")).alone for pid in (1, 11)] == [True, False]
