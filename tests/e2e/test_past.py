"""What happened on a node of real Kubernetes: incidents, the last hour, why a pod is slow, and who had which GPU.

The GPUs are fake; kubelet, containers, their cgroups and the kernel's limits are real. On a cluster of its own.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import GPU_MEM
from tests.e2e import dra_lab, real_cluster, starting
from tests.e2e.cluster import Cluster, process_of
from tests.e2e.dra_lab import DEPLOY, DESCRIPTION, H200, LONG_S, agent, on_node, run

Json = dict[str, Any]

if reason := starting.why_not() or real_cluster.missing():
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)


CGROUPS: Json = {
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "agent",
                        "volumeMounts": [{"name": "cgroup", "mountPath": "/sys/fs/cgroup", "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}}],
            }
        }
    }
}
"""The mount by which agents see the CPU limits of containers, see deploy/daemonset.yaml."""


def describe(cluster: Cluster, *events: Json) -> None:
    """Let this have happened to the two fake GPUs of the node."""
    document = json.dumps({"gpus": [H200] * 2, "events": events})
    on_node(cluster, f"cat > {DESCRIPTION}.new && mv {DESCRIPTION}.new {DESCRIPTION}", document)


def inspect(cluster: Cluster, *words: str) -> str:
    done = cluster.run("kubectl", "inspect", "gpushare", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def event(cluster: Cluster, reason: str, words: str) -> str:
    """Wait for an Event, and return the name of the incident in it."""

    def found() -> str:
        notes = [str(each.get("message", "")) for each in cluster.items("events") if each["reason"] == reason]
        names = (re.search(r"\(incident ([0-9a-z-]+)\)", note) for note in notes if words in note)
        return next((name[1] for name in names if name), "")

    return cluster.until(found, f"an Event {reason} says {words!r} and names an incident", LONG_S)


def raw(cluster: Cluster, path: str) -> str:
    pod = f"/api/v1/namespaces/gpushare/pods/{agent(cluster)}:9445/proxy/"
    return cluster.kubectl("get", "--raw", pod + path)


def asking(name: str, command: str, shares: int = 4, **limits: str) -> Json:
    pod = dra_lab.pod(name, limits={GPU_MEM: shares, **limits}, restartPolicy="Never")
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", command]
    return pod


def position(cluster: Cluster, name: str) -> int:
    return int(cluster.get("pod", name)["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with starting.started() as cluster:
        describe(cluster)
        cluster.apply(DEPLOY / "daemonset.yaml")
        environ = (f"GPUSHARE_GPUS={DESCRIPTION}", "GPUSHARE_LOG_FORMAT=json")
        cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", *environ)
        cluster.kubectl("--namespace=gpushare", "patch", "daemonset", "gpushare-node", f"-p={json.dumps(CGROUPS)}")
        cluster.kubectl("label", "node", cluster.node, "gpushare=true")
        agent(cluster)
        yield cluster


def test_an_xid_a_kill_for_memory_and_a_death_are_recorded_and_survive_the_agent(cluster: Cluster) -> None:
    run(cluster, dra_lab.pod("web", limits={GPU_MEM: 4}))
    gpu, pid = position(cluster, "web"), process_of(cluster, "web")
    describe(cluster, {"at": 0, "gpu": gpu, "processes": [{"pid": pid, "used": "3GiB", "sm": 40}]})
    cluster.until(
        lambda: "3 of 4 GiB" in inspect(cluster, "top", "--history", cluster.node), "its use is drawn", LONG_S
    )
    used = {"at": 0, "gpu": gpu, "processes": [{"pid": pid, "used": "3GiB", "sm": 40}]}
    describe(cluster, used, {"at": 1, "gpu": gpu, "xid": 31})
    xid = event(cluster, "GPUError", "XID 31")
    cluster.apply_all(
        [asking("hog", "sleep 3; x=x; while :; do x=$x$x; done", memory="24Mi"), asking("brief", "sleep 3; exit 3")]
    )
    killed = event(cluster, "GPUIncident", "lack of main memory")
    died = event(cluster, "GPUIncident", "exit code 3")

    selector = "--selector=app.kubernetes.io/component=node"
    cluster.kubectl("--namespace=gpushare", "delete", "pods", selector, "--wait=true")
    agent(cluster)
    listed = json.loads(inspect(cluster, "incident", "-o", "json"))["incidents"]
    assert {xid, killed, died} <= {each["name"] for each in listed}
    kinds = {each["name"]: (each["kind"], each["pod"]) for each in listed}
    assert kinds[xid] == ("xid", "")
    assert kinds[killed] == ("out-of-memory", "hog")
    assert kinds[died] == ("container-died", "brief")

    told = json.loads(inspect(cluster, "incident", cluster.node, xid, "-o", "json"))
    (process,) = told["processes"]
    assert (process["pod"], process["container"], process["used_mib"]) == ("web", "main", 3072)
    assert told["history"]["containers"][0]["used_mib"][-1] == 3072
    assert "XID 31" in inspect(cluster, "incident", xid)
    modes = on_node(cluster, "find /var/lib/kubelet/device-plugins -name '*-xid-*' -printf '%m '").split()
    assert set(modes) == {"600"}


def test_a_pod_whose_cpu_is_held_back_is_told_so(cluster: Cluster) -> None:
    """Its threads want ten times the CPU that it may have; of its GPU it uses next to nothing."""
    run(cluster, asking("slow", "while :; do :; done", cpu="100m"))
    gpu, pid = position(cluster, "slow"), process_of(cluster, "slow")
    describe(cluster, {"at": 0, "gpu": gpu, "processes": [{"pid": pid, "used": "2GiB", "sm": 6}]})

    def told() -> str:
        facts = inspect(cluster, "why", "slow")
        return facts if "was held back by its CPU limit" in facts else ""

    cluster.until(told, "why names its CPU limit", LONG_S * 2)
    history = json.loads(raw(cluster, "history/namespaces/default?minutes=5"))
    (slow,) = (each for each in history["containers"] if each["pod"] == "slow")
    assert max(value or 0 for value in slow["cpu_throttled_percent"]) > 50


def test_the_log_says_who_had_which_gpu(cluster: Cluster) -> None:
    logs = cluster.kubectl("--namespace=gpushare", "logs", agent(cluster))
    records = [json.loads(line) for line in logs.splitlines() if '"event.name"' in line]
    kinds = {(each["event.name"], each.get("k8s.pod.name", "")) for each in records}
    assert {("gpushare.started", ""), ("gpushare.found", "web")} <= kinds
    assert all(each["k8s.node.name"] == cluster.node for each in records)
