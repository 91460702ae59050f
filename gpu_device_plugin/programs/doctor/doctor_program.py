"""`gpu-device-plugin doctor`: examine everything that sharing this node's GPUs needs, and report the faults.

It changes nothing, and waits for no component longer than its deadline: a child process queries the driver, and all
other components answer over sockets.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpu_device_plugin.commandline import show
from gpu_device_plugin.features.claims.claim_objects import GROUP
from gpu_device_plugin.features.conflicts.rules import DRIVER_SOCKETS, PLUGIN_SOCKETS, sightings
from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.eviction import GpuFailureSettings
from gpu_device_plugin.features.history import HistorySettings
from gpu_device_plugin.features.limits import LimitSettings
from gpu_device_plugin.features.limits.extra_grant_file import read_extra_grant
from gpu_device_plugin.features.limits.node import dmem_facts
from gpu_device_plugin.features.mps import MpsSettings
from gpu_device_plugin.features.over_use import OverUseSettings
from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.hardware.amdgpu.drm_driver import node_facts
from gpu_device_plugin.hardware.driver import DRIVERS
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView, State
from gpu_device_plugin.hardware.monitor import Hardware, MonitorTimings
from gpu_device_plugin.kubelet import checkpoint
from gpu_device_plugin.kubelet.calls import PodResourcesUnavailableError, listed_pods
from gpu_device_plugin.kubelet.sockets import (
    KUBELET_SOCKET,
    DirectoryError,
    check_directory,
    is_listened_to,
    listened_to,
)
from gpu_device_plugin.kubelet.statefile import PROFILE, SHARE_SIZE, StateFile
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfigError, config_if_any
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call
from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import MIG_LABEL
from gpu_device_plugin.model.gpus import NVIDIA, Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.telemetry import GpuTelemetry
from gpu_device_plugin.node.rules.container_grants import CARD, CONTROL_NODES, DISPLAY, closed
from gpu_device_plugin.node.rules.node_config import mig_mode
from gpu_device_plugin.node.rules.serving_mode import ServingMode
from gpu_device_plugin.programs.doctor import node_reading
from gpu_device_plugin.programs.doctor.rules.findings_report import exit_code, report
from gpu_device_plugin.programs.doctor.rules.node_checks import OWN
from gpu_device_plugin.programs.doctor.rules.symptoms import (
    NO_PROFILES,
    ApiSeen,
    KernelSeen,
    NodeSymptoms,
    Profiles,
    node_seen,
)
from gpu_device_plugin.report.rules.extension import Check, placed
from gpu_device_plugin.report.rules.finding import Unknown, examine
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources, Texts

RIGHTS = (
    Call("get", "nodes"),
    Call("patch", "nodes"),
    Call("list", "pods"),
    Call("watch", "pods"),
    Call("patch", "pods"),
    Call("get", "namespaces"),
    Call("create", "events", "events.k8s.io"),
    Call("patch", "events", "events.k8s.io"),
)
"""The rights that the agent needs with any settings."""
EVICTING = Call("create", "pods/eviction")
"""Needed where the settings want pods evicted."""
CONDITION = Call("patch", "nodes/status")
"""Needed for the node condition GPUHealthy."""
CLAIMS = (
    Call("get", "resourceclaims", GROUP),
    Call("list", "resourceclaims", GROUP),
    Call("patch", "resourceclaims/status", GROUP),
    *(Call(verb, "resourceslices", GROUP) for verb in ("list", "watch", "create", "update", "delete")),
)
"""Needed where the settings want ResourceClaims served."""

_HIDDEN = Unknown(
    "files-hidden",
    "the node's files are not visible in this container",
    "kubectl debug node/NODE --profile=sysadmin --image=IMAGE -- gpu-device-plugin doctor --host-root=/host; on the "
    "node itself, outside a container, use --host-root=/",
)
_NO_CONDITION = Unknown("condition-unknown", "the driver did not tell the condition of its GPUs", "see the agent's log")
_API_OFF = Unknown(
    "api-off", "the agent is configured to run without the API", "give it --api=in-cluster and NODE_NAME"
)
_API_UNREACHABLE = Unknown(
    "no-account",
    "there is no service account here, so the API server is not queried",
    "kubectl -n gpushare exec POD -- gpu-device-plugin doctor, or --api with a kubeconfig",
)


_CAPABILITIES = "proc/driver/nvidia/capabilities"
_LIBRARIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "home/kubernetes/bin/nvidia/lib64",
)
"""Directories in which drivers install NVML; the last two are the GPU Operator's and GKE's."""


@dataclass(frozen=True, slots=True)
class DoctorPlace:
    """The directories that the doctor examines, and the longest time that each component may take, in seconds."""

    host_root: Path | None = None
    """The node's own file system; None: not visible here."""
    in_container: bool = False
    dev: Path = Path("/dev")
    libraries: Path | None = None
    """The directory of NVML, if the system's loader does not find it."""
    driver_s: float = 20.0
    """Without persistence mode a driver needs a second or two for each GPU."""
    answer_s: float = 5.0


