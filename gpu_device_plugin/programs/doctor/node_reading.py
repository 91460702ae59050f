"""Read on this node what the doctor examines: the agent, MPS, and how containers get GPUs.

Of the running agent these are its command line and what its HTTP endpoints answer; else files of MPS, of the container
runtimes, of NVIDIA's toolkit and of CDI.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from gpu_device_plugin import metrics
from gpu_device_plugin.features.mps.contract import MPS_FILES, MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import BEAT_S, NOT_THERE, SILENT
from gpu_device_plugin.file_link import FileLink
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.node.rules.node_gauges import STREAM_UP
from gpu_device_plugin.programs.doctor.rules.symptoms import AgentSeen, Runtime
from gpu_device_plugin.report.rules.finding import Unknown
from gpu_device_plugin.report.rules.printing import shortened
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import ENVIRONMENT_PREFIX, PROGRAM
from gpu_device_plugin.settings.node import NodeSettings

_MODULE = PROGRAM.replace("-", "_")
_LONGEST = 160
"""Characters of a command line."""


# --- Memory limits ----------------------------------------------------------------------------------------------------


def mps_state(directory: Path) -> tuple[Mapping[str, MpsGpu] | str, tuple[str, ...]]:
    """Return the daemons of the node's MPS supervisor by the GPU's UUID, or why there is none; and what one has left.

    These are the GPUs (by UUID, sorted) that a supervisor which no longer runs did not give back.
    """
    words = "the MPS supervisor", NOT_THERE, NOT_THERE, SILENT
    link = FileLink(directory, MPS_FILES, boot_time, *words, BEAT_S)
    state = link.read_state()
    if not isinstance(state, str):
        return state, ()
    left = link.last or {}
    return state, tuple(sorted(uuid for uuid, gpu in left.items() if gpu.status is not MpsStatus.STOPPED))


# --- The running agent ------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """A running agent."""

    arguments: list[str]
    environ: dict[str, str]
    """Its environment variables that are settings."""
    root: Path
    """Its root directory, as seen from here."""

    @property
    def alone(self) -> bool:
        """Whether it is the first process, as in its own container."""
        return self.root.parent.name == "1"

    def __str__(self) -> str:
        name = self.environ.get("NODE_NAME")
        words = shortened(" ".join([PROGRAM, *self.arguments]), _LONGEST)
        return f"process {self.root.parent.name}" + (f" of node {name}" if name else "") + f" ({words})"


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
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, LookupError):
        samples = []  # something else than an agent answers there
    return AgentSeen(
        where,
        tuple(missing),
        streams={each.labels["resource"]: each.value > 0 for each in samples if each.name == STREAM_UP.name},
        version="".join(each.labels["version"] for each in samples if each.name == metrics.BUILD.name),
        api_errors=int(sum(each.value for each in samples if each.name == metrics.API_ERRORS.name)),
    )


class _Containerd(NamedTuple):
    """A place of containerd's configuration."""

    file: str
    socket: str = "/run/containerd/containerd.sock"
    merged: str = ""
    """Files that the distribution merges into it by itself."""


