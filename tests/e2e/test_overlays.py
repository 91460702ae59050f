"""The quick starts, command by command on the real kubelet, on a cluster of its own.

What makes a cluster and brings the image there (kind, k3s, Docker) is done by the other tests' means. Beside k3s' and
the GPU Operator's names of things there is neither of them: GPUs are fake, and the runtime `nvidia` adds nothing.
"""

import re
from collections.abc import Iterator

import pytest

from tests.builders import GPU_COUNT, GPU_MEM
from tests.e2e import real_cluster, starting
from tests.e2e.cluster import Cluster
from tests.e2e.dra_lab import LONG_S

if reason := starting.why_not() or real_cluster.missing():
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

DEPLOY = "make deploy IMAGE=gpu-device-plugin:0.2.0 OVERLAY=kind"
LABEL = "kubectl label nodes --all gpushare=true"
WAIT = "kubectl wait --for=condition=Ready pod/gpushare-example --timeout=3m"
LOOK = "kubectl logs gpushare-example"
UNDEPLOY = "make undeploy OVERLAY=kind"
UNINSTALL = "kubectl inspect gpushare uninstall"

REAL = {
    "make deploy IMAGE=gpu-device-plugin:0.2.0 OVERLAY=k3s": "kubectl label nodes --all gpushare=true",
    "make deploy IMAGE=REGISTRY/gpu-device-plugin:0.2.0 OVERLAY=gpu-operator": (
        "kubectl label node NODE --overwrite nvidia.com/gpu.deploy.device-plugin=false gpushare=true"
    ),
    "make deploy IMAGE=REGISTRY/gpu-device-plugin:0.2.0 OVERLAY=amd WITH=limits": (
        "kubectl label node NODE feature.node.kubernetes.io/amd-gpu=true\n"
        "kubectl label nodes -l feature.node.kubernetes.io/amd-gpu=true gpushare=true"
    ),
}
"""What installs it on nodes with GPUs, and the label that follows."""
APPLY = "kubectl apply -f docs/examples/one-gib.yaml"
WAIT_FOR_IT = "kubectl wait --for=condition=Available deployment/service --timeout=5m"
LOOK_AT_IT = "kubectl logs deployment/service"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with starting.started() as own:
        yield own


def ours(cluster: Cluster) -> list[str]:
    """Return the objects of ours, of the kinds that `make deploy` makes."""
    kinds = "clusterroles,clusterrolebindings,namespaces,validatingadmissionpolicies,validatingadmissionpolicybindings"
    return cluster.kubectl("get", kinds, "--selector=app.kubernetes.io/name=gpushare", "--output=name").split()


def test_the_first_pod_prints_its_shares_after_these_commands(cluster: Cluster) -> None:
    told = cluster.shell(DEPLOY)
    assert [command for command in (LABEL, WAIT, LOOK) if f"\n   {command}\n" not in told] == []
    assert "labeled" in cluster.shell(LABEL)
    assert "condition met" in cluster.shell(WAIT)
    printed(cluster, LOOK, r"4 of 14 shares of GPU 0 \(GPU-[0-9a-f-]{36}\): 4096 MiB\n")
    cluster.until(lambda: offered(cluster) == ("56", "3"), "the node offers one GPU less as a whole one")
    row = r"\b4/14 +0/14 +0/14 +0/14 +4/56\b"
    cluster.until(lambda: re.search(row, cluster.shell("kubectl inspect gpushare")), "inspect shows the pod's shares")


def offered(cluster: Cluster) -> tuple[str, str]:
    """Return what the kubelet says of shares and of whole GPUs, which it does every few seconds."""
    there = cluster.get("node", cluster.node)["status"]["allocatable"]
    return there[GPU_MEM], there[GPU_COUNT]


def printed(cluster: Cluster, look: str, expected: str) -> None:
    """A container without a probe is ready the moment before it prints."""
    cluster.until(lambda: re.fullmatch(expected, cluster.shell(look)), f"{look} prints {expected}")


