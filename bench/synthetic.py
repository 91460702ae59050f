"""A cluster made from numbers: nodes and pods as an API server writes them, each as large as real ones."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.model.contract.keys import ASSIGNED, NODE_GPUS, SPLIT_LABEL, USE_MODEL
from gpu_device_plugin.model.contract.nodegpus import node_gpus, write_node_gpus
from gpu_device_plugin.model.contract.nodelabels import node_labels
from gpu_device_plugin.model.gpus import Closeness, Gpu, Inventory, Link
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.scheduler.rules.candidate import by_division
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import promise

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.builders import Json

GPUS, SHARES = 8, 16
"""Of each node, and of each GPU."""
MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
RESOURCES = (Resource(Kind.MEMORY, MEMORY), Resource(Kind.COUNT, COUNT))
NAMESPACE = "default"
MODELS = ("Tesla V100-SXM2-16GB", "Quadro RTX 5000")
"""Three nodes of four have the first, with NVLink as in a DGX-1; the others the second, on two PCIe switches."""
_NVLINKS = {
    frozenset(pair)
    for group in ((0, 1, 2, 3), (4, 5, 6, 7), (0, 4), (1, 5), (2, 6), (3, 7))
    for pair in combinations(group, 2)
}
_CREATED = "2026-11-20T12:00:00Z"
_NOW_NS = 1_795_176_000_000_000_000
_FULL = (0.34, 0.99)
"""How full nodes are: evenly between these."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod asks."""

    containers: tuple[tuple[str, int], ...]
    """(Resource, amount) of each container."""
    share: float = 0.0
    """How many of the cluster's pods ask this, in percent."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


_USUAL = {1: 15, 2: 18, 3: 3, 4: 20, 5: 1, 6: 5, 8: 9, 10: 1, 12: 2, 16: 2}
SHAPES: Mapping[str, Shape] = {
    **{f"gpu-mem {n}": Shape(((MEMORY, n),), _USUAL.get(n, 0.1)) for n in range(1, SHARES + 1)},
    **{f"gpu-count {n}": Shape(((COUNT, n),), {1: 4, 2: 1, 4: 0.3}.get(n, 0.02)) for n in range(1, GPUS + 1)},
    "gpu-mem 8 over 2 GPUs": Shape(((MEMORY, 8),), 2, {SPLIT_LABEL: "2"}),
    "gpu-mem 32 over 4 GPUs": Shape(((MEMORY, 32),), 0.2, {SPLIT_LABEL: "4"}),
    "containers of gpu-mem 4 and 2": Shape(((MEMORY, 4), (MEMORY, 2)), 6),
    "containers of gpu-mem 12 and 8": Shape(((MEMORY, 12), (MEMORY, 8)), 0.3),
    "containers of gpu-mem 4 and gpu-count 1": Shape(((MEMORY, 4), (COUNT, 1)), 0.3),
    "gpu-mem 4 of a model": Shape(((MEMORY, 4),), 1, annotations={USE_MODEL: "V100"}),
    "gpu-count 2 of a model": Shape(((COUNT, 2),), 0.2, annotations={USE_MODEL: "RTX 5000"}),
}


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod of the cluster."""

    number: int
    node: int
    shape: str
    """A name in `SHAPES`; empty: it asks for nothing of ours."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    shares: tuple[tuple[int, int], ...] = ()
    """(GPU, shares) that it has of gpu-mem."""


def pods_of(node: int) -> Iterator[Placed]:
    """Yield the pods of one node: one of every node's own, and as many with GPUs as fill it."""
    rng = random.Random(node)  # noqa: S311 - the same cluster every time
    wanted = rng.uniform(*_FULL) * GPUS * SHARES
    free = [SHARES] * GPUS
    yield Placed(node * 1000, node, "")
    number = node * 1000
    for name in rng.choices(list(SHAPES), [shape.share for shape in SHAPES.values()], k=200):
        if GPUS * SHARES - sum(free) >= wanted:
            return
        asked, placements = _asked(name), []
        left = free.copy()
        for part in asked.parts:
            found = _place(part.demand, left, rng)
            if found is None or (asked.selector.choosy and not asked.selector.allow_model(model(node))):
                break
            placements.append(found)
            for position, shares in found.shares:
                left[position] -= shares
        else:
            free, number = left, number + 1
            promised = promise(asked, placements, _ALIKE, _NOW_NS + number)
            memory = (each.shares for each in placements if each.demand.kind is Kind.MEMORY)
            yield Placed(number, node, name, {**promised, ASSIGNED: "true"}, tuple(chain.from_iterable(memory)))


