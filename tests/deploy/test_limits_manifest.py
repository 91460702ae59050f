"""The limit helper of deploy/optional: one capability, no network, and the directory where the agent meets it."""

from gpu_device_plugin import cli
from gpu_device_plugin.features.limits import LimitHelperSettings
from gpu_device_plugin.settings.sources import Texts
from tests.deploy.manifests import pod_of, the

HELPER, AGENT = the("DaemonSet", "optional/limits"), the("DaemonSet", "daemonset")
POD = pod_of(HELPER)
(CONTAINER,) = POD["containers"]


def test_its_directory_is_that_of_the_node_and_its_settings() -> None:
    settings = cli.sources_of(LimitHelperSettings, cli.parse(CONTAINER["args"]), {}).read(texts=Texts())
    (mount,) = (each for each in CONTAINER["volumeMounts"] if each["name"] == "memory")
    (volume,) = (each for each in POD["volumes"] if each["name"] == "memory")
    assert mount["mountPath"] == volume["hostPath"]["path"] == str(settings.memory_dir) == "/run/gpushare/memory"
    assert settings.gpus == "auto"


def test_it_sees_the_cgroups_of_the_node_and_cannot_write_them() -> None:
    assert {"name": "cgroup", "mountPath": "/sys/fs/cgroup", "readOnly": True} in CONTAINER["volumeMounts"]


def test_it_has_the_one_capability_that_setting_limits_takes() -> None:
    assert CONTAINER["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert CONTAINER["securityContext"]["privileged"] is False


def test_it_runs_where_the_agent_does() -> None:
    agent = pod_of(AGENT)
    same = ("nodeSelector", "tolerations", "runtimeClassName")
    assert [POD[key] for key in same] == [agent[key] for key in same]
    assert CONTAINER["image"] == agent["containers"][0]["image"]
