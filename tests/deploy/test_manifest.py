"""What deploy/daemonset.yaml asks for is what the program accepts, needs and uses; nothing more."""

from gpu_device_plugin import cli
from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.node import NodeSettings
from tests.configmap import FOLDER, texts_of
from tests.deploy.calls import AGENT, rights_granted, rights_needed
from tests.deploy.manifests import objects, parsed, pod_of, the

OBJECTS = {kind: each for (kind, _, _), each in objects("daemonset").items()}
POD = pod_of(OBJECTS["DaemonSet"])
(CONTAINER,) = POD["containers"]


def settings() -> NodeSettings:
    """Return the settings that the agent makes of the manifest, the node's name filled in as the kubelet does."""
    environ = {each["name"]: each.get("value", "node-a") for each in CONTAINER["env"]}
    sources = cli.sources_of(NODE_SETTINGS, cli.parse(CONTAINER["args"]), environ)
    assert sources.config == FOLDER
    return sources.read(texts=texts_of(OBJECTS["ConfigMap"]))


def test_the_agent_accepts_it_and_administrators_see_what_they_may_choose_as_it_is_by_default() -> None:
    (text,) = OBJECTS["ConfigMap"]["data"].values()
    assert parsed(text) == [{"policy": "fit", "share_size": "1GiB"}]
    found = settings()
    assert (found.node_name, found.policy, found.share_size_mib) == ("node-a", "fit", NODE_SETTINGS().share_size_mib)


def test_the_node_name_comes_from_the_pods_own_node() -> None:
    sources = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in CONTAINER["env"] if "valueFrom" in each
    }
    assert sources == {"NODE_NAME": "spec.nodeName"}


def test_the_agent_itself_is_given_nvml_and_every_gpu() -> None:
    environ = {each["name"]: each.get("value") for each in CONTAINER["env"]}
    assert (environ["NVIDIA_VISIBLE_DEVICES"], environ["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "utility")
    assert POD["runtimeClassName"] == "nvidia"


def test_mounts_are_where_the_settings_look() -> None:
    """Same path inside and outside, so that no setting depends on it; what the agent writes is writable."""
    host = {volume["name"]: volume["hostPath"] for volume in POD["volumes"] if "hostPath" in volume}
    mounts = {
        mount["mountPath"]: (host[mount["name"]]["path"], mount.get("readOnly", False))
        for mount in CONTAINER["volumeMounts"]
        if mount["name"] in host
    }
    found = settings()
    plugins, resources = str(found.device_plugin_dir), str(found.pod_resources_socket.parent)
    registry, memory = str(found.plugins_registry), str(found.of(ElasticSettings).memory_dir)
    assert mounts == {
        plugins: (plugins, False),
        resources: (resources, True),
        registry: (registry, True),
        memory: (memory, False),
    }
    # The directory in /run is gone after a boot.
    types = {volume["path"]: volume["type"] for volume in host.values()}
    assert types.pop(memory) == "DirectoryOrCreate"
    assert set(types.values()) == {"Directory"}


def test_the_settings_are_mounted_as_a_directory_that_follows_the_configmap() -> None:
    """A mount of a single key (subPath) would never change."""
    mounts = [mount for mount in CONTAINER["volumeMounts"] if mount["mountPath"] == FOLDER]
    assert mounts == [{"name": "settings", "mountPath": FOLDER, "readOnly": True}]
    assert {"name": "settings", "configMap": {"name": OBJECTS["ConfigMap"]["metadata"]["name"]}} in POD["volumes"]


def test_probes_ask_where_the_agent_answers() -> None:
    (port,) = CONTAINER["ports"]
    assert settings().http == Address("", port["containerPort"])
    asked = {kind: CONTAINER[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: (get["path"], get["port"]) for kind, get in asked.items()} == {
        "startupProbe": ("/healthz", port["name"]),
        "livenessProbe": ("/healthz", port["name"]),
        "readinessProbe": ("/readyz", port["name"]),
    }


def test_the_container_has_no_rights_that_it_does_not_use() -> None:
    assert CONTAINER["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_a8_no_second_agent_starts_beside_the_first() -> None:
    """Up to kubelet 1.36 the end of the old agent's stream disconnects the new one."""
    strategy = OBJECTS["DaemonSet"]["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def test_the_agent_runs_on_every_labelled_node_and_is_the_last_to_be_evicted() -> None:
    """No taint keeps it off: the DaemonSet controller would pass the node over without an Event."""
    assert POD["nodeSelector"] == {"gpushare": "true"} == {SWITCH_LABEL: SWITCHED_ON}
    assert POD["tolerations"] == [{"operator": "Exists"}]
    (expression,) = OBJECTS["ResourceQuota"]["spec"]["scopeSelector"]["matchExpressions"]
    assert expression["values"] == [POD["priorityClassName"]] == ["system-node-critical"]


def test_memory_is_reserved_and_bounded_and_cpu_is_not_throttled() -> None:
    bounds = {kind: set(amounts) for kind, amounts in CONTAINER["resources"].items()}
    assert bounds == {"requests": {"cpu", "memory"}, "limits": {"memory"}}


def test_names_and_namespaces_fit_together() -> None:
    namespace = OBJECTS["Namespace"]["metadata"]["name"]
    account, role = OBJECTS["ServiceAccount"]["metadata"], OBJECTS["ClusterRole"]["metadata"]["name"]
    assert account["name"] == POD["serviceAccountName"]
    for kind in ("ServiceAccount", "DaemonSet", "ResourceQuota", "ConfigMap"):
        assert OBJECTS[kind]["metadata"]["namespace"] == namespace
    binding = OBJECTS["ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == role
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": namespace}]
    spec = OBJECTS["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_f12_rbac_grants_what_the_client_calls_and_nothing_else() -> None:
    """Calls are read from the source: the client's methods with one of the kinds that the agent knows."""
    granted = rights_granted(OBJECTS["ClusterRole"]["rules"])
    if_asked = rights_granted(the("ClusterRole", "optional/evict")["rules"])
    # What the API server asks of a driver that writes the status of a claim is no resource that is called.
    of_a_driver = {("resource.k8s.io", "resourceclaims/driver", "associated-node:patch")}
    for_claims = rights_granted(the("ClusterRole", "optional/dra")["rules"])
    assert granted | if_asked | for_claims - of_a_driver == rights_needed(*AGENT)
    assert not granted & (if_asked | for_claims), "what only some settings need is granted apart"
