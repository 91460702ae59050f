"""The user guide and elastic.md, walked: manifests are applied, and the answers shown are those that came."""

import re
from pathlib import Path

import pytest
import yaml

from gpu_device_plugin.model.contract.keys import INSTANCES
from gpu_device_plugin.model.pods import Taint
from gpu_device_plugin.scheduler.rules.node_constraints import Toleration
from tests.docs.guide_world import DIVIDED, EXAMPLES, GPUS, NODE, Guide, Json, documents, guide, pods_of
from tests.docs.pages import DOCS, ROOT, blocks, sections, text_of

APPLY = "kubectl apply -f "
SECTIONS = {
    heading: body
    for page in (DOCS / "guide.md", DOCS / "elastic.md")
    for heading, body in sections(text_of(page)).items()
    if "$ kubectl inspect gpushare" in body and f"$ {APPLY}" in body
}
MIG = "MIG instances"
HARDWARE = {MIG: DIVIDED, "Try it": "fake:1xT4"}
INSPECT = "kubectl inspect gpushare"
TAINT = f"kubectl taint node {NODE} "
LABEL = f"kubectl label node {NODE} "
NAMESPACE = "kubectl label namespace default "


def applied(body: str) -> list[Path]:
    """Return the manifests that a section applies."""
    return [
        ROOT / command.removeprefix(APPLY)
        for block in blocks(body, "console")
        for command, _ in block.commands
        if command.startswith(APPLY)
    ]


@pytest.mark.parametrize("heading", SECTIONS)
async def test_each_section_shows_what_comes_of_its_commands(heading: str, tmp_path: Path) -> None:
    async with guide(tmp_path, HARDWARE.get(heading, GPUS)) as world:
        for block in blocks(SECTIONS[heading], "console"):
            for command, shown in block.commands:
                await do(world, command, shown)
        for pod in world.running:
            assert given(world, pod) == told(world, pod)


async def do(world: Guide, command: str, shown: str) -> None:
    """Do what a command says, and compare what it prints."""
    if command.startswith(APPLY):
        assert shown == ""
        await world.apply(ROOT / command.removeprefix(APPLY))
    elif command.startswith(INSPECT):
        printed = await world.inspect(*command.removeprefix(INSPECT).split())
        assert f"\n{shown}\n" in f"\n{printed}\n", printed
    elif command.startswith(LABEL):
        assert shown == ""
        await world.label(*command.removeprefix(LABEL).removesuffix(" --overwrite").split("="))
    elif command.startswith(NAMESPACE):
        assert shown == ""
        key, value = command.removeprefix(NAMESPACE).split("=")
        world.api.patch("namespaces", "default", {"metadata": {"labels": {key: value}}}, namespace="")
    else:
        assert (command.startswith(TAINT), shown) == (True, ""), command


def given(world: Guide, pod: str) -> dict[str, dict[int, int]]:
    """Return the devices of each container by GPU, as the kubelet gave them."""
    return {each.name: world.positions(pod, each.name) for each in world.running[pod].containers}


def told(world: Guide, pod: str) -> dict[str, dict[int, int]]:
    """Return the same, as the pod's annotations and its requests have it."""
    (body,) = (each for each in world.api.all("pods") if each["metadata"]["name"] == pod)
    notes = body["metadata"]["annotations"]
    found: dict[str, dict[int, int]] = {}
    for key, kind in (
        ("gpu-device-plugin/init-allocation", "initContainers"),
        ("scheduler.framework.gpushare.allocation", "containers"),
    ):
        places = yaml.safe_load(notes.get(key, "{}"))
        for index, container in enumerate(body["spec"].get(kind, ())):
            whole = "aliyun.com/gpu-count" in container["resources"].get("limits", {})
            gpus = places.get(str(index), {})
            found[container["name"]] = {int(gpu): 1 if whole else shares for gpu, shares in gpus.items()}
    for container, uuids in yaml.safe_load(notes.get(INSTANCES, "{}")).items():
        found[container] = dict.fromkeys(map(world.node.uuids.index, uuids), 1)
    return found


@pytest.mark.parametrize(("heading", "body"), SECTIONS.items())
def test_yaml_that_is_shown_stands_in_the_manifests_of_the_section(heading: str, body: str) -> None:
    manifests = "".join(text_of(path) for path in applied(body))
    for block in blocks(body, "yaml"):
        assert block.text in manifests, heading


def test_every_example_is_in_the_guide() -> None:
    assert {path for body in SECTIONS.values() for path in applied(body)} == set(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_names_the_scheduler_and_the_runtime(path: Path) -> None:
    for body in documents(path):
        for pod in pods_of(body):
            assert pod["spec"]["schedulerName"] == "gpushare-scheduler"
            assert pod["spec"]["runtimeClassName"] == "nvidia"


def test_the_taint_of_the_guide_is_tolerated_by_its_pod_and_by_the_agent() -> None:
    (command,) = re.findall(rf"\$ {TAINT}(\S+)", text_of(DOCS / "guide.md"))
    key, _, effect = command.partition(":")
    (agent,) = (
        each["spec"]["template"]
        for each in documents(ROOT / "deploy" / "daemonset.yaml")
        if each["kind"] == "DaemonSet"
    )
    (pod,) = documents(EXAMPLES / "toleration.yaml")
    for each in (agent, pod):
        assert any(toleration.covers(Taint(key, effect=effect)) for toleration in tolerations(each))
    assert "The agent tolerates every taint:" in text_of(DOCS / "guide.md")
    assert tolerations(agent) == [Toleration("", "Exists", "", "")]


def tolerations(pod: Json) -> list[Toleration]:
    return [
        Toleration(each.get("key", ""), each.get("operator", "Equal"), each.get("value", ""), each.get("effect", ""))
        for each in pod["spec"].get("tolerations", ())
    ]
