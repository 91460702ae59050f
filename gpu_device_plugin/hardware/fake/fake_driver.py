"""The driver port over fake hardware, defined by a description; see `hardware/fake/description.py`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.files import stamp_of
from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.hardware.fake.description import Description, read
from gpu_device_plugin.hardware.fake.fake_telemetry import FakeCondition
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError, Fields
from gpu_device_plugin.model.gpus import NVIDIA

if TYPE_CHECKING:
    from gpu_device_plugin.hardware.driver import Record

_LOOK_EVERY_S = 0.02
_INVALID_ARGUMENT, _NOT_FOUND, _FUNCTION_NOT_FOUND = 2, 6, 13  # NVML's codes
_LOUD = {"xid", "ecc", "remap", "recovery_action", "mig"}  # a driver reports events for these


class Fake:
    """Fake hardware, defined by a description; see `driver.Driver`."""

    def __init__(
        self,
        source: str,
        origin_s: float = 0.0,
        since_s: float = -1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the hardware described by `source`, see `read`, whose timeline began at `origin_s` by `clock`.

        XIDs and crashes up to the time `since_s` of the timeline are not reported. The default `clock` is the same in
        every process of a machine.

        Raises:
            HardwareError: the description is invalid.
        """
        self._source = source
        self._limits_file = Path(f"{source}.limits")
        """The limits that were set."""
        self._origin_s = origin_s
        self._clock = clock
        self._parent = os.getppid()
        self._stamp = stamp_of(Path(source))
        self._description = _read_or_fail(source)
        self._reported = [event for event in self._description.events if event["at"] <= since_s]
        # A real driver that has lost a GPU does not find it again until it is reopened.
        self._lost: set[str] = set()
        self._listed: dict[str, str] = {}
        """The listed GPUs and instances, each with the UUID of its GPU."""
        self._condition = FakeCondition()

    def inventory(self) -> Record:
        """List the GPUs; see `Driver.inventory`."""
        gpus, node = self._hardware()
        listed = [gpu for gpu in gpus if not gpu["lost"]]
        records = [
            record
            for gpu in listed
            for record in (_gpu_record(gpu), *(_instance_record(gpu, instance) for instance in gpu["instances"]))
        ]
        self._listed = {
            record["uuid"]: record["uuid"] if record["instance"] is None else record["instance"]["parent"]
            for record in records
        }
        return {
            "gpus": records,
            "links": [
                link for link in self._description.links if link["a"] in self._listed and link["b"] in self._listed
            ],
            "driver_version": node["driver"],
            "cgroup": node["cgroup"],
            "left_out": len(gpus) - len(listed),
            "troubles": [
                f"the GPU {_counted(gpu)} is left out, it cannot be read: {_loss(gpu)}" for gpu in gpus if gpu["lost"]
            ],
        }

    def probe(self) -> list[Record]:
        """Read every GPU; see `Driver.probe`."""
        gpus, _ = self._hardware()
        return [reading for gpu in self._cards for reading in self._readings(gpus, gpu, instances=True)]

    def use(self, *, utilisation: bool) -> list[Record]:
        """Read the processes on every GPU; see `Driver.use`."""
        gpus, _ = self._hardware()
        uses = {use["uuid"]: use for gpu in gpus for use in _uses(gpu, utilisation=utilisation)}
        unknown: dict[str, Record] = {uuid: {"uuid": uuid, "processes": None, "used_mib": None} for uuid in self._cards}
        return [each for uuid in self._listed if (each := uses.get(uuid) or unknown.get(uuid)) is not None]

    def condition(self, groups: list[str]) -> list[Record]:
        """Read the condition of every GPU; see `Driver.condition`."""
        gpus, _ = self._hardware()
        self._lost |= {gpu["uuid"] for gpu in gpus if gpu["lost"]}
        there = [gpu for gpu in gpus if gpu["uuid"] in self._cards and gpu["uuid"] not in self._lost]
        return [self._condition.read(gpu, () if gpu["error"] else groups, self._now()) for gpu in there]

    def limits(self, wanted: list[tuple[str, str]]) -> list[Record]:
        """Read the memory limits of cgroups; see `Driver.limits`."""
        gpus = self._limitable()
        return [self._limit(path, gpus[uuid]) for uuid, path in wanted if uuid in gpus]

    def set_limits(self, wanted: list[tuple[str, str, int | None, int]]) -> list[Record]:
        """Set the memory limits of cgroups; see `Driver.set_limits`.

        They are kept in a file beside the description, so that another process reads them back. Memory in use beyond a
        limit stays. A limit that is described with a code is answered with it.
        """
        gpus = self._limitable()
        return [self._set_limit(path, gpus[uuid], hard, soft) for uuid, path, hard, soft in wanted if uuid in gpus]

    def _limitable(self) -> Mapping[str, Fields]:
        return {gpu["uuid"]: gpu for gpu in self._hardware()[0] if gpu["uuid"] in self._listed}

    def _limit(self, path: str, gpu: Fields) -> Record:
        described = _described_limit(path, gpu)
        kept = self._kept().get(gpu["uuid"], {}).get(path)
        if described["code"] not in {0, _NOT_FOUND} or kept is None or not Path(path).is_dir():
            return described  # a limit ends with its cgroup
        return {**described, "code": 0, "hard_mib": kept[0], "soft_mib": kept[1], "used_mib": kept[2]}

    def _set_limit(self, path: str, gpu: Fields, hard: int | None, soft: int) -> Record:
        now = self._limit(path, gpu)
        if now["code"] not in {0, _NOT_FOUND}:
            return now
        if not Path(path).is_dir() or (hard is not None and soft > hard):
            return {"uuid": gpu["uuid"], "path": path, "code": _INVALID_ARGUMENT}
        self._keep(gpu["uuid"], path, [hard, soft, now.get("used_mib") or 0])
        return self._limit(path, gpu)

    def _kept(self) -> dict[str, dict[str, list[int | None]]]:
        """Return the limits that were set, by UUID and path: hard, soft and used MiB."""
        try:
            kept: dict[str, dict[str, list[int | None]]] = json.loads(self._limits_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return kept

    def _keep(self, uuid: str, path: str, limit: list[int | None]) -> None:
        kept = self._kept()
        kept.setdefault(uuid, {})[path] = limit
        new = Path(f"{self._limits_file}.{os.getpid()}")
        new.write_text(json.dumps(kept), encoding="utf-8")
        new.replace(self._limits_file)

    def wait_events(self, timeout_s: float) -> list[Record]:
        """Wait for events; see `Driver.wait_events`."""
        until = self._clock() + timeout_s
        while True:
            if records := list(self._news()):
                return records
            now = self._clock()
            if now >= until:
                return []
            # Wake at the exact time of the next event, and soon enough to see a change of the file.
            due = (self._origin_s + event["at"] for event in self._description.events)
            time.sleep(min(until, now + _LOOK_EVERY_S, *(at for at in due if at > now)) - now)

    @property
    def _cards(self) -> list[str]:
        """The UUIDs of the listed GPUs, without their instances."""
        return [uuid for uuid, gpu in self._listed.items() if uuid == gpu]

    def _now(self) -> float:
        return self._clock() - self._origin_s

    def _hardware(self) -> tuple[list[Fields], Fields]:
        """Return the current GPUs and node, once the driver does not hang."""
        while True:
            self._reread()
            gpus, node = self._description.at(self._now())
            if self._now() >= node["hang"]:
                break
            if os.getppid() != self._parent:
                os._exit(1)  # unlike a driver's hang, this one does not outlive the agent
            time.sleep(_LOOK_EVERY_S)
        if node["failure"] != "none":
            raise HardwareError(node["failure"], f"{self._source} describes a driver failure")
        return gpus, node

    def _reread(self) -> None:
        stamp = stamp_of(Path(self._source))
        if stamp != self._stamp:
            self._description = _read_or_fail(self._source)
            self._stamp = stamp

    def _news(self) -> Iterator[Record]:
        try:
            self._reread()
        except HardwareError:
            return  # the next probe reports it
        gpus, _ = self._description.at(self._now())
        reported = list(self._reported)
        for event in self._description.events:
            if event["at"] > self._now():
                break
            if event in reported:
                reported.remove(event)
                continue
            self._reported.append(event)
            if event.get("crash"):
                os.abort()
            if event["gpu"] is not None and gpus[event["gpu"]]["uuid"] in self._listed:
                yield from self._reported_by_driver(event, gpus)

    def _reported_by_driver(self, event: Fields, gpus: Sequence[Fields]) -> Iterator[Record]:
        """Yield what the driver reports by itself when an event happens to a GPU."""
        uuid = gpus[event["gpu"]]["uuid"]
        reading = list(self._readings(gpus, uuid))  # always: it notices a GPU that is lost for a moment
        if "xid" in event:
            yield {"uuid": uuid, "code": event["xid"], **{key: event[key] for key in ("gi", "ci") if key in event}}
        if "mig" in event:
            reading = [{**each, "mig_changed": True} for each in reading]
        if _LOUD & event.keys():
            yield from reading

    def _readings(self, gpus: Sequence[Fields], uuid: str, *, instances: bool = False) -> Iterator[Record]:
        """Yield a reading of a GPU and, if wanted, of each of its listed instances that still exists."""
        gpu = next((gpu for gpu in gpus if gpu["uuid"] == uuid), None)
        if gpu is None or gpu["lost"]:
            self._lost.add(uuid)
        if gpu is None or uuid in self._lost:
            yield {"uuid": uuid, "error": f"the driver cannot read it: {_loss(gpu)}", "lost": True}
        elif gpu["error"] is not None:
            yield {"uuid": uuid, "error": f"the driver cannot read it: {gpu['error']}", "lost": False}
        else:
            yield _reading(gpu)
            for instance in gpu["instances"] if instances else ():
                if instance["uuid"] in self._listed:
                    yield _instance_reading(gpu, instance)


def _counted(gpu: Fields) -> str:
    return f"that nvidia-smi counts as {gpu['index']}" if gpu["driver"] == NVIDIA else str(gpu["uuid"])


def _loss(gpu: Fields | None) -> str:
    return "GPU is lost (15)" if gpu is None or gpu["driver"] == NVIDIA else "it is gone from the PCI bus"


def _read_or_fail(source: str) -> Description:
    try:
        return read(source)
    except DescriptionError as error:
        raise HardwareError(driver.OTHER, str(error)) from error


def _reading(gpu: Fields) -> Record:
    divided = bool(gpu["instances"])  # a driver then tells neither errors of the memory nor rows
    record: Record = {
        "uuid": gpu["uuid"],
        "ecc_uncorrected": None if divided else gpu["ecc"],
        "remap_pending": None if divided else gpu["remap"] == "pending",
        "remap_failed": None if divided else gpu["remap"] == "failed",
        "recovery_action": gpu["recovery_action"],
        "processes": _count(gpu),
        "used_mib": _used_mib(gpu),
        "mig": gpu["mig"],
    }
    if gpu["mig"]:
        record["instances"] = [instance["uuid"] for instance in gpu["instances"]]
    return record


def _instance_reading(gpu: Fields, instance: Fields) -> Record:
    if instance["error"] is not None:
        return {"uuid": instance["uuid"], "error": f"the driver cannot read it: {instance['error']}", "lost": False}
    return {
        "uuid": instance["uuid"],
        "recovery_action": gpu["recovery_action"],
        "processes": _count(instance),
        "used_mib": _used_mib(instance),
    }


def _count(gpu: Fields) -> int | None:
    """Return the number of processes on a GPU with its instances."""
    own: int | None = len(gpu["processes"]) if isinstance(gpu["processes"], list) else gpu["processes"]
    counts = [own, *map(_count, gpu.get("instances", ()))]
    return sum(count for count in counts if count is not None) if None not in counts else None


def _instance_record(gpu: Fields, instance: Fields) -> Record:
    return {
        **_gpu_record(gpu),
        "uuid": instance["uuid"],
        "product": f"{gpu['product']} MIG {instance['profile']}",
        "total_mib": instance["memory"],
        "reserved_mib": 0,
        "mig": False,
        "memory_limits": False,
        "instance": {
            "parent": gpu["uuid"],
            **{key: instance[key] for key in ("number", "profile", "gi", "ci", "alone", "caps")},
        },
    }


def _gpu_record(gpu: Fields) -> Record:
    return {
        "uuid": gpu["uuid"],
        "index": gpu["index"],
        "product": gpu["product"],
        "total_mib": gpu["memory"],
        "reserved_mib": gpu["reserved"],
        "device_paths": gpu["devices"],
        "driver": gpu["driver"],
        "compute_units": gpu["compute_units"],
        "pci_bus_id": gpu["pci"],
        "numa_node": gpu["numa"],
        "mig": gpu["mig"],
        "memory_limits": gpu["memory_limits"],
        "architecture": gpu["architecture"],
        "unified": gpu["unified"],
        "instance": None,
    }


def _used_mib(gpu: Fields) -> int | None:
    """Return the memory in use: that of the described processes and instances, unless the description says more.

    None: a driver does not tell it.
    """
    return None if gpu.get("unified") else _in_use_mib(gpu)


def _in_use_mib(gpu: Fields) -> int:
    processes = gpu["processes"] if isinstance(gpu["processes"], list) else []
    used: int = gpu["used"]
    of_instances = sum(map(_in_use_mib, gpu.get("instances", ())))
    return max(used, sum(process["used"] or 0 for process in processes) + of_instances)


def _uses(gpu: Fields, *, utilisation: bool) -> Iterator[Record]:
    """Yield who uses a GPU and each of its instances; of an instance the driver does not tell the utilisation."""
    if gpu["lost"] or gpu["error"] is not None:
        return
    yield _use(gpu, utilisation=utilisation)
    for instance in gpu["instances"]:
        yield _use(instance, utilisation=False)


def _use(gpu: Fields, *, utilisation: bool) -> Record:
    listed, unreadable = gpu["processes"], gpu["error"] is not None
    processes = None
    if not (gpu.get("mig") or unreadable or listed is None):
        processes = [
            {"pid": each["pid"], "used_mib": each["used"], "sm_percent": each["sm"] if utilisation else None}
            # A number of processes without their IDs is what a reader in another PID namespace knows: none of them.
            for each in (listed if isinstance(listed, list) else ())
        ]
    return {"uuid": gpu["uuid"], "processes": processes, "used_mib": None if unreadable else _used_mib(gpu)}


def _described_limit(path: str, gpu: Fields) -> Record:
    limit = next((limit for pattern, limit in gpu["limits"].items() if fnmatchcase(path, pattern)), None)
    code = _FUNCTION_NOT_FOUND if not gpu["memory_limits"] else _NOT_FOUND if limit is None else limit["code"]
    record = {"uuid": gpu["uuid"], "path": path, "code": code}
    amounts = {f"{key}_mib": limit[key] for key in ("hard", "soft", "used")} if limit is not None and not code else {}
    return {**record, **amounts}
