"""`top --history` and `incident` over real sockets, from the command line to what is printed."""

import io
import json
import sys
from collections.abc import AsyncIterator

import pytest

from gpu_device_plugin.commandline import FAILED, OK
from gpu_device_plugin.features.history import commands as node_history
from gpu_device_plugin.features.history.commands import LONGER, history, incidents
from gpu_device_plugin.features.history.contract import IncidentList
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.programs.inspect.arguments import parse
from gpu_device_plugin.settings.knobs import UsageError
from tests.builders import node
from tests.cluster_double.troubles import Answer
from tests.histories import summary
from tests.remembering import Remembering, remembering
from tests.reporting import COMMANDS
from tests.resources import RESOURCES

XID = summary().name


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Remembering]:
    monkeypatch.setenv("COLUMNS", "120")
    async with remembering() as made:
        yield made


async def run(world: Remembering, *words: str) -> tuple[list[str], int]:
    """Return the lines that a command prints, and its exit code."""
    arguments = parse("kubectl inspect gpushare", words, COMMANDS)
    command = {"top": history, "incident": incidents}[arguments.command.name]
    async with Client(ClusterConfig(world.api.url)) as client:
        lines, code = await command(arguments, Access(client), RESOURCES)
    return [getattr(line, "text", str(line)) for line in lines], code


async def test_the_last_hour_of_all_gpus_is_drawn(world: Remembering) -> None:
    lines, code = await run(world, "top", "--history")
    heads = [line.strip() for line in lines if "read at" in line or "GPU " in line]
    assert heads[:3] == ["a100-1, read at 2026-11-23T09:29:45Z", "GPU 1  1f1c2f4e", "GPU 2  2f1c2f4e"]
    assert heads[3:] == ["t4-1, read at 2026-11-23T09:29:45Z", "GPU 0  0f1c2f4e"]
    assert (lines[-1], code) == (LONGER, OK)
    assert not any("web-0" in line for line in lines)


async def test_a_node_is_drawn_with_all_its_containers(world: Remembering) -> None:
    lines, _ = await run(world, "top", "--history", "t4-1")
    assert [line.strip() for line in lines if line.endswith("/main")] == ["default/web-0/main", "ml/train-0/main"]
    assert {each for each in world.asked if "a100-1" in each} == set()


