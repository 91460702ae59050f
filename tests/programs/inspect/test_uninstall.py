"""`kubectl inspect gpushare uninstall` removes what sharing left on nodes, says what, and touches nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.testing.cluster.cluster_store import merge
from tests import builders
from tests.names import MEM
from tests.programs.inspect.test_inspect_program import World


class Nodes(World):
    """A cluster whose nodes a kubectl can change."""

    def add(self, name: str, labels: Mapping[str, str], mem: str | None = None) -> None:
        """Add a node; with an amount it is one that shares, or shared."""
        node: dict[str, Any] = builders.node(name, labels=labels)
        if mem is not None:
            amounts = {"capacity": {MEM: mem, "cpu": "8"}, "allocatable": {MEM: "0", "cpu": "8"}}
            annotations = {"gpu-device-plugin/gpus": "{}", "kept": "yes"}
            node = merge(node, {"metadata": {"annotations": annotations}, "status": amounts})
        node["metadata"]["uid"] = f"uid-{name}"
        self.script["objects"].append(node)

    def agent_on(self, node: str) -> None:
        labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"}
        metadata = {"name": "agent-x", "namespace": "gpushare", "labels": labels}
        self.script["objects"].append({"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}})

    def uninstall(self, *words: str) -> int:
        self.has()
        code = self.inspect("uninstall", *words)
        self.script = json.loads((self.home / "script.json").read_text(encoding="utf-8"))
        return code

    def node(self, name: str) -> dict[str, Any]:
        return next(each for each in self.script["objects"] if each["metadata"]["name"] == name)


@pytest.fixture
def world(tmp_path: Path) -> Nodes:
    """A node that shared once, one that shares, and one that never did."""
    made = Nodes(tmp_path)
    made.add("old", {"gpu-device-plugin/count": "2", "zone": "a"}, "0")
    made.add("new", {"gpu-device-plugin/count": "2", "gpushare": "true"}, "16")
    made.add("plain", {"zone": "a"})
    return made


REMOVED = "labels gpu-device-plugin/count; annotations gpu-device-plugin/gpus; capacity aliyun.com/gpu-mem"


def test_what_is_left_goes_and_everything_else_stays(world: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    new, plain = world.node("new"), world.node("plain")
    assert world.uninstall() == 0
    assert capsys.readouterr().out.splitlines() == [
        f"old: removed {REMOVED}",
        "new: skipped, as it is labelled gpushare=true; to end sharing there: kubectl label node new gpushare-",
    ]
    old = world.node("old")
    assert old["metadata"]["labels"] == {"kubernetes.io/hostname": "old", "zone": "a"}
    assert old["metadata"]["annotations"] == {"kept": "yes"}
    assert MEM not in {**old["status"]["capacity"], **old["status"]["allocatable"]}
    assert old["status"]["capacity"]["cpu"] == old["status"]["allocatable"]["cpu"] == "8"
    assert (world.node("new"), world.node("plain")) == (new, plain)
    assert world.uninstall("old") == 0
    assert capsys.readouterr().out == "There are no leftovers to remove.\n"


def test_resources_of_mig_profiles_go_too(world: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = "aliyun.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb"
    world.node("old")["status"]["capacity"].update({ours: "0", theirs: "7"})
    assert world.uninstall("old") == 0
    assert capsys.readouterr().out == f"old: removed {REMOVED}, {ours}\n"
    assert world.node("old")["status"]["capacity"].keys() & {ours, theirs} == {theirs}


def test_a_condition_goes_and_the_kubelets_stay(world: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    world.node("old")["status"]["conditions"].append({"type": "GPUHealthy", "status": "True"})
    assert world.uninstall("old") == 0
    assert capsys.readouterr().out == f"old: removed {REMOVED}; conditions GPUHealthy\n"
    assert world.node("old")["status"]["conditions"] == [{"type": "Ready", "status": "True"}]
    assert world.node("old")["status"]["capacity"]["cpu"] == "8"
    assert MEM not in world.node("old")["status"]["capacity"]


def test_a_dry_run_changes_nothing(world: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.dumps(world.script)
    assert world.uninstall("old", "--dry-run") == 0
    assert capsys.readouterr().out == f"old: would remove {REMOVED}\n"
    assert json.dumps(world.script) == before


def test_where_sharing_goes_on_it_ends_only_if_one_says_so(world: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    """The kubelet of that node knows the agent still, and writes what it knows."""
    world.agent_on("new")
    for words in (["--all=yes"], ["--all"], ["--all", "new"], ["--all", "--dry-run"]):
        assert world.uninstall(*words) == 2
        assert "this ends sharing on nodes that still share; to confirm, write --all=really" in capsys.readouterr().err
    assert world.uninstall("new", "--all=really") == 0
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith(f"new: removed {REMOVED}; the kubelet remembers an agent for five minutes")
    assert world.node("new")["metadata"]["labels"] == {"kubernetes.io/hostname": "new"}
    assert MEM not in world.node("new")["status"]["capacity"]


def test_a_node_whose_agent_runs_by_another_rule_is_left_alone(
    world: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    world.agent_on("old")
    assert world.uninstall("old") == 0
    assert "skipped, as the agent gpushare/agent-x runs there; stop it first" in capsys.readouterr().out
    world.node("agent-x")["metadata"]["namespace"] = "a-tenant"  # whoever may create pods may label them
    assert world.uninstall("--dry-run") == 0
    assert "skipped, as the agent" not in capsys.readouterr().out
    assert world.uninstall("--dry-run", "--agents-namespace=a-tenant") == 0
    assert "skipped, as the agent a-tenant/agent-x runs there" in capsys.readouterr().out
    assert "gpu-device-plugin/count" in world.node("old")["metadata"]["labels"]


def test_what_could_not_be_removed_is_told_and_the_rest_goes_on(
    world: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    world.add("older", {"gpu-device-plugin/count": "2"}, "0")
    world.script["refuse"] = "old"
    assert world.uninstall() == 1
    told = capsys.readouterr().out
    assert "old: the removal is incomplete: the right to patch nodes in the whole cluster is missing" in told
    assert f"older: removed {REMOVED}" in told


def test_a_node_with_capacity_alone_and_one_with_the_label_alone(
    world: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """gpushare's own device plugin leaves nothing else, and a node without GPUs gets nothing."""
    world.script["objects"].clear()
    world.add("bare", {"gpushare": "true"})
    world.add("theirs", {}, "8")
    world.node("theirs")["metadata"]["annotations"] = {}
    assert world.uninstall() == 0
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith("theirs: removed capacity aliyun.com/gpu-mem; the kubelet remembers")


@pytest.mark.parametrize("place", ["nodes", "pods"])
def test_what_makes_no_sense_is_said_to(world: Nodes, capsys: pytest.CaptureFixture[str], place: str) -> None:
    world.agent_on("new")
    (world.node("old") if place == "nodes" else world.node("agent-x"))["metadata"]["uid"] = 7
    assert world.uninstall() == 1
    assert "not a" in capsys.readouterr().err
