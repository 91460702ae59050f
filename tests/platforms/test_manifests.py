"""The other manifests of the page are what their platforms' kinds allow, and our extender places the pods in them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import Json, documents, parsed
from tests.patience import stretched
from tests.platforms.world import PLATFORMS, Platform, needed, platform

WITH_KINDS = ("cluster-api", "karpenter", "kserve", "ray", "volcano")
"""Manifests whose kinds a platform defines, in a file of its release."""
NO_OBJECTS = {"descheduler", "eks", "prometheus-adapter"}
"""Files that programs read."""
ELSEWHERE = {"kueue", "kueue-job"}
OVERLAYS = "/apis/karpenter.sh/v1alpha1/nodeoverlays"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("manifests")) as running:
        running.node("a", gpus=4)
        yield running


def test_every_manifest_is_tried() -> None:
    names = {path.stem for path in PLATFORMS.glob("*.yaml")}
    assert names == {"vllm", *WITH_KINDS} | NO_OBJECTS | ELSEWHERE


@pytest.mark.parametrize("name", WITH_KINDS)
def test_the_platforms_kinds_allow_it_to_the_last_field(world: Platform, name: str) -> None:
    apply_kinds(world, name)
    world.apply(documents(PLATFORMS / f"{name}.yaml"))


def apply_kinds(world: Platform, name: str) -> None:
    """Apply what a platform's release has of kinds."""
    (crds,) = needed(f"{name}-crds.yaml")
    kinds = [each for each in parsed(Path(crds).read_text(encoding="utf-8")) if each]
    for each in kinds:
        each["spec"].pop("conversion", None)  # no webhook runs here
    world.apply(kinds)


def test_the_doctor_knows_a_nodepool_without_an_overlay_by_karpenters_own_kinds(world: Platform) -> None:
    apply_kinds(world, "karpenter")
    pool, overlay = documents(PLATFORMS / "karpenter.yaml")
    world.apply([pool])
    for each in world.items(OVERLAYS):
        world.call("DELETE", f"{OVERLAYS}/{each['metadata']['name']}")
    assert "nodepool-without-shares" in found_by_the_doctor(world)
    world.apply([overlay])
    assert "nodepool-without-shares" not in found_by_the_doctor(world)


def found_by_the_doctor(world: Platform) -> set[str]:
    path = os.pathsep.join([str(Path(world.kubectl.program).parent), os.environ["PATH"]])
    environ = {**os.environ, "KUBECONFIG": str(world.kubectl.kubeconfig), "PATH": path}
    command = [sys.executable, "-m", "gpu_device_plugin", "inspect", "doctor", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=stretched(60))
    return {each["code"] for each in json.loads(done.stdout)["findings"]}


def pods_of(name: str) -> list[Json]:
    """Return a pod of each kind that a manifest describes and that asks for GPUs."""
    specs: list[Any] = []
    for body in documents(PLATFORMS / f"{name}.yaml"):
        match body["kind"]:
            case "InferenceService":
                predictor = body["spec"]["predictor"]
                main = {"name": "kserve-container", "image": "huggingfaceserver", **_of_a_pod(predictor["model"])}
                specs.append({"containers": [main], **_of_a_pod(predictor)})
            case "RayCluster":
                specs += [group["template"]["spec"] for group in body["spec"]["workerGroupSpecs"]]
            case "Job":
                specs += [task["template"]["spec"] for task in body["spec"]["tasks"]]
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-{at}", "namespace": "default"}, "spec": spec}
        for at, spec in enumerate(specs)
    ]


def _of_a_pod(body: Json) -> Json:
    return {key: body[key] for key in ("args", "resources", "schedulerName", "runtimeClassName") if key in body}


@pytest.mark.parametrize("name", ["kserve", "ray", "volcano"])
def test_the_pods_are_admitted_by_our_policies_and_placed(world: Platform, name: str) -> None:
    pods = pods_of(name)
    assert pods
    for pod in pods:
        world.create(PODS, pod)
    for pod in pods:
        path = f"{PODS}/{pod['metadata']['name']}"
        world.until(lambda path=path: "nodeName" in world.call("GET", path)["spec"], f"{path} has a node")  # type: ignore[misc]
        assert world.place(world.call("GET", path))[0] == "a"
        world.call("DELETE", f"{path}?gracePeriodSeconds=0")


def test_the_model_server_and_its_autoscaler_are_accepted_and_the_pod_is_placed(world: Platform) -> None:
    world.apply(documents(PLATFORMS / "vllm.yaml"))
    (pod,) = world.until(lambda: [each for each in world.pods() if "nodeName" in each["spec"]], "the server has a node")
    assert world.place(pod)[0] == "a"