_ALIKE = by_division(GPUS * SHARES, GPUS)


@cache
def _asked(name: str) -> GpuRequest:
    shape = SHAPES[name]
    containers = tuple(
        Container(f"main-{index}", ContainerKind.APP, index, {resource: amount})
        for index, (resource, amount) in enumerate(shape.containers)
    )
    found = ask(Pod("", "", "", annotations=shape.annotations, labels=shape.labels, containers=containers), RESOURCES)
    assert isinstance(found, GpuRequest)
    return found


def _place(demand: Demand, free: list[int], rng: random.Random) -> Placement | None:
    """Mostly the fullest GPUs that have room, as binpack does; pods that ended leave other patterns."""
    whole = demand.kind is Kind.COUNT
    gpus, each = (demand.amount, SHARES) if whole else (demand.gpus, demand.amount // demand.gpus)
    fitting = [position for position in range(GPUS) if free[position] >= each]
    if len(fitting) < gpus:
        return None
    if rng.random() < 0.7:
        fitting.sort(key=lambda position: free[position])
    else:
        rng.shuffle(fitting)
    return Placement(demand, tuple((position, each) for position in sorted(fitting[:gpus])))


# --- As JSON ----------------------------------------------------------------------------------------------------------


def node_name(node: int) -> str:
    """Return a name as long as those that clouds give."""
    return f"ip-10-{node >> 16 & 255}-{node >> 8 & 255}-{node & 255}.eu-central-1.compute.internal"


def model(node: int) -> str:
    """Return which GPUs a node has."""
    return MODELS[node % 4 == 3]


def uid(number: int) -> str:
    """Return the UID of a pod."""
    return f"{number:08x}-6d1b-4c1e-9d52-{number:012x}"


def pod_name(number: int) -> str:
    """Return the name of a pod."""
    return f"training-run-{number >> 4:07}-{number:08x}"


def gpu_uuid(node: int, position: int) -> str:
    """Return the UUID of one GPU."""
    return f"GPU-{node:08x}-1f0a-4e7b-b2d4-{position:012x}"


def node_json(node: int, version: int) -> str:
    """Return a node; about 20 KiB."""
    texts = _node_texts(model(node))
    uuids = {_uuid_at(position): gpu_uuid(node, position) for position in range(GPUS)}
    text = texts.replace("@NAME@", node_name(node)).replace("@VERSION@", str(version)).replace("@UID@", uid(node))
    for placeholder, uuid in uuids.items():
        text = text.replace(placeholder, uuid)
    return text


def pod_json(pod: Placed, version: int, **changes: str) -> str:
    """Return a pod that runs; 4 to 8 KiB. Of `changes` there are ``note``, somewhere in its status, and ``phase``."""
    text = _pod_text(pod.shape)
    devices = [share_id(gpu_uuid(pod.node, position), n) for position, shares in pod.shares for n in range(shares)]
    said = {
        "name": pod_name(pod.number),
        "uid": uid(pod.number),
        "node": node_name(pod.node),
        "version": version,
        "annotations": "".join(f",{json.dumps(key)}:{json.dumps(text)}" for key, text in pod.annotations.items()),
        # The kubelet of 1.36 lists every device with its health, and shuffles them.
        "devices": ",".join(f'{{"health":"Healthy","resourceID":"{device}"}}' for device in devices),
        "note": changes.get("note", "0"),
        "phase": changes.get("phase", "Running"),
    }
    return text % said


def new_pod(number: int, shape: str) -> Json:
    """Return a pod as somebody creates it, with the UID that it is to have."""
    made = _pod(shape)
    made["metadata"] = {
        "name": pod_name(number),
        "namespace": NAMESPACE,
        "uid": uid(number),
        "labels": {"app": "training-run", **SHAPES[shape].labels},
        "annotations": dict(SHAPES[shape].annotations),
    }
    del made["spec"]["nodeName"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made["metadata"], "spec": made["spec"]}


def new_node(node: int) -> Json:
    """Return a node as its kubelet creates it and our agent completes it."""
    made: Json = json.loads(node_json(node, 1))
    for ours in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        del made["metadata"][ours]
    return {"apiVersion": "v1", "kind": "Node", **made}


def _fields(manager: str, *paths: str) -> Json:
    """Return an entry of managedFields that owns some fields."""
    owned: Json = {}
    for path in paths:
        inner = owned
        for part in path.split("/"):
            inner = inner.setdefault(f"f:{part}" if part != "." and not part.startswith("k:") else part, {})
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _CREATED,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned,
    }


