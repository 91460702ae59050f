"""What the page on platforms tells autoscalers is what they read, and its files fit each other and our names."""

import re

from gpu_device_plugin.model.contract.keys import STARTUP_TAINT, SWITCH_LABEL
from gpu_device_plugin.programs.doctor.rules.component_checks import GPU_LABELS
from tests.deploy.declared import labels_by_metric
from tests.deploy.manifests import Json, documents
from tests.docs.pages import DOCS, text_of
from tests.names import COUNT, MEM

PAGE = text_of(DOCS / "platforms.md")
FILES = DOCS / "platforms"
TOLD = dict(re.findall(r"`([\w.~/-]+)[=:] ?([\w./=-]+)`", PAGE))
"""Every key with its value that the page shows."""
RESOURCES, LABEL = (
    "k8s.io/cluster-autoscaler/node-template/resources/",
    "k8s.io/cluster-autoscaler/node-template/label/",
)


def file(name: str) -> list[Json]:
    return documents(FILES / f"{name}.yaml")


def test_every_file_is_on_the_page_and_nothing_else_is() -> None:
    assert set(re.findall(r"\(platforms/([\w.-]+)\)", PAGE)) == {
        path.name for path in FILES.iterdir() if path.is_file()
    }


def test_tags_of_aws_and_azure_name_the_resource_and_the_label() -> None:
    """Azure allows no slash in a tag, so there the autoscaler reads an underscore as one (azure_template.go, 1.36)."""
    (group,) = file("eks")[0]["managedNodeGroups"]
    assert {key.removeprefix(RESOURCES) for key in group["tags"]} == {MEM, COUNT}
    assert group["labels"] == {SWITCH_LABEL: "true"}
    assert TOLD[f"{RESOURCES}{MEM}"] == group["tags"][f"{RESOURCES}{MEM}"]
    assert TOLD[f"{LABEL}{SWITCH_LABEL}"] == "true"
    of_azure = {key.replace("_", "/"): value for key, value in TOLD.items() if key.startswith("k8s.io_")}
    assert of_azure == {f"{RESOURCES}{MEM}": "88", f"{LABEL}{SWITCH_LABEL}": "true"}


def test_the_label_of_gke_names_the_resource() -> None:
    assert TOLD[f"clusterautoscaler-nodetemplate-resources.{MEM}"] == "88"


def test_annotations_of_cluster_api_are_those_of_the_example() -> None:
    machines, config = file("cluster-api")
    prefix = "capacity.cluster-autoscaler.kubernetes.io/"
    told = {key: value for key, value in TOLD.items() if key.startswith(prefix)}
    assert told == {key: machines["metadata"]["annotations"][key] for key in told}
    assert told == {f"{prefix}gpu-type": MEM, f"{prefix}gpu-count": "88", f"{prefix}labels": f"{SWITCH_LABEL}=true"}
    registration = config["spec"]["template"]["spec"]["joinConfiguration"]["nodeRegistration"]
    assert registration["kubeletExtraArgs"] == [{"name": "node-labels", "value": f"{SWITCH_LABEL}=true"}]


def test_new_nodes_have_the_taint_that_the_extender_removes() -> None:
    (group,) = file("eks")[0]["managedNodeGroups"]
    _, config = file("cluster-api")
    registration = config["spec"]["template"]["spec"]["joinConfiguration"]["nodeRegistration"]
    for (taint,) in (group["taints"], registration["taints"]):
        assert f"{taint['key']}:{taint['effect']}" == f"{STARTUP_TAINT}:NoSchedule"
    assert f"`{STARTUP_TAINT}:NoSchedule`" in PAGE


def test_the_overlay_is_for_the_nodes_that_share() -> None:
    pool, overlay = file("karpenter")
    assert pool["spec"]["template"]["metadata"]["labels"] == {SWITCH_LABEL: "true"}
    assert overlay["spec"]["requirements"][0]["values"] == [pool["metadata"]["name"]]
    assert overlay["spec"]["capacity"] == {MEM: TOLD[MEM], COUNT: "4"}


def test_the_labels_to_leave_out_are_those_that_the_doctor_looks_for() -> None:
    assert set(re.findall(r"`([\w.-]+/(?:gke-)?accelerator)`", PAGE)) == GPU_LABELS


def test_the_autoscaler_of_pods_reads_a_metric_of_ours() -> None:
    *_, autoscaler = file("vllm")
    (rule,) = file("prometheus-adapter")[0]["rules"]["custom"]
    (metric,) = autoscaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    series = rule["seriesQuery"].partition("{")[0]
    assert rule["resources"]["overrides"].keys() <= labels_by_metric()[series]
