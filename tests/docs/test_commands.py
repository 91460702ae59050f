"""A command of the documentation is run by a test or says what it needs, and what it names is there."""

import io
import json
import re
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from gpu_device_plugin import cli
from gpu_device_plugin.features.conflicts.rules import OTHERS
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL
from tests.deploy.manifests import DEPLOY, documents
from tests.docs.pages import DOCS, ROOT, blocks, commands, pages, text_of
from tests.reporting import COMMANDS

PROGRAMS = ("kubectl", "helm", "docker", "nvidia-ctk", "gpu-device-plugin", "make", "systemctl")
"""What commands begin with."""

every_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))


@every_page
def test_a_command_is_run_by_somebody_or_says_what_it_needs(page: Path) -> None:
    """What begins with kubectl needs a cluster alone; what shows something is run by test_guide.py."""
    for command in commands(page):
        assert command.understood, "write <!-- needs: WHAT --> or <!-- run by: FILE --> above the block, or nothing"
        if command.runner:
            assert (page.name if "\n" in command.text else command.text) in text_of(ROOT / command.runner)
        assert command.needs_more or "kubectl " in command.text


@every_page
def test_commands_stand_where_they_are_found(page: Path) -> None:
    """In blocks of the language console, one after each dollar, or in those of sh, which are scripts."""
    for block in blocks(text_of(page)):
        if block.language not in {"console", "sh"}:
            assert not re.search(rf"^\s*(\$ |({'|'.join(PROGRAMS)}) )", block.text, re.MULTILINE)


@every_page
def test_what_kubectl_is_given_is_there(page: Path) -> None:
    """Files, and the workloads of deploy/ that are named."""
    for command in (each.text for each in commands(page) if "kubectl " in each.text):
        for path in re.findall(r"-f (\S+)", command):
            assert path in {"-", "install.yaml"} or (ROOT / path).exists()  # the latter is one of a release's files
        for patch in re.findall(r"-p '(.+?)'", command):
            json.loads(patch)
        for kind, name in re.findall(r"(daemonset|deployment)[ /]([a-z][\w-]+)", command):
            assert (kind, name) in workloads() | GPUSHARE, f"{kind} {name}"


@cache
def workloads() -> set[tuple[str, str]]:
    """Return the kinds and names of what deploy/ and the examples have."""
    paths = [path for path in DEPLOY.glob("**/*.yaml") if not {"chart", "files", "patches"} & {*path.parts}]
    return {
        (each["kind"].lower(), each["metadata"]["name"])
        for path in (*paths, *(DOCS / "examples").glob("*.yaml"))
        for each in documents(path)
        if each and "metadata" in each
    }


GPUSHARE = {("daemonset", "gpushare-device-plugin-ds"), ("deployment", "gpushare-schd-extender")}
"""What Alibaba's manifests are called."""

PROSE = [re.sub(r"^ *```.*?^ *```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL) for page in pages()]


def help_of(words: str) -> str:
    """Return what a program of ours says of itself."""
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as ended:
        cli.main([*words.split(), "--help"])
    assert ended.value.code == 0, words
    return out.getvalue()


def test_every_program_that_is_named_explains_itself() -> None:
    for words in {each for text in PROSE for each in re.findall(r"`gpu-device-plugin ([^`]+)`", text)}:
        assert help_of(words)


PROGRAMS_OF_OURS = (
    *("node", "extender", "web", "mps", "limits", "doctor", "simulate", "cost", "demo"),
    *("inspect", *(f"inspect {command}" for command in COMMANDS)),
)
FLAGS_OF_OTHERS = {
    "helm": {"set", "create-namespace", "take-ownership", "force-conflicts"},
    "docker": {"platform", "push", "build-arg", "secret"},
    "gh": {"repo"},
    "kubectl": {"force", "overwrite"},
    "kubelet": {"root-dir"},
    "kube-apiserver": {"authorization-config", "authorization-mode"},
    "NVIDIA's": {"runtime", "device-name-strategy", "gpu-reset", "nvidia-resource-names", "query-gpu", "format"},
    "Alibaba's": {"memory-unit", "policy-config-file"},
    "vLLM": {"gpu-memory-utilization", "enable-sleep-mode"},
    "kube-state-metrics": {"metric-labels-allowlist"},
    "the Cluster Autoscaler": {"capacity-buffer-controller-enabled", "capacity-buffer-pod-injection-enabled"},
}


def test_every_flag_that_is_named_is_somebodys() -> None:
    ours = {flag for words in PROGRAMS_OF_OURS for flag in re.findall(r"--([a-z][a-z-]+)", help_of(words))}
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
            "|".join(
                re.findall(
                    r"NVIDIA's [A-Z]?\w+|AMD's [A-Z]?\w+|Intel's|GKE|gpushare|HAMi|Volcano|Tencent|AWS", other.name
                )
            ),
            shown,
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
        for each in documents(name)
        if each["kind"] == "ClusterRole"
    }
    assert told == {"gpushare-node": roles["gpushare-node"], "gpu-device-plugin-scheduler": roles["gpushare-extender"]}