def _uuid_at(position: int) -> str:
    return f"@UUID-{position}@"


@cache
def _node_texts(product: str) -> str:
    gpus = tuple(
        Gpu(
            _uuid_at(n),
            n,
            product,
            SHARES * 1024,
            device_paths=(f"/dev/nvidia{n}",),
            pci_bus_id=f"00000000:{n * 16 + 6:02X}:00.0",
            numa_node=n // 4,
        )
        for n in range(GPUS)
    )
    inventory = Inventory(
        gpus, tuple(_link(product, a, b) for a, b in combinations(range(GPUS), 2)), driver_version="580.95.05"
    )
    shares = Shares(1024).with_inventory(inventory)
    capacity = {
        "cpu": "96",
        "memory": "1056274348Ki",
        "ephemeral-storage": "1023704044Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": "110",
        MEMORY: str(GPUS * SHARES),
        COUNT: str(GPUS),
    }
    conditions = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    labels = {
        "kubernetes.io/hostname": "@NAME@",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "gpushare": "true",
        "topology.kubernetes.io/zone": "eu-central-1a",
        "node.kubernetes.io/instance-type": "p3dn.24xlarge",
        **{f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{n}": "true" for n in range(40)},
        **node_labels(shares, inventory, "binpack"),
    }
    return json.dumps(
        {
            "metadata": {
                "name": "@NAME@",
                "uid": "@UID@",
                "resourceVersion": "@VERSION@",
                "creationTimestamp": _CREATED,
                "labels": labels,
                "annotations": {
                    "csi.volume.kubernetes.io/nodeid": '{"ebs.csi.aws.com":"i-0123456789abcdef0"}',
                    NODE_GPUS: write_node_gpus(node_gpus(shares, inventory, {}, "binpack")),
                    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                },
                "managedFields": [
                    _fields(
                        "kubelet",
                        *(f"metadata/labels/{label}" for label in labels),
                        *(f"status/{part}/{name}" for part in ("allocatable", "capacity") for name in capacity),
                        *(
                            f'status/conditions/k:{{"type":"{kind}"}}/{name}'
                            for kind in conditions
                            for name in ("lastHeartbeatTime", "lastTransitionTime", "message", "reason", "status")
                        ),
                    ),
                ],
            },
            "spec": {"providerID": "aws:///eu-central-1a/i-0123456789abcdef0"},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": [
                    {
                        "type": kind,
                        "status": str(kind == "Ready"),
                        "lastHeartbeatTime": _CREATED,
                        "lastTransitionTime": _CREATED,
                        "reason": f"KubeletHas{kind}Sufficient",
                        "message": f"kubelet says of {kind} what it always says",
                    }
                    for kind in conditions
                ],
                "addresses": [
                    {"type": "InternalIP", "address": "10.0.0.1"},
                    {"type": "Hostname", "address": "@NAME@"},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {"kubeletVersion": "v1.36.2", "osImage": "Ubuntu 24.04.3 LTS", "architecture": "amd64"},
                "images": [
                    {
                        "names": [
                            f"registry.example.com/research/training-{n}@sha256:{n:064x}",
                            f"registry.example.com/research/training-{n}:2026.{n}",
                        ],
                        "sizeBytes": 9_876_543_210 + n,
                    }
                    for n in range(50)
                ],
            },
        },
        separators=(",", ":"),
    )


