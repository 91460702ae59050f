"""Memory that changes while pods run, on real Kubernetes: borrowed, returned or not, and resized under kills.

The GPU is fake, and its file says what the processes use; processes, cgroups, kubelet and schedulers are real. On a
cluster of its own.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.elastic.contract import IN_CONTAINER, MemoryFile
from gpu_device_plugin.model.contract.keys import MEMORY_HELD, MEMORY_LIMIT, MEMORY_PROMISED, RESIZE_BOUND
from gpu_device_plugin.model.contract.reservations import Answer, read_answer
from tests.builders import GPU_MEM
from tests.e2e import dra_lab, real_cluster, starting
from tests.e2e.cluster import Cluster, process_of
from tests.e2e.dra_lab import DEPLOY, DESCRIPTION, H200, LONG_S, agent, describe, environ, on_node, phase, run
from tests.memory import read_memory_file

Json = dict[str, Any]

if reason := starting.why_not() or real_cluster.missing():
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

SHARES = 15
"""Of the one GPU."""
SETTINGS = "borrowers: evict\nreturn_grace: 8s\nusage_interval: 1s\neviction_grace: 2s\n"


def pod(name: str, guaranteed: int, limit: int | None = None) -> Json:
    body = dra_lab.pod(name, limits={GPU_MEM: guaranteed}, schedulerName="gpushare-scheduler")
    if limit is not None:
        body["metadata"]["annotations"] = {MEMORY_LIMIT: str(limit)}
    return body


def use(cluster: Cluster, used_gib: Mapping[str, int]) -> None:
    """Let the processes of these pods use so much of the GPU."""
    processes = [{"pid": process_of(cluster, name), "used": f"{gib}GiB"} for name, gib in used_gib.items()]
    describe(cluster, {**H200, "processes": processes})


def memory_file(cluster: Cluster, name: str) -> MemoryFile:
    command = f"while read -r line; do echo $line; done < {IN_CONTAINER}"  # the image has no cat
    return read_memory_file(cluster.kubectl("exec", name, "--", "sh", "-c", command))


def answer(cluster: Cluster, name: str, key: str) -> Answer | None:
    return read_answer(cluster.get("pod", name)["metadata"].get("annotations", {}), key)


def held(cluster: Cluster, name: str) -> int:
    """Return the shares that the node holds for the pod beside its request, its request included; 0: none."""
    found = answer(cluster, name, MEMORY_HELD)
    return 0 if found is None else found.guarantees.get("main", 0)


def offered(cluster: Cluster) -> int:
    return int(cluster.get("node", cluster.node)["status"]["allocatable"].get(GPU_MEM, "0"))


def wait_until_offered(cluster: Cluster, shares: int) -> None:
    cluster.until(lambda: offered(cluster) == shares, f"the node offers {shares}", LONG_S)


def told(cluster: Cluster, name: str, reason: str) -> str:
    """Return the note of the newest Event of a pod with this reason, once there is one."""

    def notes() -> list[str]:
        found = cluster.items("events", f"--field-selector=involvedObject.name={name},reason={reason}")
        return [each["message"] for each in found]

    return cluster.until(notes, f"an Event {reason} on {name}", LONG_S)[-1]


def resize(cluster: Cluster, *words: str) -> str:
    done = cluster.run("kubectl", "inspect", "gpushare", "resize", *words)
    return done.stdout + done.stderr


def configure(cluster: Cluster, settings: str = SETTINGS) -> None:
    data = json.dumps({"data": {"default.yaml": settings}})
    cluster.kubectl("--namespace=gpushare", "patch", "configmap", "gpushare-node", "--type=merge", f"-p={data}")
    cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", f"GPUSHARE_GPUS={DESCRIPTION}")


def rolled_out(cluster: Cluster) -> None:
    cluster.kubectl("--namespace=gpushare", "rollout", "status", "daemonset/gpushare-node", "--timeout=180s")
    agent(cluster)


@pytest.fixture(scope="module")
def installed() -> Iterator[Cluster]:
    with starting.started() as cluster:
        describe(cluster, H200)
        cluster.apply(DEPLOY / "daemonset.yaml", DEPLOY / "scheduler.yaml", DEPLOY / "optional" / "evict.yaml")
        configure(cluster)
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        agent(cluster)
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Iterator[Cluster]:
    """The same, without pods before and after a test."""
    installed.kubectl("label", "--overwrite", "namespace", "default", f"{RESIZE_BOUND}=8")
    wait_until_offered(installed, SHARES)
    yield installed
    installed.kubectl("delete", "pods", "--all", "--timeout=180s", "--grace-period=1")
    describe(installed, H200)


# --- Borrow and return ------------------------------------------------------------------------------------------------


def test_a_borrower_returns_what_a_new_pod_is_guaranteed(cluster: Cluster) -> None:
    run(cluster, pod("notebook", 4, 12))
    variables = environ(cluster, "notebook")
    assert (variables["GPUSHARE_MEMORY_LIMIT_MIB"], variables["GPUSHARE_MEMORY_GUARANTEED_MIB"]) == ("12288", "4096")
    assert memory_file(cluster, "notebook").limit_mib == 12288
    use(cluster, {"notebook": 10})
    cluster.until(
        lambda: re.search("notebook.*6,144", cluster.kubectl("inspect", "gpushare", "-d")), "it borrows", LONG_S
    )
    cluster.apply_all([pod("service", 8)])
    cluster.until(lambda: memory_file(cluster, "notebook").return_mib, "the file asks for it", LONG_S)
    assert memory_file(cluster, "notebook").needed_by == "default/service"
    assert "default/service" in told(cluster, "notebook", "GPUMemoryAsked")
    assert phase(cluster, "service") == "Pending"
    use(cluster, {"notebook": 6})
    returned = time.monotonic()
    cluster.until(lambda: phase(cluster, "service") == "Running", "the new pod runs", LONG_S)
    took_s = time.monotonic() - returned
    print(f"from the return to the start: {took_s:.1f} s")  # noqa: T201 - a figure, not an expectation
    assert phase(cluster, "notebook") == "Running"
    cluster.until(lambda: not memory_file(cluster, "notebook").return_mib, "nothing is asked any more", LONG_S)
    # Of 15 units 12 are guaranteed to the two.
    assert memory_file(cluster, "notebook").limit_mib < 12288


def test_a_borrower_that_does_not_return_is_evicted(cluster: Cluster) -> None:
    run(cluster, pod("notebook", 4, 12))
    use(cluster, {"notebook": 12})
    cluster.apply_all([pod("service", 8)])
    note = told(cluster, "service", "GPUMemoryWaits")
    assert "default/notebook" in note
    cluster.until(
        lambda: cluster.run("kubectl", "get", "pod", "notebook").returncode != 0, "the borrower is evicted", LONG_S
    )
    describe(cluster, H200)
    cluster.until(lambda: phase(cluster, "service") == "Running", "the new pod runs", LONG_S)
    assert told(cluster, "notebook", "GPUMemoryNotReturned")


def test_a_pod_within_its_guarantee_is_left_alone(cluster: Cluster) -> None:
    run(cluster, pod("notebook", 4, 12), pod("quiet", 3, 6))
    use(cluster, {"notebook": 10, "quiet": 3})
    run_soon = pod("service", 8)
    cluster.apply_all([run_soon])
    told(cluster, "notebook", "GPUMemoryAsked")
    assert not memory_file(cluster, "quiet").return_mib
    use(cluster, {"notebook": 4, "quiet": 3})
    cluster.until(lambda: phase(cluster, "service") == "Running", "the new pod runs", LONG_S)


# --- Resize -----------------------------------------------------------------------------------------------------------


def test_a_guarantee_grows_and_shrinks_while_the_pod_runs(cluster: Cluster) -> None:
    run(cluster, pod("notebook", 4))
    began = time.monotonic()
    said = resize(cluster, "notebook", "6")
    print(f"from the command to its answer: {time.monotonic() - began:.1f} s")  # noqa: T201 - a figure, not an expectation
    assert "guaranteed 6 GiB" in said
    cluster.until(lambda: held(cluster, "notebook") == 6, "the node holds 6", LONG_S)
    wait_until_offered(cluster, SHARES - 2)
    cluster.apply_all([pod("large", 10)])
    dra_lab.waits(cluster, "large", "gpu-mem")
    assert phase(cluster, "large") == "Pending"
    cluster.kubectl("delete", "pod", "large")
    run(cluster, pod("fits", 9))
    refused = resize(cluster, "notebook", "7")
    assert held(cluster, "notebook") == 6, refused
    cluster.kubectl("delete", "pod", "fits", "--grace-period=1")
    cluster.until(lambda: held(cluster, "notebook") == 7, "it grows when there is room", LONG_S)
    resize(cluster, "notebook", "4")
    cluster.until(lambda: held(cluster, "notebook") == 0, "the node has given it back", LONG_S)
    wait_until_offered(cluster, SHARES)
    run(cluster, pod("more", 11))


def test_a_namespace_without_a_bound_is_told_so(cluster: Cluster) -> None:
    cluster.kubectl("label", "namespace", "default", f"{RESIZE_BOUND}-")
    run(cluster, pod("notebook", 4))
    assert RESIZE_BOUND in resize(cluster, "notebook", "6")
    assert held(cluster, "notebook") == 0


def test_what_was_resized_outlives_kills(cluster: Cluster) -> None:
    run(cluster, pod("notebook", 4))
    resize(cluster, "notebook", "9")
    cluster.until(lambda: held(cluster, "notebook") == 9, "the node holds 9", LONG_S)
    wait_until_offered(cluster, SHARES - 5)
    for round_ in range(3):
        on_node(cluster, "pkill -KILL -f '[g]pu-device-plugin node' || true")
        on_node(cluster, "pkill -KILL -f '[g]pu-device-plugin extender' || true")
        agent(cluster)
        wait_until_offered(cluster, SHARES - 5)
        cluster.apply_all([pod(f"large-{round_}", 7)])
        dra_lab.waits(cluster, f"large-{round_}", "gpu-mem")
        assert phase(cluster, f"large-{round_}") == "Pending"
        cluster.kubectl("delete", "pod", f"large-{round_}")
    assert cluster.own is not None
    cluster.own.stop_kubelet()
    cluster.own.start_kubelet()
    agent(cluster)
    wait_until_offered(cluster, SHARES - 5)
    assert held(cluster, "notebook") == 9
    run(cluster, pod("fits", 6))
    cluster.kubectl("delete", "pod", "notebook", "--grace-period=1")
    cluster.kubectl("delete", "pod", "fits", "--grace-period=1")
    wait_until_offered(cluster, SHARES)


def test_what_was_resized_outlives_another_version(cluster: Cluster, tmp_path: Path) -> None:
    """An agent of E2E_FROM may know nothing of guarantees that grow: then the extender alone counts them."""
    other = starting.of_another_version(cluster, tmp_path)
    daemonset = next(body for body in other if body["kind"] == "DaemonSet")
    run(cluster, pod("notebook", 4))
    resize(cluster, "notebook", "9")
    cluster.until(lambda: held(cluster, "notebook") == 9, "the node holds 9", LONG_S)
    wait_until_offered(cluster, SHARES - 5)
    configure(cluster, "usage_interval: 1s\n")  # an agent refuses settings that it does not know
    cluster.apply_all([daemonset])
    rolled_out(cluster)
    cluster.apply_all([pod("large", 7)])
    # Neither version takes the memory away from the pod that has it.
    # One that knows nothing of its growth offers that too, and the extender refuses.
    dra_lab.waits(cluster, "large", "7 GiB free", f"Insufficient {GPU_MEM}")
    assert phase(cluster, "large") == "Pending"
    cluster.kubectl("delete", "pod", "large")
    cluster.apply(DEPLOY / "daemonset.yaml")
    configure(cluster)
    rolled_out(cluster)
    wait_until_offered(cluster, SHARES - 5)
    assert held(cluster, "notebook") == 9
    assert phase(cluster, "notebook") == "Running"


def test_the_extender_marks_the_pods_that_it_binds(cluster: Cluster) -> None:
    run(cluster, pod("notebook", 4))
    assert answer(cluster, "notebook", MEMORY_PROMISED) is not None
