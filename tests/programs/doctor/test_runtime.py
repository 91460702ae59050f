"""What the files of container runtimes and of NVIDIA's toolkit say, on machines put together for the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.telling.diagnosing import Unknown
from gpu_device_plugin.core.telling.node_symptoms import Runtime
from gpu_device_plugin.programs.doctor.runtime import cdi_devices, cgroup, obeys_images, runtimes, toolkit

if TYPE_CHECKING:
    from pathlib import Path

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
        ("etc/containerd/conf.d/99-nvidia.toml", "version = 2", ("containerd", (), False, False)),
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
    assert [runtime.handlers for runtime in runtimes(tmp_path)] == [(), ()]


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
    assert told in (found.found if isinstance(found, Unknown) else found)


def test_control_groups_are_told_apart_by_what_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/cpu").mkdir(parents=True)
    assert cgroup(tmp_path) == 1
    put(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu memory")
    assert cgroup(tmp_path) == 2