_CONTAINERD = (
    _Containerd("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
    _Containerd("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "/run/k3s/containerd/containerd.sock"),
    _Containerd("/etc/k0s/containerd.toml", "/run/k0s/containerd.sock", "/etc/k0s/containerd.d/*.toml"),
    _Containerd("/var/snap/microk8s/current/args/containerd.toml", "/var/snap/microk8s/common/run/containerd.sock"),
    _Containerd("/etc/cri/containerd.toml"),
    _Containerd("/etc/containerd/config.toml"),
    _Containerd("/usr/share/containerd/config.toml"),
)
"""Those of distributions that bring their own containerd come first: beside it, Docker may have brought another."""
_CRI_O = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
_DOCKER = "/etc/docker/daemon.json"
_TOOLKIT = (
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
_NVIDIA_CTK = ("/usr/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-ctk")
_CDI = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
_HEEDS = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_NVIDIA = "nvidia-container-runtime"
_KUBELET = (
    *("/var/lib/kubelet/config.yaml", "/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet"),
    *("/etc/sysconfig/kubelet", "/etc/systemd/system/kubelet.service.d/*", "/etc/systemd/system/kubelet.service"),
)
_KUBELETS = frozenset({"kubelet", "kubelite", "k3s", "rke2"})
_ENDPOINT = re.compile(r"container-?runtime-?endpoint[=:\s\0]+[\"']?(?:unix://)?([^\"'\s\0]+)", re.IGNORECASE)
_MOST_LINKS = 40
_ANSWER_WITHIN_S = 5.0


# --- The node's files -------------------------------------------------------------------------------------------------


def inside(root: Path, name: str) -> Path:
    """Return where a path of the node is, as seen from here: its links lead to paths below `root`, too."""
    at, pending, links = root, list(reversed(PurePosixPath(name).parts)), 0
    while pending:
        part = pending.pop()
        if part in {"/", ".."}:
            at = root if part == "/" or at == root else at.parent
            continue
        step = at / part
        try:
            target = str(step.readlink()) if links < _MOST_LINKS else ""
        except OSError:  # no link
            target = ""
        if target:
            links += 1
            pending += reversed(PurePosixPath(target).parts)
        else:
            at = step
    return at


def _matching(root: Path, pattern: str) -> list[str]:
    """Return the existing paths of the node that match a pattern, as Go's filepath.Glob: sorted, with hidden files."""
    found = [PurePosixPath("/")]
    for part in PurePosixPath(pattern).parts[1:]:
        chosen = re.search(r"[*?\[]", part)
        found = [
            at / name
            for at in found
            for name in (_names(inside(root, str(at))) if chosen else [part])
            if not chosen or fnmatchcase(name, part)
        ]
    return [str(at) for at in found if inside(root, str(at)).is_file()]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _shown(root: Path, at: str) -> str:
    return str(root / at.lstrip("/"))


def _text(root: Path, at: str) -> str:
    try:
        return inside(root, at).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return ""


def _parsed(text: str, parse: Callable[[str], Any], error: type[Exception] = ValueError) -> Mapping[str, Any]:
    try:
        return _table(parse(text))
    except (ValueError, RecursionError, error):
        return {}


def _table(found: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables as one, in which the second counts where both have a value."""
    return {**first} | {
        key: _merged(first[key], value) if isinstance(value, dict) and isinstance(first.get(key), dict) else value
        for key, value in second.items()
    }


# --- Container runtimes -----------------------------------------------------------------------------------------------


def runtimes(root: Path, version: str = "") -> tuple[Runtime, ...]:
    """Return the container runtime that the kubelet uses, if any is configured below `root`.

    `version` is that of the node in the API, like ``containerd://2.1.4``; without it the kubelet's files say which one
    it is, or else the runtimes that are there. Of files that cannot be read nothing counts.
    """
    engine, _, number = version.partition("://")
    endpoint = _endpoint(root)
    number = number if engine == "containerd" else ""
    places = ((place.socket, _containerd(root, place, number)) for place in _CONTAINERD)
    found = [(socket, runtime) for socket, runtime in places if runtime is not None]
    if files := [at for pattern in _CRI_O for at in _matching(root, pattern)]:
        found.append(("/run/crio/crio.sock", _cri_o(root, files)))
    if _matching(root, _DOCKER):
        found.append(("/run/cri-dockerd.sock", _docker(root)))
    candidates = [each for each in found if not engine or each[1].engine.lower() == engine]
    # Docker's own containerd, or a stock file, may lie beside the runtime in use: its socket tells that.
    candidates.sort(key=lambda each: (each[0] not in endpoint, not inside(root, each[0]).exists()))
    return tuple(runtime for _, runtime in candidates[:1])


def _endpoint(root: Path) -> str:
    """Return the socket at which the kubelet finds its runtime, if its command line or a file of it says so."""
    processes = (_text(root, f"/proc/{name}/cmdline") for name in _names(root / "proc") if name.isdigit())
    kubelets = (text for text in processes if text.partition("\0")[0].rpartition("/")[2] in _KUBELETS)
    files = (_text(root, at) for pattern in _KUBELET for at in _matching(root, pattern))
    for text in (*kubelets, *files):
        if told := _ENDPOINT.search(text):
            return told[1].replace("/var/run/", "/run/")
    return ""


def _containerd(root: Path, place: _Containerd, number: str) -> Runtime | None:
    """Return what containerd reads at one place: its file, what that imports, and what the distribution merges."""
    read: dict[str, Mapping[str, Any]] = {}
    pending = [*_matching(root, place.file), *(_matching(root, place.merged) if place.merged else ())]
    beside = _matching(root, f"{place.file.rpartition('/')[0]}/conf.d/*.toml")
    if not pending and not beside:
        return None
    second = number.startswith("2.")
    while pending:  # breadth first, as containerd does (cmd/containerd/server/config/config.go)
        at = pending.pop(0)
        if at not in read:
            read[at] = _parsed(_text(root, at), tomllib.loads)
            second = second or (not number and _number(read[at].get("version")) >= 3)
            for each in map(str, _list(read[at].get("imports"))):
                # containerd 1 looks for patterns from its working directory, which is that of a systemd unit.
                folder = "/" if "*" in each and not second else PurePosixPath(at).parent
                pending += _matching(root, str(folder / PurePosixPath(each)))
    disabled = {str(name) for each in read.values() for name in _list(each.get("disabled_plugins"))}
    if disabled.intersection(_sections(0, 0, second=True)):  # as Docker installs it
        return None
    versions = [_number(each.get("version")) for each in read.values()] or [0]
    cri: dict[str, Any] = {}
    for config, version in zip(read.values(), versions, strict=False):
        for name in _sections(version, max(versions), second=second):
            section = _table(config, "plugins", name)
            # containerd 1 takes all of a plugin from the last file that has the plugin (containerd#5837).
            cri = _merged(cri, section) if second or place.merged else dict(section) or cri
    containerd = _table(cri, "containerd")
    named = [
        name
        for name, handler in _table(containerd, "runtimes").items()
        if _NVIDIA in f"{_table(handler, 'options').get('BinaryName')} {_table(handler).get('runtime_engine')}"
    ]
    idle = {at for at in (*read, *beside) if _NVIDIA in _text(root, at)} if not named else set()
    return Runtime(
        "containerd",
        _shown(root, place.file),
        tuple(sorted(named, key=lambda name: (name != "nvidia", name))),
        containerd.get("default_runtime_name") in named,
        bool(cri.get("enable_cdi", second)),
        tuple(_shown(root, at) for at in sorted(idle)),
    )


def _sections(version: int, highest: int, *, second: bool) -> Sequence[str]:
    """Return where a file of a version has the settings of containers; 0: it names no version."""
    one, two, three = "cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
    if not second:
        return (one,) if highest < 2 else (two,)
    # containerd 2 changes the names of each file by the file's version, of which none is the first.
    return (*((one,) if version < 2 else ()), *((two,) if version < 3 else ()), three)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _cri_o(root: Path, files: Iterable[str]) -> Runtime:
    settings: Mapping[str, Any] = {}
    last = ""
    for at in files:
        config = _parsed(_text(root, at), tomllib.loads)
        settings, last = _merged(settings, _table(config, "crio", "runtime")), at
    handlers = _table(settings, "runtimes")
    named = tuple(name for name, each in handlers.items() if _NVIDIA in str(_table(each).get("runtime_path")))
    return Runtime("CRI-O", _shown(root, last), named, settings.get("default_runtime") in named, cdi=True)


def _docker(root: Path) -> Runtime:
    config = _parsed(_text(root, _DOCKER), json.loads)
    handlers = _table(config, "runtimes")
    named = tuple(name for name, each in handlers.items() if _NVIDIA in str(_table(each).get("path")))
    cdi = bool(_table(config, "features").get("cdi"))
    return Runtime("Docker", _shown(root, _DOCKER), named, config.get("default-runtime") in named, cdi)


# --- CDI, the toolkit and control groups ------------------------------------------------------------------------------


def cdi_devices(root: Path) -> frozenset[str]:
    """Return the full names of all devices in CDI files, like ``nvidia.com/gpu=GPU-6f1c...``."""
    import yaml  # noqa: PLC0415 - 3 MB that only CDI files need

    names = set()
    for at in (at for folder in _CDI for ending in ("json", "yaml") for at in _matching(root, f"{folder}/*.{ending}")):
        text = _text(root, at)
        spec = _parsed(text, json.loads) or _parsed(text, yaml.safe_load, yaml.YAMLError)
        devices = spec.get("devices")
        for device in devices if isinstance(devices, list) else ():
            if isinstance(device, dict):
                names.add(f"{spec.get('kind')}={device.get('name')}")
    return frozenset(names)


def obeys_images(root: Path) -> bool | Unknown:
    """Return whether the toolkit gives GPUs to any container that sets NVIDIA_VISIBLE_DEVICES, as by default."""
    for at in (at for pattern in _TOOLKIT for at in _matching(root, pattern)):
        return bool(_parsed(_text(root, at), tomllib.loads).get(_HEEDS, True))
    text = "there is no config.toml of the toolkit, so it is unknown whether it obeys the variables of images"
    return Unknown("no-toolkit-config", text)


def toolkit(root: Path, *, run: bool) -> str | Unknown:
    """Return the version of NVIDIA's container toolkit, empty if there is none; `run`: its programs can be run here."""
    debian = r"^Package: nvidia-container-toolkit-base\n(?:.+\n)*?Version: ([0-9]+\.[0-9]+\.[0-9]+)"
    if packaged := re.search(debian, _text(root, "/var/lib/dpkg/status"), re.MULTILINE):
        return packaged[1]
    programs = [path for path in (inside(root, name) for name in _NVIDIA_CTK) if path.exists()]
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