def place(host_root: str, environ: Mapping[str, str]) -> DoctorPlace:
    """Return the directories to examine, given the mount point of the node's file system, if any.

    Raises:
        UsageError: there is no such directory.
    """
    in_container = "KUBERNETES_SERVICE_HOST" in environ or Path("/.dockerenv").exists()
    if host_root:
        root = Path(host_root)
        if not root.is_dir():
            raise UsageError(
                f"--host-root: {host_root} is not a directory; name the root of the node's own file system: / on the "
                "node itself, /host in a pod that kubectl debug node/NODE created"
            )
        libraries = next(
            (root / folder for folder in _LIBRARIES if (root / folder / "libnvidia-ml.so.1").exists()), None
        )
        return DoctorPlace(root, in_container=False, dev=root / "dev", libraries=libraries)
    return DoctorPlace(None if in_container else Path("/"), in_container)


def below(settings: NodeSettings, where: DoctorPlace) -> NodeSettings:
    """Return settings with the paths of the kubelet's files below `where`."""
    root = where.host_root or Path("/")
    return replace(
        settings,
        device_plugin_dir=root / settings.device_plugin_dir.relative_to("/"),
        pod_resources_socket=root / settings.pod_resources_socket.relative_to("/"),
    )


def settings_of(sources: Sources[NodeSettings], texts: Texts, where: DoctorPlace) -> tuple[NodeSettings, Profiles]:
    """Return the settings of the agent, with the profile that it saved last, and the profiles to choose from.

    Raises:
        UsageError: a flag or an environment variable cannot be used.
    """
    reading = {name: partial(sources.read, name, texts) for name in ("", *texts.profiles)}
    problems = {name: why for name, read in reading.items() if (why := _problem(read, UsageError))}
    settings = below(sources.read(texts=replace(texts, default=None) if "" in problems else texts), where)
    last = StateFile(settings.device_plugin_dir, PROFILE).read() if texts.folder else None
    if last is not None and last in texts.profiles and last not in problems:
        settings = below(sources.read(last, texts), where)
    return settings, Profiles(texts.folder, tuple(texts.profiles), last, problems)


def _problem(look: Callable[[], object], *errors: type[Exception]) -> str:
    try:
        look()
    except errors as problem:
        return str(problem)
    return ""


def main(
    settings: NodeSettings,
    where: DoctorPlace,
    *,
    agents_running: int | None,
    as_json: bool,
    profiles: Profiles,
    followed: Sequence[str] = (),
    of_features: Sequence[Check] = REPORT.node_checks,
) -> int:
    """Examine this node and print the findings; return the exit code.

    `agents_running` is None where processes are not visible; `followed`: see `NodeSymptoms`. `of_features` are their
    checks.
    """
    with suppress(OSError):
        # In the agent's container we share its memory limit: at that limit the kernel has to kill us, not the agent.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    symptoms = replace(asyncio.run(examined(settings, where, agents_running, profiles)), followed=tuple(followed))
    findings = examine(placed(OWN, of_features), symptoms)
    show(report(findings, as_json=as_json), os.environ)
    return exit_code(findings)


