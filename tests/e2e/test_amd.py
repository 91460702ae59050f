"""GPUs of AMD on real Kubernetes: they reach containers as device nodes, over restarts, beside one of NVIDIA's.

The GPUs are fake, and so are their device nodes: copies of /dev/null, which this machine has while the tests run.
Everything else is real. On a cluster of its own.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import NODE_USE, USE_MODEL
from gpu_device_plugin.model.contract.node_use import read_node_use
from tests.builders import GPU_COUNT, GPU_MEM
from tests.e2e import dra_lab, real_cluster, starting
from tests.e2e.cluster import Cluster, process_of
from tests.e2e.dra_lab import DEPLOY, DESCRIPTION, LONG_S, agent, delete, describe, environ, on_node, phase, run, waits

Json = dict[str, Any]

if reason := starting.why_not() or real_cluster.missing():
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

KFD, FIRST, SECOND = "/dev/kfd", "/dev/dri/renderD200", "/dev/dri/renderD201"
MODEL = "AMD Instinct MI300X"
T4: Json = {"model": "T4"}
ALL = {GPU_MEM: 16 + 16 + 14, GPU_COUNT: 3}


def board(node: str, **more: Any) -> Json:
    """Return a GPU with 16 shares of 1 GiB."""
    return {"model": "MI300X", "memory": "16GiB", "devices": [KFD, node], **more}


def pod(name: str, limits: dict[str, int], model: str = MODEL, **more: str) -> Json:
    body = dra_lab.pod(name, limits=limits, **{"schedulerName": "gpushare-scheduler", **more})
    body["metadata"]["annotations"] = {USE_MODEL: model}
    return body


def nodes_in(cluster: Cluster, name: str) -> list[str]:
    """Return the device nodes in a pod's container that not every container has, and that can be opened."""
    command = "for f in /dev/* /dev/dri/*; do [ -c $f ] && (true <>$f) 2>/dev/null && echo $f; done; true"
    usual = "console full null ptmx random stderr stdin stdout tty urandom zero"
    found = set(cluster.kubectl("exec", name, "--", "sh", "-c", command).split())
    return sorted(found - {f"/dev/{each}" for each in usual.split()})


def wait_until_offered(cluster: Cluster, amounts: dict[str, int]) -> None:
    cluster.until(lambda: cluster.offered() == amounts, f"the node offers {amounts}", LONG_S)


def restarted(cluster: Cluster) -> int:
    pods = cluster.items("pods", "--namespace=gpushare", "--selector=app.kubernetes.io/component=node")
    return sum(each["restartCount"] for one in pods for each in one["status"].get("containerStatuses", ()))


@pytest.fixture(scope="module")
def device_nodes() -> Iterator[None]:
    """Have the nodes of two GPUs on this machine. Where it has such GPUs, their nodes are not touched."""
    paths = [Path(each) for each in (KFD, FIRST, SECOND)]
    if there := [str(path) for path in paths if path.exists()]:
        pytest.skip(f"this machine has {', '.join(there)}")
    made = [] if (folder := paths[1].parent).exists() else [folder]
    try:
        folder.mkdir(exist_ok=True)
        for path in paths:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        yield
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
        for each in made:
            each.rmdir()