def _link(product: str, a: int, b: int) -> Link:
    ends = _uuid_at(a), _uuid_at(b)
    if product == MODELS[0] and frozenset((a, b)) in _NVLINKS:
        return Link(*ends, Closeness.NVLINK, 1 + (a + b) % 2)
    if a // 4 != b // 4:
        return Link(*ends, Closeness.SYSTEM)
    return Link(*ends, Closeness.SWITCH if a // 2 == b // 2 else Closeness.HOST_BRIDGE)


@cache
def _pod_text(shape: str) -> str:
    text = json.dumps(_pod(shape), separators=(",", ":")).replace("%", "%%")
    for what in ("name", "uid", "node", "version", "note", "phase"):
        text = text.replace(f"@{what.upper()}@", f"%({what})s")
    return text.replace('"@ANNOTATIONS@":""', '"kubernetes.io/limit-ranger":"no limits"%(annotations)s').replace(
        '"@DEVICES@"', "%(devices)s"
    )


def _pod(shape: str) -> dict[str, Any]:
    wanted = SHAPES[shape] if shape else Shape((("", 0), ("", 0)))
    containers = [_container(index, resource, amount) for index, (resource, amount) in enumerate(wanted.containers)]
    statuses = [
        {
            "name": container["name"],
            "containerID": f"containerd://{index:064x}",
            "image": container["image"],
            "imageID": f"{container['image']}@sha256:{index:064x}",
            "ready": True,
            "restartCount": 0,
            "started": True,
            "state": {"running": {"startedAt": _CREATED}},
            "lastState": {},
            "allocatedResources": {"cpu": "4", "memory": "16Gi"},
            "resources": container["resources"],
            **({"allocatedResourcesStatus": [{"name": MEMORY, "resources": ["@DEVICES@"]}]} if not index else {}),
            "user": {"linux": {"uid": 1000, "gid": 1000, "supplementalGroups": [1000]}},
            "volumeMounts": container["volumeMounts"],
        }
        for index, container in enumerate(containers)
    ]
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    parts = (
        "command",
        "env",
        "image",
        "imagePullPolicy",
        "name",
        "resources",
        "terminationMessagePath",
        "volumeMounts",
    )
    return {
        "metadata": {
            "name": "@NAME@",
            "generateName": "training-run-",
            "namespace": NAMESPACE,
            "uid": "@UID@",
            "resourceVersion": "@VERSION@",
            "generation": 1,
            "creationTimestamp": _CREATED,
            "labels": {"app": "training-run", "batch.kubernetes.io/job-name": "@NAME@", "team": "r", **wanted.labels},
            "annotations": {"@ANNOTATIONS@": "", **wanted.annotations},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "@NAME@", "uid": "@UID@", "controller": True}
            ],
            "managedFields": [
                _fields(
                    "kube-controller-manager",
                    "metadata/generateName",
                    "metadata/labels/app",
                    "metadata/ownerReferences/.",
                    *(f'spec/containers/k:{{"name":"{one["name"]}"}}/{part}' for one in containers for part in parts),
                    *(f"spec/{name}" for name in ("dnsPolicy", "restartPolicy", "schedulerName", "securityContext")),
                ),
                _fields(
                    "kubelet",
                    *(
                        f'status/conditions/k:{{"type":"{kind}"}}/{name}'
                        for kind in conditions
                        for name in ("lastProbeTime", "lastTransitionTime", "observedGeneration", "status", "type")
                    ),
                    *(f"status/{name}" for name in ("containerStatuses", "hostIPs", "phase", "podIPs", "startTime")),
                ),
            ],
        },
        "spec": {
            "nodeName": "@NODE@",
            "containers": containers,
            "schedulerName": "gpushare-scheduler",
            "serviceAccountName": "default",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "securityContext": {},
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{what}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for what in ("not-ready", "unreachable")
            ],
            "volumes": [
                {
                    "name": "kube-api-access-x7k2p",
                    "projected": {
                        "defaultMode": 420,
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        ],
                    },
                },
                {"name": "data", "emptyDir": {}},
            ],
        },
        "status": {
            "phase": "@PHASE@",
            "message": "@NOTE@",
            "qosClass": "Burstable",
            "hostIP": "10.0.0.1",
            "podIP": "10.244.0.17",
            "podIPs": [{"ip": "10.244.0.17"}],
            "startTime": _CREATED,
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _CREATED}
                for kind in conditions
            ],
            "containerStatuses": statuses,
        },
    }


def _container(index: int, resource: str, amount: int) -> dict[str, Any]:
    wanted = {"cpu": "4", "memory": "16Gi", **({resource: str(amount)} if resource else {})}
    return {
        "name": f"main-{index}",
        "image": "registry.example.com/research/training:2026.11",
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "training", "--config", "/etc/training/config.yaml"],
        "env": [{"name": f"SETTING_{n}", "value": f"http://some-service-{n}.research.svc:8080/"} for n in range(8)],
        "resources": {"limits": wanted, "requests": wanted},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {
                "name": "kube-api-access-x7k2p",
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                "readOnly": True,
                "recursiveReadOnly": "Disabled",
            },
        ],
    }