async def examined(
    settings: NodeSettings,
    where: DoctorPlace,
    agents_running: int | None = None,
    profiles: Profiles = NO_PROFILES,
) -> NodeSymptoms:
    """Examine all components at the same time."""
    async with asyncio.TaskGroup() as tasks:
        driver = tasks.create_task(_driver(settings, where), name="driver")
        held = tasks.create_task(_pod_resources(settings, where), name="PodResources")
        agent = tasks.create_task(node_reading.ask(settings.http, where.answer_s), name="agent")
        api = tasks.create_task(_api(settings, where), name="API server")
    (view, telemetry), seen = driver.result(), api.result()
    folder, root = settings.device_plugin_dir, where.host_root
    mps_dir = settings.of(MpsSettings).mps_dir
    mps, mps_left = node_reading.mps_state((root or Path("/")) / mps_dir.relative_to("/"))
    real = settings.gpus in DRIVERS
    kernel = KernelSeen(*node_facts(str(root or "").rstrip("/")))
    looked = device_nodes_of(where, view.inventory, settings.devices, without_nvidia=kernel.alone) if real else None
    device_nodes, unlinked, groups = looked or ({}, (), {})
    allocations, checkpoint_problem = checkpoint_read(settings)
    labels, engine = ({}, "") if isinstance(seen, Unknown) else (seen.node.labels, seen.node.runtime)
    instances = (gpu.instance for gpu in view.inventory.gpus if gpu.instance is not None and gpu.instance.alone)
    one_by_one = mig_mode(settings.mig, labels.get(MIG_LABEL, "")) is MigMode.WHOLE
    names_of_mig = sorted({instance.profile for instance in instances}) if one_by_one else ()
    resources = (*settings.offered, *(Resource.of_profile(name, settings.domain_of_mig) for name in names_of_mig))
    return NodeSymptoms(
        settings=settings,
        resources=resources,
        share_mib_in_force=StateFile(folder, SHARE_SIZE).number(),
        mig_present={
            gpu.uuid: sum(1 for _ in (root or Path("/")).glob(f"{_CAPABILITIES}/gpu{_minor(gpu)}/mig/gi*"))
            for gpu in view.inventory.gpus
            if gpu.mig
        },
        in_container=where.in_container,
        profiles=profiles,
        extra_grant_problem=_problem(partial(read_extra_grant, settings.of(LimitSettings).extra_grant), UsageError),
        mps=mps,
        mps_left=mps_left,
        dmem=dmem_facts(settings.of(ElasticSettings).memory_dir, root or Path("/")),
        inventory=view.inventory,
        driver_problem="" if view.state is State.WATCHING else view.sentence,
        driver_missing=view.state is State.NO_LIBRARY,
        left_out=view.sentence.partition("; ")[2],
        unhealthy={
            uuid: "; ".join(health.reasons) for uuid, health in view.health_by_uuid.items() if not health.healthy
        },
        telemetry=telemetry,
        device_nodes=device_nodes,
        unlinked_nodes=unlinked,
        node_groups=groups,
        kernel=kernel,
        runtimes=_HIDDEN if root is None else node_reading.runtimes(root, engine),
        cdi_devices=_HIDDEN if root is None else node_reading.cdi_devices(root),
        toolkit=_HIDDEN if root is None else node_reading.toolkit(root, run=root == Path("/")),
        obeys_images=_HIDDEN if root is None else node_reading.obeys_images(root),
        cgroup=node_reading.cgroup(root or Path("/")),
        directory_problem=_problem(partial(check_directory, folder), DirectoryError),
        kubelet_listens=is_listened_to(folder / KUBELET_SOCKET),
        pod_resources_problem=held.result(),
        checkpoint_problem=checkpoint_problem,
        with_driver_limits=with_driver_limits(allocations),
        others=sightings(
            listened_to(folder, PLUGIN_SOCKETS),
            listened_to(settings.plugins_registry, DRIVER_SOCKETS),
            {} if isinstance(seen, Unknown) else seen.node.allocatable,
            {resource.name for resource in resources},
            frozenset(each.through for each in allocations if each.gpus is not None),
            drivers={gpu.driver for gpu in view.inventory.gpus} or {NVIDIA},
        ),
        agent=agent.result(),
        agents_running=agents_running,
        api=seen,
    )


def rights_of(settings: NodeSettings) -> tuple[Call, ...]:
    """Return the rights that the agent needs with these settings."""
    failure, borrowers = settings.of(GpuFailureSettings).on_gpu_failure, settings.of(ElasticSettings).borrowers
    evicts = "evict" in {failure, borrowers} or settings.of(OverUseSettings).over_use != "report"
    claims = CLAIMS if settings.serve == ServingMode.DRA else ()
    return (*RIGHTS, *([EVICTING] if evicts else []), *([CONDITION] if settings.node_condition else []), *claims)


# --- The hardware -----------------------------------------------------------------------------------------------------


async def _driver(
    settings: NodeSettings, where: DoctorPlace
) -> tuple[HardwareView, tuple[GpuTelemetry, ...] | Unknown]:
    """Return the first view of the hardware, and the condition of its GPUs."""
    timings = MonitorTimings(start_within_s=where.driver_s)  # a first view comes by then, even if the driver hangs
    try:
        hardware = Hardware(settings.gpus, timings=timings, library_dir=where.libraries)
    except DescriptionError as problem:
        return HardwareView(State.OTHER, str(problem)), ()
    telemetry: tuple[GpuTelemetry, ...] | None = ()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(hardware.run(), name="hardware")
        _, view = await hardware.view.after(0)
        if view.state is State.WATCHING and (groups := settings.of(HistorySettings).condition):
            telemetry = await hardware.condition(groups)
        watching.cancel()
    return view, _NO_CONDITION if telemetry is None else telemetry


