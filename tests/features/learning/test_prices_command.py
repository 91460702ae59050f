"""`kubectl inspect gpushare prices`: what the policy fit would learn from the pods of now."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.programs.inspect.test_inspect_program import World, gpu, node, pod


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def without_gpus(name: str, owner: str, on: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "namespace": "default", "ownerReferences": [{"kind": owner}]}
    spec = {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


def test_prices_are_learned_from_the_pods_that_are_there(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """20 pods of 5 on GPUs of 15; those that wait do not count, nor of pods without GPUs that of a DaemonSet and that
    elsewhere."""
    world.has(node("n", gpu(0), gpu(1)), node("cpu"))
    world.has(*(pod(f"p{number}", 5, on="n") for number in range(20)))
    world.has(*(pod(f"w{number}", 8) for number in range(40)))
    world.has(
        without_gpus("d", "DaemonSet", "n"), without_gpus("r", "ReplicaSet", "n"), without_gpus("s", "Job", "cpu")
    )
    assert world.inspect("prices", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pods"], found["kinds"], found["learned"]) == (21, 2, True)
    assert (found["inForce"], found["distrusted"]) == (True, [])
    (only,) = found["gpus"]
    assert (only["model"], only["number"]) == ("Tesla T4", 2)
    assert only["pods"] == [{"shares": 5, "comes": 1.0, "price": pytest.approx(1 / 3, abs=1e-4), "strands": 0}]
    assert world.inspect("prices") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["Tesla", "T4", "x", "2", "15", "1.00", "5", "100.0", "0.33"]


def test_without_rights_to_all_pods_there_are_no_prices(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.has(node("n", gpu(0)), forbidden=[["list", "pods", ""]])
    assert world.inspect("prices") == 1
    assert "prices are learned from all of them" in capsys.readouterr().err
