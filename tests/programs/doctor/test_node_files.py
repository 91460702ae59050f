"""What the files of a node say, on machines put together for the test: of runtimes, the toolkit and memory limits."""

import json
import time
from pathlib import Path

import pytest

from gpu_device_plugin.features.limits.contract import LIMIT_FILES, LimitsState
from gpu_device_plugin.features.limits.node import dmem_facts
from gpu_device_plugin.features.limits.rules import running_limits
from gpu_device_plugin.features.limits.rules.dmem_limits import NOT_THERE as NO_LIMIT_HELPER
from gpu_device_plugin.features.limits.rules.enforcement import NO_DIRECTORY, Facts
from gpu_device_plugin.features.mps.contract import MPS_FILES, STATE_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import NOT_THERE, SILENT
from gpu_device_plugin.kubelet import checkpoint
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.programs.doctor.doctor_program import checkpoint_read, with_driver_limits
from gpu_device_plugin.programs.doctor.node_reading import (
    cdi_devices,
    cgroup,
    mps_state,
    obeys_images,
    runtimes,
    toolkit,
)
from gpu_device_plugin.programs.doctor.rules.symptoms import Runtime
from gpu_device_plugin.report.rules.finding import Unknown
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.testing.kubelet.kubelet_files import Grant, write_checkpoint
from tests.names import COUNT, MEM

CONTAINERD_1 = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "nvidia"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-cdi.options]
      BinaryName = "/usr/bin/nvidia-container-runtime.cdi"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
"""
CONTAINERD_2 = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
  BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
"""
CRI_O = """
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
"""
DOCKER = """{
  "default-runtime": "nvidia", "features": {"cdi": true},
  "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}, "odd": 1}
}"""


def put(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("etc/containerd/config.toml", CONTAINERD_1, ("containerd", ("nvidia", "nvidia-cdi"), True, True)),
        (
            "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            CONTAINERD_2,
            ("containerd", ("nvidia",), False, True),
        ),
        ("etc/containerd/config.toml", "version = 2", ("containerd", (), False, False)),
        ("etc/crio/crio.conf.d/99-nvidia.conf", CRI_O, ("CRI-O", ("nvidia",), False, True)),
        ("etc/docker/daemon.json", DOCKER, ("Docker", ("nvidia",), True, True)),
        ("etc/docker/daemon.json", "{}", ("Docker", (), False, False)),
    ],
)
def test_a_runtime_is_known_by_its_file(
    tmp_path: Path, name: str, text: str, found: tuple[str, tuple[str, ...], bool, bool]
) -> None:
    path = put(tmp_path, name, text)
    engine, handlers, default, cdi = found
    assert runtimes(tmp_path) == (Runtime(engine, str(path), handlers, default, cdi),)


@pytest.mark.parametrize("text", ["not = [toml", "\udce4", '["a list"]', "plugins = 3", ""])
def test_a_file_that_makes_no_sense_names_no_runtime(tmp_path: Path, text: str) -> None:
    for name in ("etc/containerd/config.toml", "etc/docker/daemon.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert [
        runtime.handlers for engine in ("containerd", "docker") for runtime in runtimes(tmp_path, f"{engine}://1")
    ] == [
        (),
        (),
    ]


def test_a_machine_without_any_is_told_as_such(tmp_path: Path) -> None:
    assert runtimes(tmp_path) == ()
    assert cdi_devices(tmp_path) == frozenset()
    assert toolkit(tmp_path, run=True) == ""
    assert isinstance(obeys_images(tmp_path), Unknown)
    assert isinstance(cgroup(tmp_path), Unknown)


def test_cdi_devices_of_all_files_are_named_in_full(tmp_path: Path) -> None:
    put(tmp_path, "etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: GPU-a\n- name: '0'\n")
    put(tmp_path, "var/run/cdi/x.json", '{"kind": "vendor.com/x", "devices": [{"name": "all"}, 7]}')
    put(tmp_path, "etc/cdi/broken.yaml", "kind: [")
    put(tmp_path, "etc/cdi/empty.json", "[]")
    put(tmp_path, "etc/cdi/odd.yaml", "kind: a/b\ndevices: 7")
    assert cdi_devices(tmp_path) == {"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=0", "vendor.com/x=all"}


def test_the_toolkit_heeds_images_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    name = "etc/nvidia-container-runtime/config.toml"
    put(tmp_path, name, "")
    assert obeys_images(tmp_path) is True
    put(tmp_path, name, "accept-nvidia-visible-devices-envvar-when-unprivileged = false")
    assert obeys_images(tmp_path) is False


def test_the_version_of_the_toolkit_by_the_list_of_packages(tmp_path: Path) -> None:
    put(
        tmp_path,
        "var/lib/dpkg/status",
        "Package: libc6\nVersion: 2.36\n\nPackage: nvidia-container-toolkit-base\nStatus: install ok installed\n"
        "Version: 1.17.8-1\n",
    )
    assert toolkit(tmp_path, run=False) == "1.17.8"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo NVIDIA Container Toolkit CLI version 1.20.1", "1.20.1"),
        ("echo something", "prints no version"),
    ],
)
def test_the_version_of_the_toolkit_by_itself(tmp_path: Path, script: str, told: str) -> None:
    program = put(tmp_path, "usr/bin/nvidia-ctk", f"#!/bin/sh\n{script}\n")
    unseen = toolkit(tmp_path, run=False)
    assert isinstance(unseen, Unknown)
    program.chmod(0o644)
    assert isinstance(toolkit(tmp_path, run=True), Unknown), "nobody may run it"
    program.chmod(0o755)
    found = toolkit(tmp_path, run=True)
    assert told in str(found)


