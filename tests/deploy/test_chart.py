"""The Helm chart installs what the manifests in deploy/ do; `python -m tests.deploy.test_chart` writes its tables."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its stubs would be one more package
import pytest

from gpu_device_plugin import __version__, cli
from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.features.limits import LimitHelperSettings, LimitSettings
from gpu_device_plugin.features.limits.extra_grant_file import read_extra_grant
from gpu_device_plugin.features.limits.rules.limit_grants import ExtraGrant
from gpu_device_plugin.features.limits.rules.running_limits import NO_CGROUPS
from gpu_device_plugin.features.mps import MpsSupervisorSettings
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.kubelet import cgroupfs
from gpu_device_plugin.node.rules.container_grants import Mount
from gpu_device_plugin.settings.knobs import Form, Knob, knobs_of
from gpu_device_plugin.settings.sources import Sources, settings_for
from gpu_device_plugin.settings.web import WebSettings
from tests.configmap import texts_of
from tests.deploy.manifests import AGENT, DEPLOY, Json, Name, Objects, by_name, documents, parsed, patched, pod_of
from tests.deploy.templates import Chart, ChartError
from tests.kubeconfig import kubeconfig
from tests.kubernetes.conftest import RealServer

CHART = Chart(DEPLOY / "chart")
VALUES: Json = CHART.values({})
SCHEMA: Json = json.loads((CHART.root / "values.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
DOCS = DEPLOY.parent / "docs" / "chart.md"
README = CHART.root / "README.md"

SECOND = {"scheduler": {"mode": "second"}}
LOOPBACK = {"scheduler": {"mode": "loopback"}}
SERVICE = {"scheduler": {"mode": "service"}}
NONE = {"scheduler": {"mode": "none"}}
PROFILES = {
    "agent": {"profiles": {"small": {"share_size": "256MiB"}, "large": {"fatal_xids": [31], "pre_start": True}}}
}
EXTRA = {
    "envs": {"LIMIT_{ordinal}": "{limit_mib}m", "SM": 30},
    "mounts": [{"host_path": "/opt/{container}", "container_path": "/opt/lib", "read_only": False}],
}
BARE = {"agent": {"enabled": False}, "policies": {"enabled": False}, "viewer": {"enabled": False}}


def manifests(*names: str) -> Objects:
    listed = [each for name in names for each in documents(name)]
    found = by_name([each for each in listed if "kind" in each])
    for patch in (each for each in listed if "kind" not in each):
        found[AGENT] = patched(found[AGENT], patch)
    return found


# --- The same objects ------------------------------------------------------------------------------------------------

ALL = ("daemonset", "scheduler", "policies", "viewer", "optional/networkpolicy")
SAME: list[tuple[Json, tuple[str, ...]]] = [
    ({}, (*ALL,)),
    ({"policies": {"setSchedulerName": True}}, (*ALL, "optional/mutating-policy")),
    ({"podMonitor": {"enabled": True}}, (*ALL, "monitoring/podmonitor")),
    ({"prometheusRule": {"enabled": True}}, (*ALL, "monitoring/prometheusrule")),
    ({"dashboard": {"enabled": True}}, (*ALL, "monitoring/dashboard")),
    ({"networkPolicy": {"enabled": False}}, ("daemonset", "scheduler", "policies", "viewer")),
    ({"mps": {"enabled": True}}, (*ALL, "optional/mps", "patches/mps-agent")),
    ({"limits": {"enabled": True}}, (*ALL, "optional/limits")),
    ({"agent": {"evict": True, "nodeCondition": True}}, (*ALL, "optional/evict")),
    ({"scheduler": {"idle": True}}, (*ALL, "optional/idle")),
    ({"scheduler": {"capacity": True}}, (*ALL, "optional/capacity")),
    ({"web": {"enabled": True}}, (*ALL, "optional/web")),
    ({"agent": {"dra": {"enabled": True}}}, (*ALL, "optional/dra", "patches/dra-agent")),
    ({"agent": {"migMonitor": True}}, (*ALL, "patches/mig-agent")),
    ({"agent": {"nodeSelector": {"nvidia.com/gpu.deploy.client": "true"}}}, (*ALL, "patches/mig-manager")),
    ({"policies": {"memoryClaims": True}}, (*ALL, "optional/dra-mutating-policy")),
    (LOOPBACK, ("viewer", "daemonset", "policies", "optional/networkpolicy", "optional/extender-loopback")),
    (SERVICE, ("viewer", "daemonset", "policies", "optional/networkpolicy", "optional/extender-alone")),
    (NONE, ("viewer", "daemonset", "policies", "optional/networkpolicy")),
    ({**NONE, "policies": {"enabled": False}}, ("viewer", "daemonset", "optional/networkpolicy")),
    ({"viewer": {"enabled": False}}, ("daemonset", "scheduler", "policies", "optional/networkpolicy")),
]


@pytest.mark.parametrize(("values", "names"), SAME, ids=[" ".join(names) for _, names in SAME])
def test_the_chart_renders_what_the_manifests_are(values: Json, names: tuple[str, ...]) -> None:
    """Change the template with the manifest: what differs is named by kind, namespace and name."""
    rendered, written = CHART.render(values), manifests(*names)
    assert rendered.keys() == written.keys()
    for key, made in rendered.items():
        assert made == written[key], f"deploy/chart has another {key} than deploy/{' or '.join(names)}.yaml"


def test_every_manifest_is_in_the_chart() -> None:
    """But for what is no object of the API, the configuration of the cluster's own scheduler, and what users have in
    namespaces of theirs."""
    found = [path for folder in (".", "optional", "monitoring", "patches") for path in DEPLOY.glob(f"{folder}/*.yaml")]
    files = {str(path.relative_to(DEPLOY).with_suffix("")) for path in found}
    in_chart = {name for _, names in SAME for name in names}
    assert files - {"optional/kube-scheduler-config", "optional/dra-templates"} == in_chart, (
        "give it a template, and a line in SAME"
    )


@pytest.mark.parametrize(
    "path",
    [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("optional/*.yaml"), *DEPLOY.glob("monitoring/*.yaml")],
    ids=lambda path: path.name,
)
def test_whatever_we_leave_in_a_cluster_is_found_by_one_label(path: Path) -> None:
    for document in documents(path):
        if "metadata" in document:
            assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "gpushare"


def test_without_any_part_nothing_but_the_namespace_is_left() -> None:
    assert CHART.render({**BARE, **NONE}).keys() == {("Namespace", "", "gpushare")}


# --- Values ----------------------------------------------------------------------------------------------------------


def workload_of(objects: Objects, name: str) -> Json:
    (found,) = (each for key, each in objects.items() if key[0] in {"DaemonSet", "Deployment"} and key[2] == name)
    return found


def container(objects: Objects, workload: str, name: str) -> Json:
    (found,) = (each for each in pod_of(workload_of(objects, workload))["containers"] if each["name"] == name)
    assert isinstance(found, dict)
    return found


WORKLOADS = [(SECOND, "gpushare-scheduler"), (LOOPBACK, "gpushare-extender"), (SERVICE, "gpushare-extender")]


@pytest.mark.parametrize("values", [SECOND, LOOPBACK, SERVICE])
def test_everything_moves_to_another_namespace(values: Json) -> None:
    """The roles that kube-system's own belong to stay there, and nobody else's account is trusted."""
    everything = {
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
        "web": {"enabled": True},
        "policies": {"setSchedulerName": values == SECOND},
    }
    objects = CHART.render({**values, **everything, "namespace": "gpus"})
    assert {namespace for _, namespace, _ in objects} - {"", "kube-system"} == {"gpus"}
    text = json.dumps(list(objects.values()))
    assert "system:serviceaccount:gpushare:" not in text
    assert '"namespace": "gpushare"' not in text
    assert "resourceNamespace: gpushare" not in text
    assert "gpushare/gpushare" not in text
    assert text.count("system:serviceaccount:gpus:gpushare-node") == 4
    assert text.count("system:serviceaccount:gpus:gpu-device-plugin-scheduler") == 4


def test_the_namespace_is_made_unless_the_release_is_in_it() -> None:
    """Helm records a release before it makes the objects of the chart."""
    everything = CHART.render()
    assert everything.keys() - CHART.render(namespace="gpushare").keys() == {("Namespace", "", "gpushare")}
    assert "kubectl label namespace gpushare" in CHART.texts(namespace="gpushare")["NOTES.txt"]
    assert "kubectl label namespace" not in CHART.texts()["NOTES.txt"]


@pytest.mark.parametrize(("values", "workload"), [(NONE, "gpushare-node"), *WORKLOADS])
def test_the_image_is_the_same_everywhere(values: Json, workload: str) -> None:
    image = {"repository": "here/gdp", "tag": "x", "pullPolicy": "Always", "pullSecrets": ["one", "two"]}
    pod = pod_of(workload_of(CHART.render({**values, "image": image}), workload))
    assert pod["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    ours = [each for each in pod["containers"] if each["name"] != "kube-scheduler"]
    assert [(each["image"], each["imagePullPolicy"]) for each in ours] == [("here/gdp:x", "Always")]


@pytest.mark.parametrize(("values", "workload"), WORKLOADS)
def test_the_extender_takes_its_settings_and_bounds(values: Json, workload: str) -> None:
    resources = {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}
    written = {"gpu_policy": "spread", "vanished_grace": "60s"}
    ours = {"settings": written, "args": ["--vanished-grace=5s"], "resources": resources}
    objects = CHART.render({"scheduler": {**values["scheduler"], **ours}})
    made = container(objects, workload, "extender")
    texts = texts_of(objects["ConfigMap", "gpushare", "gpushare-extender"])
    found = cli.sources_of(EXTENDER_SETTINGS, cli.parse(made["args"]), {}).read(texts=texts)
    assert (found.gpu_policy, found.node_policy, found.vanished_grace_s) == ("spread", "fit", 5)
    assert made["resources"] == {"requests": {"cpu": "1", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


CUSTOM: Json = {
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "",
    "podAnnotations": {"example.com/team": "gpus", "example.com/number": "1"},
    "podLabels": {"example.com/cost": "7"},
    "extraEnv": [
        {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
}
"""What a cluster's own rules may ask of every pod."""


