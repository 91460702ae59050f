"""Decode the messages that the driver process writes; `hardware/child.py` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from gpu_device_plugin.hardware.driver import (
    ADVICE,
    MOST_INSTANCES,
    MOST_MIB,
    MOST_OF_CONDITION,
    MOST_PROCESSES,
    PERCENT,
)
from gpu_device_plugin.model.gpus import Gpu, Link, MigInstance
from gpu_device_plugin.model.mig import is_profile
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading, GpuTelemetry
from gpu_device_plugin.node.rules.gpu_health import Probe, Xid

_Counted: TypeAlias = "GpuReading | GpuProcess | GpuTelemetry | CgroupLimit"

MOST_BYTES: Final = 4 << 20
"""The most bytes of a line. A description has 128 GPUs at most, and their links take 1 MB."""
_MOST_ID = (1 << 31) - 1
"""The largest ID of a part of a GPU, or number of a device node."""
_MOST_PATHS = 8
"""The most device nodes of a GPU."""
_MOST_LIMIT_MIB = 1 << 44
"""The most that a limit can be: NVML has 64 bits for its bytes."""
_MOST_PID = (1 << 32) - 1
"""NVML's processes have unsigned IDs of 32 bits."""


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
    """GPUs and MIG instances that could not be listed."""
    troubles: tuple[str, ...]
    """One sentence for each of those GPUs, then for each capability that this driver lacks."""


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


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why the driver cannot be used; see `driver.HardwareError`."""

    kind: str
    what: str
    advice: str = ""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One line. Just one of its parts is there."""

    answer: Answer | None = None
    use: tuple[GpuReading, ...] | None = None
    condition: tuple[GpuTelemetry, ...] | None = None
    limits: tuple[CgroupLimit, ...] | None = None
    events: tuple[Any, ...] | None = None
    """XIDs and readings (`Xid`, `Probe`) that the driver reported by itself."""
    error: Failure | None = None


_LINES = msgspec.json.Decoder(Message)
_MOST: Mapping[type[_Counted], Mapping[str, int]] = {
    GpuReading: {"used_mib": MOST_MIB},
    GpuProcess: {"pid": _MOST_PID, "used_mib": MOST_MIB, "sm_percent": PERCENT},
    GpuTelemetry: MOST_OF_CONDITION,
    CgroupLimit: {"hard_mib": _MOST_LIMIT_MIB, "soft_mib": _MOST_LIMIT_MIB, "used_mib": MOST_MIB},
}
"""The most that the amounts of a record can be; the least is 0."""


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
        message = _LINES.decode(line)
        if message.events is not None:
            message.events = tuple(map(_event, message.events))
    # Too deep nesting raises RecursionError; input that is not UTF-8, a ValueError like msgspec's own.
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from error
    known = message.error is None or message.error.kind in ADVICE
    if not known or sum(part is not None for part in msgspec.structs.astuple(message)) != 1:
        raise MalformedError("it is not an answer, events or a known error")
    if message.answer is not None:
        _check_answer(message.answer)
    _check_amounts(message.use or message.condition or message.limits or ())
    return message


def _check_answer(answer: Answer) -> None:
    gpus = answer.inventory.gpus if answer.inventory is not None else ()
    for gpu in gpus:
        if not 0 <= gpu.total_mib <= MOST_MIB:
            raise MalformedError(f"GPU {gpu.label} has {gpu.total_mib} MiB")
        if not 0 <= gpu.reserved_mib <= MOST_MIB:
            raise MalformedError(f"the driver keeps {gpu.reserved_mib} MiB of GPU {gpu.label}")
        if len(gpu.device_paths) > _MOST_PATHS or not all(path.startswith("/dev/") for path in gpu.device_paths):
            raise MalformedError(f"GPU {gpu.label} has the device nodes {gpu.device_paths[:_MOST_PATHS]}")
        if gpu.instance is not None:
            _check_instance(gpu, gpu.instance, gpus)
    for probe in answer.probes:
        _check_probe(probe)


def _check_instance(gpu: Gpu, instance: MigInstance, gpus: tuple[Gpu, ...]) -> None:
    if not any(each.uuid == instance.parent and each.instance is None and each.mig for each in gpus):
        raise MalformedError(f"the MIG instance {gpu.uuid} is of {instance.parent}, no listed GPU in MIG mode")
    if sum(each.card == gpu.card for each in gpus) > 1 + MOST_INSTANCES:
        raise MalformedError(f"GPU {gpu.index} has more than {MOST_INSTANCES} MIG instances")
    plausible = all(0 <= number <= _MOST_ID for number in (instance.number, instance.gi, instance.ci, *instance.caps))
    if not (plausible and is_profile(instance.profile)):  # a resource is called by it
        raise MalformedError(f"the MIG instance {gpu.uuid} is {instance}")


def _check_probe(probe: Probe) -> None:
    if len(probe.instances or ()) > MOST_INSTANCES:
        raise MalformedError(f"GPU {probe.uuid} has more than {MOST_INSTANCES} MIG instances")


def _event(record: Any) -> Xid | Probe:
    if isinstance(record, dict) and "code" in record:
        return msgspec.convert(record, Xid)
    probe = msgspec.convert(record, Probe)
    _check_probe(probe)
    return probe


def _check_amounts(records: Iterable[_Counted], uuid: str = "") -> None:
    """Raise MalformedError if an amount of a record is more than any can be, or less than 0; None is not known."""
    for record in records:
        of = uuid or getattr(record, "uuid", "")
        for name, most in _MOST[type(record)].items():
            if (amount := getattr(record, name)) is not None and not 0 <= amount <= most:
                raise MalformedError(f"GPU {of} has {name} {amount}")
        if isinstance(record, GpuReading):
            processes = record.processes or ()
            if len(processes) > MOST_PROCESSES:
                raise MalformedError(f"GPU {of} has {len(processes)} processes")
            _check_amounts(processes, of)
