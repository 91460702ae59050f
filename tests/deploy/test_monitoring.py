"""Prometheus finds every page of metrics that can be reached; rules and dashboard speak of metrics that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gpu_device_plugin import cli
from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.features.mps import MpsSupervisorSettings
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Texts
from tests.deploy.declared import TARGET, labels_by_metric
from tests.deploy.manifests import DEPLOY, Json, documents
from tests.docs.pages import blocks
from tools.dashboard import ROWS, VARIABLES
from tools.grafana import expressions
from tools.monitoring import FILES, RULES, derived

MONITORING = DEPLOY / "monitoring"
MONITOR = MONITORING / "podmonitor.yaml"
PAGE = (DEPLOY.parent / "docs" / "operations.md").read_text(encoding="utf-8")
TESTS = Path(__file__).with_name("rules_test.yaml")
PODS = [
    pytest.param(each, id=f"{path.name}: {each['metadata']['name']}")
    for path in sorted(DEPLOY.glob("**/*.yaml"))
    if "chart" not in path.parts
    for each in documents(path)
    if each.get("kind") in {"DaemonSet", "Deployment"}
]


def loaded(path: Path) -> Json:
    return documents(path)[0]


# --- Finding the pods ------------------------------------------------------------------------------------------------


def page_of_metrics(body: Json) -> tuple[Address | None, Json]:
    """Return where the program of a workload answers Prometheus, and its container."""
    (container,) = (each for each in body["spec"]["template"]["spec"]["containers"] if "args" in each)
    environ = {each["name"]: each.get("value", "name") for each in container.get("env", ())}
    arguments = cli.parse(container["args"])
    found: NodeSettings | ExtenderSettings | MpsSupervisorSettings
    if container["args"][0] == "node":
        found = cli.sources_of(NODE_SETTINGS, arguments, environ).read(texts=Texts())
    elif container["args"][0] == "mps":
        found = cli.sources_of(MpsSupervisorSettings, arguments, environ).read(texts=Texts())
    else:
        found = cli.sources_of(EXTENDER_SETTINGS, arguments, environ).read(texts=Texts())
    return found.http, container


@pytest.mark.parametrize("body", PODS)
def test_every_pod_whose_metrics_can_be_reached_is_found_by_its_port(body: Json) -> None:
    """The port that is asked is the one where the program answers, and no pod is asked in vain."""
    found = loaded(MONITOR)
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    if body["metadata"]["name"] in {"gpushare-web", "gpushare-limits"}:  # which have no metrics
        containers = body["spec"]["template"]["spec"]["containers"]
        assert endpoint["port"] not in {port["name"] for each in containers for port in each.get("ports", ())}
        return
    address, container = page_of_metrics(body)
    assert address is not None
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports.get(endpoint["port"]) == (address.port if address.host == "" else None)
    assert endpoint["path"] == "/metrics"
    labels = body["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["metadata"]["namespace"] == body["metadata"]["namespace"]
    others = [each for each in body["spec"]["template"]["spec"]["containers"] if each is not container]
    assert all(port["name"] != endpoint["port"] for each in others for port in each.get("ports", ()))


def test_without_the_operator_the_same_pods_are_found_and_the_same_labels_given() -> None:
    """Prometheus joins source labels with semicolons, and writes labels of pods with underscores."""
    (job,) = loaded(FILES / "prometheus.yaml")["scrape_configs"]
    spec = loaded(MONITOR)["spec"]
    ((label, value),) = spec["selector"]["matchLabels"].items()
    (endpoint,) = spec["podMetricsEndpoints"]
    keep, _, *labels = job["relabel_configs"]
    assert keep == {
        "source_labels": [
            f"__meta_kubernetes_pod_label_{re.sub(r'[^a-z]', '_', label)}",
            "__meta_kubernetes_pod_container_port_name",
        ],
        "regex": f"{value};{endpoint['port']}",
        "action": "keep",
    }
    assert {each["target_label"] for each in labels} == TARGET - {"job", "instance"}
    (node,) = endpoint["relabelings"]
    assert {"source_labels": node["sourceLabels"], "target_label": node["targetLabel"]} in labels
    # The operator calls a job by the namespace and the name of the object.
    assert job["job_name"] == "{namespace}/{name}".format(**loaded(MONITOR)["metadata"])
    # Series of containers keep their own namespace and pod, and those of the extender their node.
    assert (job["honor_labels"], endpoint["honorLabels"]) == (True, True)


# --- Files made of others --------------------------------------------------------------------------------------------


def test_the_files_made_of_others_are_current() -> None:
    for name, text in derived(RULES.read_text(encoding="utf-8")).items():
        assert (DEPLOY / name).read_text(encoding="utf-8") == text, f"{name}: run .venv/bin/python -m tools.monitoring"
    assert loaded(FILES / "prometheus.yaml")["rule_files"] == [RULES.name]


# --- Names -----------------------------------------------------------------------------------------------------------

GROUPS = loaded(RULES)["groups"]
EVERY = [rule for group in GROUPS for rule in group["rules"]]
RECORDS = [rule for rule in EVERY if "record" in rule]
ALERTS = [rule for rule in EVERY if "alert" in rule]
DASHBOARD: Json = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
QUERIES = list(expressions(DASHBOARD))
MADE_BY_QUERIES = {"replicaset", "workload", "workload_kind"}
"""Labels that `label_replace` writes."""


def known() -> dict[str, set[str]]:
    """Return the labels of every metric: of the programs, of kube-state-metrics, and of what the rules record."""
    recorded = {rule["record"]: set(re.findall(r"by \(([\w, ]*)\)", rule["expr"])) for rule in RECORDS}
    by_rule = {name: {label for group in groups for label in group.split(", ")} for name, groups in recorded.items()}
    return {**labels_by_metric(), **by_rule}


def test_rules_dashboard_and_their_tests_speak_of_metrics_and_labels_that_there_are() -> None:
    metrics = known()
    labels = {*TARGET, *MADE_BY_QUERIES, *(label for names in metrics.values() for label in names)}
    tried = [each["series"] for test in loaded(TESTS)["tests"] for each in test["input_series"]]
    for text in (*(rule["expr"] for rule in EVERY), *(expression for _, expression in QUERIES), *tried):
        named = set(re.findall(r"(?:\b[a-z]+:)?\b(?:gpushare|kube)_\w+(?::\w+)?", text))
        assert named <= metrics.keys(), text
        grouped = re.findall(r"\b(?:by|on|group_left) ?\(([\w, ]*)\)", text)
        matched = re.findall(r"[{,] ?(\w+)=", re.sub(r'"[^"]*"', '""', text))
        assert {*matched, *(label for group in grouped for label in group.split(", ") if label)} <= labels, text
    for rule in ALERTS:
        assert set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))) <= labels


def test_rules_have_names_of_their_own_and_alerts_say_what_is_wrong_how_bad_it_is_and_what_to_do() -> None:
    names = [rule.get("alert") or rule["record"] for rule in EVERY]
    assert len(set(names)) == len(names)
    assert [
        rule["record"] for rule in RECORDS if not re.fullmatch(r"[a-z]+:gpushare_\w+:[a-z0-9]+", rule["record"])
    ] == []
    assert {rule["labels"]["severity"] for rule in ALERTS} == {"critical", "warning", "info"}
    for rule in ALERTS:
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
        assert all(text.endswith(".") for text in rule["annotations"].values()), rule["alert"]


def test_every_alert_and_recorded_series_stands_in_the_documentation() -> None:
    lists = re.findall(r"^\*\*(critical|warning|info)\*\*\n\n((?:[* ] .*\n)+)", PAGE, re.MULTILINE)
    alerts = {severity: re.findall(r"^\* `(GpuShare\w+)`", items, re.MULTILINE) for severity, items in lists}
    named = [(name, severity) for severity, names in alerts.items() for name in names]
    assert sorted(named) == sorted((rule["alert"], rule["labels"]["severity"]) for rule in ALERTS)
    assert set(re.findall(r"`([a-z]+:gpushare_[\w:]+)`", PAGE)) == {rule["record"] for rule in RECORDS}


def test_the_queries_of_the_page_are_among_those_with_a_known_result() -> None:
    tried = {each["expr"] for test in loaded(TESTS)["tests"] for each in test.get("promql_expr_test", ())}
    shown = [block.text for block in blocks(PAGE, "promql")]
    assert len(shown) == 5
    assert set(shown) <= tried


# --- The dashboard ---------------------------------------------------------------------------------------------------

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_panels_are_of_grafana_itself_and_explain_themselves() -> None:
    assert {panel["type"] for panel in PANELS} == {"stat", "timeseries", "bargauge", "table"}
    assert [panel["title"] for panel in PANELS if not panel["description"].endswith(".")] == []
    assert [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"] == list(ROWS)
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    for panels in ROWS.values():
        titles = [panel.title for panel in panels]
        assert len(set(titles)) == len(titles)


def test_queries_use_the_variables_that_there_are() -> None:
    text = " ".join(expression for _, expression in QUERIES)
    assert set(re.findall(r"\$(\w+)", text)) - {"1", "__rate_interval", "__range"} == set(
        VARIABLES
    )  # $1: of label_replace
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", *VARIABLES]
    for _, query in VARIABLES.values():
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert found is not None
        assert found[2] in known()[found[1]] | TARGET


# --- promtool --------------------------------------------------------------------------------------------------------


def promtool(*arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not on the PATH (Debian's package prometheus has it)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    promtool("check", "rules", str(RULES))


def test_promtool_finds_nothing_wrong_with_the_configuration(tmp_path: Path) -> None:
    config = loaded(FILES / "prometheus.yaml")
    for job in config["scrape_configs"]:
        # Debian's promtool is built without it.
        del job["kubernetes_sd_configs"]
    (tmp_path / RULES.name).write_bytes(RULES.read_bytes())
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    promtool("check", "config", str(file))


def test_the_rules_give_what_was_worked_out_by_hand(tmp_path: Path) -> None:
    """An alert has its sentences there where the test shows them."""
    rules, tests = loaded(RULES), loaded(TESTS)
    expected = [each for test in tests["tests"] for each in test.get("alert_rule_test", ())]
    shown = {each["alertname"] for each in expected if any("exp_annotations" in one for one in each["exp_alerts"])}
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        if rule.get("alert") not in shown:
            rule.pop("annotations", None)
    tests["rule_files"] = [RULES.name]
    (tmp_path / RULES.name).write_text(yaml.safe_dump(rules), encoding="utf-8")
    (tmp_path / TESTS.name).write_text(yaml.safe_dump(tests), encoding="utf-8")
    promtool("test", "rules", str(tmp_path / TESTS.name))


def test_every_alert_is_seen_firing_and_not_firing_and_every_recorded_series_is_computed() -> None:
    tests = loaded(TESTS)["tests"]
    alerts = [each for test in tests for each in test.get("alert_rule_test", ())]
    names = {rule["alert"] for rule in ALERTS}
    assert {each["alertname"] for each in alerts if each["exp_alerts"]} == names
    assert {each["alertname"] for each in alerts if not each["exp_alerts"]} == names
    samples = [each for test in tests for each in test.get("promql_expr_test", ()) if each["exp_samples"]]
    assert {rule["record"] for rule in RECORDS} <= {each["expr"] for each in samples}
