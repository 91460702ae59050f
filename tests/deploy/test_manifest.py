"""What deploy/daemonset.yaml asks for is what the program accepts, needs and uses; nothing more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin import __version__, cli
from gpu_device_plugin.core.contract.keys import SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.node import NodeSettings
from tests.configmap import FOLDER, texts_of
from tests.deploy.calls import rights_granted, rights_needed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    documents = list(yaml.safe_load_all((ROOT / "deploy/daemonset.yaml").read_text(encoding="utf-8")))
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents), "two objects of one kind: these tests look them up by kind"
    return by_kind


@pytest.fixture(scope="module")
def pod(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = objects["DaemonSet"]["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    assert isinstance(only, dict)
    return only


@pytest.fixture(scope="module")
def settings(objects: dict[str, dict[str, Any]], container: dict[str, Any]) -> NodeSettings:
    """The settings that the agent makes of the manifest, the node's name filled in as the kubelet does."""
    environ = {each["name"]: each.get("value", "node-a") for each in container["env"]}
    sources = cli.sources_of(NodeSettings, cli.parse(container["args"]), environ)
    assert sources.config == FOLDER
    return sources.read(texts=texts_of(objects["ConfigMap"]))


def test_every_argument_variable_and_line_is_one_that_the_agent_accepts(settings: NodeSettings) -> None:
    assert settings.node_name == "node-a"


def test_what_administrators_choose_is_shown_to_them_as_it_is_by_default(
    objects: dict[str, dict[str, Any]], settings: NodeSettings
) -> None:
    (text,) = objects["ConfigMap"]["data"].values()
    assert yaml.safe_load(text) == {"policy": "fit", "share_size": "1GiB"}
    assert (settings.policy, settings.share_size_mib) == (NodeSettings().policy, NodeSettings().share_size_mib)


def test_the_node_name_comes_from_the_pods_own_node(container: dict[str, Any]) -> None:
    sources = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container["env"] if "valueFrom" in each
    }
    assert sources == {"NODE_NAME": "spec.nodeName"}


def test_the_agent_itself_is_given_nvml_and_every_gpu(pod: dict[str, Any], container: dict[str, Any]) -> None:
    environ = {each["name"]: each.get("value") for each in container["env"]}
    assert (environ["NVIDIA_VISIBLE_DEVICES"], environ["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "utility")
    assert pod["runtimeClassName"] == "nvidia"


def test_mounts_are_where_the_settings_look(
    pod: dict[str, Any], container: dict[str, Any], settings: NodeSettings
) -> None:
    """Same path inside and outside, so that no setting depends on it; only the plugins' directory is writable."""
    host = {volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {
        mount["mountPath"]: (host[mount["name"]]["path"], mount.get("readOnly", False))
        for mount in container["volumeMounts"]
        if mount["name"] in host
    }
    plugins, resources = str(settings.device_plugin_dir), str(settings.pod_resources_socket.parent)
    registry = str(settings.plugins_registry)
    assert mounts == {plugins: (plugins, False), resources: (resources, True), registry: (registry, True)}
    assert {volume["type"] for volume in host.values()} == {"Directory"}


def test_the_settings_are_mounted_as_a_directory_that_follows_the_configmap(
    objects: dict[str, dict[str, Any]], pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """A mount of a single key (subPath) would never change."""
    mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"] == FOLDER]
    assert mounts == [{"name": "settings", "mountPath": FOLDER, "readOnly": True}]
    volume = {"name": "settings", "configMap": {"name": objects["ConfigMap"]["metadata"]["name"]}}
    assert volume in pod["volumes"]


def test_probes_ask_where_the_agent_answers(container: dict[str, Any], settings: NodeSettings) -> None:
    (port,) = container["ports"]
    assert settings.http == Address("", port["containerPort"])
    asked = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: (get["path"], get["port"]) for kind, get in asked.items()} == {
        "startupProbe": ("/healthz", port["name"]),
        "livenessProbe": ("/healthz", port["name"]),
        "readinessProbe": ("/readyz", port["name"]),
    }


def test_the_container_has_no_rights_that_it_does_not_use(container: dict[str, Any]) -> None:
    assert container["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_a8_no_second_agent_starts_beside_the_first(objects: dict[str, dict[str, Any]]) -> None:
    """Up to kubelet 1.36 the end of the old agent's stream disconnects the new one."""
    strategy = objects["DaemonSet"]["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def test_the_agent_runs_on_labelled_nodes_and_is_the_last_to_be_evicted(pod: dict[str, Any]) -> None:
    assert pod["nodeSelector"] == {"gpushare": "true"} == {SWITCH_LABEL: SWITCHED_ON}
    assert pod["priorityClassName"] == "system-node-critical"


def test_a_taint_keeps_no_agent_off_a_labelled_node(pod: dict[str, Any]) -> None:
    """The DaemonSet controller would pass the node over without an Event, as if it had no label."""
    assert pod["tolerations"] == [{"operator": "Exists"}]


def test_memory_is_reserved_and_bounded_and_cpu_is_not_throttled(container: dict[str, Any]) -> None:
    assert container["resources"].keys() == {"requests", "limits"}
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}


def test_names_and_namespaces_fit_together(objects: dict[str, dict[str, Any]], pod: dict[str, Any]) -> None:
    namespace = objects["Namespace"]["metadata"]["name"]
    account, role = objects["ServiceAccount"]["metadata"], objects["ClusterRole"]["metadata"]["name"]
    assert account["name"] == pod["serviceAccountName"]
    for kind in ("ServiceAccount", "DaemonSet", "ResourceQuota", "ConfigMap"):
        assert objects[kind]["metadata"]["namespace"] == namespace
    binding = objects["ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == role
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": namespace}]
    spec = objects["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_the_quota_covers_the_priority_class(objects: dict[str, dict[str, Any]], pod: dict[str, Any]) -> None:
    (expression,) = objects["ResourceQuota"]["spec"]["scopeSelector"]["matchExpressions"]
    assert expression["values"] == [pod["priorityClassName"]]


def test_f12_rbac_grants_what_the_client_calls_and_nothing_else(objects: dict[str, dict[str, Any]]) -> None:
    """Calls are read from the source: the client's methods with one of the kinds that the agent knows."""
    granted = rights_granted(objects["ClusterRole"]["rules"])
    evict = yaml.safe_load_all((ROOT / "deploy/optional/evict.yaml").read_text(encoding="utf-8"))
    (role,) = (each for each in evict if each["kind"] == "ClusterRole")
    if_asked = rights_granted(role["rules"])
    (role,) = (each for each in documents("deploy/optional/dra.yaml") if each["kind"] == "ClusterRole")
    for_claims = rights_granted(role["rules"])
    assert granted | if_asked | for_claims - OF_A_DRIVER == rights_needed("gpu_device_plugin.programs.node.program")
    assert not granted & (if_asked | for_claims), "what only some settings need is granted apart"


GROUP = "resource.k8s.io"
OF_A_DRIVER = {
    # What the API server asks of a driver that writes the status of a claim is no resource that is called.
    (GROUP, "resourceclaims/driver", "associated-node:patch"),
}


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")))


def test_the_image_has_the_programs_version(container: dict[str, Any]) -> None:
    assert container["image"].rpartition(":")[2] == __version__


def test_lines_to_change_are_marked() -> None:
    """The runtime class, the image and the settings: what differs from cluster to cluster."""
    text = (ROOT / "deploy/daemonset.yaml").read_text(encoding="utf-8")
    assert len(re.findall(r"^ *# CHANGE: ", text, re.MULTILINE)) == 3
