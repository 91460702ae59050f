"""The manifests of the page about claims, before a real API server and a real kube-scheduler: who gets which GPU."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin.features.claims import contract as dra
from gpu_device_plugin.features.claims.claim_objects import read_claim
from gpu_device_plugin.features.claims.rules.devices import SliceInputs, devices
from gpu_device_plugin.features.claims.rules.pool import contents, slice_name
from gpu_device_plugin.model.gpus import Closeness, Gpu, Inventory, Link, MigInstance
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.node import Node
from tests import patience
from tests.deploy.test_apply import Kubectl, api_server
from tests.docs.pages import DOCS, ROOT

Json = dict[str, Any]

UUIDS = tuple(f"GPU-0000000{number}-0000-4000-8000-000000000000" for number in range(4))
GPUS = tuple(
    Gpu(uuid, number, "NVIDIA H200" if number == 2 else "Tesla T4", 16 * 1024, device_paths=(f"/dev/nvidia{number}",))
    for number, uuid in enumerate(UUIDS)
)
"""Four GPUs of 16 GiB; NVLinks connect 0 with 1, and 2 with 3."""

CARDS = tuple(f"GPU-0000000{number}-0000-4000-8000-000000000000" for number in (4, 5))
INSTANCES = tuple(f"MIG-0000000{card}-0000-4000-8000-00000000000{number}" for card in (4, 5) for number in range(2))
MIG = tuple(
    Gpu(
        uuid,
        4 + at // 2,
        "NVIDIA H100 MIG 1g.10gb",
        10 * 1024,
        instance=MigInstance(CARDS[at // 2], at % 2, "1g.10gb", 7 + at % 2, 0),
    )
    for at, uuid in enumerate(INSTANCES)
)
"""Two GPUs in MIG mode, each with two instances of 10 GiB."""
INVENTORY = Inventory(
    (*GPUS, *MIG),
    links=tuple(Link(UUIDS[a], UUIDS[b], Closeness.NVLINK, 4) for a, b in ((0, 1), (2, 3))),
)
NODE = "gpu-1"
OPTIONAL = ROOT / "deploy" / "optional"


@dataclass(frozen=True)
class Cluster:
    """An API server, a scheduler and the controller that makes claims; the node has no kubelet."""

    kubectl: Kubectl
    home: Path

    def get(self, *what: str) -> Json:
        found: Json = json.loads("\n".join(self.kubectl("get", *what, "--output=json")))
        return found

    def apply(self, body: Json, *more: str) -> None:
        file = self.home / "object.yaml"
        file.write_text(yaml.safe_dump(body), encoding="utf-8")
        self.kubectl("apply", "--server-side", f"--filename={file}", *more)

    def allocated(self, pod: str, namespace: str = "default") -> list[Json]:
        """Return what the claim of a pod was allocated, once the pod has a node."""
        patience.until(
            lambda: "nodeName" in self.get("pod", pod, f"--namespace={namespace}")["spec"],
            f"the scheduler places {pod}",
            quiet_s=patience.REAL_S,
            pause_s=0.2,
        )
        status = self.get("pod", pod, f"--namespace={namespace}")["status"]
        names = [each["resourceClaimName"] for each in status.get("resourceClaimStatuses", ())]
        if extended := status.get("extendedResourceClaimStatus"):
            names.append(extended["resourceClaimName"])
        (name,) = names
        claim = self.get("resourceclaim", name, f"--namespace={namespace}")
        results: list[Json] = claim["status"]["allocation"]["devices"]["results"]
        devices = read_claim(json.dumps(claim).encode()).devices
        return [{**result, "whole": device.whole} for result, device in zip(results, devices, strict=True)]

    def empty(self) -> None:
        """Remove all pods at once, as no kubelet ends them, and their claims."""
        for pod in self.get("pods", "--all-namespaces")["items"]:
            path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            self.kubectl("delete", f"--raw={path}?gracePeriodSeconds=0")
        for claim in self.get("resourceclaims", "--all-namespaces")["items"]:
            where = f"--namespace={claim['metadata']['namespace']}"
            self.kubectl(
                "delete", "resourceclaim", claim["metadata"]["name"], where, "--ignore-not-found", "--wait=false"
            )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("claims")
    folder = os.environ.get("KUBE_BIN", "")
    scheduler = shutil.which("kube-scheduler", path=os.pathsep.join([folder, os.environ["PATH"]]))
    if not folder or scheduler is None:
        pytest.skip("set KUBE_BIN to a folder with kube-scheduler and the other programs of Kubernetes, and etcd")
    with api_server(home, "resourceclaim-controller", "garbage-collector-controller") as kubectl:
        version = json.loads("".join(kubectl("version", "--output=json")))["serverVersion"]
        if int(version["minor"].rstrip("+")) < 36:
            pytest.skip("this API server gives no shares of devices (Kubernetes 1.36)")
        made = Cluster(kubectl, home)
        furnish(made)
        command = [scheduler, f"--kubeconfig={kubectl.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        with (home / "scheduler.log").open("wb") as log:
            running = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield made
        finally:
            running.terminate()
            running.wait(20)


def furnish(cluster: Cluster) -> None:
    """Make the node with the slices of its driver, the device classes and the templates."""
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    }
    cluster.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    cluster.kubectl("patch", "node", NODE, "--type=merge", '--patch={"spec":{"taints":null}}')
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    cluster.apply({**runtime, "handler": "nvidia"})
    for name in ("dra", "dra-templates"):
        cluster.kubectl("apply", "--validate=strict", f"--filename={OPTIONAL / name}.yaml")
    publish(cluster, INVENTORY, MigMode.WHOLE)


def publish(cluster: Cluster, inventory: Inventory, mig: MigMode, generation: int = 1) -> None:
    """Let the node have the slices of these GPUs, and no others."""
    shares = Shares(1024).with_inventory(inventory, mig=mig)
    node = Node(shares, links=shares.links(inventory.links))
    facts = SliceInputs((*UUIDS, *INSTANCES), enforcements=dict.fromkeys(UUIDS[3:], Enforcement.DRIVER))
    found = contents(devices(node, facts))
    for each in cluster.get("resourceslices")["items"]:
        cluster.kubectl("delete", "resourceslice", each["metadata"]["name"])
    for number, content in enumerate(found):
        spec = {
            "driver": dra.DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": generation, "resourceSliceCount": len(found)},
            **content,
        }
        metadata = {"name": slice_name(NODE, number)}
        cluster.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec})


@pytest.fixture
def free(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, without any pod or claim after the test."""
    yield cluster
    cluster.empty()
    patience.until(
        lambda: not cluster.get("resourceclaims", "--all-namespaces")["items"],
        "claims are gone",
        quiet_s=patience.REAL_S,
        pause_s=0.2,
    )