@pytest.fixture(scope="module")
def installed(device_nodes: None) -> Iterator[Cluster]:  # noqa: ARG001
    with starting.started() as cluster:
        describe(cluster, board(FIRST), board(SECOND), T4)
        cluster.apply(DEPLOY / "daemonset.yaml", DEPLOY / "scheduler.yaml")
        cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", f"GPUSHARE_GPUS={DESCRIPTION}")
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        agent(cluster)
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The same, without pods before and after a test."""
    wait_until_offered(installed, ALL)
    yield installed
    installed.kubectl("delete", "pods", "--all", "--timeout=180s", "--grace-period=1")
    describe(installed, board(FIRST), board(SECOND), T4)


def test_shares_come_with_the_nodes_of_their_gpu_and_no_others(cluster: Cluster) -> None:
    run(cluster, *(pod(name, {GPU_MEM: 10}) for name in ("one", "two")), pod("other", {GPU_MEM: 4}, "Tesla T4"))
    found = {name: nodes_in(cluster, name) for name in ("one", "two", "other")}
    assert sorted([found["one"], found["two"]]) == [[FIRST, KFD], [SECOND, KFD]]
    assert found["other"] == []
    variables = environ(cluster, "one")
    assert (variables["NVIDIA_VISIBLE_DEVICES"], variables["GPUSHARE_MEMORY_LIMIT_MIB"]) == ("void", "10240")
    assert environ(cluster, "other")["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
    cluster.apply_all([pod("three", {GPU_MEM: 10})])
    waits(cluster, "three", "10 GiB")
    delete(cluster, "one")
    cluster.until(lambda: phase(cluster, "three") == "Running", "the pod that waited runs", LONG_S)
    assert nodes_in(cluster, "three") == found["one"]


def test_a_pod_shares_a_gpu_with_others_and_each_has_its_node(cluster: Cluster) -> None:
    run(cluster, pod("large", {GPU_MEM: 12}), pod("whole", {GPU_COUNT: 1}))
    run(cluster, pod("small", {GPU_MEM: 4}))
    assert nodes_in(cluster, "small") == nodes_in(cluster, "large") != nodes_in(cluster, "whole")
    assert environ(cluster, "whole")["NVIDIA_VISIBLE_DEVICES"] == "void"
    wait_until_offered(cluster, {GPU_MEM: 16 + 14, GPU_COUNT: 2})


def test_several_whole_gpus_of_one_pod_are_all_their_nodes(cluster: Cluster) -> None:
    run(cluster, pod("both", {GPU_COUNT: 2}))
    assert nodes_in(cluster, "both") == [FIRST, SECOND, KFD]


def test_nothing_is_lost_when_agent_and_kubelet_restart(cluster: Cluster) -> None:
    run(cluster, pod("before", {GPU_MEM: 10}))
    before = nodes_in(cluster, "before")
    restarts = restarted(cluster)
    on_node(cluster, "pkill -KILL -f '[g]pu-device-plugin node' || true")
    cluster.until(lambda: restarted(cluster) > restarts, "the agent was started again", LONG_S)
    agent(cluster)
    wait_until_offered(cluster, {**ALL, GPU_COUNT: 2})
    run(cluster, pod("between", {GPU_MEM: 10}))
    assert sorted([before, nodes_in(cluster, "between")]) == [[FIRST, KFD], [SECOND, KFD]]
    assert cluster.own is not None
    cluster.own.stop_kubelet()
    cluster.own.start_kubelet()
    wait_until_offered(cluster, {**ALL, GPU_COUNT: 1})
    run(cluster, pod("after", {GPU_MEM: 6}))
    assert nodes_in(cluster, "after") in ([FIRST, KFD], [SECOND, KFD])
    assert nodes_in(cluster, "before") == before


def test_a_pod_that_comes_past_the_scheduler_is_refused_by_the_node_with_a_sentence(cluster: Cluster) -> None:
    run(cluster, *(pod(name, {GPU_MEM: 10}) for name in ("one", "two")), pod("other", {GPU_MEM: 10}, "Tesla T4"))
    cluster.apply_all([pod("past", {GPU_MEM: 8}, schedulerName="default-scheduler")])
    cluster.until(lambda: phase(cluster, "past") == "Failed", "the kubelet has refused it", LONG_S)
    status = cluster.get("pod", "past")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "GPU memory: 8 GiB requested, the emptiest healthy GPU has 6 GiB free" in status["message"]


def test_who_uses_a_gpu_is_seen_by_the_processes_on_it(cluster: Cluster) -> None:
    run(cluster, pod("uses", {GPU_MEM: 4}))
    mine = nodes_in(cluster, "uses")
    processes = [{"pid": process_of(cluster, "uses"), "used": "3GiB"}]
    describe(
        cluster, *(board(node, **({"processes": processes} if node in mine else {})) for node in (FIRST, SECOND)), T4
    )

    def used() -> list[int | None]:
        notes = cluster.get("node", cluster.node)["metadata"]["annotations"]
        use = read_node_use(notes[NODE_USE]) if NODE_USE in notes else None
        return [] if use is None else [part.used_mib for part in use.parts]

    cluster.until(lambda: used() == [3072], "the node says who uses its GPUs", LONG_S)
    assert "default/uses/main" in cluster.kubectl("inspect", "gpushare", "-d")
    assert "Instinct MI300X" in cluster.kubectl("inspect", "gpushare", "-o", "wide")


def test_a_gpu_that_is_lost_is_taken_from_what_the_node_offers(cluster: Cluster) -> None:
    """The last test: the agent waits for minutes before it trusts such a GPU again."""
    describe(cluster, board(FIRST), board(SECOND, lost=True), T4)
    wait_until_offered(cluster, {GPU_MEM: 16 + 14, GPU_COUNT: 2})
    told = json.loads(cluster.get("node", cluster.node)["metadata"]["annotations"]["gpu-device-plugin/gpus"])
    assert [gpu["healthy"] for gpu in told["gpus"]] == [True, False, True]
