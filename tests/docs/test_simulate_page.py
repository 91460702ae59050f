"""The page of the simulator shows what it prints, and explains every flag and every word that there is."""

import json
import re
import shlex
from pathlib import Path

import pytest

from gpu_device_plugin import cli
from gpu_device_plugin.hardware.fake.gpu_models import MODELS
from gpu_device_plugin.programs.simulate.entries import nodes_in, pods_in
from gpu_device_plugin.programs.simulate.experiment import POLICIES
from tests.builders import container, node, pod
from tests.docs.pages import DOCS, blocks, commands, text_of
from tests.docs.plots import PLOTS, ROOT
from tests.docs.test_commands import help_of

PAGE = text_of(DOCS / "simulate.md")
BURST = 'gpu-device-plugin simulate --nodes "1x gpus=4 mem=46" --pods docs/examples/recorded-use.json --burst 100,90,50'
RUN = (
    "kubectl get nodes,pods -A -o json > cluster.json",
    "gpu-device-plugin simulate --nodes cluster.json",
    "gpu-device-plugin simulate --nodes cluster.json --from-empty --until 130",
    'gpu-device-plugin simulate --nodes "10x gpus=4 mem=24 cpu=64 memory=256Gi" --pods "40x mem=8 cpu=4 memory=16Gi; 5x count=2 cpu=16; 60x mem=14" --policy fit,spread',  # noqa: E501 - as it is written there
    'gpu-device-plugin simulate --pods "40x mem=8; 30x mem=14" --nodes-needed "4x RTX 4090" --policy fit',
    'gpu-device-plugin simulate --nodes cluster.json --pods web.yaml --nodes-needed "4x H100 cpu=96 memory=1Ti"',
    BURST,
)
WEB = """
kind: Deployment
metadata: {name: web}
spec: {replicas: 2, template: {spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}}}
"""


def test_the_commands_can_be_followed_and_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What kubectl lists are a node and a pod that waits."""
    there = node("a", mem=20, count=2)
    there["metadata"]["uid"] = "a"
    listed = {"kind": "List", "items": [there, pod("waits", container(mem=5), uid="waits")]}
    (tmp_path / "cluster.json").write_text(json.dumps(listed), encoding="utf-8")
    (tmp_path / "web.yaml").write_text(WEB, encoding="utf-8")
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    shown = [pair for block in blocks(PAGE, "console") for pair in block.commands]
    assert [command.text for command in commands(DOCS / "simulate.md") if command.runner] == list(RUN)
    for command, output in shown:
        program, *words = shlex.split(command)
        if program in {"kubectl", "curl"}:
            continue
        assert cli.main(words) == 0, command
        printed = capsys.readouterr()
        assert printed.err == "", command
        assert printed.out.strip("\n") == output or not output


def test_the_pictures_are_of_the_commands_beside_them() -> None:
    """With more percentages, and until more was requested."""
    defaults = BURST.removesuffix(" 100,90,50")
    for name, command, more in (("simulate.svg", RUN[3], ("--until", "130")), ("burst.svg", defaults, ())):
        words = [str(ROOT / word) if word.startswith("docs/") else word for word in shlex.split(command)]
        assert [*words[1:], *more] == [*PLOTS[name]]


def test_the_page_of_placement_shows_the_first_of_them() -> None:
    there = [command.text for command in commands(DOCS / "placement.md") if not command.inline]
    assert there == list(RUN[:3])


def explained(heading: str) -> set[str]:
    (rows,) = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return {word for row in rows.splitlines() for word in re.findall(r"`(-[\w-]+|[a-z]+)[^`]*`", row.split(" | ")[0])}


def test_every_flag_is_explained() -> None:
    usage = help_of("simulate")
    flags = set(re.findall(r"^ {2}(?:-\w(?: [\w|]+)?, )?(--[\w-]+)", usage, re.MULTILINE)) - {"--help"}
    assert flags - {"--output"} == explained("Flag") - {"-o"}


def test_every_policy_is_named() -> None:
    (row,) = re.findall(r"^\| `--policy NAMES` \|(.*)$", PAGE, re.MULTILINE)
    assert {*POLICIES} == set(re.findall(r"`([a-z]+)`", row))


def test_every_model_is_named() -> None:
    (named,) = re.findall(r"^\*\*Models\*\* with a default for `mem` are (.*?):", PAGE, re.MULTILINE | re.DOTALL)
    assert re.findall(r"[A-Z]+[0-9]+[A-Z]*", named) == [*MODELS]


def test_every_word_is_explained() -> None:
    """Each is accepted by a node or by a pod."""
    assert explained("Word") - {""} == {"gpus", "mem", "mig", "divided", "count", "split", "model", "cpu", "memory"}
    assert nodes_in("8x H100; H100")
    assert nodes_in("gpus=2 mem=80 model=H100 mig=1g.10gb*7 divided=1 cpu=1 memory=1Gi")
    assert pods_in("mem=2 split=2 model=A10 cpu=1 memory=1Gi; count=1")