@pytest.mark.parametrize(
    ("values", "workload", "name"),
    [(NONE, "gpushare-node", "agent"), *((values, workload, "extender") for values, workload in WORKLOADS)],
)
def test_pods_carry_what_a_cluster_asks_of_them(values: Json, workload: str, name: str) -> None:
    """Beside what they carry anyway; schedulers on the control-plane nodes stay there."""
    part = "agent" if name == "agent" else "scheduler"
    before, after = CHART.render(values), CHART.render({**values, part: {**values.get(part, {}), **CUSTOM}})
    assert before.keys() == after.keys()
    old, new = (workload_of(objects, workload)["spec"]["template"] for objects in (before, after))
    assert new["metadata"]["annotations"] == CUSTOM["podAnnotations"]
    assert new["metadata"]["labels"] == {**old["metadata"]["labels"], **CUSTOM["podLabels"]}
    assert "priorityClassName" not in new["spec"], "it is left to the cluster"
    placed = old if values == LOOPBACK else {"spec": CUSTOM}
    assert new["spec"]["affinity"] == placed["spec"]["affinity"]
    assert (
        container(after, workload, name)["env"] == container(before, workload, name).get("env", []) + CUSTOM["extraEnv"]
    )
    for objects, others in ((before, after), (after, before)):
        changed = {key for key in objects if objects[key] != others[key]}
        assert {key[2] for key in changed} == {workload}


