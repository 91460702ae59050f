"""Decode the messages that the driver process writes; `hardware/child.py` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from gpu_device_plugin.core.model.gpus import Gpu, Link, MigInstance  # noqa: TC001 - msgspec looks them up
from gpu_device_plugin.core.model.mig import is_profile
from gpu_device_plugin.core.node.health.gpu_health import Probe, Xid
from gpu_device_plugin.core.node.use.process_use import GpuReading  # noqa: TC001 - as above
from gpu_device_plugin.hardware.driver import ADVICE, HardwareError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_BYTES: Final = 4 << 20
"""The most bytes of a line. A description has 128 GPUs at most, and their links take 1 MB."""
_MOST_MIB = 1 << 26
"""The most memory of a GPU: 64 TiB. A much larger number would make more shares than fit into memory."""
_MOST_INSTANCES = 16
"""The most MIG instances of a GPU: today none can have more than seven."""
_MOST_ID = (1 << 31) - 1
"""The largest ID of a part of a GPU, or number of a device node."""
_MOST_LIMIT_MIB = 1 << 44
"""The most that a limit can be: NVML has 64 bits for its bytes."""
_MOST_PROCESSES = 4096
"""The most processes of a GPU; `hardware/nvml/nvml_use.py` lists no more."""
_MOST_PID = (1 << 32) - 1
"""NVML's processes have unsigned IDs of 32 bits."""
_MOST_PERCENT = 100


class MalformedError(ValueError):
    """A line is invalid. The message names the place in it."""


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hardware as one driver process listed it."""

    gpus: tuple[Gpu, ...]
    """Each GPU in MIG mode is followed by its instances."""
    links: tuple[Link, ...]
    driver_version: str | None
    cgroup: int | None
    """The version of control groups."""
    left_out: int
    """GPUs that could not be listed."""
    troubles: tuple[str, ...]
    """One sentence for each of those GPUs and each capability that this driver lacks."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reading of every GPU."""

    probes: tuple[Probe, ...]
    inventory: Listing | None = None
    """Only in the first answer of a process."""


class CgroupLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory limit of one cgroup on one GPU, as the driver has it."""

    uuid: str
    path: str
    code: int
    """NVML's return code: 0 success; 3 not supported, 4 no permission, 6 not found (no limit is set), 13 the driver has
    no such function."""
    hard_mib: int | None = None
    """None: without a limit, or not read."""
    soft_mib: int | None = None
    used_mib: int | None = None
    """Memory that the processes of the cgroup use on the GPU."""


class Events(msgspec.Struct, frozen=True):
    """Events that the driver reported by itself."""

    records: tuple[Xid | Probe, ...]


class UseAnswer(msgspec.Struct, frozen=True):
    """The processes on every GPU."""

    readings: tuple[GpuReading, ...]


class LimitsAnswer(msgspec.Struct, frozen=True):
    """The memory limits of cgroups."""

    limits: tuple[CgroupLimit, ...]


Message: TypeAlias = Answer | UseAnswer | LimitsAnswer | Events | HardwareError


class _Failure(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    what: str


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    answer: Answer | None = None
    use: tuple[GpuReading, ...] | None = None
    limits: tuple[CgroupLimit, ...] | None = None
    events: list[dict[str, Any]] | None = None
    error: _Failure | None = None


_LINES = msgspec.json.Decoder(_Line)


class MessageStream:
    """The output of one process, split into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def messages(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that `data` completes.

        Raises:
            MalformedError: a line is not a message, or is longer than `MOST_BYTES`.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from map(read, lines)
        if len(self._rest) > MOST_BYTES:
            self._rest = b""
            raise MalformedError(f"a line has more than {MOST_BYTES} bytes")


def read(line: bytes) -> Message:
    """Read one line.

    Raises:
        MalformedError: it is not a message of `hardware/child.py`.
    """
    try:
        decoded = _LINES.decode(line)
        match [part for part in msgspec.structs.astuple(decoded) if part is not None], decoded:
            case [Answer() as answer], _:
                return _plausible(answer)
            case [readings], _Line(use=tuple()):
                return UseAnswer(_plausible_use(readings))
            case [limits], _Line(limits=tuple()):
                return LimitsAnswer(_plausible_limits(limits))
            case [records], _Line(events=list()):
                return Events(tuple(map(_plausible_event, records)))
            case [_Failure() as failure], _ if failure.kind in ADVICE:
                return HardwareError(failure.kind, failure.what)
    # Too deep nesting raises RecursionError; input that is not UTF-8, a ValueError like msgspec's own.
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error
    raise MalformedError("it is not an answer, events or a known error")


def _plausible(answer: Answer) -> Answer:
    gpus = answer.inventory.gpus if answer.inventory is not None else ()
    for gpu in gpus:
        if not 0 <= gpu.total_mib <= _MOST_MIB:
            raise MalformedError(f"GPU {gpu.label} has {gpu.total_mib} MiB")
        if not 0 <= gpu.reserved_mib <= _MOST_MIB:
            raise MalformedError(f"the driver keeps {gpu.reserved_mib} MiB of GPU {gpu.label}")
        if gpu.instance is not None:
            _plausible_instance(gpu, gpu.instance, gpus)
    for probe in answer.probes:
        _plausible_probe(probe)
    return answer


def _plausible_instance(gpu: Gpu, instance: MigInstance, gpus: tuple[Gpu, ...]) -> None:
    if not any(each.uuid == instance.parent and each.instance is None and each.mig for each in gpus):
        raise MalformedError(f"the MIG instance {gpu.uuid} is of {instance.parent}, no listed GPU in MIG mode")
    if sum(each.card == gpu.card for each in gpus) > 1 + _MOST_INSTANCES:
        raise MalformedError(f"GPU {gpu.index} has more than {_MOST_INSTANCES} MIG instances")
    plausible = all(0 <= number <= _MOST_ID for number in (instance.number, instance.gi, instance.ci, *instance.caps))
    if not (plausible and is_profile(instance.profile)):  # a resource is called by it
        raise MalformedError(f"the MIG instance {gpu.uuid} is {instance}")


def _plausible_probe(probe: Probe) -> Probe:
    if len(probe.instances or ()) > _MOST_INSTANCES:
        raise MalformedError(f"GPU {probe.uuid} has more than {_MOST_INSTANCES} MIG instances")
    return probe


def _plausible_event(record: dict[str, Any]) -> Xid | Probe:
    if "code" in record:
        return msgspec.convert(record, Xid)
    return _plausible_probe(msgspec.convert(record, Probe))


def _plausible_use(readings: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
    for reading in readings:
        processes = reading.processes or ()
        if len(processes) > _MOST_PROCESSES:
            raise MalformedError(f"GPU {reading.uuid} has {len(processes)} processes")
        if not _within(_MOST_MIB, reading.used_mib):
            raise MalformedError(f"GPU {reading.uuid} uses {reading.used_mib} MiB")
        for one in processes:
            known = _within(_MOST_PID, one.pid) and _within(_MOST_MIB, one.used_mib)
            if not (known and _within(_MOST_PERCENT, one.sm_percent)):
                raise MalformedError(f"GPU {reading.uuid} has the process {one}")
    return readings


def _plausible_limits(limits: tuple[CgroupLimit, ...]) -> tuple[CgroupLimit, ...]:
    for limit in limits:
        known = _within(_MOST_LIMIT_MIB, limit.hard_mib) and _within(_MOST_LIMIT_MIB, limit.soft_mib)
        if not (known and _within(_MOST_MIB, limit.used_mib)):
            raise MalformedError(f"GPU {limit.uuid} has the limit {limit}")
    return limits


def _within(most: int, amount: int | None) -> bool:
    """Whether an amount is at most `most`, or not known."""
    return amount is None or 0 <= amount <= most
