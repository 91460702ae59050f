"""What deploy/ has for claims (DRA) says what the driver does: its names, its directories and its rights."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin import cli
from gpu_device_plugin.core.contract import dra, keys
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Texts
from tests.deploy.patches import patched
from tests.deploy.templates import Chart, by_name
from tests.deploy.test_mps_agent import agent, sorted_volumes

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
PATCH = DEPLOY / "patches" / "dra-agent.yaml"
CHART = Chart(DEPLOY / "chart")
AGENT = ("DaemonSet", "gpushare", "gpushare-node")
ACCOUNT = "system:serviceaccount:gpushare:gpushare-node"


def documents(name: str) -> list[Json]:
    return list(yaml.safe_load_all((DEPLOY / "optional" / f"{name}.yaml").read_text(encoding="utf-8")))


OBJECTS = by_name(iter(documents("dra")))
TEMPLATES = {each["metadata"]["name"]: each["spec"]["spec"]["devices"] for each in documents("dra-templates")}
(POLICY,) = (each for each in documents("dra-mutating-policy") if each["kind"] == "MutatingAdmissionPolicy")


# --- Device classes and templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "type_", "other"),
    [
        (dra.SHARED_CLASS, dra.SHARED, {}),
        (
            dra.WHOLE_CLASS,
            dra.WHOLE,
            {"extendedResourceName": next(each.name for each in NodeSettings().offered if each.kind is Kind.COUNT)},
        ),
        (dra.MIG_CLASS, dra.MIG, {}),
        (dra.MONITOR_CLASS, dra.MONITOR, {}),
    ],
)
def test_a_device_class_selects_the_devices_of_our_driver_by_their_type(name: str, type_: str, other: Json) -> None:
    spec = OBJECTS["DeviceClass", "", name]["spec"]
    (selector,) = spec["selectors"]
    selected = f"device.driver == '{dra.DRIVER}' && device.attributes['{dra.DRIVER}'].{dra.TYPE} == '{type_}'"
    assert selector == {"cel": {"expression": selected}}
    assert {key: value for key, value in spec.items() if key != "selectors"} == other


def test_the_templates_ask_for_so_many_gib_or_a_whole_gpu() -> None:
    def asking(asked: Json) -> Json:
        return {"requests": [{"name": "gpu", "exactly": asked}]}

    assert {
        **{
            f"gpu-mem-{size}gi": asking(
                {"deviceClassName": dra.SHARED_CLASS, "capacity": {"requests": {dra.MEMORY: f"{size}Gi"}}}
            )
            for size in (1, 2, 4, 8, 16)
        },
        "gpu-whole": asking({"deviceClassName": dra.WHOLE_CLASS}),
    } == TEMPLATES


def test_the_amounts_that_the_policy_turns_into_claims_have_a_template() -> None:
    (condition,) = (
        each["expression"]
        for each in POLICY["spec"]["matchConditions"]
        if each["name"] == "asks-for-amounts-with-a-template"
    )
    amounts = re.findall(r"'(\d+)'", condition.partition(" in ")[2])
    assert {f"gpu-mem-{amount}gi" for amount in amounts} == TEMPLATES.keys() - {"gpu-whole"}
    assert POLICY["spec"]["matchConstraints"]["namespaceSelector"] == {
        "matchLabels": {"gpu-device-plugin/claims": "true"}
    }


def test_the_policy_leaves_pods_whose_wishes_a_template_does_not_know() -> None:
    (condition,) = (
        each["expression"] for each in POLICY["spec"]["matchConditions"] if each["name"] == "wishes-for-nothing-else"
    )
    policies = {keys.GPU_POLICY, keys.NODE_POLICY}
    assert set(re.findall(r"'([^']+)'", condition)) == keys.WISHES - policies | {keys.SPLIT_LABEL}


# --- Rights ----------------------------------------------------------------------------------------------------------


def test_the_agents_get_the_rights_of_a_driver_and_no_others() -> None:
    rules = {
        (resource, *rule.get("resourceNames", ())): set(rule["verbs"])
        for rule in OBJECTS["ClusterRole", "", "gpushare-node-dra"]["rules"]
        for resource in rule["resources"]
        if rule["apiGroups"] == ["resource.k8s.io"]
    }
    assert rules == {
        ("resourceclaims",): {"get", "list"},
        ("resourceclaims/status",): {"patch"},
        ("resourceclaims/driver", dra.DRIVER): {"associated-node:patch"},
        ("resourceslices",): {"list", "watch", "create", "update", "delete"},
    }
    binding = OBJECTS["ClusterRoleBinding", "", "gpushare-node-dra"]
    assert binding["roleRef"]["name"] == "gpushare-node-dra"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "gpushare-node", "namespace": "gpushare"}]


@pytest.mark.parametrize("name", ["gpushare-own-slices", "gpushare-own-claims"])
def test_a_policy_is_for_the_agents_account_alone_and_denies(name: str) -> None:
    spec = OBJECTS["ValidatingAdmissionPolicy", "", name]["spec"]
    (condition,) = spec["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username in ['{ACCOUNT}']"
    assert spec["failurePolicy"] == "Fail"
    binding = OBJECTS["ValidatingAdmissionPolicyBinding", "", name]["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}
    for validation in spec["validations"]:
        assert re.fullmatch(r"[a-z].{40,250}[a-z]", validation["message"])
        assert re.search(r"; leave\b", validation["message"])


def test_lines_to_change_are_marked() -> None:
    """The account of the agents, and the name of the second scheduler."""
    found = {
        name: len(re.findall(r"CHANGE: ", (DEPLOY / "optional" / f"{name}.yaml").read_text(encoding="utf-8")))
        for name in ("dra", "dra-templates", "dra-mutating-policy")
    }
    assert found == {"dra": 2, "dra-templates": 0, "dra-mutating-policy": 1}


# --- Mounts ----------------------------------------------------------------------------------------------------------


def with_dra() -> Json:
    return patched(agent(), yaml.safe_load(PATCH.read_text(encoding="utf-8")))


def test_the_agent_gets_the_directories_of_a_driver_and_no_more() -> None:
    """It registers below the kubelet's root, and tells the container runtime what a claim gets."""
    pod, plain = (made["spec"]["template"]["spec"] for made in (with_dra(), agent()))
    before = {each["mountPath"]: each for each in plain["containers"][0]["volumeMounts"]}
    after = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    registry, cdi = str(NodeSettings().plugins_registry), str(NodeSettings().cdi_dir)
    assert {path: each for path, each in after.items() if each != before.get(path)} == {
        "/var/lib/kubelet/plugins": {"name": "plugins", "mountPath": "/var/lib/kubelet/plugins"},
        registry: {"name": "plugins-registry", "mountPath": registry},
        cdi: {"name": "cdi", "mountPath": cdi},
    }
    assert before.keys() <= after.keys()
    added = [each for each in pod["volumes"] if each not in plain["volumes"]]
    assert added == [
        {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins", "type": "Directory"}},
        {"name": "cdi", "hostPath": {"path": cdi, "type": "DirectoryOrCreate"}},
    ]
    assert pod["containers"][0]["securityContext"] == plain["containers"][0]["securityContext"]


def test_kubectl_makes_the_same_of_the_patch(tmp_path: Path) -> None:
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
    made = yaml.safe_load(done.stdout)
    for mount in made["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
        if mount.get("readOnly") is False:  # which the API server leaves out
            del mount["readOnly"]
    assert sorted_volumes(made) == sorted_volumes(with_dra())


# --- The chart -------------------------------------------------------------------------------------------------------


def test_the_chart_serves_claims_on_all_nodes_or_on_those_that_are_named() -> None:
    """The setting, or a label or a profile for some nodes: both bring classes, rights and mounts."""
    everywhere, some = (CHART.render({"agent": agent}) for agent in ({"serve": "dra"}, {"dra": {"enabled": True}}))
    settings = [
        yaml.safe_load(each["ConfigMap", "gpushare", "gpushare-node"]["data"]["default.yaml"])
        for each in (everywhere, some)
    ]
    assert settings == [
        {"policy": "fit", "share_size": "1GiB", "serve": "dra"},
        {"policy": "fit", "share_size": "1GiB"},
    ]
    assert {key for key in everywhere if everywhere[key] != some[key]} == {("ConfigMap", "gpushare", "gpushare-node")}
    plain = CHART.render()
    assert some.keys() - plain.keys() == OBJECTS.keys()


def test_the_chart_names_a_way_also_without_other_settings() -> None:
    objects = CHART.render({"agent": {"serve": "device-plugin"}})
    data = objects["ConfigMap", "gpushare", "gpushare-node"]["data"]
    assert yaml.safe_load(data["default.yaml"])["serve"] == "device-plugin"
    assert not OBJECTS.keys() & objects.keys()


def test_in_another_namespace_the_chart_trusts_the_account_there() -> None:
    objects = CHART.render({"namespace": "gpus", "agent": {"serve": "dra"}})
    for name in ("gpushare-own-slices", "gpushare-own-claims"):
        (condition,) = objects["ValidatingAdmissionPolicy", "", name]["spec"]["matchConditions"]
        assert "['system:serviceaccount:gpus:gpushare-node']" in condition["expression"]
    assert objects["ClusterRoleBinding", "", "gpushare-node-dra"]["subjects"][0]["namespace"] == "gpus"


def test_without_policies_or_agents_the_chart_leaves_out_what_is_theirs() -> None:
    without = CHART.render({"agent": {"serve": "dra"}, "policies": {"enabled": False}})
    assert {key[2] for key in OBJECTS.keys() - without.keys()} == {"gpushare-own-slices", "gpushare-own-claims"}
    assert not OBJECTS.keys() & CHART.render({"agent": {"serve": "dra", "enabled": False}}).keys()


def test_a_kubelet_with_another_root_finds_the_sockets_where_it_is_told() -> None:
    """The driver names its socket by a path, so that the agent has to see the path of the node."""
    root = "/var/lib/k0s/kubelet"
    objects = CHART.render({"agent": {"serve": "dra", "kubeletRootDir": root}})
    pod = objects[AGENT]["spec"]["template"]["spec"]
    (made,) = pod["containers"]
    inside = {each["name"]: each["mountPath"] for each in made["volumeMounts"]}
    for volume in pod["volumes"]:
        if volume["name"] in {"plugins", "plugins-registry", "pod-resources", "cdi"}:
            assert inside[volume["name"]] == volume["hostPath"]["path"]
    assert inside["device-plugins"] == "/var/lib/kubelet/device-plugins"
    settings = cli.sources_of(NodeSettings, cli.parse(made["args"]), {}).read(texts=Texts())
    assert settings.kubelet_root == Path(root)
    assert str(settings.plugins_registry) == inside["plugins-registry"]