def gpus(results: list[Json]) -> list[str]:
    """Return the device of each result by the GPU's number, with a w for a whole one and an m for a monitor.

    MIG instances are 4 to 7.
    """
    found = []
    for each in results:
        watched = dra.parse_monitor_name(each["device"])
        number = (*UUIDS, *INSTANCES).index(watched or dra.parse_device_name(each["device"]))
        found.append(f"{number}{'w' * each['whole']}{'m' * bool(watched)}")
    return found


@pytest.mark.parametrize(
    "applied",
    [
        # Amounts of several claims are packed on the first GPU.
        (("four-gib", "four-gib", ["0"], ["4Gi"]), ("two-containers", "two-containers", ["0"], ["8Gi"])),
        (("two-gpus", "two-gpus-by-claim", ["0", "1"], ["10Gi", "10Gi"]),),
        (("one-gpu-two-requests", "same-gpu", ["0", "0"], ["4Gi", "2Gi"]),),
        (("first-available", "h200-first", ["2"], ["12Gi"]),),
        (("parameters", "limited", ["0"], ["4Gi"]),),
        # NVLinks connect two of the GPUs.
        (("nvlink", "two-gpus-nvlink", ["0w", "1w"], []),),
        # The first GPU with instances has one left.
        (("mig-instance", "mig-by-claim", ["4w"], []), ("mig-one-gpu", "two-instances", ["6w", "7w"], [])),
    ],
    ids=lambda applied: applied[-1][0],
)
def test_a_pod_gets_what_its_claims_describe(
    free: Cluster, applied: tuple[tuple[str, str, list[str], list[str]], ...]
) -> None:
    for name, pod, expected, memory in applied:
        free.kubectl("apply", "--validate=strict", f"--filename={DOCS / 'claims' / name}.yaml")
        results = free.allocated(pod)
        assert sorted(gpus(results)) == expected
        assert [each["consumedCapacity"]["memory"] for each in results if not each["whole"]] == memory


