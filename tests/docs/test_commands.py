"""Every command of the documentation is run by a test, or needs what no test has, and then makes sense all the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpu_device_plugin.core.contract.keys import SWITCH_LABEL
from gpu_device_plugin.core.node.kubelet.conflicting_plugins import OTHERS
from tests.docs.pages import DOCS, ROOT, blocks, commands, pages, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docs.pages import Command

COMMANDS = [command for page in pages() for command in commands(page)]
KUBECTL = sorted({command.text for command in COMMANDS if "kubectl " in command.text})
PROGRAMS = ("kubectl", "helm", "docker", "nvidia-ctk", "gpu-device-plugin", "make", "systemctl")
"""What commands begin with."""


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_is_run_by_somebody_or_says_what_it_needs(command: Command) -> None:
    """What begins with kubectl is run by test_kubectl.py, and what shows something by test_guide.py, too."""
    assert command.understood, "write <!-- needs: WHAT --> or <!-- run by: FILE --> above the block, or nothing"
    if command.runner:
        assert (command.page.name if "\n" in command.text else command.text) in text_of(ROOT / command.runner)
    assert command.needs_more or "kubectl " in command.text


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_where_they_are_found(page: Path) -> None:
    """In blocks of the language console, one after each dollar, or in those of sh, which are scripts."""
    for block in blocks(text_of(page)):
        if block.language not in {"console", "sh"}:
            assert not re.search(rf"^\s*(\$ |({'|'.join(PROGRAMS)}) )", block.text, re.MULTILINE)


@pytest.mark.parametrize("command", KUBECTL)
def test_what_kubectl_is_given_is_there(command: str) -> None:
    """Files, and the workloads of deploy/ that are named."""
    for path in re.findall(r"-f (\S+)", command):
        assert path in {"-", "install.yaml"} or (ROOT / path).exists()  # the latter is one of a release's files
    for patch in re.findall(r"-p '(.+?)'", command):
        json.loads(patch)
    for kind, name in re.findall(r"(daemonset|deployment)[ /]([a-z][\w-]+)", command):
        assert (kind, name) in workloads() | EXAMPLES | GPUSHARE, f"{kind} {name}"


def workloads() -> set[tuple[str, str]]:
    return {
        named(each)
        for path in (ROOT / "deploy").glob("**/*.yaml")
        if not {"chart", "files", "patches"} & {*path.parts}
        for each in load(path)
    }


def load(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(text_of(path)) if each]


def named(body: Any) -> tuple[str, str]:
    return body["kind"].lower(), body["metadata"]["name"] if "metadata" in body else ""


EXAMPLES = {named(each) for path in (DOCS / "examples").iterdir() for each in load(path)}
GPUSHARE = {("daemonset", "gpushare-device-plugin-ds"), ("deployment", "gpushare-schd-extender")}
"""What Alibaba's manifests are called."""

PROSE = [re.sub(r"^ *```.*?^ *```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL) for page in pages()]


@pytest.mark.parametrize(
    "words", sorted({each for text in PROSE for each in re.findall(r"`gpu-device-plugin ([^`]+)`", text)})
)
def test_a_program_that_is_named_explains_itself(words: str) -> None:
    program = [sys.executable, "-m", "gpu_device_plugin", *words.split(), "--help"]
    assert subprocess.run(program, capture_output=True, check=False).returncode == 0


PROGRAMS_OF_OURS = (
    "node",
    "extender",
    "web",
    "mps",
    "doctor",
    "simulate",
    "demo",
    "inspect",
    "inspect why",
    "inspect uninstall",
)
FLAGS_OF_OTHERS = {
    "helm": {"set", "take-ownership", "force-conflicts"},
    "docker": {"platform", "push", "build-arg", "secret"},
    "gh": {"repo"},
    "kubectl": {"raw", "force", "overwrite"},
    "kubelet": {"root-dir"},
    "k3s": {"default-runtime"},
    "eksctl": {"install-nvidia-plugin"},
    "NVIDIA's": {"runtime", "device-name-strategy", "gpu-reset", "nvidia-resource-names", "query-gpu", "format"},
    "Alibaba's": {"memory-unit", "policy-config-file"},
    "vLLM": {"gpu-memory-utilization"},
    "kube-state-metrics": {"metric-labels-allowlist"},
}


def test_every_flag_that_is_named_is_somebodys() -> None:
    helps = [
        subprocess.run(
            [sys.executable, "-m", "gpu_device_plugin", *program.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for program in PROGRAMS_OF_OURS
    ]
    ours = {flag for text in helps for flag in re.findall(r"--([a-z][a-z-]+)", text)}
    named = {
        flag
        for text in PROSE
        for code in re.findall(r"`([^`]+)`", text)
        for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", code)
    }
    assert named - ours == set().union(*FLAGS_OF_OTHERS.values())


def test_every_target_of_make_that_is_named_is_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert {each for text in PROSE for each in re.findall(r"`make ([a-z0-9-]+)", text)} <= targets


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
        # What is no directory of the node's, such as a ConfigMap, every pod may have.
        assert "hostPath" not in volume or f"`hostPath` `{volume['hostPath']['path']}`{read_only} " in needs
    for variable in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"):
        (value,) = (each["value"] for each in container["env"] if each["name"] == variable)
        assert f"`{variable}={value}`" in needs
    assert f"`runAsUser: {container['securityContext']['runAsUser']}`" in needs
    harmless = {"privileged": False, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    assert harmless.items() <= container["securityContext"].items()
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert ("`hostPID`" in needs) == spec.get("hostPID", False)
    assert not any(key in spec for key in ("hostNetwork", "hostIPC"))
