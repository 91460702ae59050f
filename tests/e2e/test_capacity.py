"""Pods that move between GPUs on real Kubernetes: a plan is carried out, also under kills, and by the extender itself.

The GPUs are fake; kubelet, controllers and schedulers are real. On a cluster of its own.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import ALLOCATION, GPU_POLICY, HELD_ROOM, MOVE_REFUSED, MOVE_TO
from tests.builders import GPU_MEM
from tests.e2e import dra_lab, real_cluster, starting
from tests.e2e.cluster import Cluster
from tests.e2e.dra_lab import DEPLOY, DESCRIPTION, H200, LONG_S, agent, describe, phase

Json = dict[str, Any]

if reason := starting.why_not() or real_cluster.missing():
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

SHARES = 15
"""Of each of the three GPUs."""
APPS = ("one", "two", "three")
SCHEDULER = "deployment/gpushare-scheduler"


def app(name: str) -> Json:
    """Return a Deployment of one pod that takes less than half of a GPU, on one that is as empty as can be."""
    template = dra_lab.pod("", limits={GPU_MEM: 7}, schedulerName="gpushare-scheduler")
    template["metadata"] = {"labels": {"app": name}, "annotations": {GPU_POLICY: "spread"}}
    spec = {
        "selector": {"matchLabels": {"app": name}},
        "template": {key: template[key] for key in ("metadata", "spec")},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def large(name: str = "large") -> Json:
    return dra_lab.pod(name, limits={GPU_MEM: SHARES}, schedulerName="gpushare-scheduler")


def pods_of(cluster: Cluster) -> dict[str, Json]:
    """Return the running pod of each app."""
    pods = cluster.items("pods", "--selector=app")
    return {
        each["metadata"]["labels"]["app"]: each
        for each in pods
        if "deletionTimestamp" not in each["metadata"] and each["status"].get("phase") == "Running"
    }


def gpus_of(cluster: Cluster) -> dict[str, str]:
    """Return the position of the GPU of each app's pod."""
    places = {
        name: json.loads(pod["metadata"]["annotations"][ALLOCATION])["0"] for name, pod in pods_of(cluster).items()
    }
    return {name: "".join(place) for name, place in places.items()}


def plan(cluster: Cluster, *words: str) -> str:
    return inspect(cluster, "plan", *words)


def inspect(cluster: Cluster, *words: str) -> str:
    done = cluster.run("kubectl", "inspect", "gpushare", *words)
    return f"{done.returncode}: {done.stdout}{done.stderr}"


def kill_extenders(cluster: Cluster) -> None:
    selector = "--selector=app.kubernetes.io/component=scheduler"
    cluster.kubectl("--namespace=gpushare", "delete", "pods", selector, "--grace-period=0", "--force", "--wait=false")


