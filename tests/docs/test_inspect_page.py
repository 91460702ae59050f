"""The page of `kubectl inspect gpushare` shows what it prints, and explains every field and command that there is."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.history.report import BLOCKS, REASONS, history_lines
from gpu_device_plugin.features.history.rules.slowness import slowness
from gpu_device_plugin.model.contract.node_use import GpuUse
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.programs.inspect.arguments import parse
from gpu_device_plugin.report.rules.terminal_tables import SORTS, folded
from tests.docs.pages import DOCS, blocks, text_of
from tests.histories import hour, used_by
from tests.programs.inspect.test_inspect_program import World, asking_mig, gpu, node, parted, pod
from tests.programs.inspect.test_why_slow import PLACE
from tests.reporting import COMMANDS
from tests.reports import SINCE, part, report, written
from tests.slow_pods import CAUSES, NOW
from tests.views import node_view, pod_on

PAGE = text_of(DOCS / "inspect.md")
REASON = "0/1 nodes are available: 1 no GPU has 8 GiB free"
ADVISORY: dict[str, Any] = {"enforcement": Enforcement.ADVISORY, "held": LimitStatus.UNVERIFIED}
WAITING = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REASON}


def cluster(home: Path) -> World:
    """Return the one of the page: two GPUs of 15 GiB, of which 10 and 9 are taken."""
    world = World(home)
    world.has(
        node("node-a", gpu(0, uuid="GPU-6f1c2f4e-0"), gpu(1, uuid="GPU-9a57b0c1-0")),
        pod("web-0", 5, on="node-a", idx=0),
        pod("web-1", 5, on="node-a", idx=0),
        pod("big-0", 9, on="node-a", idx=1, namespace="ml"),
        pod("train-0", 8, conditions=[WAITING]),
    )
    return world


def test_why_a_pod_waits_is_told_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On GPU 0 ending one of two pods of 5 GiB makes 10; on GPU 1 the one of 9 would have to end, which is more."""
    ((command, shown),) = (
        each for block in blocks(PAGE, "console") for each in block.commands if each[0].endswith("why train-0")
    )
    assert command == "kubectl inspect gpushare why train-0"
    assert cluster(tmp_path).inspect("why", "train-0") == 0
    assert [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()] == shown.splitlines()


def test_why_a_pod_is_slow_is_told_as_shown() -> None:
    commands = dict(each for block in blocks(PAGE, "console") for each in block.commands)
    told = slowness([CAUSES["heat"][0]], "default", "train", NOW)
    assert commands["kubectl inspect gpushare why train"].splitlines() == [*PLACE, *map(str, told)]


def test_use_beside_granted_is_shown_as_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table stands below those of the allocation."""
    commands = dict(each for block in blocks(PAGE, "console") for each in block.commands)
    shown = commands["kubectl inspect gpushare -d node-b"]
    world = World(tmp_path)
    over = part("web-0", granted=5120, used=9011, over_since=SINCE, **ADVISORY)
    kept = part("web-1", granted=5120, used=4310, **ADVISORY)
    reporting = node("node-b", gpu(0))
    reporting["metadata"]["annotations"] |= written(over, kept, gpus={0: GpuUse(13_633, 312)})
    world.has(reporting, pod("web-0", 5, on="node-b", idx=0), pod("web-1", 5, on="node-b", idx=0))
    assert world.inspect("-d", "node-b") == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert printed.endswith(f"\n\n{shown}"), printed


def test_instances_stand_below_the_tables_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = dict(each for block in blocks(PAGE, "console") for each in block.commands)
    world = World(tmp_path)
    place: dict[str, Any] = {"parent": "GPU-m", "gpu": 0, "profile": "1g.10gb"}
    shared = [gpu(n, 9, uuid=f"MIG-{n}", mig={**place, "number": n, "gi": 7 + n}) for n in range(2)]
    world.has(
        parted("node-m", *shared, number=3, **{**place, "first": 2}),
        pod("web-0", 3, on="node-m", idx=0),
        asking_mig("tune-0", on="node-m", uuid="MIG-2"),
        asking_mig("tune-1", on="node-m"),
    )
    assert world.inspect("-d", "node-m") == 0
    printed = capsys.readouterr().out.splitlines()
    shown = commands["kubectl inspect gpushare -d node-m"].splitlines()
    assert printed[printed.index(shown[0]) :][: len(shown)] == shown


def test_every_field_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = cluster(tmp_path)
    world.has(parted("node-0", number=1), asking_mig("tune-0", on="node-0"))
    assert world.inspect("-o", "json") == 0
    (document,) = [json.loads(capsys.readouterr().out)]
    table = PAGE.partition("| Field | Meaning |")[2]
    told = {
        name for cell in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    }
    named = {name.strip(".[]").rpartition(".")[2].removesuffix("[]") for name in told}
    assert set(fields(document["nodes"][0])) - set(re.findall(r"`(\w+)`", table)) - named == set()


def fields(value: Any) -> list[str]:
    """Return the names of all fields, those of what is beneath too; what is beneath is not told of resource names."""
    match value:
        case dict():
            return [name for key, each in value.items() if "/" not in key for name in (key, *fields(each))]
        case list():
            return [name for each in value for name in fields(each)]
        case _:
            return []


def test_every_command_is_shown() -> None:
    (block,) = (each for each in blocks(PAGE, "console") if "uninstall" in each.text)
    shown = [re.sub(r"[\[\]]", "", command).split()[3:] for command, _ in block.commands]
    commands = {parse("kubectl inspect gpushare", words, COMMANDS).command.name for words in shown}
    assert commands == {
        "overview",
        "top",
        "incident",
        "why",
        "resize",
        "plan",
        "cordon",
        "uncordon",
        "wake",
        "web",
        "doctor",
        "uninstall",
    }


def test_the_folded_table_is_shown_as_it_is_drawn() -> None:
    """Of a node with four GPUs, in a terminal of 80 columns."""
    (shown,) = (block.text for block in blocks(PAGE, "text") if "3x Tesla T4" in block.text)
    over = replace(part("web-0", granted=5120, used=9011), over_since=SINCE)
    gpus = {0: GpuUse(13_633), 1: GpuUse(1024), 2: GpuUse(1024), 3: GpuUse(1024)}
    enforcements = dict.fromkeys(range(4), GpuEnforcement(Enforcement.ADVISORY, "the driver is older than r615"))
    pods = [pod_on("web-0", {0: 5}), pod_on("web-1", {0: 5}), *(pod_on(f"n{at}", {at: 9}) for at in (1, 2, 3))]
    view = node_view("node-a", (15,) * 4, *pods, report=report(over, gpus=gpus, enforcements=enforcements))
    assert [line.text for line in folded([view], 80)] == shown.splitlines()


def test_the_last_hour_is_shown_as_it_is_drawn() -> None:
    """In a terminal of 78 columns."""
    shown = dict(each for block in blocks(PAGE, "console") for each in block.commands)
    lines = history_lines("t4-1", hour(used_by("default/web-0")), 78, BLOCKS)
    assert [line.text for line in lines] == shown["kubectl inspect gpushare top --history t4-1"].splitlines()
    for letter, _ in REASONS.values():
        assert f"`{letter}` " in PAGE


def test_every_word_to_sort_by_is_named() -> None:
    for word in SORTS:
        assert f"`{word}`" in PAGE
