"""Each patch gives the agent what it needs for MPS, MIG or claims, and no more."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gpu_device_plugin.features.claims import ClaimSettings
from gpu_device_plugin.features.mps import MpsSettings
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL
from tests.deploy.manifests import AGENT, DEPLOY, Json, agent, pod_of
from tests.deploy.policies_world import PolicyWorld
from tests.deploy.templates import Chart
from tests.deploy.test_security import offences

SETTINGS = NODE_SETTINGS()
PLUGINS = "/var/lib/kubelet/plugins"


def added(patch: str) -> Json:
    """Return what a patch changes of the agent's pod and of its one container; mounts by their paths, volumes by
    name."""
    before, after = pod_of(agent()), pod_of(agent(patch))
    ((old,), (new,)) = before.pop("containers"), after.pop("containers")
    old_mounts = {each["mountPath"]: each for each in old.pop("volumeMounts")}
    mounts = {each["mountPath"]: each["name"] for each in new.pop("volumeMounts") if each not in old_mounts.values()}
    volumes = {each["name"]: each["hostPath"] for each in after.pop("volumes") if each not in before["volumes"]}
    changed = {
        key: value for part, was in ((after, before), (new, old)) for key, value in part.items() if value != was[key]
    }
    return {key: value for key, value in {"mounts": mounts, "volumes": volumes, **changed}.items() if value}


@pytest.mark.parametrize(
    ("patch", "changes"),
    [
        # The agent writes there what it wants of the supervisor.
        (
            "mps-agent",
            {
                "mounts": {str(SETTINGS.of(MpsSettings).mps_dir): "mps"},
                "volumes": {"mps": {"path": str(SETTINGS.of(MpsSettings).mps_dir), "type": "DirectoryOrCreate"}},
            },
        ),
        # A driver registers below the kubelet's root, and tells the container runtime what a claim gets.
        (
            "dra-agent",
            {
                "mounts": {
                    PLUGINS: "plugins",
                    str(SETTINGS.plugins_registry): "plugins-registry",
                    str(SETTINGS.of(ClaimSettings).cdi_dir): "cdi",
                },
                "volumes": {
                    "plugins": {"path": PLUGINS, "type": "Directory"},
                    "cdi": {"path": str(SETTINGS.of(ClaimSettings).cdi_dir), "type": "DirectoryOrCreate"},
                },
            },
        ),
        # mig-manager waits for pods of DaemonSets that have its key. Our own label stays the switch.
        ("mig-manager", {"nodeSelector": {SWITCH_LABEL: "true", "nvidia.com/gpu.deploy.client": "true"}}),
    ],
)
def test_a_patch_adds_what_it_is_for(patch: str, changes: Json) -> None:
    assert added(patch) == changes


def test_the_variable_for_mig_comes_with_the_one_capability_that_the_runtime_asks_for() -> None:
    """It is neither privileged nor able to gain more, and no directory of the node comes with it."""
    (plain,), made = pod_of(agent())["containers"], added("mig-agent")
    assert made.keys() == {"env", "securityContext"}
    variables = [each for each in made["env"] if each not in plain["env"]]
    assert variables == [{"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}]
    capabilities = {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert made["securityContext"] == {**plain["securityContext"], "capabilities": capabilities}
    assert {*offences(pod_of(agent("mig-agent")))} - {*offences(pod_of(agent()))} == {"capabilities"}


def test_the_chart_renders_the_plain_agent_unless_it_is_told_otherwise() -> None:
    assert Chart(DEPLOY / "chart").render()[AGENT] == agent()


@pytest.mark.parametrize("patch", ["mps-agent", "mig-agent", "mig-manager", "dra-agent"])
def test_kubectl_makes_the_same_of_it(patch: str, tmp_path: Path) -> None:
    """Offline: kubectl knows the types of Kubernetes, and merges as the API server does."""
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not on the PATH")
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent()), encoding="utf-8")
    files = ["-f", str(tmp_path / "agent.yaml"), "--patch-file", str(DEPLOY / "patches" / f"{patch}.yaml")]
    command = [kubectl, "patch", "--local", "-o", "yaml", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert in_order(yaml.safe_load(done.stdout)) == in_order(agent(patch))


def in_order(made: Json) -> Json:
    """Sort the lists of a pod whose order means nothing, and leave out what the API server does."""
    (container,) = pod_of(made)["containers"]
    for each in (pod_of(made)["volumes"], container["volumeMounts"], container["env"]):
        each.sort(key=lambda entry: entry["name"])
    for mount in container["volumeMounts"]:
        if mount.get("readOnly") is False:
            del mount["readOnly"]
    return made


async def test_an_api_server_takes_the_capability_beside_what_the_agent_may_not(api: PolicyWorld) -> None:
    """The stricter levels of Pod Security forbid the capability, as they forbid the agent's mounts anyway."""
    made = agent("mig-agent")
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    await api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "seeing", "labels": labels}})
    made["metadata"]["namespace"] = "seeing"
    await api.make(made, "?fieldValidation=Strict")
