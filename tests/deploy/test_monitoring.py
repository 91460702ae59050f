"""Prometheus finds every page of metrics that can be reached, and its rules speak of metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpu_device_plugin import cli, metrics
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.mps import MpsSettings
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Texts
from tests.docs.pages import blocks

if TYPE_CHECKING:
    from gpu_device_plugin.settings.forms import Address

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
MONITOR = DEPLOY / "optional" / "podmonitor.yaml"
PAGE = (DEPLOY.parent / "docs" / "operations.md").read_text(encoding="utf-8")
PODS = [
    pytest.param(each, id=f"{path.name}: {each['metadata']['name']}")
    for path in sorted(DEPLOY.glob("**/*.yaml"))
    if "chart" not in path.parts
    for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if each.get("kind") in {"DaemonSet", "Deployment"}
]
LABELS_OF_A_TARGET = {"node", "pod", "container", "namespace", "job", "instance"}
"""What every sample carries beside its own labels, by the operator or by the page's configuration."""


def monitor() -> Json:
    found: Json = yaml.safe_load(MONITOR.read_text(encoding="utf-8"))
    return found


def shown(beginning: str) -> Json:
    """The one YAML block of the page that begins with this key."""
    (found,) = (block.text for block in blocks(PAGE, "yaml") if block.text.startswith(beginning))
    parsed: Json = yaml.safe_load(found)
    return parsed


def page_of_metrics(body: Json) -> tuple[Address | None, Json]:
    """Return where the program of a workload answers Prometheus, and its container."""
    (container,) = (each for each in body["spec"]["template"]["spec"]["containers"] if "args" in each)
    environ = {each["name"]: each.get("value", "name") for each in container.get("env", ())}
    arguments = cli.parse(container["args"])
    found: NodeSettings | ExtenderSettings | MpsSettings
    if container["args"][0] == "node":
        found = cli.sources_of(NodeSettings, arguments, environ).read(texts=Texts())
    elif container["args"][0] == "mps":
        found = cli.sources_of(MpsSettings, arguments, environ).read(texts=Texts())
    else:
        found = cli.sources_of(ExtenderSettings, arguments, environ).read(texts=Texts())
    return found.http, container


@pytest.mark.parametrize("body", PODS)
def test_every_pod_whose_metrics_can_be_reached_is_found_by_its_port(body: Json) -> None:
    """The port that is asked is the one where the program answers, and no pod is asked in vain."""
    found = monitor()
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
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
    (job,) = shown("scrape_configs:")["scrape_configs"]
    spec = monitor()["spec"]
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
    assert {each["target_label"] for each in labels} == LABELS_OF_A_TARGET - {"job", "instance"}
    (node,) = endpoint["relabelings"]
    assert {"source_labels": node["sourceLabels"], "target_label": node["targetLabel"]} in labels
    # The operator calls a job by the namespace and the name of the object.
    assert job["job_name"] == "{namespace}/{name}".format(**monitor()["metadata"])


def labels_by_metric() -> dict[str, set[str]]:
    """Every metric of both programs, as Prometheus shows it."""
    gpu, stream = metrics.GpuState("GPU-a", True, 1, 0, 0, 0), metrics.StreamState("r", True, 0)
    agent = metrics.State(gpus=(gpu,), streams=(stream,))
    watch = metrics.WatchState("pods", live=True, silent_s=0, lists=0, unreadable=0)
    read_off = [gauge for state in (agent, metrics.ExtenderState(watches=(watch,))) for gauge, _ in state.gauges()]
    counts = (*metrics.COUNTS, *metrics.EXTENDER_COUNTS)
    return {
        **{gauge.name + "_total" * gauge.grows: set(gauge.labels) for gauge in read_off},
        **{count.name: set(count.labels) for count in counts},
        "gpushare_build_info": {"version"},
        "up": set(),
    }


RULES = [rule for group in shown("groups:")["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_speaks_of_metrics_and_labels_that_there_are(rule: Json) -> None:
    known = labels_by_metric()
    (metric,) = re.findall(r"\b(?:gpushare_\w+|up)\b", rule["expr"].replace("gpushare/gpushare", ""))
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    grouped = re.search(r"^(?:sum|max|count)(?: by \(([\w, ]*)\))? ?\(", rule["expr"])
    left = LABELS_OF_A_TARGET | known[metric] if grouped is None else set((grouped[1] or "").split(", "))
    assert used <= left


def test_rules_have_names_of_their_own_and_say_how_bad_it_is() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    assert {rule["labels"]["severity"] for rule in RULES} == {"critical", "warning", "info"}


@pytest.mark.parametrize(("command", "beginning"), [("config", "scrape_configs:"), ("rules", "groups:")])
def test_promtool_finds_nothing_wrong(command: str, beginning: str, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the PATH")
    checked = shown(beginning)
    for job in checked.get("scrape_configs", ()):
        # Debian's promtool is built without it.
        del job["kubernetes_sd_configs"]
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(checked), encoding="utf-8")
    done = subprocess.run([promtool, "check", command, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