@pytest.mark.parametrize(("values", "workload"), WORKLOADS)
def test_the_scheduler_goes_where_it_is_told_but_on_the_control_plane(values: Json, workload: str) -> None:
    tainted = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    placed = {"tolerations": tainted, "nodeSelector": {"pool": "system"}}
    pod = pod_of(workload_of(CHART.render({"scheduler": {**values["scheduler"], **placed}}), workload))
    assert pod["tolerations"] == ([{"operator": "Exists"}] if values == LOOPBACK else tainted)
    assert (pod.get("nodeSelector") == placed["nodeSelector"]) == (values != LOOPBACK)


def test_the_agent_takes_its_settings_and_its_place() -> None:
    changed = {
        "settings": {"share_size": "256MiB", "reserve": "1GiB"},
        "profiles": {"large": {"share_size": "4GiB", "exclude_gpus": [0, 1], "pre_start": True}, "none": {}},
        "args": ["--reserve=2GiB"],
        "runtimeClassName": "",
        "nodeSelector": {"gpushare": "true", "pool": "a"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "kubeletDir": "/var/snap/microk8s/common/var/lib/kubelet",
        "hostPID": False,
    }
    objects = CHART.render({"agent": changed})
    pod, made = pod_of(workload_of(objects, "gpushare-node")), container(objects, "gpushare-node", "agent")
    sources = cli.sources_of(NODE_SETTINGS, cli.parse(made["args"]), {})
    texts = texts_of(objects["ConfigMap", "gpushare", "gpushare-node"])
    one, other = sources.read(texts=texts), settings_for(sources, texts, "large")
    assert (one.share_size_mib, one.reserve_mib, one.policy) == (256, 2048, "fit")
    assert (other.share_size_mib, other.exclude_gpus, other.pre_start) == (4096, ("0", "1"), True)
    assert settings_for(sources, texts, "none") == one
    assert not {"runtimeClassName", "hostPID"} & pod.keys()
    assert (pod["nodeSelector"], pod["tolerations"]) == (changed["nodeSelector"], changed["tolerations"])
    paths = {volume["hostPath"]["path"].rpartition("/")[0] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {"/var/snap/microk8s/common/var/lib/kubelet", "/run/gpushare"}
    mounts = {mount["mountPath"].rpartition("/")[0] for mount in made["volumeMounts"]}
    assert mounts == {"/var/lib/kubelet", "/etc", "/run/gpushare"}


def test_an_extra_grant_lies_beside_the_settings_and_is_no_profile(tmp_path: Path) -> None:
    """The kubelet makes a file of each key of the ConfigMap."""
    settings = {"limits": "custom", "extra_grant": f"{tmp_path}/extra.grant"}
    objects = CHART.render({"agent": {"extraGrant": EXTRA, "settings": settings}})
    for key, text in objects["ConfigMap", "gpushare", "gpushare-node"]["data"].items():
        (tmp_path / key).write_text(text, encoding="utf-8")
    sources = Sources(NODE_SETTINGS, {"config": str(tmp_path)}, {})
    texts = sources.texts()
    assert (texts.default is not None, texts.profiles) == (True, {})
    assert read_extra_grant(sources.read(texts=texts).of(LimitSettings).extra_grant) == ExtraGrant(
        (("LIMIT_{ordinal}", "{limit_mib}m"), ("SM", "30")), (Mount("/opt/{container}", "/opt/lib", read_only=False),)
    )
    assert "extra.grant" not in CHART.render({})["ConfigMap", "gpushare", "gpushare-node"]["data"]


@pytest.mark.parametrize(
    ("server", "tag", "image"),
    [
        ("v1.36.2", "", "registry.k8s.io/kube-scheduler:v1.36.2"),
        ("v1.33.5-gke.1201000", "", "registry.k8s.io/kube-scheduler:v1.33.5"),
        ("v1.33.5-eks-3cfe0ce", "", "registry.k8s.io/kube-scheduler:v1.33.5"),
        ("v1.33.5+rke2r1", "", "registry.k8s.io/kube-scheduler:v1.33.5"),
        ("v1.36.2", "v1.35.7", "registry.k8s.io/kube-scheduler:v1.35.7"),
    ],
)
def test_kube_scheduler_is_of_the_api_servers_version_unless_told(server: str, tag: str, image: str) -> None:
    objects = CHART.render({"scheduler": {"kubeScheduler": {"tag": tag}}}, kube=server)
    assert container(objects, "gpushare-scheduler", "kube-scheduler")["image"] == image


def test_the_kubelets_root_may_be_elsewhere_than_its_device_plugins() -> None:
    """k0s moves the one; no kubelet moves the other."""
    objects = CHART.render({"agent": {"kubeletRootDir": "/var/lib/k0s/kubelet", "maxUnavailable": "10%"}})
    volumes = pod_of(workload_of(objects, "gpushare-node"))["volumes"]
    assert {each["name"]: each["hostPath"]["path"] for each in volumes if "hostPath" in each} == {
        "device-plugins": "/var/lib/kubelet/device-plugins",
        "pod-resources": "/var/lib/k0s/kubelet/pod-resources",
        "plugins-registry": "/var/lib/k0s/kubelet/plugins_registry",
        "memory": "/run/gpushare/memory",
    }
    agent = objects["DaemonSet", "gpushare", "gpushare-node"]["spec"]
    assert agent["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "10%"}


def test_the_mount_that_verifies_limits_is_the_one_in_comments_of_the_manifest() -> None:
    """By default the agent's pod does not ask for the node's cgroups."""
    text = (DEPLOY / "daemonset.yaml").read_text(encoding="utf-8")
    block = re.compile(r"^( +)# - name: cgroup\n(?:\1#   .+\n)+", re.MULTILINE)
    uncommented, count = block.subn(lambda found: re.sub(r"(?m)^( +)# ", r"\1", found[0]), text)
    assert count == 2
    rendered = CHART.render({"agent": {"verifyLimits": True}})
    assert rendered[AGENT] == by_name(parsed(uncommented))[AGENT] != CHART.render()[AGENT]
    mounts = container(rendered, "gpushare-node", "agent")["volumeMounts"]
    assert [each for each in mounts if each["name"] == "cgroup"] == [
        {"name": "cgroup", "mountPath": str(cgroupfs.ROOT), "readOnly": True}
    ]
    assert "verifyLimits" in NO_CGROUPS


@pytest.mark.parametrize(
    ("values", "capabilities"),
    [
        ({}, {"drop": ["ALL"]}),
        ({"migMonitor": True}, {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        ({"privileged": True}, {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}),
        (
            {"privileged": True, "migMonitor": True},
            {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH", "SYS_ADMIN"]},
        ),
    ],
)
def test_a_privileged_agent_has_no_more_capabilities_than_it_needs(values: Json, capabilities: Json) -> None:
    """The API server refuses a pod that is privileged and must not gain privileges."""
    security = container(CHART.render({"agent": values}), "gpushare-node", "agent")["securityContext"]
    assert security["capabilities"] == capabilities
    assert security["privileged"] is values.get("privileged", False)
    assert ("allowPrivilegeEscalation" in security) is not security["privileged"]


def test_behind_an_address_of_its_own_the_extender_takes_no_port_of_the_nodes() -> None:
    changed = {"mode": "service", "replicas": 3, "service": {"type": "ClusterIP", "secretName": "mine"}}
    objects = CHART.render({"scheduler": changed})
    service = objects["Service", "gpushare", "gpushare-extender"]["spec"]
    assert service["type"] == "ClusterIP"
    assert service["ports"] == [{"name": "verbs", "port": 32766, "targetPort": "verbs"}]
    extender = workload_of(objects, "gpushare-extender")
    assert {"name": "tls", "secret": {"secretName": "mine"}} in pod_of(extender)["volumes"]
    assert extender["spec"]["replicas"] == 3


def test_other_schedulers_and_agents_may_be_trusted() -> None:
    """As the CHANGE lines of deploy/policies.yaml say for Alibaba's."""
    accounts = {"schedulers": ["kube-system:gpushare-schd-extender"], "agents": ["kube-system:gpushare-device-plugin"]}
    objects = CHART.render({"policies": accounts})
    variables = objects["ValidatingAdmissionPolicy", "", "gpushare-placement"]["spec"]["variables"]
    lists = {each["name"]: each["expression"] for each in variables}
    before = "system:serviceaccount:gpushare:"
    assert lists["schedulers"].replace("\n", "") == (
        f"['{before}gpu-device-plugin-scheduler', 'system:serviceaccount:kube-system:gpushare-schd-extender']"
    )
    assert lists["agents"].replace("\n", "") == (
        f"['{before}gpushare-node', 'system:serviceaccount:kube-system:gpushare-device-plugin']"
    )


@pytest.mark.parametrize(
    ("part", "key", "fixed"),
    [
        ("podMonitor", ("PodMonitor", "gpus", "gpushare"), {}),
        ("prometheusRule", ("PrometheusRule", "gpus", "gpushare"), {}),
        ("dashboard", ("ConfigMap", "monitoring", "gpushare-dashboard"), {"grafana_dashboard": "1"}),
    ],
)
def test_prometheus_and_grafana_choose_objects_by_labels_of_their_own(part: str, key: Name, fixed: Json) -> None:
    values = {"namespace": "gpus", "dashboard": {"namespace": "monitoring"}}
    values[part] = {**values.get(part, {}), "enabled": True, "labels": {"release": "x"}}  # type: ignore[dict-item]
    objects = CHART.render(values)
    labels = objects[key]["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/name": "gpushare", "release": "x", **fixed}
    # The rules know the job by its namespace.
    assert part != "prometheusRule" or 'up{job="gpus/gpushare"} == 0' in str(objects[key])


@pytest.mark.parametrize("values", [LOOPBACK, SERVICE, NONE])
def test_pods_are_not_sent_to_a_scheduler_that_is_not_there(values: Json) -> None:
    with pytest.raises(ChartError, match=r"set it to second$"):
        CHART.render({**values, "policies": {"setSchedulerName": True}})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "kubectl label node NODE gpushare=true\n"),
        ({"agent": {"dra": {"enabled": True}}}, "On nodes labelled gpu-device-plugin/serve=dra it names"),
        ({"agent": {"serve": "dra"}}, "and on those without this label, it names a ResourceClaim"),
        (SERVICE, "waits for the Secret gpushare-extender-tls"),
        (NONE, "by the sum of a node's free memory"),
    ],
)
def test_the_notes_say_what_is_left_to_do(values: Json, sentence: str) -> None:
    notes = CHART.texts(values)["NOTES.txt"]
    assert sentence in notes
    assert not re.search(r"[ \t]+$", notes, re.MULTILINE)


# --- The schema ------------------------------------------------------------------------------------------------------


def test_the_charts_own_values_follow_the_schema_and_each_of_them_has_a_place_in_it() -> None:
    VALIDATOR.validate(VALUES)

    def missing(values: Json, schema: Json, path: str) -> Iterator[str]:
        assert schema.get("additionalProperties") is False, path
        for key, value in values.items():
            if key not in schema["properties"]:
                yield f"{path}{key}"
            elif "properties" in schema["properties"][key]:
                yield from missing(value, schema["properties"][key], f"{path}{key}.")

    assert list(missing(VALUES, SCHEMA, "")) == []
    assert SCHEMA["properties"].keys() - VALUES.keys() == {"global"}, "which Helm itself adds to a chart within another"


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedular": {}},
        {"agent": {"runtimeclassname": "x"}},
        {"agent": {"affinity": []}},
        {"agent": {"args": "--share-size=1GiB"}},
        {"agent": {"args": ["--share-sizes=1GiB"]}},
        {"agent": {"dra": True}},
        {"agent": {"extraEnv": [{"name": "A", "value": 1}]}},
        {"agent": {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}},
        {"agent": {"extraGrant": {"env": {"A": "b"}}}},
        {"agent": {"extraGrant": {"mounts": [{"host_path": "/a", "container_path": "b"}]}}},
        {"agent": {"kubeletDir": "/var/lib/kubelet/"}},
        {"agent": {"maxUnavailable": "0%"}},
        {"agent": {"migMonitor": "yes"}},
        {"agent": {"podLabels": {"app.kubernetes.io/name": "other"}}},
        {"agent": {"profiles": {"default": {"share_size": "1GiB"}}}},
        {"agent": {"profiles": {"large": {"share_size": "4G"}}}},
        {"agent": {"profiles": {"large.": {"share_size": "1GiB"}}}},
        {"agent": {"settings": {"bind_timeout": "4s"}}},
        {"agent": {"settings": {"policy": "binpak"}}},
        {"agent": {"settings": {"probe_interval": "0.0s"}}},
        {"agent": {"settings": {"share_size": "0GiB"}}},
        {"image": {"repository": "registry.example.com/gpu-device-plugin:0.1.0"}},
        {"mps": {"shmSize": "1GiB"}},
        {"namespace": "GPU"},
        {"policies": {"schedulers": ["'] || true || ['"]}},
        {"scheduler": {"mode": "both"}},
        {"scheduler": {"replicas": 0}},
        {"scheduler": {"settings": {"vanished_grace": "30"}}},
        {"web": {"allowFrom": [{"namespace": "ingress"}]}},
    ],
    ids=str,
)
def test_wrong_values_are_refused(wrong: Json) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(CHART.values(wrong))


@pytest.mark.parametrize(
    "right",
    [
        {"agent": {"settings": {"share_size": "256 MiB", "devices": ["cdi"], "pre_start": True, "refusal_limit": 0}}},
        {
            "agent": {
                "settings": {"share_size": "010GiB", "http": "[::1]:9445"},
                "args": ["--http=:9445", "--mig=share"],
            }
        },
        {"agent": {"settings": {"reserve": "0MiB", "process_wait": "0s", "http": "off", "probe_interval": "0.5s"}}},
        {"agent": {"profiles": {"large": {"share_size": "4Gi", "ignored_xids": [31], "process_wait": "1.5m"}}}},
        {"agent": {"extraGrant": EXTRA, "maxUnavailable": "100%"}},
        {"agent": CUSTOM, "scheduler": CUSTOM},
        {
            "scheduler": {
                "settings": {"listen": "127.0.0.1:32766", "vanished_grace": "0s"},
                "args": ["--vanished-grace=5s"],
            }
        },
        {"image": {"repository": "localhost:5000/team/gpu-device-plugin", "tag": "0.1.0@sha256:0f"}},
    ],
    ids=str,
)
def test_right_values_are_taken(right: Json) -> None:
    VALIDATOR.validate(CHART.values(right))


@pytest.mark.parametrize(
    ("name", "knobs"), [("agentSettings", knobs_of(NODE_SETTINGS)), ("extenderSettings", knobs_of(EXTENDER_SETTINGS))]
)
def test_a_setting_that_no_program_would_take_is_refused_by_helm(name: str, knobs: Iterable[Knob]) -> None:
    """Else the release is there, and its agents wait for somebody to read why."""
    assert SCHEMA["definitions"][name]["properties"] == {knob.name: schema_of(knob.form) for knob in knobs}
    validator = VALIDATOR.evolve(schema={**SCHEMA, **SCHEMA["definitions"][name]})
    for knob in knobs:
        if knob.default:
            validator.validate({knob.name: knob.default})


def schema_of(form: Form[Any]) -> Json:
    """Return what the schema says of such a setting: as much as can be said of its form in few words."""
    named = {"SIZE": "size", "DURATION": "duration", "ADDRESS": "address", "true|false": "switch"}
    nothing = {"SIZE": "0GiB", "DURATION": "0s", "ADDRESS": "off"}
    words = form.shape.split("|")
    if form.shape not in named and len(words) > 1 and form.shape.islower() and not form.many:
        return {"enum": words}
    name = named.get(form.shape, "setting")
    if form.shape in nothing:
        with suppress(ValueError):
            form.read(nothing[form.shape])
            name += "OrNone"
    return {"$ref": f"#/definitions/{name}"}


@pytest.mark.parametrize(
    ("part", "program", "knobs"),
    [
        ("agent", "agent", knobs_of(NODE_SETTINGS)),
        ("scheduler", "extender", knobs_of(EXTENDER_SETTINGS)),
        ("mps", "mps", knobs_of(MpsSupervisorSettings)),
        ("limits", "limits", knobs_of(LimitHelperSettings)),
        ("web", "web", knobs_of(WebSettings)),
    ],
)
def test_a_flag_that_no_program_has_is_refused_by_helm(part: str, program: str, knobs: Iterable[Knob]) -> None:
    assert SCHEMA["properties"][part]["properties"]["args"] == {"$ref": f"#/definitions/{program}Flags"}
    names = "|".join(sorted(knob.flag.removeprefix("--") for knob in knobs))
    assert SCHEMA["definitions"][f"{program}Flags"]["items"]["pattern"] == f"^--({names})(=.*)?$"


def test_patterns_are_those_of_helms_own_language() -> None:
    """Helm reads them with RE2, which has neither a look ahead nor a look behind."""
    patterns = re.findall(
        r'"pattern": "((?:[^"\\]|\\.)*)"', (CHART.root / "values.schema.json").read_text(encoding="utf-8")
    )
    assert len(patterns) > 10
    assert [pattern for pattern in patterns if "(?" in pattern] == []


@pytest.mark.parametrize(("part", "workload"), [("agent", "gpushare-node"), ("scheduler", "gpushare-extender")])
def test_variables_of_the_chart_cannot_be_set_twice(part: str, workload: str) -> None:
    """The API server takes them as a map by name, and one of the two would be lost."""
    name = "agent" if part == "agent" else "extender"
    objects = CHART.render({**SERVICE, "agent": {"migMonitor": True}})
    own = {each["name"] for each in container(objects, workload, name)["env"]}
    excluded = SCHEMA["properties"][part]["properties"]["extraEnv"]["items"]["properties"]["name"]["not"]["enum"]
    assert set(excluded) == own


def test_no_profile_has_a_setting_that_an_agent_needs_before() -> None:
    (excluded,) = SCHEMA["definitions"]["profile"]["propertyNames"].values()
    assert excluded == {"enum": [knob.name for knob in knobs_of(NODE_SETTINGS) if not knob.in_profile]}


def test_the_version_is_the_programs() -> None:
    (described,) = documents(CHART.root / "Chart.yaml")
    assert (described["version"], described["appVersion"]) == (__version__, __version__)


# --- The pages -------------------------------------------------------------------------------------------------------


def explained() -> Iterator[tuple[str, Any, str]]:
    """Yield every value that values.yaml explains: its path, its default, and the comment before it."""
    lines = (CHART.root / "values.yaml").read_text(encoding="utf-8").splitlines()
    path: list[str] = []
    for number, line in enumerate(lines):
        found = re.match(r"( *)([A-Za-z]+):", line)
        comments = list(takewhile(lambda each: each.lstrip().startswith("# "), reversed(lines[:number])))
        if found:
            path[len(found[1]) // 2 :] = [found[2]]
        if found and comments:
            value: Any = VALUES
            for step in path:
                value = value[step]
            yield ".".join(path), value, " ".join(each.strip(" #") for each in reversed(comments))


def table() -> str:
    def shown(value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        return f"`{text}`" if text and len(text) <= 60 else "see values.yaml" if text else "empty"

    rows = [f"| `{path}` | {shown(value)} | {meaning} |" for path, value, meaning in explained()]
    return "\n".join(["| Value | Default | Meaning |", "|---|---|---|", *rows])


def with_table(text: str) -> str:
    head, _, rest = text.partition("<!-- values -->\n")
    _, end, tail = rest.partition("<!-- end of values -->\n")
    return f"{head}<!-- values -->\n{table()}\n{end}{tail}"


def test_the_table_of_values_is_current() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == with_table(text), "run: .venv/bin/python -m tests.deploy.test_chart"


def test_every_value_is_explained() -> None:
    def leaves(values: Json, path: str) -> Iterator[str]:
        for key, value in values.items():
            if isinstance(value, dict) and f"{path}{key}" not in names:
                yield from leaves(value, f"{path}{key}.")
            else:
                yield f"{path}{key}"

    names = {name for name, _, _ in explained()}
    assert set(leaves(VALUES, "")) == names


def settings(words: list[str]) -> Json:
    """What Helm makes of `--set a.b=c`."""
    found: Json = {}
    for word, text in pairwise(words):
        if word == "--set":
            path, _, value = text.partition("=")
            items = re.fullmatch(r"\{(.*)\}", value)
            at = found
            *parents, last = path.split(".")
            for step in parents:
                at = at.setdefault(step, {})
            at[last] = items[1].split(",") if items else {"true": True, "false": False}.get(value, value)
    return found


SHOWN = [settings(text.split()) for text in re.findall(r"--set .*?(?=`|\n)", DOCS.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("values", SHOWN, ids=str)
def test_what_the_page_sets_can_be_set_and_has_an_effect(values: Json) -> None:
    VALIDATOR.validate(CHART.values(values))
    assert CHART.render(values) != CHART.render()


# --- Helm itself -----------------------------------------------------------------------------------------------------


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("helm")
    if program is None:
        pytest.skip("helm is not on the PATH: what it would render is known from tests/deploy/templates.py alone")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "values",
    [
        *(values for values, _ in SAME),
        *SHOWN,
        {"agent": {"args": ["--policy=spread"]}},
        PROFILES,
        BARE,
        *({"agent": CUSTOM, "scheduler": {**values["scheduler"], **CUSTOM}} for values in (SECOND, LOOPBACK, SERVICE)),
    ],
    ids=str,
)
@pytest.mark.parametrize("namespace", ["default", "gpushare"])
def test_helm_renders_the_same(values: Json, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    where = ("gpushare", str(CHART.root), f"--namespace={namespace}", f"--values={file}", "--kube-version=v1.36.2")
    rendered = helm("template", *where)
    assert rendered.returncode == 0, rendered.stderr
    assert by_name([each for each in parsed(rendered.stdout) if each]) == CHART.render(values, namespace=namespace)


def test_helm_finds_nothing_wrong_and_refuses_what_the_schema_does() -> None:
    assert helm("lint", "--strict", str(CHART.root)).returncode == 0
    refused = helm("template", str(CHART.root), "--set", "agent.runtimeclassname=x")
    assert refused.returncode != 0
    assert "runtimeclassname" in refused.stderr


def test_helm_installs_changes_and_removes_it(real_server: RealServer, tmp_path: Path) -> None:
    """On an API server, with every kind that the chart has; the release is in its namespace and then is not."""
    file = kubeconfig(real_server.config, tmp_path / "kubeconfig")

    def done(*arguments: str) -> str:
        answer = helm(*arguments, f"--kubeconfig={file}")
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    for made, release in (("gpushare", "default"), ("apart", "apart")):
        where = [f"--namespace={release}", "--create-namespace", "--set", f"namespace={made}"]
        more = ["--set", "policies.setSchedulerName=true"]
        notes = done("install", "gpushare", str(CHART.root), *where, *more)
        assert ("kubectl label namespace" in notes) == (made == release)
        notes = done("upgrade", "gpushare", str(CHART.root), *where[:1], *where[2:], "--set", "scheduler.mode=service")
        assert "gpushare-extender-tls" in notes
        done("uninstall", "gpushare", where[0])


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
