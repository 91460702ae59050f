"""The NetworkPolicy closes every port to the network of pods but those that ask who calls."""

from typing import Any

import pytest

from gpu_device_plugin import cli
from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.settings.sources import Texts
from tests.deploy.manifests import DEPLOY, Json, documents
from tests.deploy.templates import Chart

(POLICY,) = documents("optional/networkpolicy")
MANIFESTS = (
    *("daemonset", "scheduler", "optional/extender-alone", "optional/extender-loopback"),
    *("optional/mps", "optional/limits"),
)
PODS: dict[str, Json] = {
    name: each["spec"]["template"]
    for name in MANIFESTS
    for each in documents(name)
    if each["kind"] in {"DaemonSet", "Deployment"}
}


def opened(policy: Json) -> dict[str, Any]:
    """Return every port that a policy opens, with those for whom it does; None: for all."""
    return {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}


def ports(pod: Json) -> set[str]:
    return {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", ())}


def test_it_concerns_every_pod_of_ours() -> None:
    spec = POLICY["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    for pod in PODS.values():
        assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_every_port_that_it_names_is_one_that_a_pod_has() -> None:
    """Kubernetes takes a name that no pod has for a rule that opens nothing, and says so nowhere."""
    reachable = set().union(*(ports(pod) for pod in PODS.values() if not pod["spec"].get("hostNetwork")))
    assert opened(POLICY).keys() == reachable == {"http", "https", "verbs"}


def test_probes_and_metrics_are_for_prometheus_alone() -> None:
    found = opened(POLICY)
    assert found["http"] == found["https"]
    assert found["http"]


def test_the_port_that_is_open_to_all_asks_for_a_certificate() -> None:
    assert [port for port, whom in opened(POLICY).items() if whom is None] == ["verbs"]
    (name,) = (name for name, pod in PODS.items() if "verbs" in ports(pod) and not pod["spec"].get("hostNetwork"))
    (container,) = PODS[name]["spec"]["containers"]
    settings = cli.sources_of(EXTENDER_SETTINGS, cli.parse(container["args"]), {"POD_NAME": "x"}).read(texts=Texts())
    assert settings.client_ca is not None


def test_the_chart_keeps_metrics_to_prometheus_unless_it_is_told_otherwise() -> None:
    """The agents' metrics name the pods of their node, for every client that reaches the port."""
    chart = Chart(DEPLOY / "chart")
    assert chart.render({})["NetworkPolicy", "gpushare", "gpushare"] == POLICY
    silent = {"agent": {"enabled": False}, "scheduler": {"mode": "loopback"}}
    for values in ({"networkPolicy": {"enabled": False}}, silent):
        assert ("NetworkPolicy", "gpushare", "gpushare") not in chart.render(values)


@pytest.mark.parametrize("mode", ["second", "service", "loopback", "none"])
def test_without_a_prometheus_the_chart_opens_no_metrics(mode: str) -> None:
    values = {"scheduler": {"mode": mode}, "networkPolicy": {"metricsFrom": []}}
    policy = Chart(DEPLOY / "chart").render(values)["NetworkPolicy", "gpushare", "gpushare"]
    assert opened(policy) == {"verbs": None}
