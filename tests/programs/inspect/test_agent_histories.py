"""The doctor of a cluster reads what the agents remember, of those that can be asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.history.contract import NodeHistory
from gpu_device_plugin.programs.inspect.inspect_program import main
from gpu_device_plugin.report.rules.finding import Unknown
from tests.findings import told
from tests.programs.inspect.proxied import failure, forbidden
from tests.programs.inspect.test_cluster_reading import kubectl, listed, read, well

HOT = {
    "at": "2026-11-28T12:00:00Z",
    "step_s": 15.0,
    "gpus": [{"gpu": 0, "uuid": "GPU-a", "total_mib": 15360, "throttle": [32] * 40}],
    "of_a_newer_agent": 1,
}
FORBIDDEN = forbidden("get", "pods/proxy", "", "gpushare", "agent-0:9445")


def agent(number: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "gpushare", "app.kubernetes.io/component": "node"}
    container = {"name": "agent", "image": "agent:1.0", "ports": [{"name": "http", "containerPort": 9445}]}
    return {
        "metadata": {"namespace": "gpushare", "name": f"agent-{number}", "labels": labels},
        "spec": {"nodeName": f"node-{number:02}", "containers": [container]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pages(answers: dict[int, Any], agents: int = 0) -> dict[str, Any]:
    """Return the pages of a cluster whose agents answer so, by their numbers."""
    pods = listed(*map(agent, range(max(agents, len(answers)))))
    paths = {number: f"/api/v1/namespaces/gpushare/pods/agent-{number}:9445/proxy/history/" for number in answers}
    return {"/api/v1/nodes": listed(), "/api/v1/pods": pods} | {paths[n]: answer for n, answer in answers.items()}


def histories(tmp_path: Path, answers: dict[int, Any], agents: int = 0) -> dict[str, NodeHistory | str]:
    found = read(tmp_path, pages(answers, agents)).histories
    assert not isinstance(found, Unknown)
    return {**found}


def test_what_agents_remember_is_read_and_why_not_is_told_of_the_others(tmp_path: Path) -> None:
    found = histories(tmp_path, {0: HOT, 1: {"step_s": "x"}, 2: failure(404, "NotFound", "nothing there")})
    hot = found["node-00"]
    assert not isinstance(hot, str)
    assert hot.gpus[0].throttle == (32,) * 40
    assert "what the agent of node node-01 remembers cannot be understood" in str(found["node-01"])
    assert "the agent of node node-02 has nothing of it" in str(found["node-02"])


def test_a_missing_right_is_told_once(tmp_path: Path) -> None:
    found = read(tmp_path, pages({0: FORBIDDEN, 1: HOT})).histories
    assert isinstance(found, Unknown)
    assert told([found], "problem") == [
        "unknown right-missing problem=the right to get pods/proxy in the namespace gpushare is missing"
    ]


def test_a_bounded_number_of_agents_is_asked(tmp_path: Path) -> None:
    found = histories(tmp_path, {}, agents=66)
    assert [node for node, why in sorted(found.items()) if "64 nodes" in str(why)] == ["node-64", "node-65"]
    assert sum("/proxy/history" in call for call in (tmp_path / "asked").read_text().splitlines()) == 64


def test_the_doctor_tells_of_a_gpu_that_was_slowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = well()
    cluster["/api/v1/pods"]["items"].append({**agent(0), "spec": {**agent(0)["spec"], "nodeName": "node-a"}})
    cluster |= {path: answer for path, answer in pages({0: HOT}).items() if path.endswith("/history/")}
    program = kubectl(tmp_path, cluster)
    assert main(["doctor", "--json"], kubectl=program, environ={}) == 3
    findings = json.loads(capsys.readouterr().out)["findings"]
    (finding,) = (each for each in findings if each["check"] == "GPU condition")
    assert finding["found"] == "GPU 0 of node-a was slowed by heat for most of the last 10 minutes"