def test_control_groups_are_told_apart_by_what_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    assert cgroup(tmp_path) == 1
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu memory")
    assert cgroup(tmp_path) == 2


# --- Memory limits ----------------------------------------------------------------------------------------------------

READY = {"GPU-a": MpsGpu(MpsStatus.READY, pipe_directory="/run/x/a")}


@pytest.mark.parametrize(("age_s", "found"), [(0.0, READY), (3600.0, SILENT), (-3600.0, SILENT)])
def test_daemons_are_those_of_a_supervisor_that_still_writes(
    tmp_path: Path, age_s: float, found: dict[str, MpsGpu] | str
) -> None:
    """The time of another boot may be ahead."""
    beat_s = time.clock_gettime(time.CLOCK_BOOTTIME) - age_s
    (tmp_path / STATE_FILE).write_text(MPS_FILES.write_state(READY, beat_s))
    assert mps_state(tmp_path)[0] == found


def test_a_node_without_a_supervisor_or_with_a_damaged_file_says_so(tmp_path: Path) -> None:
    assert mps_state(tmp_path / "missing") == mps_state(tmp_path) == (NOT_THERE, ())
    (tmp_path / STATE_FILE).write_bytes(b"\xff{")
    assert str(mps_state(tmp_path)[0]).startswith("state.json cannot be parsed: ")
    (tmp_path / STATE_FILE).unlink()
    (tmp_path / STATE_FILE).mkdir()
    assert str(mps_state(tmp_path)[0]).startswith(f"{tmp_path / STATE_FILE} cannot be read: ")


def entry(pod: str, container: str, resource: str, **envs: str) -> Grant:
    return Grant(pod, container, resource, {-1: (f"{pod}-{container}",)}, ContainerAllocateResponse(envs=envs))


def test_containers_that_carry_the_pair_are_those_of_the_kubelets_record(tmp_path: Path) -> None:
    pair = {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "4096"}
    entries = [
        entry("b", "main", MEM, **pair),
        entry("a", "side", MEM, **pair),
        entry("a", "main", MEM, OTHER="1"),
        entry("a", "other", COUNT, **pair),
    ]
    write_checkpoint(tmp_path / checkpoint.NAME, entries, {})
    allocations, problem = checkpoint_read(NodeSettings(device_plugin_dir=tmp_path))
    assert (with_driver_limits(allocations), problem) == (("a/side", "b/main"), "")


@pytest.mark.parametrize(
    "content",
    [None, "", "[]", "{}", '{"Data": 1}', '{"Data": {"PodDeviceEntries": [1]}}']
    + [json.dumps({"Data": {"PodDeviceEntries": [{"ResourceName": MEM, "AllocResp": resp}]}}) for resp in ("/w==", 5)],
)
def test_of_an_unreadable_record_nothing_is_said(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / checkpoint.NAME).write_text(content)
    allocations, problem = checkpoint_read(NodeSettings(device_plugin_dir=tmp_path))
    assert (allocations, bool(problem)) == ((), content is not None)


LEFT = {"GPU-b": MpsGpu(MpsStatus.FAILED), "GPU-a": MpsGpu(MpsStatus.READY), "GPU-c": MpsGpu(MpsStatus.STOPPED)}


def test_a_supervisor_that_no_longer_runs_leaves_the_gpus_that_it_did_not_give_back(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text(MPS_FILES.write_state(LEFT, 0.0))
    assert mps_state(tmp_path) == (SILENT, ("GPU-a", "GPU-b"))
    (tmp_path / STATE_FILE).write_text(MPS_FILES.write_state(LEFT, time.clock_gettime(time.CLOCK_BOOTTIME)))
    assert mps_state(tmp_path) == (LEFT, ()), "it runs, and gives back what is to be given back"


def test_what_kernel_and_limit_helper_say_of_dmem(tmp_path: Path) -> None:
    cgroups, memory = tmp_path / "sys/fs/cgroup", Path("/run/gpushare/memory")
    (tmp_path / "run/gpushare/memory").mkdir(parents=True)
    none = f"no cgroup file system of version 2 is mounted at {cgroups}"
    assert dmem_facts(None, tmp_path) == Facts(none, NO_DIRECTORY)
    cgroups.mkdir(parents=True)
    (cgroups / "dmem.capacity").touch()
    assert dmem_facts(memory, tmp_path) == Facts("", NO_LIMIT_HELPER)
    state = tmp_path / "run/gpushare/memory" / LIMIT_FILES.state_file
    for said, told in (("", ""), ("no", "the limit helper sets no limits by dmem: no")):
        state.write_text(LIMIT_FILES.write_state(LimitsState(dmem=said), boot_time()))
        assert dmem_facts(memory, tmp_path) == Facts("", told)
    state.write_text(LIMIT_FILES.write_state(LimitsState(dmem=""), boot_time() - running_limits.BEAT_S - 1))
    assert dmem_facts(memory, tmp_path) == Facts("", running_limits.SILENT)
