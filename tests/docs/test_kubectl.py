"""What the pages tell to do with kubectl can be done: against a real API server, and ours against its double."""

from __future__ import annotations

import json
import os
import re
import shutil
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.testing.builders import GPU_MEM
from tests.docs.guide_world import guide
from tests.docs.hollow_cluster import NODE, PROGRAMS, WAITS, hollow_cluster
from tests.docs.pages import DOCS, ROOT, commands, pages, sections, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.docs.hollow_cluster import Hollow, Json
    from tests.docs.pages import Command

INSPECT = "kubectl inspect gpushare"
STANDS_FOR = {"NODE": NODE, "POD": WAITS, "NAMESPACE": "default", "NS": "default", "ACCOUNT": "default"}
"""What is put for the words that a reader replaces."""
DRAINING = "Warning: ignoring DaemonSet-managed Pods"
SEVERITIES = frozenset({0, 3, 4})
"""How a doctor may end whose cluster has no container that runs."""


def to_run(page: Path) -> list[Command]:
    """Return the commands of a page for which kubectl and a cluster suffice."""
    return [
        command
        for command in commands(page)
        if re.search(r"(^|\| )kubectl ", command.text, re.MULTILINE) and not command.needs_more
    ]


def line(command: Command, stands_for: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a command as one types it."""
    names = STANDS_FOR | dict(stands_for)
    text = re.sub(r"[\[\]]", "", command.text) if command.text.startswith(INSPECT) else command.text
    if command.inline and re.fullmatch(r"kubectl [a-z-]+", text):  # the name of a command of kubectl's, in a sentence
        text += " --help"
    return re.sub(r"\b[A-Z]+\b(?!:)", lambda word: names.get(word[0], word[0]), text)


def endless(text: str) -> bool:
    """Return whether a command of ours runs until somebody ends it; those have tests of their own."""
    return text.startswith(INSPECT) and bool({"web", "top", "--watch", "-w"} & {*text.split()})


WALKED = [page for page in pages() if to_run(page)]


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hollow]:
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-apiserver, kube-controller-manager, kubectl and etcd")
    path = os.pathsep.join([os.environ["KUBE_BIN"], os.environ["PATH"]])
    found = {name: str(shutil.which(name, path=path) or "") for name in PROGRAMS}
    if missing := [name for name, where in found.items() if not where]:
        pytest.skip(f"kubectl needs a cluster, and that {', '.join(missing)} in KUBE_BIN or on the PATH")
    async with hollow_cluster(tmp_path_factory.mktemp("hollow"), found) as made:
        yield made


@pytest.mark.parametrize("page", WALKED, ids=lambda page: str(page.relative_to(ROOT)))
async def test_a_page_can_be_followed(page: Path, cluster: Hollow) -> None:
    """First what stands in sentences; then one command after the other, each where the last one left the cluster."""
    await cluster.restore()
    ends = [command for command in to_run(page) if not endless(command.text)]
    for command in sorted(ends, key=lambda each: not each.inline):
        await do(cluster, command)


async def do(cluster: Hollow, command: Command) -> None:
    code, printed = await cluster.run(line(command))
    told = f"{line(command)}\n{printed}"
    assert code in (SEVERITIES if " doctor" in command.text else {0}), told
    assert "Warning:" not in printed.replace(DRAINING, ""), told


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ({"limits": {GPU_MEM: "0.5"}}, "must be an integer"),
        ({"limits": {GPU_MEM: "10GiB"}}, "quantities must match the regular expression"),
        ({"requests": {GPU_MEM: 1}}, "Limit must be set for non overcommitable resources"),
        ({"requests": {GPU_MEM: 1}, "limits": {GPU_MEM: 2}}, f"must be equal to {GPU_MEM} limit of 2"),
    ],
    ids=["a part of a unit", "no such unit", "a request alone", "a request that differs"],
)
async def test_what_kubernetes_says_of_a_pod_is_explained(resources: Json, told: str, cluster: Hollow) -> None:
    spec = {"containers": [{"name": "main", "image": "example.com/app:1", "resources": resources}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "amounts"}, "spec": spec}
    code, printed = await cluster.run("kubectl create --dry-run=server -f -", json.dumps(pod))
    assert (code, told in printed) == (1, True), printed
    assert f"| `{told}` | Kubernetes |" in sections(text_of(DOCS / "troubleshooting.md"))["A pod cannot be created"]


async def test_kubectl_says_that_our_plugin_is_not_there_as_explained(cluster: Hollow) -> None:
    _, printed = await cluster.run("PATH=$(dirname $(command -v kubectl)) kubectl inspect gpushare")
    (told,) = re.findall(r"`(unknown command .*?)`", text_of(DOCS / "troubleshooting.md"))
    assert told in printed


async def test_our_own_commands_do_as_they_are_told(tmp_path: Path) -> None:
    """Over the doubles, wherever there is no Kubernetes."""
    found = {line(each, {"POD": "large"}) for page in pages() for each in to_run(page) if each.text.startswith(INSPECT)}
    found = {each for each in found if not endless(each)}
    assert len(found) > 10
    async with guide(tmp_path) as world:
        for example in ("fragmented", "too-large-now"):
            await world.apply(ROOT / "docs" / "examples" / f"{example}.yaml")
        for command in sorted(found):
            words, _, _ = command.removeprefix(INSPECT).partition(">")
            await world.inspect(*words.split(), codes=SEVERITIES if "doctor" in words else frozenset({0}))
