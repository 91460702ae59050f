"""deploy/patches/mps-agent.yaml gives the agent the directory in which it meets the MPS supervisor, and no more."""

from __future__ import annotations

import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin.settings.node import NodeSettings
from tests.deploy.patches import patched
from tests.deploy.templates import Chart

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
PATCH = DEPLOY / "patches" / "mps-agent.yaml"
AGENT = ("DaemonSet", "gpushare", "gpushare-node")


def agent() -> Json:
    documents = yaml.safe_load_all((DEPLOY / "daemonset.yaml").read_text(encoding="utf-8"))
    (found,) = (each for each in documents if each["kind"] == "DaemonSet")
    assert isinstance(found, dict)
    return found


def with_mps() -> Json:
    return patched(agent(), yaml.safe_load(PATCH.read_text(encoding="utf-8")))


def sorted_volumes(made: Json) -> Json:
    """Return a DaemonSet with its mounts and volumes by name; their order means nothing."""
    found = deepcopy(made)
    pod = found["spec"]["template"]["spec"]
    for where in (pod["volumes"], pod["containers"][0]["volumeMounts"]):
        where.sort(key=lambda each: each["name"])
    return found


def test_the_chart_renders_the_patched_agent_and_without_mps_the_plain_one() -> None:
    chart = Chart(DEPLOY / "chart")
    assert chart.render({"mps": {"enabled": True}})[AGENT] == with_mps()
    assert chart.render({})[AGENT] == agent()


def test_the_directory_is_the_settings_own_on_the_node_and_in_the_agent() -> None:
    """It is writable: the agent says there what it wants. The agent gets no right with it."""
    pod, plain = (made["spec"]["template"]["spec"] for made in (with_mps(), agent()))
    volume, mount = pod["volumes"][-1], pod["containers"][0]["volumeMounts"][-1]
    directory = str(NodeSettings().mps_dir)
    assert volume["hostPath"] == {"path": directory, "type": "DirectoryOrCreate"}
    assert mount == {"name": volume["name"], "mountPath": directory}
    assert pod["containers"][0]["securityContext"] == plain["containers"][0]["securityContext"]


def test_kubectl_makes_the_same_of_it(tmp_path: Path) -> None:
    """Offline: kubectl knows the types of Kubernetes, and merges as the API server does."""
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not on the PATH")
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent()), encoding="utf-8")
    command = [
        kubectl,
        "patch",
        "--local",
        "-o",
        "yaml",
        "-f",
        str(tmp_path / "agent.yaml"),
        "--patch-file",
        str(PATCH),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted_volumes(yaml.safe_load(done.stdout)) == sorted_volumes(with_mps())
