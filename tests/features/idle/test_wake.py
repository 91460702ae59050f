"""`kubectl inspect gpushare wake` lists what was scaled to zero as idle, and brings it back."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import NOTEBOOK_STOPPED, REPLICAS_BEFORE_IDLE
from tests.programs.inspect.test_inspect_program import PROG, World

SLEEPS = {REPLICAS_BEFORE_IDLE: "3"}


def workload(
    name: str, annotations: dict[str, str] | None = None, kind: str = "Deployment", replicas: int = 0
) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "annotations": annotations or {}}
    spec = {} if kind == "Notebook" else {"replicas": replicas}
    return {"kind": kind, "metadata": meta, "spec": spec}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.has(
        workload("web", SLEEPS),
        workload("up", SLEEPS, replicas=2),
        workload("plain"),
        workload("db", {REPLICAS_BEFORE_IDLE: "1"}, "StatefulSet"),
        workload("lab", {REPLICAS_BEFORE_IDLE: "1", NOTEBOOK_STOPPED: "2026-01-01T00:00:00Z"}, "Notebook"),
        workload("own", {NOTEBOOK_STOPPED: "2026-01-01T00:00:00Z"}, "Notebook"),
        groups=["apps", "kubeflow.org"],
    )
    return made


def told(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    code = world.inspect("wake", *words)
    out = capsys.readouterr()
    return code, [line.removeprefix(f"{PROG}: ") for line in (out.out + out.err).splitlines()]


def now(world: World, name: str) -> tuple[int | None, dict[str, str]]:
    script = json.loads((world.home / "script.json").read_text(encoding="utf-8"))
    (found,) = (each for each in script["objects"] if each["metadata"]["name"] == name)
    return found["spec"].get("replicas"), found["metadata"].get("annotations", {})


def test_what_sleeps_is_listed_with_the_commands_that_wake_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    wake = "kubectl inspect gpushare wake"
    assert told(world, capsys) == (
        0,
        [
            f"default/deployment/web is asleep, and had 3 replicas: {wake} deployment/web -n default",
            f"default/statefulset/db is asleep, and had 1 replica: {wake} statefulset/db -n default",
            f"default/notebook/lab is asleep, and had 1 replica: {wake} notebook/lab -n default",
        ],
    )
    assert told(world, capsys, "-n", "other") == (0, ["Nothing in namespace other was scaled to zero as idle."])


def test_a_cluster_without_kubeflow_has_no_notebooks(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(groups=["apps"])
    code, lines = told(world, capsys)
    assert (code, len(lines)) == (0, 2)


def test_a_kind_that_must_not_be_listed_is_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(forbidden=[["list", "deployments", "default"]])
    code, lines = told(world, capsys)
    assert code == 1
    assert lines[-1] == (
        "deployments are not listed: the right to list deployments.apps in the namespace default is missing; "
        "ask an administrator of the cluster to grant it; gpushare-viewer does not"
    )


@pytest.mark.parametrize("words", [("deployment/web",), ("deploy", "web"), ("deployments/web", "-n", "default")])
def test_a_deployment_has_its_replicas_back(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert told(world, capsys, *words) == (0, ["default/deployment/web is awake: it has 3 replicas again."])
    assert now(world, "web") == (3, {})
    patches = [path for method, path in world.calls if method == "PATCH"]
    assert [path.endswith("/scale") for path in patches] == [True, False], "the number is forgotten last"


def test_a_stateful_set_and_a_notebook_are_woken_in_their_ways(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(world, capsys, "sts/db") == (0, ["default/statefulset/db is awake: it has 1 replica again."])
    assert now(world, "db") == (1, {})
    assert told(world, capsys, "notebook", "lab") == (0, ["default/notebook/lab is awake: it has 1 replica again."])
    assert now(world, "lab") == (None, {})


def test_what_was_woken_already_only_forgets(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(world, capsys, "deployment/up")
    removed = "only the annotation gpu-device-plugin/replicas-before-idle is removed"
    assert (code, lines) == (0, [f"default/deployment/up has replicas already; {removed}."])
    assert now(world, "up") == (2, {})


def test_what_somebody_else_scaled_to_zero_is_left_alone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, (line,) = told(world, capsys, "deployment/plain")
    assert code == 1
    assert line.startswith("default/deployment/plain was not scaled to zero as idle: it has no annotation")
    assert line.endswith("kubectl -n default scale deployment plain --replicas=N sets its replicas")
    assert now(world, "plain") == (0, {})


def test_without_the_right_it_sleeps_on_and_the_right_is_named(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.has(refuse="web")
    code, (line,) = told(world, capsys, "deployment/web")
    missing = "the right to patch deployments/scale.apps in the namespace default is missing"
    who = "ask an administrator of the cluster to grant it; gpushare-viewer does not"
    assert (code, line) == (1, f"default/deployment/web is not woken: {missing}; {who}")
    assert now(world, "web") == (0, SLEEPS)


@pytest.mark.parametrize("words", [("web",), ("pod/web",), ("deployment",), ("deployment/a/b",), ("sts", "a", "b")])
def test_a_workload_is_named_by_kind_and_name(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, lines = told(world, capsys, *words)
    assert code == 2
    assert lines[-1].endswith("name a workload as deployment/NAME, statefulset/NAME or notebook/NAME")
