"""Every command of the documentation is run by a test, or needs what no test has, and then makes sense all the same."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpu_device_plugin.core.leaving import SWITCH_LABEL
from gpu_device_plugin.core.others import OTHERS
from gpu_device_plugin.programs.inspect import _parse
from tests.docs.pages import DOCS, ROOT, blocks, pages, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docs.pages import Block

COMMANDS = [
    pytest.param(block, command, id=f"{page.relative_to(ROOT)}: {command[:60]}")
    for page in pages()
    for block in blocks(text_of(page), "console")
    for command, _ in block.commands
]
KUBECTL = sorted(
    {
        command
        for page in pages()
        for block in blocks(text_of(page))
        for command in re.findall(r"^(?:\$ )?(kubectl .*?)(?:  #.*)?$", block.text.replace("\\\n", ""), re.MULTILINE)
    }
)
MARK = re.compile(r"needs: .+|run by: (\S+)")


@pytest.mark.parametrize(("block", "command"), COMMANDS)
def test_a_command_is_run_by_somebody_or_says_what_it_needs(block: Block, command: str) -> None:
    """What begins with kubectl needs a cluster; those of the guide get one from tests/docs/test_guide.py."""
    if command.startswith("kubectl "):
        return
    mark = MARK.fullmatch(block.mark)
    assert mark is not None, "write <!-- needs: WHAT --> or <!-- run by: FILE --> above the block"
    if mark[1]:
        assert command in text_of(ROOT / mark[1])


@pytest.mark.parametrize("command", KUBECTL)
def test_what_kubectl_is_given_is_there(command: str) -> None:
    """Files, and the workloads of deploy/ that are named."""
    for path in re.findall(r"-f (\S+)", command):
        assert path == "-" or (ROOT / path).exists()
    for patch in re.findall(r"-p '(.+?)'", command):
        json.loads(patch)
    for kind, name in re.findall(r"(daemonset|deployment)[ /]([a-z][\w-]+)", command):
        assert (kind, name) in workloads() | EXAMPLES | GPUSHARE, f"{kind} {name}"


def workloads() -> set[tuple[str, str]]:
    return {
        named(each) for path in (ROOT / "deploy").glob("**/*.yaml") if "chart" not in path.parts for each in load(path)
    }


def load(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(text_of(path)) if each]


def named(body: Any) -> tuple[str, str]:
    return body["kind"].lower(), body["metadata"]["name"] if "metadata" in body else ""


EXAMPLES = {named(each) for path in (DOCS / "examples").iterdir() for each in load(path)}
GPUSHARE = {("daemonset", "gpushare-device-plugin-ds"), ("deployment", "gpushare-schd-extender")}
"""What Alibaba's manifests are called."""


@pytest.mark.parametrize("command", [each for each in KUBECTL if each.startswith("kubectl inspect gpushare")])
def test_inspect_understands_what_it_is_told(command: str) -> None:
    words = command.removeprefix("kubectl inspect gpushare").partition(">")[0].replace("[", "").replace("]", "")
    _parse("kubectl inspect gpushare", shlex.split(words))


# --- Tables ----------------------------------------------------------------------------------------------------------


def table(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table that begins with this heading."""
    (found,) = re.findall(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


def test_whoever_else_may_hand_out_the_gpus_is_named_with_what_to_do() -> None:
    shown = "\n".join(" ".join(row) for row in table(text_of(DOCS / "install.md"), "Found"))
    for other in OTHERS:
        assert re.search(
            "|".join(re.findall(r"NVIDIA's [A-Z]?\w+|GKE|gpushare|HAMi|Volcano|Tencent|AWS", other.name)), shown
        )
        for setting in re.findall(r"[\w./-]+=\w+", other.off):
            assert setting in shown


def test_the_switch_is_the_one_that_the_agent_obeys() -> None:
    assert f"kubectl label node NODE {SWITCH_LABEL}=true" in text_of(DOCS / "install.md")


def test_the_rights_of_both_accounts_are_those_of_the_manifests() -> None:
    told: dict[str, set[tuple[str, str]]] = {}
    account = ""
    for name, right, *_ in table(text_of(DOCS / "security.md"), "Account"):
        account = name.strip("`") or account
        if found := re.fullmatch(r"`(\S+)`: ([a-z, ]+)", right):
            told.setdefault(account, set()).update((found[1], verb) for verb in found[2].split(", "))
    roles = {
        each["metadata"]["name"]: {
            (what, verb) for rule in each["rules"] for what in rule["resources"] for verb in rule["verbs"]
        }
        for name in ("daemonset", "scheduler")
        for each in load(ROOT / "deploy" / f"{name}.yaml")
        if each["kind"] == "ClusterRole"
    }
    assert told == {"gpushare-node": roles["gpushare-node"], "gpu-device-plugin-scheduler": roles["gpushare-extender"]}


def test_what_the_agent_needs_on_its_node_is_all_told() -> None:
    needs = "\n".join(" ".join(row) for row in table(text_of(DOCS / "security.md"), "What"))
    (spec,) = (
        each["spec"]["template"]["spec"]
        for each in load(ROOT / "deploy" / "daemonset.yaml")
        if each["kind"] == "DaemonSet"
    )
    (container,) = spec["containers"]
    mounts = {each["name"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    for volume in spec["volumes"]:
        read_only = ", read-only" if mounts[volume["name"]] else ""
        assert f"`hostPath` `{volume['hostPath']['path']}`{read_only} " in needs
    for variable in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"):
        (value,) = (each["value"] for each in container["env"] if each["name"] == variable)
        assert f"`{variable}={value}`" in needs
    assert f"`runAsUser: {container['securityContext']['runAsUser']}`" in needs
    harmless = {"privileged": False, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    assert harmless.items() <= container["securityContext"].items()
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not any(key in spec for key in ("hostNetwork", "hostPID", "hostIPC"))