def configure(cluster: Cluster, settings: str) -> None:
    data = json.dumps({"data": {"default.yaml": f"gpu_policy: fit\nnode_policy: fit\n{settings}"}})
    cluster.kubectl("--namespace=gpushare", "patch", "configmap", "gpushare-extender", "--type=merge", f"-p={data}")
    cluster.kubectl("--namespace=gpushare", "rollout", "restart", SCHEDULER)
    cluster.kubectl("--namespace=gpushare", "rollout", "status", SCHEDULER, "--timeout=240s")


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    with starting.started() as cluster:
        describe(cluster, *[H200] * 3)
        cluster.apply(DEPLOY / "daemonset.yaml", DEPLOY / "scheduler.yaml", DEPLOY / "optional" / "capacity.yaml")
        cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", f"GPUSHARE_GPUS={DESCRIPTION}")
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        agent(cluster)
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The same with an app on each GPU, and a pod that needs a whole one."""
    installed.apply_all(map(app, APPS))
    spread = {"0", "1", "2"}
    installed.until(lambda: set(gpus_of(installed).values()) == spread, "an app runs on each GPU", LONG_S)
    installed.apply_all([large()])
    dra_lab.waits(installed, "large", "15 GiB free")
    yield installed
    installed.kubectl("delete", "deployments,pods", "--all", "--timeout=180s", "--grace-period=1")
    installed.until(lambda: not held(installed), "no room is held", LONG_S)
    installed.until(lambda: offered(installed) == 3 * SHARES, "the node offers everything", LONG_S)


def offered(cluster: Cluster) -> int:
    return int(cluster.get("node", cluster.node)["status"]["allocatable"].get(GPU_MEM, "0"))


def held(cluster: Cluster) -> str:
    return str(cluster.get("node", cluster.node)["metadata"]["annotations"].get(HELD_ROOM, ""))


def test_a_plan_is_carried_out_and_the_pod_that_waited_runs(cluster: Cluster) -> None:
    before = gpus_of(cluster)
    told = plan(cluster, "--for", "large", "--apply", "--yes")
    assert told.startswith("0: "), told
    cluster.until(lambda: phase(cluster, "large") == "Running", "the pod that waited runs", LONG_S)
    after = gpus_of(cluster)
    assert sum(before[name] != after[name] for name in APPS) == 1, (before, after)
    assert len(set(after.values())) == 2, "two apps share a GPU"
    assert not held(cluster), "the room that was held is taken"
    for pod in pods_of(cluster).values():
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_whatever_is_killed_all_apps_run_in_the_end_and_the_plan_can_be_made_anew(cluster: Cluster) -> None:
    """The active extender is killed as soon as room is held, at the worst moment: the pod may be evicted or not."""
    (victim, pod) = min(pods_of(cluster).items())
    target = next(gpu for name, gpu in gpus_of(cluster).items() if name != victim)
    wish = json.dumps({"node": cluster.node, "gpus": {target: 7}})
    cluster.kubectl("annotate", "pod", pod["metadata"]["name"], f"{MOVE_TO}={wish}")
    # On a quick machine the whole move may be over before this looks.
    cluster.until(lambda: held(cluster) or phase(cluster, "large") == "Running", "room is held", LONG_S)
    kill_extenders(cluster)

    def moved() -> bool:
        gpus = gpus_of(cluster)
        return gpus.keys() == set(APPS) and gpus[victim] == target

    cluster.until(moved, "the next extender has finished the move", LONG_S)
    cluster.until(lambda: phase(cluster, "large") == "Running", "the pod that waited runs", LONG_S)


def test_a_cordoned_gpu_is_drained_and_takes_no_pod_until_it_is_uncordoned(cluster: Cluster) -> None:
    """Its app moves beside another one; the pod that needs a whole GPU would fit there then."""
    gpu = gpus_of(cluster)["one"]
    told = inspect(cluster, "cordon", cluster.node, gpu, "--reason", "a fan is loud", "--drain", "--yes")
    assert told.startswith("0: "), told
    cluster.until(lambda: offered(cluster) == 2 * SHARES, "the agent offers nothing of the GPU", LONG_S)
    after = gpus_of(cluster)
    assert after.keys() == set(APPS)
    assert gpu not in after.values()
    dra_lab.waits(cluster, "large", f"GPU {gpu} is cordoned by")
    assert f"GPU {gpu} is cordoned by" in inspect(cluster, "why", "large")

    selector = "--selector=app.kubernetes.io/component=node"
    cluster.kubectl("--namespace=gpushare", "delete", "pods", selector, "--wait=true")
    agent(cluster)
    cluster.until(lambda: offered(cluster) == 2 * SHARES, "the next agent offers nothing of it either", LONG_S)
    cluster.apply_all([dra_lab.pod("small", limits={GPU_MEM: 1}, schedulerName="gpushare-scheduler")])
    cluster.until(lambda: phase(cluster, "small") == "Running", "a pod that fits elsewhere runs", LONG_S)
    place = json.loads(cluster.get("pod", "small")["metadata"]["annotations"][ALLOCATION])["0"]
    assert gpu not in place
    assert phase(cluster, "large") == "Pending"
    assert "is cordoned by" in inspect(cluster, "doctor")

    told = inspect(cluster, "uncordon", cluster.node, gpu)
    assert told.startswith("0: "), told
    cluster.until(lambda: phase(cluster, "large") == "Running", "the pod that waited runs", LONG_S)
    place = json.loads(cluster.get("pod", "large")["metadata"]["annotations"][ALLOCATION])["0"]
    assert place == {gpu: SHARES}
    reasons = {each["reason"] for each in cluster.items("events", "--namespace=default")}
    assert {"GPUCordoned", "GPUUncordoned"} <= reasons


def test_a_move_that_is_not_possible_is_refused_and_nothing_is_evicted(cluster: Cluster) -> None:
    (name, pod) = min(pods_of(cluster).items())
    target = next(gpu for each, gpu in gpus_of(cluster).items() if each != name)
    wish = json.dumps({"node": cluster.node, "gpus": {target: 3}})
    cluster.kubectl("annotate", "pod", pod["metadata"]["name"], f"{MOVE_TO}={wish}")

    def refusal() -> str:
        found = cluster.get("pod", pod["metadata"]["name"])["metadata"]["annotations"]
        return str(found.get(MOVE_REFUSED, ""))

    why = cluster.until(refusal, "the move is refused", LONG_S)
    assert "no longer has the room" in why
    assert pods_of(cluster)[name]["metadata"]["uid"] == pod["metadata"]["uid"]


def test_the_extender_makes_room_by_itself(cluster: Cluster) -> None:
    configure(cluster, "rebalance: 1\n")
    cluster.until(lambda: phase(cluster, "large") == "Running", "the pod that waited runs", LONG_S)
    assert len(set(gpus_of(cluster).values())) == 2
    configure(cluster, "")
