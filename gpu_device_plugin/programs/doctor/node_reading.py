"""Read on this node what the doctor examines: files of runtimes, NVIDIA's toolkit, the kubelet and MPS; and the agent.

Of the running agent these are its command line, and the answers of its HTTP endpoints.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from google.protobuf.message import DecodeError

from gpu_device_plugin import files, metrics
from gpu_device_plugin.core.contract.mpsfiles import STATE_FILE, MpsFileError, MpsStatus, read_state
from gpu_device_plugin.core.contract.variables import DRIVER_LIMIT
from gpu_device_plugin.core.node.mps.mps_wishes import NOT_THERE, SILENT, silent
from gpu_device_plugin.core.report.exposition import samples
from gpu_device_plugin.core.report.finding import Unknown
from gpu_device_plugin.core.report.findings.symptoms import AgentSeen, Runtime
from gpu_device_plugin.core.report.gauges import STREAM_UP
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse
from gpu_device_plugin.settings.knobs import ENVIRONMENT_PREFIX, PROGRAM
from gpu_device_plugin.settings.node import NodeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from gpu_device_plugin.core.contract.mpsfiles import MpsGpu
    from gpu_device_plugin.settings.forms import Address

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
_LARGEST_STATE = 1 << 20
_LARGEST_CHECKPOINT = 64 << 20
_MODULE = PROGRAM.replace("-", "_")


# --- Container runtimes and the toolkit -------------------------------------------------------------------------------


def runtimes(root: Path) -> tuple[Runtime, ...]:
    """Return the container runtimes that are configured below `root`; files that cannot be read are ignored."""
    kinds = (_CONTAINERD, tomllib.loads, _containerd), (_CRI_O, tomllib.loads, _cri_o), (_DOCKER, json.loads, _docker)
    return tuple(
        judge(path, _parsed(path, parse)) for patterns, parse, judge in kinds for path in _files(root, patterns)
    )


def cdi_devices(root: Path) -> frozenset[str]:
    """Return the full names of all devices in CDI files, like ``nvidia.com/gpu=GPU-6f1c...``."""
    paths = _files(root, [f"{folder}/*{ending}" for folder in _CDI for ending in (".json", ".yaml")])
    names = set()
    for spec in (_parsed(path, json.loads) or _yaml(path) for path in paths):
        devices = spec.get("devices")
        for device in devices if isinstance(devices, list) else ():
            if isinstance(device, dict):
                names.add(f"{spec.get('kind')}={device.get('name')}")
    return frozenset(names)


def obeys_images(root: Path) -> bool | Unknown:
    """Return whether the toolkit gives GPUs to any container that sets NVIDIA_VISIBLE_DEVICES, as by default."""
    for path in _files(root, _TOOLKIT):
        return bool(_parsed(path, tomllib.loads).get(_HEEDS, True))
    text = "there is no config.toml of the toolkit, so it is unknown whether it obeys the variables of images"
    return Unknown("no-toolkit-config", text)


def toolkit(root: Path, *, run: bool) -> str | Unknown:
    """Return the version of NVIDIA's container toolkit, empty if there is none; `run`: its programs can be run here."""
    if packaged := _packaged(root / "var/lib/dpkg/status"):
        return packaged
    programs = [path for path in (root / name for name in _NVIDIA_CTK) if path.exists()]
    if not programs:
        return ""
    if not run:
        return Unknown("version-hidden", "its version cannot be read from here", "run nvidia-ctk --version on the node")
    program = str(programs[0])
    try:
        done = subprocess.run(  # noqa: S603 - a program that the administrator installed, with a fixed argument
            [program, "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Unknown("version-unreadable", "{program} --version: {problem}", program=program, problem=str(problem))
    found = re.search(r"version v?([0-9]+\.[0-9]+\.[0-9]+)", done.stdout)
    return found[1] if found else Unknown("no-version", "{program} --version prints no version", program=program)


def cgroup(root: Path) -> int | Unknown:
    """Return the version of control groups in use."""
    mounted = root / "sys/fs/cgroup"
    if (mounted / "cgroup.controllers").exists():
        return 2
    return 1 if mounted.is_dir() else Unknown("no-cgroups", "{path} is not there", path=str(mounted))


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


# --- Memory limits ----------------------------------------------------------------------------------------------------


def mps_state(directory: Path) -> tuple[Mapping[str, MpsGpu] | str, tuple[str, ...]]:
    """Return the daemons of the node's MPS supervisor by the GPU's UUID, or why there is none; and what one has left.

    These are the GPUs (by UUID, sorted) that a supervisor which no longer runs did not give back.
    """
    try:
        state = read_state(files.read(directory / STATE_FILE, _LARGEST_STATE)[0].decode(errors="replace"))
    except FileNotFoundError:
        return NOT_THERE, ()
    except OSError as problem:
        return f"{directory / STATE_FILE}: {problem.strerror}", ()
    except MpsFileError as problem:
        return str(problem), ()
    if not silent(state, time.clock_gettime(time.CLOCK_BOOTTIME)):
        return state.gpus, ()
    return SILENT, tuple(sorted(uuid for uuid, gpu in state.gpus.items() if gpu.status is not MpsStatus.STOPPED))


def with_driver_limits(checkpoint: Path, resource: str) -> tuple[str, ...]:
    """Return the containers whose answers carry the driver's limits, as ``<pod's UID>/<name>``, sorted.

    The kubelet keeps each answer, and gives it to the container again when it restarts. Of an unreadable checkpoint
    nothing is returned: another check tells of it.
    """
    try:
        data: Any = json.loads(files.read(checkpoint, _LARGEST_CHECKPOINT)[0])["Data"]
        return tuple(sorted(_carrying(data.get("PodDeviceEntries") or (), resource)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DecodeError):
        return ()


def _carrying(entries: Any, resource: str) -> Iterator[str]:
    for entry in entries:
        if entry["ResourceName"] == resource:
            answer = ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"] or ""))
            if DRIVER_LIMIT in answer.envs:
                yield f"{entry['PodUID']}/{entry['ContainerName']}"


# --- The running agent ------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """A running agent."""

    arguments: list[str]
    environ: dict[str, str]
    """Its environment variables that are settings."""
    root: Path
    """Its root directory, as seen from here."""


def agents(proc: Path) -> list[Running] | None:
    """Return the running agents, None if processes are not visible here."""
    try:
        folders = sorted((path for path in proc.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    except OSError:
        return None
    found = []
    for folder in folders:
        words = _zero_separated(folder / "cmdline")
        arguments = _arguments(words)
        if arguments is not None:
            pairs = (each.partition("=") for each in _zero_separated(folder / "environ"))
            environ = {
                name: value for name, _, value in pairs if name == "NODE_NAME" or name.startswith(ENVIRONMENT_PREFIX)
            }
            found.append(Running(arguments, environ, folder / "root"))
    return found if folders else None


def _arguments(words: list[str]) -> list[str] | None:
    """Return the arguments of a `node` command line, from the command on; None for any other command line."""
    for at, word in enumerate(words[:4]):
        program = word.rpartition("/")[2] == PROGRAM or (word == _MODULE and words[at - 1] == "-m")
        if program and words[at + 1 : at + 2] == [NodeSettings.COMMAND]:
            return words[at + 1 :]
    return None


def _zero_separated(path: Path) -> list[str]:
    try:
        return [each.decode(errors="replace") for each in path.read_bytes().rstrip(b"\0").split(b"\0")]
    except OSError:
        return []


async def ask(http: Address | None, within_s: float) -> AgentSeen | Unknown:
    """Return the readiness and the metrics that the agent serves; each request may take `within_s` seconds."""
    if http is None:
        text = "the agent serves no HTTP endpoints, so its state is not visible"
        return Unknown("agent-without-http", text, "start it with --http=:9445")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(http.host, http.host)  # noqa: S104 - read, not bound
    where = f"http://{host}:{http.port}"
    try:
        timeout = aiohttp.ClientTimeout(total=within_s)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            async with session.get(f"{where}/readyz") as answer:
                said = await answer.text()
                missing = () if answer.status == 200 else tuple(said.splitlines())
            async with session.get(f"{where}/metrics") as answer:
                metrics = await answer.text()
    except TimeoutError:
        return AgentSeen(
            where, (f"{where} does not answer within {within_s:g} s; see the agent's log, and restart it",)
        )
    except (aiohttp.ClientError, OSError, UnicodeDecodeError) as problem:
        text = "no agent answers at {address}: {problem}"
        advice = (
            "it answers inside its own pod: kubectl -n gpushare exec POD -- gpu-device-plugin doctor; or name the "
            "address with --http"
        )
        return Unknown("agent-unreachable", text, advice, address=where, problem=str(problem))
    return _seen(where, missing, metrics)


def _seen(where: str, missing: Iterable[str], text: str) -> AgentSeen:
    found = list(samples(text))
    return AgentSeen(
        where,
        tuple(missing),
        streams={labels["resource"]: value > 0 for name, labels, value in found if name == STREAM_UP.name},
        version="".join(labels["version"] for name, labels, _ in found if name == metrics.BUILD.name),
        api_errors=int(sum(value for name, _, value in found if name == metrics.API_ERRORS.name)),
    )
