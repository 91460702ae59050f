"""ResourceClaims as kube-scheduler 1.36 allocates them, as values and as JSON, and the GPUs that they are about."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpu_device_plugin.features.claims.claimed_gpus import with_claims
from gpu_device_plugin.features.claims.contract import DRIVER, Claim, Consumer, Device, DeviceRequest, device_name
from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.model.contract.node_use import NO_REPORT, NodeReport
from gpu_device_plugin.model.contract.nodegpus import BY_CLAIMS, ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer

UUIDS = tuple(f"GPU-1b2c3d4e-0000-4820-abfc-{number:012x}" for number in range(8))
"""As NVML writes them."""
INSTANCES = tuple(f"MIG-1b2c3d4e-0000-4820-abfc-{number:012x}" for number in range(8))
"""Those of MIG instances, by position."""


def serving(*sizes: int, share_mib: int | None = 1024, unhealthy: Mapping[int, str] | None = None) -> NodeGpus:
    """Return the GPUs of a node that gives them to claims; `sizes` are their shares."""
    return NodeGpus(
        tuple(
            ListedGpu(at, size, UUIDS[at], "NVIDIA H200", size * (share_mib or 1), (unhealthy or {}).get(at, ""))
            for at, size in enumerate(sizes)
        ),
        share_mib=share_mib,
        policy="binpack",
        driver="580.95",
        claims=True,
        problem=BY_CLAIMS,
    )


def with_instances(gpus: NodeGpus, *profiles: str, unhealthy: Iterable[int] = ()) -> NodeGpus:
    """Return GPUs with MIG instances behind them that are handed out whole; `unhealthy` are positions."""
    first = len(gpus.gpus)
    there = tuple(
        ListedGpu(
            at,
            10,
            INSTANCES[at],
            f"NVIDIA H100 MIG {profile}",
            10240,
            "XID 48" if at in unhealthy else "",
            instance=ListedInstance(UUIDS[7], 7, at - first, profile, 7 + at, f"aliyun.com/mig-{profile}"),
        )
        for at, profile in enumerate(profiles, first)
    )
    return replace(gpus, instances=there)


def whole_instance(at: int, node: str = "n1") -> Device:
    """Return a MIG instance that the claim has whole, by its position."""
    return Device("gpu", DRIVER, node, device_name(INSTANCES[at]))


def part(gpu: int, memory_mib: int | None, node: str = "n1", *, admin: bool = False, share_id: str = "s") -> Device:
    """Return a part of the memory of a GPU."""
    name = device_name(UUIDS[gpu])
    return Device("gpu", DRIVER, node, name, share_id, memory_mib, admin=admin)


def whole(gpu: int, node: str = "n1") -> Device:
    """Return a GPU that the claim has alone."""
    return Device("gpu", DRIVER, node, device_name(UUIDS[gpu]))


def claim(
    name: str,
    *devices: Device,
    pods: tuple[str, ...] = (),
    requests: tuple[DeviceRequest, ...] = (),
    allocated: bool | None = None,
    deleting: bool = False,
) -> Claim:
    """Return a claim of the namespace before a slash, else of `default`; pods have the UIDs ``uid-NAME``."""
    namespace, _, own = name.rpartition("/")
    return Claim(
        uid=f"uid-claim-{own}",
        namespace=namespace or "default",
        name=own,
        deleting=deleting,
        requests=requests,
        allocated=bool(devices) if allocated is None else allocated,
        devices=devices,
        consumers=tuple(Consumer(f"uid-{pod}", pod) for pod in pods),
    )


def serving_view(
    name: str, gpus: NodeGpus, *claims: Claim, pods: Iterable[GpuConsumer] = (), report: NodeReport = NO_REPORT
) -> NodeView:
    """Return a node that serves claims, with these; its kubelet knows none of our resources."""
    occupants = tuple(pods)
    there = candidate(name, gpus, [pod.usage for pod in occupants])
    return with_claims(
        NodeView(
            there,
            NodeRecord(name, name, address="10.0.0.8", ready=True),
            occupants,
            report=report,
            features=REPORT,
        ),
        claims,
    )


def claim_json(
    name: str,
    *results: Mapping[str, Any],
    namespace: str = "default",
    pods: tuple[str, ...] = (),
    device_class: str = "gpushare",
    memory: str | None = "4Gi",
    allocated: bool | None = None,
) -> dict[str, Any]:
    """Return a ResourceClaim as the API server shows it; `results` are those of `part_json` and `whole_json`."""
    exactly: dict[str, Any] = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    if memory is not None:
        exactly["capacity"] = {"requests": {"memory": memory}}
    status: dict[str, Any] = {}
    if results or allocated:
        node = results[0]["pool"] if results else "n1"
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        status["allocation"] = {
            "devices": {"results": list(results)},
            "nodeSelector": {"nodeSelectorTerms": terms},
            "allocationTimestamp": "2026-11-20T10:00:00Z",
        }
    if pods:
        status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-claim-{name}",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-20T10:00:00Z",
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": status,
    }


def part_json(gpu: int, memory: str, node: str = "n1") -> dict[str, Any]:
    """Return one result of an allocation: a part of a GPU, with the quantity that was consumed of its memory."""
    return {
        "request": "gpu",
        "driver": DRIVER,
        "pool": node,
        "device": device_name(UUIDS[gpu]),
        "shareID": f"b9cedc78-0000-4000-8000-00000000000{gpu}",
        "consumedCapacity": {"compute": "0", "memory": memory},
    }


def whole_json(gpu: int, node: str = "n1") -> dict[str, Any]:
    """Return one result of an allocation: a whole GPU."""
    return {"request": "gpu", "driver": DRIVER, "pool": node, "device": device_name(UUIDS[gpu])}
