"""The patches for MIG: what the agent needs to see all instances, and what has mig-manager stop it; and no more."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from gpu_device_plugin.core.contract.keys import SWITCH_LABEL
from tests.cluster.conftest import real_server  # noqa: F401 - a fixture, asked for by its name below
from tests.deploy.patches import patched
from tests.deploy.policies_world import PolicyWorld, Request
from tests.deploy.test_mps_agent import agent, sorted_volumes
from tests.deploy.test_security import offences

if TYPE_CHECKING:
    from tests.cluster.conftest import RealServer

Json = dict[str, Any]

PATCHES = Path(__file__).parents[2] / "deploy" / "patches"
SEEING, STOPPED = PATCHES / "mig-agent.yaml", PATCHES / "mig-manager.yaml"


def with_patch(path: Path) -> Json:
    return patched(agent(), yaml.safe_load(path.read_text(encoding="utf-8")))


def pod_of(made: Json) -> Json:
    pod: Json = made["spec"]["template"]["spec"]
    return pod


def test_the_variable_comes_with_the_one_capability_that_the_runtime_asks_for() -> None:
    """It is neither privileged nor able to gain more, and no directory of the node comes with it."""
    (plain,), (made,) = (pod_of(each)["containers"] for each in (agent(), with_patch(SEEING)))
    added = [each for each in made["env"] if each not in plain["env"]]
    assert added == [{"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}]
    capabilities = {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert made["securityContext"] == {**plain["securityContext"], "capabilities": capabilities}
    assert made["volumeMounts"] == plain["volumeMounts"]
    assert {*offences(pod_of(with_patch(SEEING)))} - {*offences(pod_of(agent()))} == {"capabilities"}


def test_mig_manager_finds_the_agent_by_the_key_of_its_selector() -> None:
    """It waits for pods of DaemonSets that have it. Our own label stays the switch."""
    selector = pod_of(with_patch(STOPPED))["nodeSelector"]
    assert selector == {SWITCH_LABEL: "true", "nvidia.com/gpu.deploy.client": "true"}
    assert pod_of(with_patch(STOPPED)) == {**pod_of(agent()), "nodeSelector": selector}


@pytest.mark.parametrize("patch", [SEEING, STOPPED], ids=lambda path: path.stem)
def test_kubectl_makes_the_same_of_it(patch: Path, tmp_path: Path) -> None:
    """Offline: kubectl knows the types of Kubernetes, and merges as the API server does."""
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not on the PATH")
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent()), encoding="utf-8")
    files = ["-f", str(tmp_path / "agent.yaml"), "--patch-file", str(patch)]
    command = [kubectl, "patch", "--local", "-o", "yaml", *files]
    made = yaml.safe_load(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for each in (made, expected := with_patch(patch)):
        pod_of(each)["containers"][0]["env"].sort(key=lambda variable: variable["name"])
    assert sorted_volumes(made) == sorted_volumes(expected)


async def test_an_api_server_takes_the_capability_beside_what_the_agent_may_not(
    real_server: RealServer,  # noqa: F811 - a fixture
) -> None:
    """The stricter levels of Pod Security forbid the capability, as they forbid the agent's mounts anyway."""
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-apiserver and etcd to ask a real API server")
    made = with_patch(SEEING)
    async with aiohttp.ClientSession() as http:
        world = PolicyWorld(real_server.config, http)
        space = {"name": "seeing", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}
        await world.make("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": space})
        made["metadata"]["namespace"] = "seeing"
        path = "/apis/apps/v1/namespaces/seeing/daemonsets?fieldValidation=Strict"
        status, answer = await world.ask(None, Request("POST", path, made), dry_run=False)
    assert status == 201, answer
