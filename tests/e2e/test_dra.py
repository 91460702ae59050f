"""Claims on GPUs, on real Kubernetes: a scheduler that gives out GiB, a kubelet, containers with their variables.

On a cluster of its own, whose containerd knows CDI (1.7.2 or newer; CONTAINERD_BIN names a folder with one).
"""

from collections.abc import Iterator

import pytest

from tests.builders import GPU_COUNT, GPU_MEM
from tests.e2e import dra_lab
from tests.e2e.cluster import Cluster
from tests.e2e.dra_lab import (
    H200,
    LONG_S,
    agent,
    claim,
    clear,
    delete,
    describe,
    devices,
    environ,
    health,
    minor,
    on_node,
    phase,
    pod,
    run,
    serve,
    told,
    uuid_of,
    waits,
    why_not,
)

if reason := why_not():
    pytest.skip(reason, allow_module_level=True)
if minor() < 36:
    pytest.skip("parts of GPUs by claims need Kubernetes 1.36; see test_dra_older.py", allow_module_level=True)
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    """A cluster whose node serves claims, by our manifests."""
    with dra_lab.installed(H200, H200, published=4) as cluster:
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The same, with no pod and no claim before and after a test."""
    yield installed
    clear(installed)


# --- What has to be seen ----------------------------------------------------------------------------------------------


def test_shares_fill_a_gpu_and_a_container_sees_its_variables(cluster: Cluster) -> None:
    run(cluster, *(pod(f"c{n}", "gpu-mem-4gi") for n in range(3)))
    first = environ(cluster, "c0")
    assert first["GPUSHARE_MEMORY_LIMIT_MIB"] == "4096"
    assert {uuid_of(cluster, f"c{n}") for n in range(3)} == {first["NVIDIA_VISIBLE_DEVICES"]}
    run(cluster, pod("large", "gpu-mem-8gi"))
    assert uuid_of(cluster, "large") != first["NVIDIA_VISIBLE_DEVICES"]
    cluster.apply_all([pod("late", "gpu-mem-8gi")])
    waits(cluster, "late", "cannot allocate all claims")
    delete(cluster, "large")
    cluster.until(lambda: phase(cluster, "late") == "Running", "the pod that waited runs", LONG_S)


def test_whole_gpus_by_claim_and_by_limit_never_meet_shares(cluster: Cluster) -> None:
    run(cluster, pod("share", "gpu-mem-1gi"), pod("whole", limits={GPU_COUNT: 1}))
    given = environ(cluster, "whole")
    assert "GPUSHARE_MEMORY_LIMIT_MIB" not in given
    assert given["NVIDIA_VISIBLE_DEVICES"] != uuid_of(cluster, "share")
    cluster.apply_all([pod("another", "gpu-whole")])
    waits(cluster, "another", "cannot allocate all claims")
    delete(cluster, "share")
    cluster.until(lambda: phase(cluster, "another") == "Running", "the whole GPU is given", LONG_S)
    assert uuid_of(cluster, "another") != given["NVIDIA_VISIBLE_DEVICES"]


def test_the_status_of_a_claim_and_of_its_pod_say_what_it_has(cluster: Cluster) -> None:
    run(cluster, claim("mine"), pod("user", claim="mine"))
    (device,) = told(cluster, "mine")
    assert device["data"] == {"uuid": uuid_of(cluster, "user"), "memoryMiB": 2048, "limitBy": "advisory"}
    assert health(cluster, "user") == "Healthy"


def test_two_pods_share_a_claim(cluster: Cluster) -> None:
    run(cluster, claim("shared"), pod("one", claim="shared"), pod("two", claim="shared"))
    assert uuid_of(cluster, "one") == uuid_of(cluster, "two")
    delete(cluster, "one")
    assert on_node(cluster, "ls /var/lib/kubelet/plugins/gpu-device-plugin/claims").count(".json") == 1
    delete(cluster, "two")
    assert on_node(cluster, "ls /var/lib/kubelet/plugins/gpu-device-plugin/claims /run/cdi").count(".json") == 0


def test_nonsense_in_parameters_is_told_to_the_pods_owner(cluster: Cluster) -> None:
    config = {"apiVersion": "gpu-device-plugin/v1", "kind": "GpuShareConfig", "limits": "strict"}
    cluster.apply_all([claim("odd", config=config), pod("odd", claim="odd")])
    waits(cluster, "odd", "has limits 'strict'")


def test_access_beside_others_needs_a_namespace_for_it_and_lets_nobody_compute(cluster: Cluster) -> None:
    run(cluster, pod("full", "gpu-whole"), pod("full2", "gpu-whole"))
    label = "resource.kubernetes.io/admin-access"
    cluster.kubectl("label", "namespace", "default", f"{label}=true")
    try:
        asked = claim("watcher", device_class="gpushare-monitor", adminAccess=True)
        run(cluster, asked, pod("watcher", claim="watcher"))
        given = environ(cluster, "watcher")
        assert given["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
        delete(cluster, "watcher")
    finally:
        cluster.kubectl("label", "namespace", "default", f"{label}-")


def test_an_agent_that_is_killed_finds_its_claims_again(cluster: Cluster) -> None:
    run(cluster, pod("before", "gpu-mem-8gi"))
    uuid = uuid_of(cluster, "before")
    on_node(cluster, "pkill -KILL -f '[g]pu-device-plugin node' || true")
    cluster.kubectl("delete", "pod", "before", "--wait=false")
    run(cluster, pod("after", "gpu-mem-8gi"))
    cluster.until(lambda: cluster.run("kubectl", "get", "pod", "before").returncode != 0, "the pod is gone", LONG_S)
    run(cluster, pod("later", "gpu-mem-4gi"))
    assert uuid
    files = on_node(cluster, "ls /var/lib/kubelet/plugins/gpu-device-plugin/claims").split()
    assert len(files) == 2


def test_a_kubelet_that_restarts_keeps_pods_and_gets_the_slices_again(cluster: Cluster) -> None:
    assert cluster.own is not None
    run(cluster, pod("stays", "gpu-mem-4gi"))
    started = cluster.get("pod", "stays")["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    before = {body["metadata"]["uid"] for body in cluster.items("resourceslices")}
    cluster.own.stop_kubelet()
    cluster.apply_all([pod("meanwhile", "gpu-mem-4gi")])
    cluster.own.start_kubelet()

    def again() -> bool:
        found = {body["metadata"]["uid"] for body in cluster.items("resourceslices")}
        return len(found) == len(before) and not found & before

    cluster.until(again, "the slices were removed and published again", LONG_S)
    cluster.until(lambda: phase(cluster, "meanwhile") == "Running", "the pod of meanwhile runs", LONG_S)
    assert not failed_preparations(cluster, ["meanwhile"])
    after = cluster.get("pod", "stays")["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert after == started
    delete(cluster, "stays", "meanwhile")


def test_a_rollout_of_the_agent_disturbs_no_claim(cluster: Cluster) -> None:
    run(cluster, pod("stays", "gpu-mem-4gi"))
    before = agent(cluster)
    cluster.kubectl("--namespace=gpushare", "rollout", "restart", "daemonset/gpushare-node")
    cluster.kubectl("--namespace=gpushare", "rollout", "status", "daemonset/gpushare-node", "--timeout=180s")
    cluster.until(lambda: agent(cluster) != before, "another agent runs", LONG_S)
    run(cluster, pod("next", "gpu-mem-4gi"))
    assert uuid_of(cluster, "next") == uuid_of(cluster, "stays")
    delete(cluster, "stays", "next")


def test_a_gpu_that_fails_is_told_to_scheduler_and_pod_and_comes_back(cluster: Cluster) -> None:
    run(cluster, pod("hurt", "gpu-mem-4gi"))
    name = uuid_of(cluster, "hurt").lower()
    index = devices(cluster)[name]["attributes"]["index"]["int"]
    describe(cluster, *(H200 | ({"error": "Unknown Error"} if n == index else {}) for n in range(2)))
    cluster.until(lambda: devices(cluster)[name].get("taints"), "the device has a taint", LONG_S)
    cluster.until(lambda: health(cluster, "hurt") == "Unhealthy", "the pod is told", LONG_S)
    run(cluster, pod("elsewhere", "gpu-mem-4gi"))
    assert uuid_of(cluster, "elsewhere").lower() != name
    describe(cluster, H200, H200)
    cluster.until(lambda: not devices(cluster)[name].get("taints"), "the taint is gone", LONG_S)
    cluster.until(lambda: health(cluster, "hurt") == "Healthy", "the pod is told again", LONG_S)


def test_a_node_changes_over_to_the_device_plugin_and_back_and_waits_for_those_who_hold_gpus(cluster: Cluster) -> None:
    """Right after the plugin left, the kubelet starts a container whose whole GPU DRA serves under the same name."""
    run(cluster, pod("holds", "gpu-mem-4gi"))
    serve(cluster, "device-plugin")
    cluster.until(lambda: not devices(cluster), "nothing is offered to claims", LONG_S)
    notes = cluster.get("node", cluster.node)["metadata"]["annotations"]["gpu-device-plugin/gpus"]
    assert "will serve through device-plugin" in notes
    delete(cluster, "holds")
    cluster.until(lambda: cluster.offered() == {GPU_MEM: 30, GPU_COUNT: 2}, "the plugin offers the GPUs", LONG_S)
    run(cluster, pod("old", limits={GPU_MEM: 3}))
    assert environ(cluster, "old")["GPUSHARE_MEMORY_LIMIT_MIB"] == "3072"
    serve(cluster, "dra")
    cluster.until(lambda: cluster.offered() == {GPU_MEM: 3, GPU_COUNT: 0}, "nothing more is offered", LONG_S)
    assert not devices(cluster)
    names = [f"waits-{number}" for number in range(3)]
    cluster.apply_all([pod(name, "gpu-mem-4gi") for name in names])
    for name in names:
        waits(cluster, name, "cannot allocate all claims")
    delete(cluster, "old")
    cluster.until(lambda: len(devices(cluster)) == 4, "the node serves claims again", LONG_S)
    cluster.until(lambda: all(phase(cluster, name) == "Running" for name in names), f"{names} run", LONG_S)
    assert not failed_preparations(cluster, names)
    run(cluster, pod("whole", limits={GPU_COUNT: 1}), pod("share", "gpu-mem-2gi"))
    assert uuid_of(cluster, "whole") != uuid_of(cluster, "share")
    delete(cluster, "whole", "share", *names)


def failed_preparations(cluster: Cluster, pods: list[str]) -> list[str]:
    """Return what Events of these pods say of claims that were not prepared: each costs its pod 60 to 90 s."""
    found = cluster.items("events", "--field-selector=reason=FailedPrepareDynamicResources")
    return [event["message"] for event in found if event["involvedObject"]["name"] in pods]


def test_parts_that_claims_have_still_count_where_gpus_are_only_given_whole(cluster: Cluster) -> None:
    run(cluster, pod("holds", "gpu-mem-4gi"))
    held = uuid_of(cluster, "holds")
    set_resources(cluster, "count")
    cluster.until(lambda: types(cluster) == {"whole-gpu", "monitor"}, "parts are offered no more", LONG_S)
    run(cluster, pod("whole", "gpu-whole"))
    assert uuid_of(cluster, "whole") != held
    cluster.apply_all([pod("waits", "gpu-whole")])
    waits(cluster, "waits", "cannot allocate all claims")
    delete(cluster, "holds")
    cluster.until(lambda: phase(cluster, "waits") == "Running", "the GPU is given whole", LONG_S)
    assert uuid_of(cluster, "waits") == held
    delete(cluster, "whole", "waits")
    set_resources(cluster, "memory,count")
    cluster.until(lambda: types(cluster) == {"shared-gpu", "monitor"}, "parts are offered again", LONG_S)


def types(cluster: Cluster) -> set[str]:
    return {device["attributes"]["type"]["string"] for device in devices(cluster).values()}


def set_resources(cluster: Cluster, kinds: str) -> None:
    cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", f"GPUSHARE_RESOURCES={kinds}")
    cluster.kubectl("--namespace=gpushare", "rollout", "status", "daemonset/gpushare-node", "--timeout=180s")
