"""The kubelet's checkpoint, as a reader sees it that is not the kubelet."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse, DeviceSpec, Mount
from gpu_device_plugin.kubelet.checkpoint import Checkpoint, CheckpointUnreadableError, read, stamp_of
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.variables import LIMITS
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.testing.kubelet import kubelet_files
from tests.names import COUNT, MEM, OURS


def as_text(content: bytes) -> str:
    """Return the text of bytes in the file, as Go writes them."""
    return base64.b64encode(content).decode()


def written(path: Path, *entries: dict[str, Any], registered: dict[str, list[str]] | None = None) -> Path:
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 1}))
    return path


def entry(device_ids: Any, resource: str = MEM) -> dict[str, Any]:
    return {"PodUID": "p", "ContainerName": "c", "ResourceName": resource, "DeviceIDs": device_ids, "AllocResp": ""}


def test_ids_are_read_from_every_numa_node(tmp_path: Path) -> None:
    path = written(tmp_path / "c", entry({"-1": ["a"], "0": ["b", "c"]}), registered={MEM: ["a", "d"], COUNT: []})
    found = read(path, OURS)
    assert found.allocations == (Allocation("p", "c", Kind.MEMORY, frozenset("abc"), through=MEM),)
    assert found.registered == {MEM, COUNT}
    assert found.stamp == stamp_of(path)


def test_what_the_double_writes_is_read(tmp_path: Path) -> None:
    """Nothing held is `null` there, as in Go."""
    path = tmp_path / "c"
    kubelet_files.write_checkpoint(path, [], {MEM: []})
    assert read(path, OURS).allocations == ()
    held = kubelet_files.Grant("p", "c", MEM, {-1: ("a",)}, ContainerAllocateResponse())
    kubelet_files.write_checkpoint(path, [held], {MEM: ["a"]})
    assert read(path, OURS).by_pod() == {"p": {"a"}}


def test_the_devices_of_a_pod_are_those_of_all_its_containers_and_of_our_resources(tmp_path: Path) -> None:
    other, theirs = entry({"-1": ["d"]}) | {"PodUID": "q"}, entry({"-1": ["x"]}, "x/y")
    instance = entry({"-1": ["MIG-0"]}, "aliyun.com/mig-1g.10gb")
    ours = entry({"-1": ["a"]}), entry({"-1": ["b"]}), entry({"-1": ["g"]}, COUNT), instance
    found = read(written(tmp_path / "c", *ours, theirs, other), OURS)
    assert found.by_pod() == {"p": {"a", "b", "g", "MIG-0"}, "q": {"d"}}
    assert found.by_pod({Kind.COUNT}) == {"p": {"g"}}
    assert [allocation.kind for allocation in found.allocations] == [
        *[Kind.MEMORY] * 2,
        Kind.COUNT,
        Kind.INSTANCE,
        None,
        Kind.MEMORY,
    ]


@pytest.mark.parametrize("nothing", [{"-1": None}, {}, None, []])
def test_a_record_without_devices_is_one(tmp_path: Path, nothing: Any) -> None:
    assert read(written(tmp_path / "c", entry(nothing)), OURS).allocations[0].device_ids == frozenset()


# --- GPUs in the answers of other plugins -----------------------------------------------------------------------------

GPU = "GPU-1b2c3d4e-0000-4000-8000-123456789abc"
RDMA = ContainerAllocateResponse(
    envs={"RDMA_DEVICES": "mlx5_0"}, devices=[DeviceSpec(host_path="/dev/infiniband/rdma_cm")]
)


@pytest.mark.parametrize(
    ("answer", "gpus"),
    [
        (ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": f"{GPU},x"}), {GPU}),
        (ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_MEMORY_LIMIT_0": "4g"}), set()),
        (ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join([GPU] * 8)}), {GPU}),
        (ContainerAllocateResponse(devices=[DeviceSpec(host_path="/dev/nvidia3")]), set()),
        (
            ContainerAllocateResponse(
                devices=[DeviceSpec(host_path="/dev/kfd"), DeviceSpec(host_path="/dev/dri/renderD128")]
            ),
            set(),
        ),
        (ContainerAllocateResponse(devices=[DeviceSpec(host_path="/dev/dri/renderD128")]), None),
        (ContainerAllocateResponse(cdi_devices=[CDIDevice(name=f"nvidia.com/gpu={GPU}")]), {GPU}),
        (ContainerAllocateResponse(annotations={"cdi.k8s.io/x": f"nvidia.com/gpu={GPU}"}), {GPU}),
        (ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "void"}), None),
        (ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "none"}), None),
        (ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ""}), None),
        (ContainerAllocateResponse(devices=[DeviceSpec(host_path="/dev/nvidiactl")]), None),
        (RDMA, None),
        # Of an agent of ours, when its resources had other names.
        (ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": GPU, "ALIYUN_COM_GPU_MEM_IDX": "0"}), None),
    ],
)
def test_a_plugin_that_gave_gpus_is_known_by_its_answer(
    tmp_path: Path, answer: ContainerAllocateResponse, gpus: set[str] | None
) -> None:
    given = entry({"-1": ["7"]}, "x/y") | {"AllocResp": as_text(answer.SerializeToString())}
    ours = given | {"ResourceName": MEM}
    theirs, own = read(written(tmp_path / "c", given, ours), OURS).allocations
    assert (theirs.gpus, own.gpus) == (gpus, None)


# --- The means of limiting in the answer that the container got -------------------------------------------------------

KEY = b"\n%c%s\x12" % (len(LIMITS), LIMITS.encode())
"""The beginning of its entry in the answer."""
DRIVER_PAIR = {"NVIDIA_GPU_MEMORY_REQUEST": "0", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}


@pytest.mark.parametrize(
    ("envs", "enforcement"),
    [
        *(({LIMITS: enforcement}, enforcement) for enforcement in Enforcement),
        ({LIMITS: "mps", **DRIVER_PAIR}, Enforcement.MPS),
        (DRIVER_PAIR, Enforcement.DRIVER),
        ({"GPUSHARE_MEMORY_LIMIT_MIB": "4096"}, None),
        ({LIMITS: "of a newer agent", **DRIVER_PAIR}, None),
        ({LIMITS: "drivers"}, None),
        ({LIMITS: ""}, None),
        ({f"{LIMITS}_TOO": "driver"}, None),
        ({"OTHER": LIMITS}, None),
        ({}, None),
    ],
)
def test_the_means_of_limiting_is_read_from_the_answer(
    tmp_path: Path, envs: dict[str, str], enforcement: Enforcement | None
) -> None:
    """Wherever it stands among the variables; an older agent does not name it. Nothing else of the answer is kept."""
    around = {"A": "x" * 200, **envs, "Z": "secret" * 300}
    response = ContainerAllocateResponse(envs=around, mounts=[Mount(container_path="/a", host_path="/b")])
    held = kubelet_files.Grant("p", "c", MEM, {-1: ("a",)}, response)
    kubelet_files.write_checkpoint(tmp_path / "c", [held], {MEM: ["a"]})
    (found,) = read(tmp_path / "c", OURS).allocations
    assert found.enforcement == enforcement
    assert found == Allocation("p", "c", Kind.MEMORY, frozenset("a"), through=MEM, enforcement=enforcement)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(("told", "limit_mib"), [("12288", 12288), ("", None), ("much", None)])
def test_the_limit_that_a_container_was_told_is_read(tmp_path: Path, told: str, limit_mib: int | None) -> None:
    response = ContainerAllocateResponse(envs={"GPUSHARE_MEMORY_LIMIT_MIB": told, LIMITS: "mps"})
    held = kubelet_files.Grant("p", "c", MEM, {-1: ("a",)}, response)
    kubelet_files.write_checkpoint(tmp_path / "c", [held], {MEM: ["a"]})
    (found,) = read(tmp_path / "c", OURS).allocations
    assert (found.limit_mib, found.enforcement) == (limit_mib, Enforcement.MPS)


@pytest.mark.parametrize(("granted_to", "misdirected"), [("p/c", False), ("", False), ("q/c", True), ("p/d", True)])
def test_for_whom_an_answer_was_made_is_read(tmp_path: Path, granted_to: str, *, misdirected: bool) -> None:
    notes = {"gpu-device-plugin/granted-to": granted_to} if granted_to else {}
    response = ContainerAllocateResponse(envs={LIMITS: "advisory"}, annotations=notes)
    kubelet_files.write_checkpoint(
        tmp_path / "c", [kubelet_files.Grant("p", "c", MEM, {-1: ("a",)}, response)], {MEM: ["a"]}
    )
    (found,) = read(tmp_path / "c", OURS).allocations
    assert (found.granted_to, found.misdirected) == (granted_to, misdirected)


@given(content=st.binary(max_size=60), before=st.binary(max_size=9))
@example(b"", KEY)
@example(b"\xff", KEY)
@example(b"\x06driver", KEY)
def test_a_damaged_answer_is_no_damaged_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, before: bytes
) -> None:
    """The devices count all the same. It names one of the known means, or none."""
    path = written(tmp_path_factory.mktemp("c") / "c", entry({"-1": ["a"]}) | {"AllocResp": as_text(before + content)})
    (found,) = read(path, OURS).allocations
    assert found.device_ids == {"a"}
    assert found.enforcement in {None, *Enforcement}


@pytest.mark.parametrize("answer", ["x", "\N{SNOWMAN}", None, 7, ["a"], {}])
def test_an_answer_that_is_no_answer_names_no_means(tmp_path: Path, answer: Any) -> None:
    (found,) = read(written(tmp_path / "c", entry({"-1": ["a"]}) | {"AllocResp": answer}), OURS).allocations
    assert found.device_ids == {"a"}
    assert found.enforcement is None


def test_a_missing_file_is_an_empty_one(tmp_path: Path) -> None:
    """So it is on a new node; the kubelet writes it with the first list of devices."""
    assert read(tmp_path / "c", OURS) == Checkpoint()
    assert stamp_of(tmp_path / "c") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"{}",
        b'{"Data": null}',
        b'{"Data": {"PodDeviceEntries": {"a": 1}}}',
        b'{"Data": {"PodDeviceEntries": [{"PodUID": "p"}]}}',
        b'{"Data": {"PodDeviceEntries": [7]}}',
        b'{"Data": {"PodDeviceEntries": [{"DeviceIDs": {"-1": [["a"]]}}]}}',
        b'{"Data": {"PodDeviceEntries": [{"PodUID":"p","ContainerName":"c","ResourceName":"r","DeviceIDs":["a"]}]}}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":[1]}}]}}',
        b'{"Data": {"PodDeviceEntries": [{"PodUID":"p","ContainerName":"c","ResourceName":"r","DeviceIDs":3}]}}',
        b"[" * 100_000,
        b'{"Data": {"PodDeviceEntries": [',
    ],
)
def test_a_damaged_file_is_never_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(CheckpointUnreadableError, match=r"/c is damaged .* the kubelet rewrites it"):
        read(tmp_path / "c", OURS)


def test_a_file_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointUnreadableError, match=r"reading .*/file/c: Not a directory$"):
        read(tmp_path / "file" / "c", OURS)


@pytest.mark.parametrize("kind", ["a pipe", "a link to a checkpoint"])
def test_what_is_not_the_kubelets_own_file_holds_nobody_up_and_is_not_believed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c"
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(written(tmp_path / "another", entry({"-1": ["a"]})))
    with pytest.raises(CheckpointUnreadableError, match=r"/c is not the kubelet's checkpoint: .*; remove it and rest"):
        read(path, OURS)


def test_a_file_that_could_fill_our_memory_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "c").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointUnreadableError, match="it has more than 67108864 bytes"):
        read(tmp_path / "c", OURS)


def test_a_file_that_cannot_be_looked_at_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointUnreadableError, match=r"looking at .*file/c: Not a directory"):
        stamp_of(tmp_path / "file" / "c")
