"""GPUs of AMD on real Kubernetes, beside one of NVIDIA's: their device nodes and memory limits, over restarts.

The GPUs are fake, and so are their device nodes: copies of /dev/null, which this machine has while the tests run. Fake
are also the limits of cgroups, which the limit helper keeps in a file on the node. Everything else is real. On a
cluster of its own, installed as the overlay for such nodes says.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import MEMORY_LIMIT, NODE_USE, RESIZE_BOUND, USE_MODEL
from gpu_device_plugin.model.contract.node_use import read_node_use
from tests.builders import GPU_COUNT, GPU_MEM
from tests.e2e import dra_lab, real_cluster, starting
from tests.e2e.cluster import Cluster, process_of
from tests.e2e.dra_lab import DESCRIPTION, LONG_S, agent, delete, describe, environ, on_node, phase, run, waits

Json = dict[str, Any]

if reason := starting.why_not() or real_cluster.missing():
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

KFD, FIRST, SECOND = "/dev/kfd", "/dev/dri/renderD200", "/dev/dri/renderD201"
MODEL = "AMD Instinct MI300X"
T4: Json = {"model": "T4"}
ALL = {GPU_MEM: 16 + 16 + 14, GPU_COUNT: 3}


def board(node: str, **more: Any) -> Json:
    """Return a GPU with 16 shares of 1 GiB, whose memory the kernel can limit."""
    return {"model": "MI300X", "memory": "16GiB", "devices": [KFD, node], "memory_limits": True, **more}


def pod(name: str, limits: dict[str, int], model: str = MODEL, **more: str) -> Json:
    body = dra_lab.pod(name, limits=limits, **{"schedulerName": "gpushare-scheduler", **more})
    body["metadata"]["annotations"] = {USE_MODEL: model}
    return body


def pair(name: str, main: int, side: int) -> Json:
    """Return a pod of two containers with so many shares."""
    body = pod(name, {GPU_MEM: main})
    first = body["spec"]["containers"][0]
    body["spec"]["containers"].append({**first, "name": "side", "resources": {"limits": {GPU_MEM: side}}})
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


def kernel_limits(cluster: Cluster, name: str) -> dict[str, int]:
    """Return the limits in MiB of a pod's cgroup, under an empty name, and of those of its containers."""
    body = cluster.get("pod", name)
    statuses = body["status"].get("containerStatuses", ())
    names = {f"pod{body['metadata']['uid']}": ""}
    names |= {each.get("containerID", "").rpartition("/")[2]: each["name"] for each in statuses}
    kept = json.loads(on_node(cluster, f"cat {DESCRIPTION}.limits || echo '{{}}'"))
    found = {path.rpartition("/")[2]: hard for limits in kept.values() for path, (hard, *_) in limits.items()}
    return {names[leaf]: hard for leaf, hard in found.items() if names.get(leaf, "-") != "-"}


def wait_until_limited(cluster: Cluster, name: str, **containers: int) -> None:
    """Wait until a pod has the limits of these containers in GiB, and the node has read them back."""
    expected = {"": 1024 * sum(containers.values())} | {each: 1024 * gib for each, gib in containers.items()}
    cluster.until(lambda: kernel_limits(cluster, name) == expected, f"{name} has the limits {expected}", LONG_S)
    cluster.until(lambda: verified(cluster).get(name) == "held", f"the limits of {name} hold", LONG_S)


def gpus(cluster: Cluster) -> list[Json]:
    (node,) = json.loads(cluster.kubectl("inspect", "gpushare", "-o", "json"))["nodes"]
    found: list[Json] = node["gpus"]
    return found


def verified(cluster: Cluster) -> dict[str, str | None]:
    """Return what became of the memory limits of each pod with shares, as people see it."""
    return {each["name"]: each.get("held") for gpu in gpus(cluster) for each in gpu["pods"]}


def wait_until_limits_are_by(cluster: Cluster, *means: str) -> None:
    wanted = list(means)
    cluster.until(lambda: [gpu["limits"] for gpu in gpus(cluster)] == wanted, f"limits are by {wanted}", LONG_S)


def to_helper(cluster: Cluster, signal: str) -> None:
    on_node(cluster, f"pkill -{signal} -f '[g]pu-device-plugin limits'")


