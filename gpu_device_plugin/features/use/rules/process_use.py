"""Attribute the processes on the node's GPUs, and their memory, to containers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from gpu_device_plugin.node.rules.ledger import IN_USE_MIB

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner


@dataclass(frozen=True, slots=True)
class AttributedUse:
    """The use of one GPU by one container."""

    pod_uid: str
    """As the kubelet knows the pod."""
    container: str
    """Its name; empty for processes of the pod whose container is not known."""
    uuid: str
    """The GPU's."""
    granted_mib: int
    """0: it was not given this GPU. Without a container's name: what all containers of the pod have of it together."""
    used_mib: int | None
    """None: not known, see `UseReading.blind`, or the driver does not tell it of this GPU."""
    sm_percent: int | None = None
    """0: its processes kept no multiprocessor busy, or it has none; None: not known."""
    holding: ContainerGpus | None = None
    """None for a container that was not given this GPU."""
    pod: Pod | None = None
    """The pod in the API; None: not known (yet), or the agent runs without the API."""
    limit_mib: int | None = None
    """The most that it may use; None: what it was granted."""
    lent: bool = False
    """It was lent memory, whether it may use more than its guarantee now or not: its owner can withdraw the limit."""

    @property
    def place(self) -> Place:
        """What tells it from the other uses."""
        return self.pod_uid, self.container, self.uuid

    @property
    def allowed_mib(self) -> int:
        """The most that it may use."""
        return self.granted_mib if self.limit_mib is None else self.limit_mib

    @property
    def told_mib(self) -> int:
        """The most that nobody may hold against it, see `ContainerGpus.told_mib`."""
        return self.allowed_mib if self.holding is None else max(self.allowed_mib, self.holding.told_mib(self.uuid))

    @property
    def borrowed_mib(self) -> int:
        """What it is known to use beyond its guarantee, if it may use more than that, or was lent it."""
        lent = self.lent or self.allowed_mib > self.granted_mib
        return max(0, (self.used_mib or 0) - self.granted_mib) if lent else 0

    @property
    def trespassing(self) -> bool:
        """Whether the container uses a GPU that it was not given."""
        return self.granted_mib == 0


@dataclass(frozen=True, slots=True)
class UseReading:
    """Who used what at one moment."""

    at: float = 0.0
    """Monotonic seconds."""
    containers: tuple[AttributedUse, ...] = ()
    used_mib: Mapping[str, int | None] = field(default_factory=dict)
    """Memory in use on each GPU, by UUID."""
    unattributed_mib: Mapping[str, int] = field(default_factory=dict)
    """The part of it that belongs to no pod, for GPUs where it is known: the memory of processes outside of pods and of
    MPS servers, and memory that no listed process owns."""
    blind: str = ""
    """Why the use by container is not known, as a sentence; empty if it is known. Blind is not zero: the agent sees no
    processes of other PID namespaces unless its pod has ``hostPID: true``."""
    left_out: frozenset[str] = frozenset()
    """UIDs of the pods that use GPUs beside those listed for them: by what right is not known, see `attribute`."""


WITHOUT_HOST_PID = (
    "the agent sees no processes of other pods, because its pod has a PID namespace of its own; set hostPID: true in "
    "its DaemonSet (the chart's agent.hostPID)"
)
"""A value of `UseReading.blind`. NVML names only processes of the caller's PID namespace and of those within it."""
NOT_READ = "the use of the GPUs is not read; set usage_interval to more than 0s"
"""A value of `UseReading.blind`."""


def blindness(
    readings: Iterable[GpuReading], owners: Mapping[int, CgroupOwner | None], *, host_pids: bool | None
) -> str:
    """Return why the processes on the GPUs are not all of them, as a sentence; empty if they are.

    Args:
        readings: the readings of all GPUs.
        owners: the pod of each process among them that still runs.
        host_pids: whether the agent is in the PID namespace of its node; None: it could not find out. Then memory in
            use on a GPU without any process tells it, unless the agent sees a process of a pod.
    """
    if host_pids is None:
        hidden = any(reading.processes == () and (reading.used_mib or 0) >= IN_USE_MIB for reading in readings)
        host_pids = not hidden or any(owner is not None for owner in owners.values())
    return "" if host_pids else WITHOUT_HOST_PID


