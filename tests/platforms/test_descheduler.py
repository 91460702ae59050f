"""The real descheduler evicts GPU pods by sums, for nothing; under the policy of the page it leaves them alone."""

import re
import subprocess
import time
from collections.abc import Iterator
from copy import deepcopy

import pytest
import yaml

from gpu_device_plugin.model.times import epoch_s
from tests import builders
from tests.deploy.manifests import Json, documents
from tests.patience import stretched
from tests.platforms.world import PLATFORMS, Platform, needed, platform

POLICY = documents(PLATFORMS / "descheduler.yaml")[0]
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Two nodes with four GPUs of 8, on each of which a pod has 5: by the sum two more pods of 5 fit on either node."""
    needed("descheduler")
    with platform(tmp_path_factory.mktemp("descheduler")) as running:
        for name in ("a", "b"):
            running.node(name)
        deploy(running, "gpus", 8, aliyun_com_gpu_mem="5")
        running.until(lambda: len(places(running, "gpus")) == 8, "every GPU has a pod")
        yield running


def deploy(world: Platform, name: str, replicas: int, scheduler: str = "gpushare-scheduler", **limits: str) -> None:
    amounts = {each.replace("_", ".", 1).replace("_", "/", 1).replace("_", "-"): size for each, size in limits.items()}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"schedulerName": scheduler, "containers": [builders.container(limits=amounts)]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    world.create(DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec})


def places(world: Platform, app: str) -> dict[str, tuple[str, str]]:
    """Return node and GPU of each pod of a Deployment that runs, by the pod's UID."""
    pods = [pod for pod in world.pods() if pod["metadata"]["labels"]["app"] == app]
    running = [
        pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    return {pod["metadata"]["uid"]: world.place(pod) for pod in running}


def descheduled(world: Platform, policy: Json) -> set[str]:
    """Run the descheduler once; return the Deployments whose pods it has evicted."""
    policy = deepcopy(policy)
    (config,) = (each["args"] for each in policy["profiles"][0]["pluginConfig"] if each["name"] == "PodLifeTime")
    config["maxPodLifeTimeSeconds"] = 1  # the pods of this test are not a week old
    file = world.home / "policy.yaml"
    file.write_text(yaml.safe_dump(policy), encoding="utf-8")
    (program,) = needed("descheduler")
    command = [program, f"--policy-config-file={file}", f"--kubeconfig={world.kubectl.kubeconfig}", "-v=1"]
    done = subprocess.run(
        [*command, "--descheduling-interval=0", "--disable-metrics", "--secure-port=0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(120),
    )
    assert done.returncode == 0, done.stderr
    return set(re.findall(r'"Evicted pod".*? pod="default/([a-z]+)-', done.stderr))


def test_by_sums_pods_are_evicted_that_fit_nowhere_else(world: Platform) -> None:
    """They lose what they have computed, and come back to the very GPUs that they left."""
    before = places(world, "gpus")
    by_sums = {key: value for key, value in POLICY.items() if key != "nodeSelector"}
    assert descheduled(world, by_sums) == {"gpus"}
    world.until(lambda: len(places(world, "gpus")) == 8, "all pods run again")
    after = places(world, "gpus")
    assert after.keys() != before.keys()
    assert sorted(after.values()) == sorted(before.values())


def test_under_the_policy_of_the_page_gpu_pods_stay_and_others_are_evicted_as_ever(world: Platform) -> None:
    before = places(world, "gpus")
    for name in ("c", "d"):
        world.create("/api/v1/nodes", builders.node(name))
        world.merge(f"/api/v1/nodes/{name}/status", {"status": builders.node(name)["status"]})
        world.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    for name in ("a", "b"):  # so that the other pods are not there
        world.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    deploy(world, "others", 2)
    found = {"c", "d"}

    def elsewhere() -> bool:
        pods = [pod for pod in world.pods() if pod["metadata"]["labels"]["app"] == "others"]
        made = [epoch_s(pod["metadata"]["creationTimestamp"]) or time.time() for pod in pods]
        there = [pod for pod in pods if pod["spec"].get("nodeName") in found and pod["status"]["phase"] == "Running"]
        return len(there) == 2 and max(made) < time.time() - 2  # as old as the policy wants them

    world.until(elsewhere, "two pods without GPUs run on nodes without GPUs")
    assert descheduled(world, POLICY) == {"others"}
    assert places(world, "gpus") == before