def test_the_same_again_changes_nothing(cluster: Cluster) -> None:
    before = versions(cluster)
    cluster.shell(DEPLOY)
    assert versions(cluster) == before


def versions(cluster: Cluster) -> dict[str, int]:
    """Return of every workload of ours, and of the pod, the number of its last change of what it should be."""
    found = [*cluster.items("daemonsets,deployments", "--namespace=gpushare"), cluster.get("pod", "gpushare-example")]
    return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}


def test_one_command_removes_it(cluster: Cluster) -> None:
    assert ours(cluster) != []
    assert UNINSTALL in cluster.shell(UNDEPLOY)
    cluster.shell(UNINSTALL)
    nothing_is_left(cluster)
    assert cluster.run("kubectl", "get", "pod", "gpushare-example").returncode != 0


def nothing_is_left(cluster: Cluster) -> None:
    assert ours(cluster) == []
    node = cluster.get("node", cluster.node)
    assert [key for key in node["metadata"]["labels"] if "gpushare" in key or "gpu-device-plugin" in key] == []


@pytest.mark.parametrize("deploy", REAL)
def test_beside_real_gpus_the_example_prints_its_share(cluster: Cluster, deploy: str) -> None:
    """The one command more says that the GPUs are fake."""
    cluster.shell(deploy.replace("REGISTRY/", ""))
    cluster.kubectl("--namespace=gpushare", "set", "env", "daemonset/gpushare-node", "GPUSHARE_GPUS=fake:1xT4")
    cluster.shell(REAL[deploy].replace("NODE", cluster.node))
    cluster.shell(APPLY)
    cluster.shell(WAIT_FOR_IT)
    printed(cluster, LOOK_AT_IT, r"GPUs: GPU-[0-9a-f-]{36}\n1024 MiB\n")
    cluster.shell(f"kubectl delete -f {APPLY.rsplit(maxsplit=1)[-1]}")
    cluster.shell(f"make undeploy {' '.join(deploy.split()[3:])}")
    nothing_is_left(cluster)


def running(cluster: Cluster) -> set[str]:
    """Return the DaemonSets of ours whose pods are ready; empty while any other pod of one is there."""
    pods = [each for each in cluster.items("pods", "--namespace=gpushare") if "ownerReferences" in each["metadata"]]
    owners = {each["metadata"]["name"]: each["metadata"]["ownerReferences"][0] for each in pods}
    mine = [each for each in pods if owners[each["metadata"]["name"]]["kind"] == "DaemonSet"]
    ready = [all(one["ready"] for one in each["status"].get("containerStatuses", [{"ready": False}])) for each in mine]
    return {owners[each["metadata"]["name"]]["name"] for each in mine} if all(ready) else set()


def test_nodes_of_another_vendor_have_daemonsets_of_their_own(cluster: Cluster) -> None:
    cluster.shell("make deploy IMAGE=gpu-device-plugin:0.2.0 OVERLAY=mixed-limits")
    daemonsets = ("daemonset/gpushare-node", "daemonset/gpushare-node-amd")
    cluster.kubectl("--namespace=gpushare", "set", "env", *daemonsets, "GPUSHARE_GPUS=fake:1xT4")
    cluster.kubectl("label", "node", cluster.node, "gpushare=true")
    cluster.until(lambda: running(cluster) == {"gpushare-node"}, "the usual agent runs", LONG_S)
    cluster.kubectl("label", "node", cluster.node, "gpushare-vendor=amd")
    wanted = {"gpushare-node-amd", "gpushare-limits-amd"}
    cluster.until(lambda: running(cluster) == wanted, "the agent for that vendor runs instead, and its helper", LONG_S)
    cluster.until(lambda: offered(cluster) == ("14", "1"), "it offers its GPU", LONG_S)
    cluster.shell("make undeploy OVERLAY=mixed-limits")
    cluster.kubectl("label", "node", cluster.node, "gpushare-vendor-")
    nothing_is_left(cluster)