def device_nodes_of(
    where: DoctorPlace, inventory: Inventory, devices: Sequence[str], *, without_nvidia: bool = False
) -> tuple[dict[str, str], tuple[str, ...], Mapping[str, int]]:
    """Return the fault of each device node, those without a link in /dev/char, and groups; see `NodeSymptoms`."""
    if (where.dev / "dxg").exists() and not (where.dev / Path(CONTROL_NODES[0]).name).exists():
        return {"/dev/dxg": ""}, (), {}  # WSL2 has this one for all GPUs
    of_nvidia = not (inventory.gpus or without_nvidia) or any(gpu.driver == NVIDIA for gpu in inventory.gpus)
    # A GPU and its MIG instances have one node.
    drivers = dict.fromkeys(CONTROL_NODES if of_nvidia else (), NVIDIA)
    drivers |= {path: gpu.driver for gpu in inventory.gpus for path in gpu.device_paths}
    nodes: dict[str, str] = {}
    unlinked: list[str] = []
    groups: dict[str, int] = {}
    for path, driver in drivers.items():
        if path.startswith(DISPLAY) and CARD not in devices:
            continue
        try:
            found = (where.dev / path.removeprefix("/dev/")).stat()
        except OSError as problem:
            nodes[path] = "is missing" if isinstance(problem, FileNotFoundError) else str(problem.strerror)
            continue
        nodes[path] = "" if stat.S_ISCHR(found.st_mode) else "is no device"
        link = where.dev / "char" / f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
        if driver != NVIDIA:
            groups |= {path: found.st_gid} if closed(found.st_mode) else {}
        elif not nodes[path] and where.host_root is not None and not link.exists():
            unlinked.append(path)
    return nodes, tuple(unlinked), groups


def _minor(gpu: Gpu) -> str:
    """Return the N of a GPU's /dev/nvidiaN."""
    return "".join(gpu.device_paths).removeprefix("/dev/nvidia")


def checkpoint_read(settings: NodeSettings) -> tuple[Sequence[Allocation], str]:
    """Return what the kubelet's checkpoint says of the devices of containers, and why it cannot be read."""
    try:
        return checkpoint.read(settings.device_plugin_dir / checkpoint.NAME, settings.names).allocations, ""
    except checkpoint.CheckpointUnreadableError as problem:
        return (), str(problem)


def with_driver_limits(allocations: Iterable[Allocation]) -> tuple[str, ...]:
    """Return the containers whose answers carry the driver's limits, as ``<pod's UID>/<name>``, sorted.

    The kubelet keeps each answer, and gives it to the container again when it restarts.
    """
    carrying = (each for each in allocations if each.kind is Kind.MEMORY and each.enforcement is Enforcement.DRIVER)
    return tuple(sorted(f"{each.pod_uid}/{each.container}" for each in carrying))


# --- The kubelet ------------------------------------------------------------------------------------------------------


async def _pod_resources(settings: NodeSettings, where: DoctorPlace) -> str:
    names = [resource.name for resource in settings.offered]
    try:
        await listed_pods(settings.pod_resources_socket, names, where.answer_s)
    except PodResourcesUnavailableError as problem:
        return str(problem)
    return ""


# --- The API server ---------------------------------------------------------------------------------------------------


async def _api(settings: NodeSettings, where: DoctorPlace) -> ApiSeen | Unknown:
    if settings.api == "off":
        return _API_OFF
    try:
        config = config_if_any(settings.api, os.environ)
    except ClusterConfigError as problem:
        return ApiSeen(settings.api, problem=str(problem))
    if config is None:
        return _API_UNREACHABLE
    timing = Timing(connect_s=where.answer_s, request_s=where.answer_s)
    async with Client(config, timing=timing) as client:
        asked_s = time.time()
        try:
            server = await client.server()
        except ApiError as problem:
            return ApiSeen(config.url, problem=f"{config.url}: {problem}")
        # The server's clock shows whole seconds.
        skew_s = None if server.clock_s is None else (asked_s + time.time() - 1) / 2 - server.clock_s
        needed = rights_of(settings)
        verdicts = await asyncio.gather(*(_may(client, right) for right in needed))
        rights = {str(right): verdict for right, verdict in zip(needed, verdicts, strict=True)}
        seen = ApiSeen(config.url, version=server.version, skew_s=skew_s, rights=rights)
        return await _with_node(seen, client, settings.node_name)


async def _with_node(seen: ApiSeen, client: Client, name: str) -> ApiSeen:
    if not name:
        return replace(seen, node_problem="the name of this node is unknown; set NODE_NAME, or --node-name")
    try:
        node = await OwnNode(client, name).read()
    except ApiError as problem:
        return replace(seen, node_problem=str(problem))
    return replace(seen, node=node_seen(node, time.time()))


async def _may(client: Client, right: Call) -> bool | None:
    try:
        return await client.may(right)
    except ApiError:
        return None