async def test_a_namespace_is_drawn_where_it_has_containers(
    world: Remembering, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent of a100-1 knows no container of it, which is nothing to warn of."""
    lines, code = await run(world, "top", "--history", "-n", "ml")
    assert [line for line in lines if "read at" in line] == ["t4-1, read at 2026-11-23T09:29:45Z"]
    assert [line.strip() for line in lines if line.endswith("/main")] == ["ml/train-0/main"]
    assert (code, capsys.readouterr().err) == (OK, "")
    assert await run(world, "top", "--history", "-n", "nobody") == ([], OK)
    assert capsys.readouterr().err == ("No node remembers a pod of nobody with a GPU within the last hour.\n")


async def test_labels_choose_nodes(world: Remembering) -> None:
    world.api.patch("nodes", "t4-1", {"metadata": {"labels": {"pool": "a"}}}, namespace="")
    lines, _ = await run(world, "top", "--history", "-l", "pool=a")
    assert [line for line in lines if "read at" in line] == ["t4-1, read at 2026-11-23T09:29:45Z"]
    with pytest.raises(ClusterUnreadableError, match="-l pool=b: no node with an agent has these labels"):
        await run(world, "top", "--history", "-l", "pool=b")


async def test_nodes_that_are_not_read_are_named_with_the_reason(
    world: Remembering, capsys: pytest.CaptureFixture[str]
) -> None:
    world.api.add(node("bare-1", mem=30, count=2, labels={"gpushare": "true"}))
    world.answers["a100-1/history/"] = b"<html>"
    lines, code = await run(world, "top", "--history")
    assert (code, [line for line in lines if "read at" in line]) == (OK, ["t4-1, read at 2026-11-23T09:29:45Z"])
    said = capsys.readouterr().err
    assert "warning: not read: bare-1: the agent of the node cannot be asked: no agent that serves HTTP" in said
    assert "warning: not read: a100-1: what the agent of the node remembers cannot be understood" in said
    world.answers.clear()
    assert await run(world, "top", "--history") == ([], FAILED)


async def test_no_more_nodes_are_read_than_one_command_may(
    world: Remembering, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_history, "MOST_NODES", 1)
    await run(world, "top", "--history")
    assert capsys.readouterr().err == "warning: not read: t4-1: one command reads 1 nodes; name this one\n"
    monkeypatch.setattr(node_history, "BEGUN_WITHIN_S", -1.0)
    await run(world, "top", "--history", "t4-1")
    assert "not read: t4-1: others took" in capsys.readouterr().err


async def test_who_may_not_list_nodes_sees_those_with_agents(world: Remembering) -> None:
    world.api.fail(Answer(403), verbs=["list"], resources=["nodes"])
    lines, code = await run(world, "top", "--history")
    assert (len([line for line in lines if "read at" in line]), code) == (2, OK)
    with pytest.raises(ClusterUnreadableError, match=r"^-l gpushare=true: "):
        await run(world, "top", "--history", "-l", "gpushare=true")


async def test_incidents_of_all_nodes_are_listed(world: Remembering, capsys: pytest.CaptureFixture[str]) -> None:
    lines, code = await run(world, "incident")
    assert [line.split()[1:5] for line in lines[1:]] == [["t4-1", "xid", "0", "-"], ["t4-1", "xid", "0", "ml/train-0"]]
    assert (lines[1].split()[-1], code) == (XID, OK)
    assert await run(world, "incident", "a100-1") == ([], OK)
    assert capsys.readouterr().err == "No incident has been recorded.\n"
    world.answers["a100-1/incidents/"] = b"x"
    document = json.loads("\n".join((await run(world, "incident", "-o", "json"))[0]))
    assert [(each["node"], each["name"], each["kind"]) for each in document["incidents"]] == [
        ("t4-1", XID, "xid"),
        ("t4-1", "x-ml", "xid"),
    ]
    assert [each["node"] for each in document["unread"]] == ["a100-1"]


@pytest.mark.parametrize("words", [("t4-1", XID), ("node/t4-1", XID), (XID,)])
async def test_an_incident_is_shown_by_its_name(world: Remembering, words: tuple[str, ...]) -> None:
    lines, code = await run(world, "incident", *words)
    assert (lines[0], code) == ("2026-11-23T09:25:00Z  t4-1  xid  GPU 0", OK)
    assert "GPU 0  pid 4711  default/web-0/main  5,120 MiB" in lines
    document = json.loads("\n".join((await run(world, "incident", *words, "-o", "json"))[0]))
    assert (document["node"], document["processes"][0]["pid"]) == ("t4-1", 4711)


async def test_a_name_that_nobody_knows_is_no_incident(world: Remembering) -> None:
    world.answers["a100-1/incidents/"] = b"x"
    with pytest.raises(ClusterUnreadableError, match=r"^gone is no incident of any node, .*; not read: a100-1: "):
        await run(world, "incident", "gone")
    with pytest.raises(ClusterUnreadableError, match=r"^gone is no incident of node t4-1; leave"):
        await run(world, "incident", "t4-1", "gone")


async def test_where_there_is_no_agent_nothing_can_be_read(world: Remembering) -> None:
    for at in ("t4-1", "a100-1"):
        world.api.delete("pods", f"agent-{at}", "gpushare")
        world.api.delete("nodes", at, "")
    with pytest.raises(ClusterUnreadableError, match="gpushare doctor"):
        await run(world, "incident")


async def test_what_pods_write_cannot_control_the_terminal(world: Remembering) -> None:
    world.answers["t4-1/incidents/"] = IncidentList((summary(sentence="\x1b[2Jgone\u202e", namespace="a", pod="b"),))
    lines, _ = await run(world, "incident", "t4-1")
    assert "\\x1b[2Jgone\\u202e" in lines[1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("top", "--history", "--interval", "5"), "--history: it draws the last hour once"),
        (("top", "--history", "--sort-by", "used"), "--history: it draws the last hour once"),
        (("--history",), "--history goes with top"),
        (("incident", "a", "b", "c"), "too many arguments"),
        (("incident", "-o", "wide"), "invalid choice: 'wide'"),
        (("incident", "-n", "x"), "-n goes with"),
        (("cordn", "t4-1", "0"), "did you mean cordon?"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse("kubectl inspect gpushare", words, COMMANDS)


@pytest.mark.parametrize(("encoding", "drawn"), [("utf-8", "▁"), ("latin-1", "_"), ("ascii", "_")])
async def test_a_terminal_gets_characters_that_it_has(
    world: Remembering, monkeypatch: pytest.MonkeyPatch, encoding: str, drawn: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    monkeypatch.setenv("COLUMNS", "80")
    lines, _ = await run(world, "top", "--history", "t4-1")
    assert drawn in lines[3]
    assert max(map(len, lines[:-1])) <= 80
