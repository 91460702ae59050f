"""The page in the cluster: its server may do what it does and nothing else, and nobody reaches it by accident."""

import re
from pathlib import Path

from gpu_device_plugin import cli
from gpu_device_plugin.settings.sources import Texts
from gpu_device_plugin.settings.web import WebSettings
from tests.deploy.calls import rights_granted, rights_needed, sources
from tests.deploy.manifests import DEPLOY, Json, by_name, objects, parsed, pod_of
from tests.deploy.templates import Chart

TEXT = (DEPLOY / "optional" / "web.yaml").read_text(encoding="utf-8")
OBJECTS = objects("optional/web")
DEPLOYMENT = OBJECTS["Deployment", "gpushare", "gpushare-web"]
POD = pod_of(DEPLOYMENT)
(CONTAINER,) = POD["containers"]
CHART = Chart(DEPLOY / "chart")
TLS = re.compile(r"^( *)# ((?:- --tls|scheme:|volume|- name: tls|  ).*\n)", re.MULTILINE)


def uncommented() -> str:
    """Return the manifest with its lines about TLS in use."""
    head, kind, rest = TEXT.partition("kind: Deployment")
    return head + kind + TLS.sub(r"\1\2", rest)


def settings(of: Json) -> WebSettings:
    return cli.sources_of(WebSettings, cli.parse(of["args"]), {}).read(texts=Texts())


def test_everything_finds_its_port() -> None:
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == settings(CONTAINER).http.port
    (served,) = OBJECTS["Service", "gpushare", "gpushare-web"]["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[name]["httpGet"]["port"] == port["name"]


def test_a_selector_takes_the_pods_of_the_page_and_no_others() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    service = OBJECTS["Service", "gpushare", "gpushare-web"]["spec"]["selector"]
    policy = OBJECTS["NetworkPolicy", "gpushare", "gpushare-web"]["spec"]
    assert labels == DEPLOYMENT["spec"]["selector"]["matchLabels"] == service == policy["podSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/component"] == "web"


def test_no_pod_reaches_it_until_somebody_says_which() -> None:
    policy = OBJECTS["NetworkPolicy", "gpushare", "gpushare-web"]["spec"]
    assert (policy["policyTypes"], policy["ingress"]) == (["Ingress"], [])
    assert OBJECTS["Service", "gpushare", "gpushare-web"]["spec"]["type"] == "ClusterIP"
    allowed = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
    rendered = CHART.render({"web": {"enabled": True, "allowFrom": allowed}})
    told = re.search(r"  #   (ingress:\n(?:  #    .*\n)+)", TEXT)
    assert told is not None
    (shown,) = parsed(told[1].replace("  #   ", ""))
    assert rendered["NetworkPolicy", "gpushare", "gpushare-web"]["spec"]["ingress"] == shown["ingress"]


def test_f12_rbac_grants_what_the_server_calls_and_nothing_else() -> None:
    """The use of GPUs comes through the API server's proxy, which is no kind."""
    rules = [
        rule for (kind, _, _), each in OBJECTS.items() if kind in {"Role", "ClusterRole"} for rule in each["rules"]
    ]
    proxied = {("", "pods/proxy", "get")}
    assert rights_granted(rules) - proxied == rights_needed("gpu_device_plugin.programs.web.web_program")


def test_the_lines_about_tls_are_what_the_chart_writes_with_a_secret() -> None:
    found = by_name(parsed(uncommented()))
    key = "Deployment", "gpushare", "gpushare-web"
    assert found[key] == CHART.render({"web": {"enabled": True, "tlsSecretName": "gpushare-web-tls"}})[key]
    (made,) = found[key]["spec"]["template"]["spec"]["containers"]
    assert not settings(made).exposed
    assert settings(CONTAINER).exposed
    (mount,) = made["volumeMounts"]
    assert settings(made).tls_cert == Path(mount["mountPath"]) / "tls.crt"
    assert {made[name]["httpGet"]["scheme"] for name in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "HTTPS"
    }


def test_pods_carry_what_a_cluster_asks_of_them() -> None:
    values = {
        "podLabels": {"example.com/cost": "7"},
        "podAnnotations": {"example.com/team": "gpus"},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "args": ["--log-level=debug"],
    }
    made = CHART.render({"web": {"enabled": True, **values}})["Deployment", "gpushare", "gpushare-web"]
    metadata, pod = made["spec"]["template"]["metadata"], pod_of(made)
    assert (metadata["labels"]["example.com/cost"], metadata["annotations"]) == ("7", values["podAnnotations"])
    assert (pod["nodeSelector"], pod["tolerations"]) == (values["nodeSelector"], values["tolerations"])
    assert settings(pod["containers"][0]).log_level == "debug"


def test_page_and_doctor_load_nothing_of_what_only_terminals_do() -> None:
    loaded = sources("gpu_device_plugin.programs.web.web_program", "gpu_device_plugin.programs.doctor.doctor_program")
    own = {name for name in sources("gpu_device_plugin.features.terminal_features") if name.endswith(".commands")}
    assert len(own) == 6
    assert not own & loaded.keys()