def attribute(
    readings: Iterable[GpuReading],
    owners: Mapping[int, CgroupOwner | None],
    holdings: Sequence[ContainerGpus],
    *,
    pods: Iterable[Pod] = (),
    mps_servers: Collection[int] = frozenset(),
    measured: Mapping[Place, int] = MappingProxyType({}),
    at: float = 0.0,
    blind: str = "",
    complete: bool = True,
    excused: Collection[str] = frozenset(),
) -> UseReading:
    """Return which container uses how much of each GPU.

    Every container is listed for every GPU that it holds, and further containers and pods for GPUs that they use. A
    process belongs to the container whose ID its cgroup names; without a match to the container that alone of its pod
    holds the GPU; else to the pod, see `AttributedUse.container`.

    Args:
        readings: those of all GPUs.
        owners: by process; those that ended since then, and those of no pod, are absent or None.
        holdings: the GPUs of each container.
        pods: those of this node in the API, for the names of pods that hold no GPU.
        mps_servers: their PIDs. Their memory is no container's own, whichever cgroup they run in.
        measured: what the driver itself says that containers use, in MiB (r615 counts by cgroup), or the kernel's
            controller dmem. It needs no PIDs.
        at: monotonic seconds of the readings.
        blind: see `blindness`.
        complete: no container holds more than `holdings` say. Otherwise nobody can be said to use what it was not
            given: that memory is left unattributed.
        excused: UIDs of the pods of which that cannot be said in any case.
    """
    known = {pod.kubelet_uid: pod for pod in pods}
    known.update((holder.pod_uid, holder.pod) for holder in holdings if holder.pod is not None)
    of_pods = {pid: owner for pid, owner in owners.items() if owner is not None and pid not in mps_servers}
    by_gpu = {each.uuid: replace(each, processes=None) if blind else each for each in readings}
    holders: dict[str, list[ContainerGpus]] = {uuid: [] for uuid in by_gpu}
    for holder in holdings:
        for uuid in holder.granted:
            holders.setdefault(uuid, []).append(holder)
    found: list[AttributedUse] = []
    left_out: set[str] = set()
    unattributed: dict[str, int] = {}
    for uuid, held in holders.items():
        reading = by_gpu.get(uuid, GpuReading(uuid, None))
        uses = []
        for use in _uses(reading, of_pods, held, known, measured):
            if use.trespassing and (not complete or use.pod_uid in excused):
                left_out.add(use.pod_uid)
            else:
                uses.append(use)
        found += uses
        in_pods = _sum(process.used_mib for process in reading.processes or () if process.pid in of_pods)
        if reading.processes is not None and reading.used_mib is not None and in_pods is not None:
            unattributed[uuid] = max(0, reading.used_mib - sum(use.used_mib or 0 for use in uses))
    in_use = {uuid: reading.used_mib for uuid, reading in by_gpu.items()}
    return UseReading(at, tuple(found), in_use, unattributed, blind, frozenset(left_out))


def _uses(
    reading: GpuReading,
    of_pods: Mapping[int, CgroupOwner],
    held: Sequence[ContainerGpus],
    known: Mapping[str, Pod],
    measured: Mapping[Place, int],
) -> list[AttributedUse]:
    """Return the use of one GPU by container.

    `held` are the containers that hold it, `of_pods` the owners of the processes that run in pods.
    """
    holders = {(each.pod_uid, each.container): each for each in held}
    by_pod: dict[str, list[ContainerGpus]] = defaultdict(list)
    for each in holders.values():
        by_pod[each.pod_uid].append(each)
    parts: dict[tuple[str, str], list[GpuProcess]] = {name: [] for name in holders}
    for process in reading.processes or ():
        owner = of_pods.get(process.pid)
        if owner is not None:
            uid = owner.pod_uid
            parts.setdefault((uid, container_of(owner, by_pod[uid], known.get(uid))), []).append(process)
    found = []
    for (uid, name), processes in parts.items():
        holder = holders.get((uid, name))
        if name:
            granted = 0 if holder is None else holder.granted[reading.uuid]
            limit = None if holder is None else holder.limits.get(reading.uuid)
        else:
            granted = max((each.pod_granted.get(reading.uuid, 0) for each in by_pod[uid]), default=0)
            more = sum(max(0, each.told_mib(reading.uuid) - each.granted[reading.uuid]) for each in by_pod[uid])
            limit = granted + more if more else None
        # Processes of the pod whose container is not known may be those of any container without processes: the API
        # may still show the ID that it had before a restart, and a cgroup of unknown shape names none.
        mixed = holder is not None and (uid, "") in parts and not (holder.container_id and processes)
        unknown = reading.processes is None or mixed
        used = None if unknown else _sum(each.used_mib for each in processes)
        if (counted := measured.get((uid, name, reading.uuid))) is not None:
            # The kernel does not count in a container's cgroup what it moved out of the GPU and back.
            by_kernel = holder is not None and holder.enforcement is Enforcement.DMEM
            used = max(counted, used or 0) if by_kernel else counted
        percent = None if unknown else _sum(each.sm_percent for each in processes)
        found.append(
            AttributedUse(
                uid,
                name,
                reading.uuid,
                granted,
                used,
                None if percent is None else min(100, percent),
                holder,
                known.get(uid),
                limit,
            )
        )
    return found


def container_of(owner: CgroupOwner, holders: Sequence[ContainerGpus], pod: Pod | None) -> str:
    """Return the name of the container that a process of a pod belongs to; empty if it is not known.

    `holders` are the containers of the pod that hold the GPU.
    """
    named = {} if pod is None else {container_id: name for name, container_id in pod.container_ids.items()}
    if owner.container_id and owner.container_id in named:
        return named[owner.container_id]
    return holders[0].container if len(holders) == 1 else ""


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum of amounts; None if one of them is not known."""
    given = tuple(amounts)
    known = [each for each in given if each is not None]
    return sum(known) if len(known) == len(given) else None


def used_by_processes(
    readings: Iterable[GpuReading], owners: Mapping[int, CgroupOwner | None], uuid: str, owner: CgroupOwner
) -> int | None:
    """Return the MiB that the processes of one container use of a GPU; None: it has none, or that is not known."""
    processes = (each for reading in readings if reading.uuid == uuid for each in reading.processes or ())
    own = [each.used_mib for each in processes if owners.get(each.pid) == owner]
    return _sum(own) if own else None