def helper_runs(cluster: Cluster, *, on_node_too: bool) -> None:
    """Have the limit helper on the node, or not."""
    chosen = {"gpushare": "true" if on_node_too else "nowhere"}
    patch_helper(cluster, {"nodeSelector": chosen})

    def there() -> bool:
        return bool(cluster.items("pods", "--namespace=gpushare", "--selector=app.kubernetes.io/component=limits"))

    cluster.until(lambda: there() == on_node_too, "the limit helper comes or goes", LONG_S)


def patch_helper(cluster: Cluster, spec: Json) -> None:
    patch = json.dumps({"spec": {"template": {"spec": spec}}})
    cluster.kubectl("--namespace=gpushare", "patch", "daemonset", "gpushare-limits", f"--patch={patch}")


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
        cluster.shell("make deploy IMAGE=gpu-device-plugin:0.2.0 OVERLAY=amd WITH=limits")
        fake = {"name": "GPUSHARE_GPUS", "value": DESCRIPTION}
        folder = DESCRIPTION.rpartition("/")[0]
        mount = {"name": "fake", "mountPath": folder}
        container = {"name": "limits", "env": [fake], "volumeMounts": [mount]}
        patch_helper(cluster, {"containers": [container], "volumes": [{"name": "fake", "hostPath": {"path": folder}}]})
        variables = (f"GPUSHARE_GPUS={DESCRIPTION}", "GPUSHARE_USAGE_INTERVAL=2s")
        cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", *variables)
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        agent(cluster)
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The same, without pods before and after a test."""
    wait_until_offered(installed, ALL)
    wait_until_limits_are_by(installed, "dmem", "dmem", "advisory")
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
    wait_until_limited(cluster, "before", main=10)
    wait_until_limited(cluster, "after", main=6)


def test_a_container_starts_when_its_pod_is_limited_and_has_its_own_limit_then(cluster: Cluster) -> None:
    to_helper(cluster, "STOP")
    try:
        cluster.apply_all([pair("pair", 4, 2)])
        waits(cluster, "pair", "already present on machine")  # the last that the kubelet says before it asks us
        assert (phase(cluster, "pair"), kernel_limits(cluster, "pair")) == ("Pending", {})
    finally:
        to_helper(cluster, "CONT")
    cluster.until(lambda: phase(cluster, "pair") == "Running", "the pod that waited runs", LONG_S)
    wait_until_limited(cluster, "pair", main=4, side=2)
    to_helper(cluster, "KILL")
    cluster.run("kubectl", "exec", "pair", "--container=side", "--", "sh", "-c", "kill 1")

    def again() -> bool:
        statuses = cluster.get("pod", "pair")["status"]["containerStatuses"]
        return {each["name"]: (each["restartCount"], each["ready"]) for each in statuses} == {
            "main": (0, True),
            "side": (1, True),
        }

    cluster.until(again, "its container runs again", LONG_S)
    wait_until_limited(cluster, "pair", main=4, side=2)


def test_a_limit_by_the_kernel_follows_what_a_container_may_use(cluster: Cluster) -> None:
    borrower = pod("borrower", {GPU_MEM: 4})
    borrower["metadata"]["annotations"][MEMORY_LIMIT] = "12"
    run(cluster, borrower)
    wait_until_limited(cluster, "borrower", main=12)
    run(cluster, pod("owner", {GPU_MEM: 8}))
    assert nodes_in(cluster, "owner") == nodes_in(cluster, "borrower")
    wait_until_limited(cluster, "borrower", main=8)
    wait_until_limited(cluster, "owner", main=8)
    delete(cluster, "borrower")
    cluster.kubectl("label", "--overwrite", "namespace", "default", f"{RESIZE_BOUND}=16")
    cluster.kubectl("inspect", "gpushare", "resize", "owner", "10")
    wait_until_limited(cluster, "owner", main=10)


def test_without_the_limit_helper_new_limits_are_advisory_and_earlier_ones_stay(cluster: Cluster) -> None:
    run(cluster, pod("before", {GPU_MEM: 4}))
    wait_until_limited(cluster, "before", main=4)
    helper_runs(cluster, on_node_too=False)
    try:
        on_node(cluster, "rm /run/gpushare/memory/limits-state.json")  # else the agent hopes for it for a while
        wait_until_limits_are_by(cluster, "advisory", "advisory", "advisory")
        run(cluster, pod("advisory", {GPU_MEM: 4}))
        assert kernel_limits(cluster, "advisory") == {}
        assert kernel_limits(cluster, "before") == {"": 4096, "main": 4096}
    finally:
        helper_runs(cluster, on_node_too=True)


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
