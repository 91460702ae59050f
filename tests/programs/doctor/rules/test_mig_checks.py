"""What the doctor finds on a node with GPUs in MIG mode and their instances."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.programs.doctor.rules.symptoms import AgentSeen, ApiSeen, NodeSeen, NodeSymptoms
from gpu_device_plugin.report.rules.finding import Unknown
from tests.findings import told
from tests.mig_gpus import LARGE, MIDDLE, SMALL, in_mig_mode
from tests.names import COUNT, MEM
from tests.programs.doctor.rules.test_node_checks import changed
from tests.reporting import NODE_CHECKS as CHECKS
from tests.resources import RESOURCES

T4 = Gpu("GPU-t", 1, "Tesla T4", 15_360, device_paths=("/dev/nvidia1",), memory_limits=True)
PARTED = in_mig_mode(0, SMALL, SMALL, MIDDLE)
BOTH = Inventory((*PARTED, T4), driver_version="615.71.09", cgroup=2)
ONLY = replace(BOTH, gpus=PARTED)
SMALL_ONES = "nvidia.com/mig-1g.10gb"
HIDDEN = Unknown("hidden", "hidden")
FOUND_CDI = frozenset({"nvidia.com/gpu=GPU-t", *(f"nvidia.com/gpu=MIG-m{n}" for n in range(3))})


def node(inventory: Inventory, labels: Mapping[str, str] | None = None, **changes: Any) -> NodeSymptoms:
    known: dict[str, Any] = {
        "resources": RESOURCES,
        "toolkit": "1.20.1",
        "node_name": "a",
        "api": ApiSeen("https://10.96.0.1:443", node=NodeSeen(name="node-a", labels=labels or {})),
    }
    return changed(NodeSymptoms(settings=NODE_SETTINGS(), resources=(), inventory=inventory), {**known, **changes})


def with_gpus(*gpus: Gpu, **changes: Any) -> NodeSymptoms:
    return node(replace(BOTH, gpus=gpus), **changes)


def label(mode: str) -> dict[str, str]:
    return {"gpu-device-plugin/mig": mode}


THREE = "0:0 1g.10gb, 0:1 1g.10gb, 0:2 2g.20gb"
BY_SETTING, BY_LABEL = "source=setting mig", "source=node label gpu-device-plugin/mig"
SPLIT = in_mig_mode(0, ("1c.2g.20gb", 19_968), alone=False)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (with_gpus(T4), []),
        (node(BOTH), [f"note mig-off gpu=GPU 0 (GPU-m) instances={THREE} node=a"]),
        (node(BOTH, node_name=""), [f"note mig-off gpu=GPU 0 (GPU-m) instances={THREE} node=NODE"]),
        (node(BOTH, mig="whole"), [f"ok mig gpu=GPU 0 (GPU-m) instances={THREE} {BY_SETTING} mode=whole"]),
        (node(BOTH, mig="share"), [f"ok mig gpu=GPU 0 (GPU-m) instances={THREE} {BY_SETTING} mode=share"]),
        (node(BOTH, label("share")), [f"ok mig gpu=GPU 0 (GPU-m) instances={THREE} {BY_LABEL} mode=share"]),
        (node(BOTH, mig="share", api=HIDDEN), [f"ok mig gpu=GPU 0 (GPU-m) instances={THREE} {BY_SETTING} mode=share"]),
        (
            node(BOTH, label("mixed"), mig="whole"),
            [
                "warning mig-label-ignored label=gpu-device-plugin/mig=mixed",
                f"ok mig gpu=GPU 0 (GPU-m) instances={THREE} {BY_SETTING} mode=whole",
            ],
        ),
        (with_gpus(*in_mig_mode(3), mig="whole"), ["warning no-mig-instance gpu=GPU 3 (GPU-m)"]),
        (
            with_gpus(*in_mig_mode(0), mig_present={"GPU-m": 7}),
            ["warning mig-instances-hidden gpu=GPU 0 (GPU-m) instances=7"],
        ),
        (with_gpus(*SPLIT, mig="whole"), ["note compute-instance gpu=MIG instance 0:0 (MIG-m0)"]),
        (
            with_gpus(*in_mig_mode(0, LARGE), mig="share"),
            [f"ok mig gpu=GPU 0 (GPU-m) instances=0:0 3g.40gb {BY_SETTING} mode=share"],
        ),
    ],
)
def test_instances_and_how_pods_get_them(seen: NodeSymptoms, expected: list[str]) -> None:
    assert told(CHECKS["MIG"](seen), "gpu instances source mode label node") == expected


@pytest.mark.parametrize(
    ("check", "seen", "expected"),
    [
        ("driver", node(BOTH), ["ok driver gpus=1 x NVIDIA H100 80GB HBM3, 1 x Tesla T4"]),
        ("GPUs", node(BOTH), ["ok gpus-healthy gpus=2 instances=3"]),
        ("GPUs", node(BOTH, unhealthy={"MIG-m1": "XID 94"}), ["error gpu-unhealthy gpu=MIG instance 0:1 (MIG-m1)"]),
        # 15 shares of the T4; 9, 9 and 19 of the instances.
        ("shares", node(BOTH, mig="share"), ["ok shares gpus=1 GPU and 3 MIG instances shares=52"]),
        ("shares", node(BOTH, mig="whole"), ["ok shares gpus=1 GPU shares=15", "ok whole-instances instances=3"]),
        ("shares", node(ONLY, mig="whole"), ["ok whole-instances instances=3"]),
        ("shares", node(BOTH), ["ok shares gpus=1 GPU shares=15"]),
        (
            "shares",
            node(BOTH, mig="share", exclude_gpus=("0:1",)),
            ["note gpu-left-out gpu=MIG instance 0:1 (MIG-m1)", "ok shares gpus=1 GPU and 2 MIG instances shares=43"],
        ),
        (
            "shares",
            node(BOTH, mig="share", exclude_gpus=("GPU-m",)),
            ["note gpu-left-out gpu=GPU 0 (GPU-m)", "ok shares gpus=1 GPU shares=15"],
        ),
        ("shares", node(ONLY), ["error no-gpu-shared"]),
        (
            "CDI",
            node(BOTH, mig="whole", devices=("cdi",), cdi_devices=FOUND_CDI, runtimes=HIDDEN),
            ["ok cdi devices=4"],
        ),
        (
            "CDI",
            node(
                ONLY, mig="whole", devices=("cdi",), cdi_devices=FOUND_CDI - {"nvidia.com/gpu=MIG-m2"}, runtimes=HIDDEN
            ),
            ["error cdi-devices-missing devices=nvidia.com/gpu=MIG-m2"],
        ),
        ("memory limits", node(ONLY, mig="whole"), ["ok limits"]),
        ("memory limits", node(BOTH, mig="whole"), ["ok limits"]),
        # Nobody is advised to use MPS on instances.
        ("memory limits", node(ONLY, mig="share"), ["note limits-advisory-mig"]),
        ("memory limits", with_gpus(*PARTED, replace(T4, memory_limits=False), mig="share"), ["note limits-advisory"]),
        # A container on a whole GPU keeps the driver's limit beside instances.
        ("memory limits", node(BOTH, mig="whole", with_driver_limits=("u/main",)), ["ok limits"]),
        (
            "memory limits",
            node(ONLY, mig="whole", with_driver_limits=("u/main",)),
            ["ok limits", "warning containers-will-not-restart"],
        ),
        (
            "allocatable",
            node(
                BOTH,
                mig="whole",
                resources=(replace(RESOURCES[0], name=SMALL_ONES, kind=Kind.INSTANCE, profile="1g.10gb"),),
                api=ApiSeen("https://10.96.0.1:443", node=NodeSeen(name="node-a", allocatable={SMALL_ONES: 0})),
            ),
            [f"note all-in-use resource={SMALL_ONES}"],
        ),
    ],
)
def test_what_the_other_checks_find_of_instances(check: str, seen: NodeSymptoms, expected: list[str]) -> None:
    assert told(CHECKS[check](seen), "gpu gpus instances shares devices resource") == expected


def listed(position: int, number: int, shares: int, resource: str = "") -> ListedGpu:
    place = ListedInstance("GPU-m", 0, number, "1g.10gb", 7 + number, resource)
    return ListedGpu(position, shares, f"MIG-m{number}", instance=place)


SHARED = NodeGpus((ListedGpu(0, 15), listed(1, 0, 9)), share_mib=1024)
WHOLE = NodeGpus((ListedGpu(0, 15),), instances=(listed(1, 0, 9, SMALL_ONES), listed(2, 1, 9, SMALL_ONES)))
CHANGED = NodeGpus((ListedGpu(0, 15),), instances=(listed(1, 0, 9, SMALL_ONES),), gone=(listed(2, 1, 9),))


@pytest.mark.parametrize(
    ("gpus", "capacity", "expected"),
    [
        (SHARED, {MEM: 24, COUNT: 1}, "ok capacity"),
        (SHARED, {MEM: 24, COUNT: 2}, f"warning capacity-differs resource={COUNT} kubelet=2 agent=1"),
        (WHOLE, {MEM: 15, COUNT: 1, SMALL_ONES: 2}, "ok capacity"),
        (
            WHOLE,
            {MEM: 15, COUNT: 1, SMALL_ONES: 1},
            f"warning capacity-differs resource={SMALL_ONES} kubelet=1 agent=2",
        ),
        # Devices of instances that were shared before may stay in the capacity.
        (CHANGED, {MEM: 33, COUNT: 1, SMALL_ONES: 1}, "ok capacity"),
        (CHANGED, {MEM: 34, COUNT: 1, SMALL_ONES: 1}, f"warning capacity-differs resource={MEM} kubelet=34 agent=15"),
    ],
)
def test_the_kubelets_amounts_of_a_node_with_instances(
    gpus: NodeGpus, capacity: Mapping[str, int], expected: str
) -> None:
    seen = node(
        BOTH, api=ApiSeen("here", node=NodeSeen(name="node-a", capacity=capacity, gpus=gpus)), agent=AgentSeen("here")
    )
    assert told(CHECKS["capacity"](seen), "resource kubelet agent") == [expected]
