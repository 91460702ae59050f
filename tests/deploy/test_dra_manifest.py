"""What deploy/ has for claims (DRA) says what the driver does: its names, its directories and its rights."""

import re
from pathlib import Path

import pytest

from gpu_device_plugin import cli
from gpu_device_plugin.features.claims import contract as dra
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract import keys
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.settings.sources import Texts
from tests.deploy.manifests import AGENT, DEPLOY, Json, documents, objects, parsed, pod_of, the
from tests.deploy.templates import Chart

CHART = Chart(DEPLOY / "chart")
ACCOUNT = "system:serviceaccount:gpushare:gpushare-node"
OBJECTS = objects("optional/dra")
TEMPLATES = {each["metadata"]["name"]: each["spec"]["spec"]["devices"] for each in documents("optional/dra-templates")}
POLICY = the("MutatingAdmissionPolicy", "optional/dra-mutating-policy")


# --- Device classes and templates ------------------------------------------------------------------------------------


PARAMETERS = {"apiVersion": dra.API_VERSION, "kind": dra.CONFIG_KIND, dra.TAKE_WHOLE: True}
TAKES_ALL: Json = {"config": [{"opaque": {"driver": dra.DRIVER, "parameters": PARAMETERS}}]}


@pytest.mark.parametrize(
    ("name", "type_", "other"),
    [
        (dra.SHARED_CLASS, dra.SHARED, {}),
        (
            dra.WHOLE_CLASS,
            dra.WHOLE,
            {
                "extendedResourceName": next(each.name for each in NODE_SETTINGS().offered if each.kind is Kind.COUNT),
                **TAKES_ALL,
            },
        ),
        (dra.MIG_CLASS, dra.MIG, TAKES_ALL),
        ("gpushare-monitor", dra.MONITOR, {}),
    ],
)
def test_a_device_class_selects_the_devices_of_our_driver_by_their_type(name: str, type_: str, other: Json) -> None:
    spec = OBJECTS["DeviceClass", "", name]["spec"]
    (selector,) = spec["selectors"]
    attributes = f"device.attributes['{dra.DRIVER}']"
    of_type = f"{attributes}.{dra.TYPE}"
    if TAKES_ALL.items() <= other.items():
        of_type = f"{attributes}.?{dra.AS_WHOLE}.orValue({of_type})"
    assert selector == {"cel": {"expression": f"device.driver == '{dra.DRIVER}' && {of_type} == '{type_}'"}}
    assert {key: value for key, value in spec.items() if key != "selectors"} == other


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
    assert set(re.findall(r"'([^']+)'", condition)) == {
        *(keys.WISHES - policies),
        keys.SPLIT_LABEL,
        keys.MEMORY_LIMIT,
        keys.MEMORY_GUARANTEE,
    }


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


# --- The chart -------------------------------------------------------------------------------------------------------


def test_the_chart_serves_claims_on_all_nodes_or_on_those_that_are_named() -> None:
    """The setting, or a label or a profile for some nodes: both bring classes, rights and mounts."""
    everywhere, some = (CHART.render({"agent": agent}) for agent in ({"serve": "dra"}, {"dra": {"enabled": True}}))
    settings = [
        parsed(each["ConfigMap", "gpushare", "gpushare-node"]["data"]["default.yaml"])[0] for each in (everywhere, some)
    ]
    assert settings == [
        {"policy": "fit", "share_size": "1GiB", "serve": "dra"},
        {"policy": "fit", "share_size": "1GiB"},
    ]
    assert {key for key in everywhere if everywhere[key] != some[key]} == {("ConfigMap", "gpushare", "gpushare-node")}
    plain = CHART.render()
    assert some.keys() - plain.keys() == OBJECTS.keys()


def test_in_another_namespace_the_chart_trusts_the_account_there() -> None:
    rendered = CHART.render({"namespace": "gpus", "agent": {"serve": "dra"}})
    for name in ("gpushare-own-slices", "gpushare-own-claims"):
        (condition,) = rendered["ValidatingAdmissionPolicy", "", name]["spec"]["matchConditions"]
        assert "['system:serviceaccount:gpus:gpushare-node']" in condition["expression"]
    assert rendered["ClusterRoleBinding", "", "gpushare-node-dra"]["subjects"][0]["namespace"] == "gpus"


def test_without_policies_or_agents_the_chart_leaves_out_what_is_theirs() -> None:
    without = CHART.render({"agent": {"serve": "dra"}, "policies": {"enabled": False}})
    assert {key[2] for key in OBJECTS.keys() - without.keys()} == {"gpushare-own-slices", "gpushare-own-claims"}
    assert not OBJECTS.keys() & CHART.render({"agent": {"serve": "dra", "enabled": False}}).keys()


def test_a_kubelet_with_another_root_finds_the_sockets_where_it_is_told() -> None:
    """The driver names its socket by a path, so that the agent has to see the path of the node."""
    root = "/var/lib/k0s/kubelet"
    rendered = CHART.render({"agent": {"serve": "dra", "kubeletRootDir": root}})
    pod = pod_of(rendered[AGENT])
    (made,) = pod["containers"]
    inside = {each["name"]: each["mountPath"] for each in made["volumeMounts"]}
    for volume in pod["volumes"]:
        if volume["name"] in {"plugins", "plugins-registry", "pod-resources", "cdi"}:
            assert inside[volume["name"]] == volume["hostPath"]["path"]
    assert inside["device-plugins"] == "/var/lib/kubelet/device-plugins"
    settings = cli.sources_of(NODE_SETTINGS, cli.parse(made["args"]), {}).read(texts=Texts())
    assert settings.kubelet_root == Path(root)
    assert str(settings.plugins_registry) == inside["plugins-registry"]
