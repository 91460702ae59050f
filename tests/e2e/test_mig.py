"""MIG instances on real Kubernetes: given whole and in shares, divided anew while pods run, over restarts.

On a cluster of its own.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import INSTANCES, MIG_LABEL
from tests.builders import GPU_COUNT, GPU_MEM
from tests.e2e import dra_lab, real_cluster, starting
from tests.e2e.cluster import Cluster
from tests.e2e.dra_lab import (
    DEPLOY,
    DESCRIPTION,
    LONG_S,
    agent,
    delete,
    describe,
    environ,
    on_node,
    phase,
    run,
    uuid_of,
    waits,
)

Json = dict[str, Any]

if reason := starting.why_not() or real_cluster.missing():
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

ONE_G, TWO_G = (f"nvidia.com/mig-{profile}" for profile in ("1g.10gb", "2g.20gb"))
T4 = {"model": "T4"}


def h100(instances: str) -> Json:
    return {"model": "H100", "mig": instances}


def pod(name: str, limits: dict[str, int], scheduler: str = "default-scheduler") -> Json:
    return dra_lab.pod(name, limits=limits, schedulerName=scheduler)


def allocatable(cluster: Cluster, *resources: str) -> dict[str, int]:
    found = cluster.get("node", cluster.node)["status"]["allocatable"]
    return {name: int(found.get(name, "0")) for name in resources}


def wait_until_offered(cluster: Cluster, amounts: dict[str, int]) -> None:
    cluster.until(lambda: allocatable(cluster, *amounts) == amounts, f"the node offers {amounts}", LONG_S)


def mode(cluster: Cluster, value: str) -> None:
    cluster.kubectl("label", "--overwrite", "node", cluster.node, f"{MIG_LABEL}={value}")


def restarted(cluster: Cluster) -> int:
    pods = cluster.items("pods", "--namespace=gpushare", "--selector=app.kubernetes.io/component=node")
    return sum(each["restartCount"] for one in pods for each in one["status"].get("containerStatuses", ()))


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    with starting.started() as cluster:
        describe(cluster, h100("1g.10gb*3/3g.40gb"), T4)
        cluster.apply(DEPLOY / "daemonset.yaml", DEPLOY / "scheduler.yaml")  # kube-scheduler of the cluster's version
        for setting in (f"GPUSHARE_GPUS={DESCRIPTION}", "GPUSHARE_MIG_DOMAIN=nvidia.com"):
            cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", setting)
        mode(cluster, "whole")
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        agent(cluster)
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The same, with instances given whole, and no pod before and after a test."""
    describe(installed, h100("1g.10gb*3/3g.40gb"), T4)
    mode(installed, "whole")
    wait_until_offered(installed, {ONE_G: 3, GPU_MEM: 14, GPU_COUNT: 1})
    yield installed
    installed.kubectl("delete", "pods", "--all", "--timeout=180s", "--grace-period=1")


def test_manifests_for_nvidias_plugin_run_on_whole_instances(cluster: Cluster) -> None:
    names = [f"one-{number}" for number in range(3)]
    run(cluster, *(pod(name, {ONE_G: 1}) for name in names))
    given = [uuid_of(cluster, name) for name in names]
    assert len(set(given)) == 3
    assert all(uuid.startswith("MIG-") for uuid in given)
    assert environ(cluster, "one-0")["GPUSHARE_MEMORY_LIMIT_BY"] == "partition"
    cluster.apply_all([pod("late", {ONE_G: 1})])
    waits(cluster, "late", f"Insufficient {ONE_G}")
    cluster.until(
        lambda: (
            [
                json.loads(cluster.get("pod", name)["metadata"]["annotations"].get(INSTANCES, "{}")).get("main")
                for name in names
            ]
            == [[uuid] for uuid in given]
        ),
        "the pods say which instances they have",
        LONG_S,
    )
    delete(cluster, "one-0")
    cluster.until(lambda: phase(cluster, "late") == "Running", "the pod that waited runs", LONG_S)
    assert uuid_of(cluster, "late") == given[0]


def test_nothing_is_lost_when_agent_and_kubelet_restart(cluster: Cluster) -> None:
    run(cluster, pod("before", {ONE_G: 1}))
    before = uuid_of(cluster, "before")
    restarts = restarted(cluster)
    on_node(cluster, "pkill -KILL -f '[g]pu-device-plugin node' || true")
    cluster.until(lambda: restarted(cluster) > restarts, "the agent was started again", LONG_S)
    agent(cluster)
    wait_until_offered(cluster, {ONE_G: 3})
    run(cluster, pod("between", {ONE_G: 1}))
    assert cluster.own is not None
    cluster.own.stop_kubelet()
    cluster.own.start_kubelet()
    wait_until_offered(cluster, {ONE_G: 3})
    run(cluster, pod("after", {ONE_G: 1}))
    assert len({before, uuid_of(cluster, "between"), uuid_of(cluster, "after")}) == 3
    assert uuid_of(cluster, "before") == before


def test_a_gpu_is_divided_anew_while_pods_run(cluster: Cluster) -> None:
    run(cluster, pod("old", {ONE_G: 1}), pod("beside", {GPU_MEM: 4}, "gpushare-scheduler"))
    old = uuid_of(cluster, "old")
    describe(cluster, h100("2g.20gb*3"), T4)
    wait_until_offered(cluster, {ONE_G: 0, TWO_G: 3, GPU_MEM: 14})
    run(cluster, pod("new", {TWO_G: 1}))
    assert uuid_of(cluster, "new") != old
    waits(cluster, "old", "a MIG instance that no longer exists")
    assert {phase(cluster, name) for name in ("old", "beside", "new")} == {"Running"}
    describe(cluster, h100("1g.10gb*3/3g.40gb"), T4)
    wait_until_offered(cluster, {ONE_G: 3, TWO_G: 0})


def test_instances_are_shared_and_the_scheduler_keeps_pods_within_one(cluster: Cluster) -> None:
    mode(cluster, "share")
    wait_until_offered(cluster, {ONE_G: 0, GPU_MEM: 3 * 9 + 39 + 14, GPU_COUNT: 1})
    scheduler = "gpushare-scheduler"
    large = [pod(f"large-{number}", {GPU_MEM: 30}, scheduler) for number in range(2)]
    run(cluster, large[0])
    cluster.apply_all([large[1]])
    waits(cluster, "large-1", "no GPU or MIG instance has 30 GiB free")
    run(cluster, *(pod(f"small-{number}", {GPU_MEM: 4}, scheduler) for number in range(4)))
    given = [uuid_of(cluster, f"small-{number}") for number in range(4)]
    assert all(given.count(uuid) <= 2 for uuid in given), "9 GiB have room for two"
    run(cluster, pod("whole", {GPU_COUNT: 1}, scheduler))
    assert uuid_of(cluster, "whole").startswith("GPU-")
    mode(cluster, "whole")
    used = len({uuid for uuid in given if uuid.startswith("MIG-")} - {uuid_of(cluster, "large-0")})
    wait_until_offered(cluster, {ONE_G: 3 - used})


def test_inspect_tells_of_instances(cluster: Cluster) -> None:
    run(cluster, pod("one", {ONE_G: 1}))
    shown = cluster.until(
        lambda: text if "one" in (text := cluster.kubectl("inspect", "gpushare", "-d")) else "",
        "inspect shows the pod",
        LONG_S,
    )
    assert "1g.10gb" in shown
    cluster.apply_all([pod("none", {"nvidia.com/mig-7g.80gb": 1})])
    why = cluster.kubectl("inspect", "gpushare", "why", "none")
    assert "mig-7g.80gb" in why
