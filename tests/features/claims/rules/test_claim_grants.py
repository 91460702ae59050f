"""What the containers of a claim get, and which claims are refused for their limits."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpu_device_plugin.features.claims.contract import DRIVER, Claim, Device, device_name
from gpu_device_plugin.features.claims.rules.prepared import cdi_spec, device_id, file_name
from gpu_device_plugin.features.claims.rules.preparing import (
    Preparation,
    claim_grant,
    owner_of,
    prepare,
    refuse_limits,
)
from gpu_device_plugin.features.limits.rules.limit_grants import ExtraGrant, LimitPlan, added_for_limits
from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import client_grant
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.admission import RefusalCode
from gpu_device_plugin.node.rules.container_grants import OPTIONAL_NODES, Delivery, Grant, Mount
from gpu_device_plugin.node.rules.node import Node
from tests.claims import NODE, claim, config, device, instance, mig_node, mig_uuid, node, uuid

HERE = node(16, 16)


def preparation(asked: Claim, here: Node = HERE) -> Preparation:
    found = prepare(here, asked, NODE)
    assert isinstance(found, Preparation)
    return found


def granted(
    asked: Claim, limits: LimitPlan | None = None, here: Node = HERE, *, delivery: Delivery | None = None
) -> Grant:
    ready = preparation(asked, here)
    added = added_for_limits(ready.placement, here.shares, limits or LimitPlan(), owner_of(asked, ready))
    return claim_grant(asked, ready, here.shares, delivery or Delivery(), added=added)


def plan(*enforcements: Enforcement, **more: Any) -> LimitPlan:
    return LimitPlan(
        {uuid(n): GpuEnforcement(enforcement, "why") for n, enforcement in enumerate(enforcements)}, **more
    )


def clients(daemons: Mapping[str, MpsGpu], *, compute: bool = False) -> Mapping[Enforcement, Any]:
    return {Enforcement.MPS: partial(client_grant, daemons=daemons, shm="/run/mps/shm", compute=compute)}


def test_a_part_of_a_gpu_comes_with_the_variables_of_a_share() -> None:
    assert granted(claim(device(1, 4))).envs == {
        "NVIDIA_VISIBLE_DEVICES": uuid(1),
        "GPUSHARE_MEMORY_LIMIT_MIB": "4096",
        "GPUSHARE_MEMORY_GUARANTEED_MIB": "4096",
        "GPUSHARE_MEMORY_LIMIT_BY": "advisory",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
    }


def test_a_whole_gpu_comes_without_a_limit() -> None:
    assert granted(claim(device(0, whole=True))).envs == {"NVIDIA_VISIBLE_DEVICES": uuid(0)}


def test_access_beside_others_shows_the_gpu_and_lets_nobody_compute() -> None:
    expected = {"NVIDIA_VISIBLE_DEVICES": uuid(0), "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert granted(claim(device(0, admin=True))).envs == expected


def test_compute_is_a_variable_and_under_mps_a_limit() -> None:
    asked = claim(device(0, 4, compute=30))
    assert granted(asked).envs["GPUSHARE_COMPUTE_LIMIT_PERCENT"] == "30"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in granted(asked).envs
    daemon = {uuid(0): MpsGpu(MpsStatus.READY, pipe_directory="/run/mps/0")}
    under = granted(asked, plan(Enforcement.MPS, Enforcement.MPS, others=clients(daemon, compute=True)))
    assert under.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert under.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert [mount.container_path for mount in under.mounts] == ["/run/mps/0", "/dev/shm"]


def test_frameworks_are_kept_within_the_part() -> None:
    asked = claim(device(0, 4), parameters=(config(frameworks=["jax"]),))
    assert granted(asked).envs["XLA_CLIENT_MEM_FRACTION"].startswith("0.2")


def test_device_nodes_and_cdi_names_are_those_of_the_node() -> None:
    delivery = Delivery(methods=frozenset({"device-specs", "cdi"}))
    made = granted(claim(device(0, 4)), delivery=delivery)
    assert "/dev/nvidiactl" in made.device_nodes
    assert made.cdi_devices == (f"nvidia.com/gpu={uuid(0)}",)
    asked = claim(device(0, 4))
    bare = claim_grant(asked, preparation(asked), HERE.shares, delivery, [])
    assert set(made.device_nodes) - set(bare.device_nodes) == set(OPTIONAL_NODES)


AMD = Gpu(
    "GPU-0123456789ABCDEF",
    0,
    "AMD Instinct MI300X",
    16 * 1024,
    device_paths=("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"),
    driver="amdgpu",
)
AMD_HERE = Node(Shares(1024).with_inventory(Inventory((AMD,))))


def amd_claim(mib: int | None, **more: Any) -> Claim:
    one = Device("gpu", DRIVER, NODE, device_name(AMD.uuid), "share" if mib else "", mib, **more)
    return replace(claim(device(0, 4)), devices=(one,))


@pytest.mark.parametrize("method", ["envvar", "device-specs", "cdi"])
def test_a_gpu_of_another_driver_comes_by_its_device_nodes_however_nvidias_come(method: str) -> None:
    """NVIDIA's runtime is told to add none, and no CDI name of its toolkit is used."""
    delivery = Delivery(methods=frozenset({method}))
    asked = amd_claim(4096)
    part = granted(asked, here=AMD_HERE, delivery=delivery)
    assert part.device_nodes == ("/dev/kfd", "/dev/dri/renderD128")
    assert part.cdi_devices == ()
    assert (part.envs["NVIDIA_VISIBLE_DEVICES"], part.envs["GPUSHARE_MEMORY_LIMIT_MIB"]) == ("void", "4096")
    assert "AMD_VISIBLE_DEVICES" not in part.envs
    (made,) = cdi_spec("u-1", part)["devices"]
    assert made["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/kfd", "permissions": "rw"},
        {"path": "/dev/dri/renderD128", "permissions": "rw"},
    ]
    whole = granted(amd_claim(None), here=AMD_HERE, delivery=delivery)
    assert (whole.envs, whole.device_nodes) == ({"NVIDIA_VISIBLE_DEVICES": "void"}, part.device_nodes)
    with_card = Delivery(methods=frozenset({method, "card"}))
    assert "/dev/dri/card1" in granted(asked, here=AMD_HERE, delivery=with_card).device_nodes


