"""The MPS supervisor of deploy/optional: what would end the work of its clients does not happen by itself."""

from gpu_device_plugin import cli
from gpu_device_plugin.features.mps import MpsSupervisorSettings
from gpu_device_plugin.features.mps.rules.mps_daemon import QUIT_S
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.settings.knobs import knobs_of
from gpu_device_plugin.settings.sources import Texts
from tests.deploy.manifests import pod_of, the

SUPERVISOR, AGENT = the("DaemonSet", "optional/mps"), the("DaemonSet", "daemonset")
POD = pod_of(SUPERVISOR)
(CONTAINER,) = POD["containers"]


def settings() -> MpsSupervisorSettings:
    environ = {each["name"]: each["value"] for each in CONTAINER["env"]}
    return cli.sources_of(MpsSupervisorSettings, cli.parse(CONTAINER["args"]), environ).read(texts=Texts())


def test_its_directory_is_the_one_of_the_agent_and_the_same_on_the_node() -> None:
    (mount,) = (each for each in CONTAINER["volumeMounts"] if each["name"] == "mps")
    (volume,) = (each for each in POD["volumes"] if each["name"] == "mps")
    agent = {knob.name: knob.default for knob in knobs_of(NODE_SETTINGS)}["mps_dir"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == str(settings().mps_dir) == agent
    # What the supervisor mounts there is for the containers of others.
    assert settings().shm_size_mib > 0
    assert mount["mountPropagation"] == "Bidirectional"
    assert CONTAINER["securityContext"]["privileged"] is True


def test_nothing_replaces_or_kills_it_by_itself() -> None:
    """The daemons are processes of its container: they end with it, and so does the work of their clients."""
    assert SUPERVISOR["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "livenessProbe" not in CONTAINER
    assert "memory" not in CONTAINER["resources"].get("limits", {})
    assert POD["priorityClassName"] == "system-node-critical"


def test_a_daemon_that_does_not_quit_is_killed_before_the_container_is() -> None:
    assert POD["terminationGracePeriodSeconds"] >= QUIT_S + 45


def test_it_runs_where_the_agent_does_and_sees_the_processes_of_the_node() -> None:
    agent = pod_of(AGENT)
    same = ("nodeSelector", "tolerations", "runtimeClassName")
    assert [POD[key] for key in same] == [agent[key] for key in same]
    assert CONTAINER["image"] == agent["containers"][0]["image"]
    assert POD["hostPID"] is True
