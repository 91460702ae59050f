"""How containers on this node reach GPUs, by the files of container runtimes and of NVIDIA's toolkit."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.telling.diagnosing import Unknown
from gpu_device_plugin.core.telling.node_symptoms import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

_CONTAINERD = (
    "etc/containerd/config.toml",
    "etc/containerd/conf.d/*.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "etc/k0s/containerd.toml",
    "etc/k0s/containerd.d/*.toml",
    "var/snap/microk8s/current/args/containerd.toml",
)
_CRI_O = ("etc/crio/crio.conf", "etc/crio/crio.conf.d/*")
_DOCKER = ("etc/docker/daemon.json",)
_TOOLKIT = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
_NVIDIA_CTK = ("usr/bin/nvidia-ctk", "usr/local/nvidia/toolkit/nvidia-ctk")
_CDI = ("etc/cdi", "var/run/cdi")
_CRI_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
"""Of containerd 1 and of containerd 2."""
_HEEDS = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_ANSWER_WITHIN_S = 5.0


def runtimes(root: Path) -> tuple[Runtime, ...]:
    """Return the container runtimes that are configured below `root`; files that cannot be read are ignored."""
    kinds = (_CONTAINERD, tomllib.loads, _containerd), (_CRI_O, tomllib.loads, _cri_o), (_DOCKER, json.loads, _docker)
    return tuple(judge(path, _parsed(path, parse)) for files, parse, judge in kinds for path in _files(root, files))


def cdi_devices(root: Path) -> frozenset[str]:
    """Return the full names of all devices in CDI files, like ``nvidia.com/gpu=GPU-6f1c...``."""
    paths = _files(root, [f"{folder}/*{ending}" for folder in _CDI for ending in (".json", ".yaml")])
    return frozenset(name for path in paths for name in _cdi_names(_parsed(path, json.loads) or _yaml(path)))


def obeys_images(root: Path) -> bool | Unknown:
    """Return whether the toolkit gives GPUs to any container that sets NVIDIA_VISIBLE_DEVICES, as by default."""
    for path in _files(root, _TOOLKIT):
        return bool(_parsed(path, tomllib.loads).get(_HEEDS, True))
    return Unknown("there is no config.toml of the toolkit, so it is unknown whether it obeys the variables of images")


def toolkit(root: Path, *, run: bool) -> str | Unknown:
    """Return the version of NVIDIA's container toolkit, empty if there is none.

    Args:
        root: the node's root directory.
        run: whether its programs can be run here.
    """
    if packaged := _packaged(root / "var/lib/dpkg/status"):
        return packaged
    programs = [path for path in (root / name for name in _NVIDIA_CTK) if path.exists()]
    if not programs:
        return ""
    if not run:
        return Unknown("its version cannot be read from here", "run nvidia-ctk --version on the node")
    try:
        done = subprocess.run(  # noqa: S603 - a program that the administrator installed, with a fixed argument
            [str(programs[0]), "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Unknown(f"{programs[0]} --version: {problem}")
    found = re.search(r"version v?([0-9]+\.[0-9]+\.[0-9]+)", done.stdout)
    return found[1] if found else Unknown(f"{programs[0]} --version prints no version")


def cgroup(root: Path) -> int | Unknown:
    """Return the version of control groups in use."""
    mounted = root / "sys/fs/cgroup"
    if (mounted / "cgroup.controllers").exists():
        return 2
    return 1 if mounted.is_dir() else Unknown(f"{mounted} is not there")


def _files(root: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(path for path in root.glob(pattern) if path.is_file())


def _containerd(path: Path, config: Mapping[str, Any]) -> Runtime:
    handlers: list[str] = []
    default, cdi = False, int(config.get("version") or 0) >= 3
    for plugin in _CRI_PLUGINS:
        cri = _table(config, "plugins", plugin)
        cdi = bool(cri.get("enable_cdi", cdi))
        containerd = _table(cri, "containerd")
        named = _with_nvidia(_table(containerd, "runtimes"), "options", "BinaryName")
        handlers += sorted(named, key=lambda name: (name != "nvidia", name))
        default = default or containerd.get("default_runtime_name") in named
    return Runtime("containerd", str(path), tuple(dict.fromkeys(handlers)), default, cdi)


def _cri_o(path: Path, config: Mapping[str, Any]) -> Runtime:
    settings = _table(config, "crio", "runtime")
    named = _with_nvidia(_table(settings, "runtimes"), "runtime_path")
    return Runtime("CRI-O", str(path), named, settings.get("default_runtime") in named, cdi=True)


def _docker(path: Path, config: Mapping[str, Any]) -> Runtime:
    named = _with_nvidia(_table(config, "runtimes"), "path")
    cdi = bool(_table(config, "features").get("cdi"))
    return Runtime("Docker", str(path), named, config.get("default-runtime") in named, cdi)


def _with_nvidia(handlers: Mapping[str, Any], *program: str) -> tuple[str, ...]:
    """Return the names of the handlers that run NVIDIA's runtime; `program` is the path of keys to the executable."""
    *table, key = program
    return tuple(
        name for name, each in handlers.items() if "nvidia-container-runtime" in str(_table(each, *table).get(key))
    )


def _table(found: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _yaml(path: Path) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415 - 3 MB that only CDI files in YAML need

    return _parsed(path, yaml.safe_load, yaml.YAMLError)


def _parsed(path: Path, parse: Callable[[str], Any], error: type[Exception] = ValueError) -> Mapping[str, Any]:
    try:
        return _table(parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, error):
        return {}


def _cdi_names(spec: Mapping[str, Any]) -> Iterator[str]:
    devices = spec.get("devices")
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict):
            yield f"{spec.get('kind')}={device.get('name')}"


def _packaged(status: Path) -> str:
    """Return the version of the toolkit by Debian's list of installed packages."""
    try:
        text = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(
        r"^Package: nvidia-container-toolkit-base\n(?:.+\n)*?Version: ([0-9]+\.[0-9]+\.[0-9]+)", text, re.MULTILINE
    )
    return found[1] if found else ""