def test_settings_of_mps_are_refused_where_there_is_no_mps() -> None:
    asked = replace(amd_claim(4096), parameters=(config(limits="mps"),))
    refused = refuse_limits(preparation(asked, AMD_HERE), AMD_HERE.shares, Enforcement.ADVISORY)
    assert refused is not None
    assert "require limits of mps, and this node has advisory" in refused.sentence
    percent = granted(replace(amd_claim(4096), parameters=(config(computePercent=30),)), here=AMD_HERE).envs
    assert not any(name.startswith("CUDA_MPS_") for name in percent)


def test_a_custom_library_is_told_the_pod_of_a_claim_of_one_pod() -> None:
    extra = ExtraGrant((("LIMIT", "{limit_mib}"), ("POD", "{pod_uid}")), ())
    limits = plan(Enforcement.CUSTOM, Enforcement.CUSTOM, extra=extra)
    assert granted(claim(device(0, 4)), limits).envs["POD"] == "uid-of-p1"
    assert refusal(claim(device(0, 4)), replace(limits, refuse=True)) == ""
    two = granted(claim(device(0, 4), pods=("p1", "p2")), limits)
    assert two.envs["GPUSHARE_MEMORY_LIMIT_BY"] == "advisory"


def test_a_required_library_that_cannot_be_told_its_pod_is_no_limit() -> None:
    limits = plan(Enforcement.CUSTOM, extra=ExtraGrant((("POD", "{pod_uid}"),), ()))
    parameters = (config(limits="custom"),)
    assert refusal(claim(device(0, 4), parameters=parameters), limits) == ""
    two = refusal(claim(device(0, 4), pods=("p1", "p2"), parameters=parameters), limits)
    assert "require limits of custom, and this node has advisory" in two


def refusal(asked: Claim, limits: LimitPlan, here: Node = HERE) -> str:
    found = refuse_limits(preparation(asked, here), here.shares, granted(asked, limits, here).enforcement)
    assert found is None or found.code is RefusalCode.NO_LIMIT
    return "" if found is None else found.sentence


@pytest.mark.parametrize(
    ("least", "enforcements", "refused"),
    [
        ("driver", (Enforcement.DRIVER, Enforcement.DRIVER), False),
        ("driver", (Enforcement.DRIVER, Enforcement.MPS), True),
        ("driver", (Enforcement.ADVISORY, Enforcement.DRIVER), True),
        ("mps", (Enforcement.DRIVER, Enforcement.MPS), False),
        ("advisory", (), False),
        ("custom", (), True),
    ],
)
def test_a_claim_gets_the_limits_that_it_requires_or_is_refused(
    least: str, enforcements: tuple[Enforcement, ...], *, refused: bool
) -> None:
    asked = claim(device(0, 4), device(1, 4), parameters=(config(limits=least),))
    sentence = refusal(asked, plan(*enforcements, others={Enforcement.MPS: lambda _: Grant()}))
    assert bool(sentence) is refused
    assert not refused or sentence.startswith(f"GPU 0, GPU 1: the parameters of the claim require limits of {least}")


# --- MIG instances ----------------------------------------------------------------------------------------------------

SHARED = mig_node([10, 20])
ADVISORY = LimitPlan({mig_uuid(0, number): GpuEnforcement(Enforcement.ADVISORY, "why") for number in range(2)})