def test_the_second_choice_is_taken_where_the_first_is_used_up(free: Cluster) -> None:
    """The one H200 has no 12 GiB left; of the others GPU 3 alone has limits of the driver."""
    path = DOCS / "claims" / "first-available.yaml"
    free.kubectl("apply", f"--filename={path}")
    free.allocated("h200-first")
    _, pod = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    pod["metadata"]["name"] = "another"
    free.apply(pod)
    results = free.allocated("another")
    assert (gpus(results), results[0]["request"]) == (["3"], "gpu/other")


def test_whole_gpus_and_shares_stay_apart(free: Cluster) -> None:
    """All take the first that is free enough; those of a pod that knows no claims too."""
    for name, pod, expected in (
        ("four-gib", "four-gib", ["0"]),
        ("whole-gpu", "whole-gpu-by-claim", ["1w"]),
    ):
        free.kubectl("apply", f"--filename={DOCS / 'claims' / name}.yaml")
        assert gpus(free.allocated(pod)) == expected
    unchanged = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "unchanged"},
        "spec": {
            "containers": [
                {"name": "main", "image": "a", "resources": {"limits": {"aliyun.com/gpu-count": "2"}}},
            ]
        },
    }
    free.apply(unchanged)
    assert sorted(gpus(free.allocated("unchanged"))) == ["2w", "3w"]


def test_who_looks_at_all_gpus_takes_none(free: Cluster) -> None:
    free.kubectl("apply", f"--filename={DOCS / 'claims' / 'whole-gpu.yaml'}")
    assert gpus(free.allocated("whole-gpu-by-claim")) == ["0w"]
    free.kubectl("apply", "--validate=strict", f"--filename={DOCS / 'claims' / 'monitoring.yaml'}")
    results = free.allocated("monitor", "gpu-monitoring")
    assert sorted(gpus(results)) == [f"{n}m" for n in range(8)]
    assert all(each["adminAccess"] for each in results)
    free.kubectl("apply", f"--filename={DOCS / 'claims' / 'four-gib.yaml'}")
    assert gpus(free.allocated("four-gib")) == ["1"]


def test_a_limit_of_a_profile_is_served_by_a_class_with_its_name(free: Cluster) -> None:
    free.kubectl("apply", "--validate=strict", f"--filename={DOCS / 'claims' / 'mig-by-limit.yaml'}")
    assert gpus(free.allocated("mig-by-limit")) == ["4w"]
    free.kubectl("delete", "deviceclass", "mig-1g.10gb")


def test_parts_of_an_instance_and_all_of_it_are_kept_apart(free: Cluster) -> None:
    """Of a node with one GPU in MIG mode, whose instances are shared."""
    publish(free, Inventory(MIG[:2]), MigMode.SHARE, generation=2)
    try:
        for name, pod, expected in (
            ("four-gib", "four-gib", ["4"]),
            ("mig-instance", "mig-by-claim", ["5w"]),
            ("one-gpu-two-requests", "same-gpu", ["4", "4"]),
        ):
            free.kubectl("apply", f"--filename={DOCS / 'claims' / name}.yaml")
            assert gpus(free.allocated(pod)) == expected
        # Both have a user, so nobody gets one of them whole.
        _, pod_body = yaml.safe_load_all((DOCS / "claims" / "mig-instance.yaml").read_text(encoding="utf-8"))
        pod_body["metadata"]["name"] = "waits"
        free.apply(pod_body)
        patience.until(
            lambda: "cannot allocate all claims" in json.dumps(free.get("pod", "waits")["status"]),
            "the scheduler finds no instance",
            quiet_s=patience.REAL_S,
            pause_s=0.2,
        )
    finally:
        free.empty()
        publish(free, INVENTORY, MigMode.WHOLE, generation=3)