def test_whole_instances_come_with_their_uuids_and_the_nodes_that_open_them() -> None:
    asked = claim(instance(0, 0, whole=True), instance(1, 0, whole=True))
    by_path = Delivery(methods=frozenset({"device-specs"}))
    made = granted(asked, here=mig_node([10, 20], [10], mode=MigMode.WHOLE), delivery=by_path)
    assert made.envs == {
        "NVIDIA_VISIBLE_DEVICES": f"{mig_uuid(0, 0)},{mig_uuid(1, 0)}",
        "GPUSHARE_MEMORY_LIMIT_BY": "partition",
    }
    caps = [path for path in made.device_nodes if "caps" in path or path[-1].isdigit()]
    assert caps == [
        *("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"),
        *("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap101", "/dev/nvidia-caps/nvidia-cap102"),
    ]


@pytest.mark.parametrize(("gib", "by"), [(9, "advisory"), (10, "partition")])
def test_all_of_an_instance_is_held_by_hardware_and_a_part_is_not(gib: int, by: str) -> None:
    envs = granted(claim(instance(0, 0, gib)), ADVISORY, SHARED).envs
    assert envs["NVIDIA_VISIBLE_DEVICES"] == mig_uuid(0, 0)
    assert envs["GPUSHARE_MEMORY_LIMIT_BY"] == by
    assert envs["GPUSHARE_MEMORY_LIMIT_MIB"] == str(gib * 1024)


@pytest.mark.parametrize(("gib", "refused"), [(9, True), (10, False)])
def test_all_of_an_instance_meets_every_wish_for_limits(gib: int, *, refused: bool) -> None:
    asked = claim(instance(0, 0, gib), parameters=(config(limits="driver"),))
    sentence = refusal(asked, ADVISORY, SHARED)
    assert bool(sentence) is refused
    assert not refused or sentence.startswith("GPU 0 (MIG 1g.10gb): the parameters of the claim require")
    assert refusal(claim(instance(0, 0, whole=True), parameters=(config(limits="driver"),)), ADVISORY, SHARED) == ""


def test_variables_device_nodes_and_mounts_are_one_device_of_the_claim() -> None:
    grant = Grant(
        {"B": "2", "A": "1"},
        ("/dev/nvidia0",),
        mounts=(Mount("/run/x", "/dev/shm", read_only=False), Mount("/lib/y", "/y")),
    )
    assert cdi_spec("u-1", grant) == {
        "cdiVersion": "0.5.0",
        "kind": "gpu-device-plugin/claim",
        "devices": [
            {
                "name": "u-1",
                "containerEdits": {
                    "env": ["A=1", "B=2"],
                    "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}],
                    "mounts": [
                        {
                            "hostPath": "/run/x",
                            "containerPath": "/dev/shm",
                            "options": ["rw", "nosuid", "nodev", "rbind"],
                        },
                        {"hostPath": "/lib/y", "containerPath": "/y", "options": ["ro", "nosuid", "nodev", "rbind"]},
                    ],
                },
            }
        ],
    }
    assert cdi_spec("u-1", Grant({"A": "1"}))["devices"][0]["containerEdits"] == {"env": ["A=1"]}


def test_names_lead_from_the_claim_to_its_device_and_file() -> None:
    assert device_id("u-1") == "gpu-device-plugin/claim=u-1"
    assert file_name("u-1") == "gpu-device-plugin-claim_u-1.json"


def test_a_claim_with_a_limit_is_limited_to_that_and_knows_what_it_is_guaranteed() -> None:
    """As containers with the annotation; under the driver's limits the soft one is the amount that was allocated."""
    asked = claim(device(0, 4), parameters=(config(memoryLimit="12Gi"),))
    envs = granted(asked).envs
    assert (envs["GPUSHARE_MEMORY_LIMIT_MIB"], envs["GPUSHARE_MEMORY_GUARANTEED_MIB"]) == ("12288", "4096")
    assert envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "4"
    by_driver = granted(asked, plan(Enforcement.DRIVER, soft_is_share=True)).envs
    assert by_driver["NVIDIA_GPU_MEMORY_LIMIT"] == "12288"
    assert by_driver["NVIDIA_GPU_MEMORY_REQUEST"] == "4096"
    daemon = {uuid(0): MpsGpu(MpsStatus.READY, pipe_directory="/run/mps/0")}
    assert (
        granted(asked, plan(Enforcement.MPS, others=clients(daemon))).envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
        == "0=12288M"
    )
    extra = ExtraGrant((("LIMIT", "{limit_mib}m"), ("SURE", "{guaranteed_mib}m")))
    by_library = granted(asked, plan(Enforcement.CUSTOM, extra=extra)).envs
    assert (by_library["LIMIT"], by_library["SURE"]) == ("12288m", "4096m")
