"""Parse and check a description of fake GPUs and of events on a timeline.

A description is short or a YAML or JSON file, read again whenever it changes. The short form names how many GPUs of
which models there are, if need be with their memory and the MIG instances or partitions of each: ``fake:4xT4``,
``fake:2xH200-141GiB,1xA10``, ``fake:2xH100:mig=3g.40gb/1g.10gb*4``, ``fake:8xMI300X:partition=cpx``. A file::

    driver: 580.65.06                         # its version; null: unknown
    cgroup: 2                                 # version of control groups; null: unknown
    gpus:
      - 2xT4                                  # the short form, or
      - {model: H200, count: 2, memory: 141GiB, numa: 1}
      - {product: Some Card, memory: 7GiB, reserved: 100MiB, uuid: GPU-..., minor: 3, pci: "0000:3b:00.0"}
      - {model: H200, memory_limits: true}    # its driver can limit the memory of a cgroup
      - {model: L4, architecture: null}       # its driver does not tell
      - {model: H100, mig: true}              # in MIG mode, without instances
      - {model: H100, mig: 3g.40gb/1g.10gb*2} # its MIG instances, or one by one, each with more to say of it:
      - {model: H100, mig: [3g.40gb, 1g.10gb*2, {profile: 1g.10gb, gi: 7, uuid: MIG-..., memory: 9GiB}]}
                                              # A GPU is divided as real ones are, or refused; 1c.3g.40gb*2 are two
                                              # compute instances of one GPU instance
      - {model: MI300X, partition: cpx}       # eight GPUs, each with an eighth of the memory; spx, dpx and qpx make 1,
                                              # 2 and 4. The UUID given for all gets -p0, -p1 and so on
      - {model: B580, devices: [/dev/dri/renderD128]}  # the device nodes that containers get; without it none, because
                                              # one that the node lacks would keep them from starting. GPUs of NVIDIA's
                                              # have /dev/nvidia with their minor
    links:
      - {gpus: [0, 1], closeness: switch}     # others are connected as their models usually are
    events:
      - {at: 5s, gpu: 0, xid: 79}
      - {at: 5s, gpu: 0, lost: true}          # as on real hardware, the driver reports no event for it
      - {at: 20s, gpu: 0, lost: false}
      - {at: 30s, gpu: 1, ecc: 2, remap: pending, recovery_action: gpu-reset}
      - {at: 40s, gpu: 1, reset: true}
      - {at: 45s, gpu: 1, processes: 2, used: 3GiB}     # a number, or each with its ID, memory and percentage:
      - {at: 46s, gpu: 1, processes: [{pid: 4711, used: 3GiB, sm: 40}, {pid: 4712, used: null}]}
      - {at: 47s, gpu: 1, limits: {"/sys/fs/cgroup/*": 4GiB}}  # of cgroups, by a pattern of their path; the first
                                              # that matches counts. A size, or what the driver answers:
      - {at: 48s, gpu: 1, limits: {"*/podA/*": {hard: 4GiB, used: 3GiB}, "*/podB/*": {hard: null}, "*": {code: 3}}}
      - {at: 48s, gpu: 2, mig: 2g.20gb*3}     # other instances than before; true or []: MIG mode without instances
      - {at: 48s, gpu: 3, temperature: 91, throttle: [heat]}  # its condition; without it that of a GPU under the load
                                              # of its processes. In degrees Celsius temperature, memory_temperature,
                                              # slowdown; in percent fan, sm, memory_busy, encoder, decoder; in watts
                                              # power, power_limit, power_limit_default; in MHz sm_clock, memory_clock,
                                              # pcie_generation, pcie_width, all four with _max, too; pcie_sent,
                                              # pcie_received (a second: 2GiB); pcie_replays, nvlink_errors,
                                              # ecc_corrected, retired_pages, remapped_rows; persistence: false;
                                              # throttle: some of power-cap, hardware, sync, heat, power-brake,
                                              # hardware-heat. null: its driver does not tell
      - {at: 49s, gpu: 2, xid: 43, gi: 3}     # of a GPU instance, or with ci of a compute instance
      - {at: 49s, gpu: 2, instance: 1, processes: [{pid: 4713}], used: 1GiB}  # by NVML's index, or by UUID
      - {at: 50s, hang: 10s}                  # every call to the driver
      - {at: 70s, crash: true}
      - {at: 80s, failure: context-lost}      # one of hardware/driver.py, or none

It is one piece: each line of the form above has its reader, and the checks need what several of them read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.fake import gpu_models
from gpu_device_plugin.hardware.fake import value_forms as forms
from gpu_device_plugin.hardware.fake.fake_telemetry import CONDITION
from gpu_device_plugin.hardware.fake.gpu_models import MODELS, PARTITIONS
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError, Fields, Reader, Readers, Where
from gpu_device_plugin.model.gpus import MOST_GPUS, NVIDIA, Closeness

if TYPE_CHECKING:
    from gpu_device_plugin.hardware.driver import Record

CLOSENESS = {forms.name_of(level): level for level in Closeness}
ACTIONS = (
    *("none", "gpu-reset", "node-reboot", "drain-p2p"),
    *("drain-and-reset", "recover-imex", "bus-reset", "system-reboot"),
)
"""By the numbers that `node.rules.gpu_health` explains, as NVML calls them."""
_SHORT = re.compile(
    r"(?P<count>[0-9]+)x(?P<model>[A-Za-z0-9]+)(?:-(?P<memory>[^:]+))?"
    r"(?::mig=(?P<mig>.+)|:partition=(?P<partition>.+))?",
    re.ASCII,
)
_PROFILES = re.compile(r"(?P<profile>[0-9][^*\s]*)(?:\*(?P<count>[0-9]{1,3}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Description:
    """Fake hardware as described: its initial state and its events."""

    gpus: list[Fields]
    links: list[Record]
    events: list[Fields]
    """Sorted by time. Each has `at` (seconds), `gpu` (a position; None: the node) and the changed fields, which are
    those of a MIG instance if it has `instance` (a UUID)."""
    node: Fields

    def at(self, now_s: float) -> tuple[list[Fields], Fields]:
        """Return the state of the GPUs and of the node `now_s` after the start."""
        gpus = [dict(gpu) for gpu in self.gpus]
        node = dict(self.node)
        for event in self.events:
            if event["at"] > now_s:
                break
            target = node if event["gpu"] is None else gpus[event["gpu"]]
            if "instance" in event:
                target["instances"] = [
                    {**each, **event} if each["uuid"] == event["instance"] else each for each in target["instances"]
                ]
                continue
            if event.get("reset"):
                # Values that this hardware does not report stay unreported after a reset.
                target.update({key: new for key, new in _AFTER_RESET.items() if target[key] is not None})
            target.update(event)
        return gpus, node


def read(source: str) -> Description:
    """Read a description: ``fake:...`` or the path of a file.

    Raises:
        DescriptionError: it cannot be read or is invalid.
    """
    if source.startswith("fake:"):
        return _understood(source, {"gpus": source.removeprefix("fake:")})
    return _understood(source, _load(source))


def _load(path: str) -> object:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DescriptionError(f"{path}: cannot be read: {why}") from error
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise DescriptionError(f"{path}: is not JSON: {error}") from error
    import yaml  # noqa: PLC0415 - 1.5 MB that JSON does not need

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DescriptionError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error


def _understood(source: str, document: object) -> Description:
    where = Where(source)
    top = where.fields(document, _TOP)
    gpus = _gpus(where.inside("gpus"), top.get("gpus", []))
    uuids = [gpu["uuid"] for gpu in gpus]
    places = where.inside("events")
    events = [
        (_event(places.item(n), event, uuids), places.item(n))
        for n, event in enumerate(places.list(top.get("events", [])))
    ]
    events.sort(key=lambda event: event[0]["at"])
    _check_uuids(where.inside("gpus"), gpus)
    now = [dict(gpu) for gpu in gpus]
    for event, place in events:
        if event["gpu"] is not None:
            _understand_mig(place, event, now)
    return Description(
        gpus,
        _links(where.inside("links"), top.get("links", []), gpus),
        [event for event, _ in events],
        {
            "hang": 0.0,
            "failure": "none",
            "driver": top.get("driver", gpu_models.driver_version(gpus)),
            "cgroup": top.get("cgroup", 2),
        },
    )


def _check_uuids(where: Where, gpus: Sequence[Fields]) -> None:
    uuids = [each["uuid"] for gpu in gpus for each in (gpu, *gpu["instances"])]
    if len(uuids) > MOST_GPUS:
        raise where.error(
            f"{len(gpus)} GPUs with {len(uuids) - len(gpus)} instances are too many; {MOST_GPUS} is the maximum for "
            "one node"
        )
    for uuid in uuids:
        if uuids.count(uuid) > 1:
            raise where.error(f"two GPUs have the UUID {uuid}; omit uuid, or make the UUIDs differ")


def _understand_mig(where: Where, event: Fields, gpus: list[Fields]) -> None:
    """Resolve what an event says of MIG instances, in the order of time; `gpus` are those before it, and then after."""
    gpu = gpus[event["gpu"]]
    if "mig" in event:
        event.update(_mig_state(where.inside("mig"), {**gpu, "mig": event["mig"]}))
        gpu.update(instances=event["instances"])
        _check_uuids(where.inside("mig"), gpus)
    if "instance" in event:
        name = event["instance"]
        found = [each["uuid"] for each in gpu["instances"] if name in {each["uuid"], each["number"]}]
        if not found:
            have = f"0 to {len(gpu['instances']) - 1}" if gpu["instances"] else "none"
            raise where.inside("instance").error(
                f"{name!r} is not an instance that the GPU has then; name one by its number ({have}) or UUID"
            )
        event["instance"] = found[0]


def _mig_state(where: Where, gpu: Fields) -> Fields:
    """Return the MIG mode and the instances of a GPU whose `mig` is as it was described."""
    wanted = gpu["mig"]
    if isinstance(wanted, bool):
        return {"mig": wanted, "instances": []}
    try:
        return {"mig": True, "instances": gpu_models.divided(gpu, wanted)}
    except ValueError as error:
        raise where.error(str(error)) from error


def _gpus(where: Where, value: object) -> list[Fields]:
    entries = value.split(",") if isinstance(value, str) else where.list(value)
    boards: list[tuple[Where, str | None, Fields, int]] = []
    for n, entry in enumerate(entries):
        inside = where if isinstance(value, str) else where.item(n)
        fields = _short(inside, entry) if isinstance(entry, str) else inside.fields(entry, _GPU)
        count = fields.pop("count", 1)
        if count > 1 and "uuid" in fields:
            raise inside.error("several GPUs cannot share one uuid; omit uuid, or list the GPUs one by one")
        model = fields.pop("model", None)
        if model is None and "memory" not in fields:
            raise inside.error("a GPU needs a model or its memory")
        boards += [(inside, model, fields, _parts(inside, model, fields))] * count
    if (number := sum(parts for *_, parts in boards)) > MOST_GPUS:
        raise where.error(f"{number} GPUs are too many; {MOST_GPUS} is the maximum for one node")
    gpus: list[Fields] = []
    for n, board in enumerate(boards):
        # The first half of the boards is on the first CPU socket, as on most machines with several sockets.
        gpus += _board(*board, place=n, numa=n * 2 // len(boards), first=len(gpus))
    return gpus


def _parts(where: Where, model: str | None, fields: Fields) -> int:
    """Return of how many GPUs a board consists."""
    if (mode := fields.pop("partition", None)) is None:
        return 1
    try:
        count = gpu_models.partitions(model, mode)
    except ValueError as error:
        raise where.inside("partition").error(str(error)) from error
    if count > 1 and fields.get("memory_limits"):
        raise where.inside("memory_limits").error("the kernel limits the memory of a board, not that of its partitions")
    return count


def _short(where: Where, text: str) -> Fields:
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        raise where.error(
            f"{text.strip()!r} is not like 4xT4, 2xH200-141GiB, 1xH100:mig=1g.10gb*7 or 1xMI300X:partition=cpx"
        )
    return where.fields({key: value for key, value in match.groupdict().items() if value is not None}, _GPU)


def _board(
    where: Where, model: str | None, fields: Fields, parts: int, *, place: int, numa: int, first: int
) -> Iterator[Fields]:
    """Yield the GPU that a board is, or those that its parts are; the first has the position `first` on the node."""
    for part in range(parts):
        gpu = {
            **gpu_models.usual(model, place),
            "index": first + part,
            "minor": first + part,
            "numa": numa,
            "mig": False,
            "memory_limits": False,
            **_AFTER_RESET,
            "processes": 0,
            "limits": {},
            "used": 0,
            **fields,
        }
        nodes = [] if gpu["driver"] != NVIDIA or gpu["minor"] is None else [f"/dev/nvidia{gpu['minor']}"]
        gpu = {"devices": nodes, "uuid": gpu_models.usual_uuid(gpu, place), **gpu}
        if parts > 1:
            units, memory = gpu["compute_units"] // parts, gpu["memory"] // parts
            gpu |= {"uuid": f"{gpu['uuid']}-p{part}", "compute_units": units, "memory": memory}
        yield {**gpu, **_mig_state(where.inside("mig"), gpu)}


def _links(where: Where, value: object, gpus: Sequence[Fields]) -> list[Record]:
    """Return how each two GPUs are connected: as described, the others as their models usually are."""
    uuids = [gpu["uuid"] for gpu in gpus]
    links = {
        frozenset((one["uuid"], other["uuid"])): gpu_models.usual_link(one, other)
        for one, other in combinations(gpus, 2)
    }
    for n, entry in enumerate(where.list(value)):
        inside = where.item(n)
        fields = inside.fields(entry, _LINK)
        ends = frozenset(uuids[_position(inside.inside("gpus"), end, uuids)] for end in fields.get("gpus", []))
        if ends not in links:
            raise inside.error("gpus must name two different GPUs, as in gpus: [0, 1]")
        nvlinks = fields.get("nvlinks", 0)
        closeness = fields.get("closeness", Closeness.NVLINK if nvlinks else Closeness.UNKNOWN)
        links[ends] = closeness, nvlinks or int(closeness == Closeness.NVLINK)
    pairs = ((*sorted(ends), *link) for ends, link in links.items())
    return [{"a": a, "b": b, "closeness": closeness, "nvlinks": nvlinks} for a, b, closeness, nvlinks in pairs]


def _event(where: Where, entry: object, uuids: Sequence[str]) -> Fields:
    about_gpu = isinstance(entry, dict) and "gpu" in entry
    fields = where.fields(entry, _GPU_EVENT if about_gpu else _NODE_EVENT)
    if "at" not in fields:
        raise where.error("an event needs its time, as in at: 5s")
    if len(fields) == 1 + about_gpu + ("instance" in fields):
        raise where.error(
            f"the event changes nothing; it may have the keys {', '.join(_GPU_EVENT if about_gpu else _NODE_EVENT)}"
        )
    fields["gpu"] = _position(where.inside("gpu"), fields["gpu"], uuids) if about_gpu else None
    if "instance" in fields and (other := fields.keys() - {"at", "gpu", "instance", *_INSTANCE_STATE}):
        raise where.error(f"{', '.join(sorted(other))} is of the whole GPU; leave it or instance out")
    if ("gi" in fields and "xid" not in fields) or ("ci" in fields and "gi" not in fields):
        raise where.error("gi and ci say which instance an xid concerns, as in xid: 43, gi: 3, ci: 0")
    if "hang" in fields:  # duration -> end time
        fields["hang"] += fields["at"]
    return fields


def _position(where: Where, name: object, uuids: Sequence[str]) -> int:
    if name in uuids:
        return uuids.index(str(name))
    if type(name) is int and 0 <= name < len(uuids):
        return name
    raise where.error(
        f"{name!r} is not a GPU of this description; name one by its position (0 to {len(uuids) - 1}) or UUID"
    )


def _process(value: object) -> Fields:
    if isinstance(value, dict) and "pid" not in value:
        raise ValueError(f"{value!r} has no pid")
    return {"used": None, "sm": None, **Where("").fields(value, _PROCESS)}


def _processes(value: object) -> int | list[Fields] | None:
    """Read the processes of a GPU, or their number; null means that the driver does not report them."""
    return [_process(each) for each in value] if isinstance(value, list) else forms.or_null(forms.whole)(value)


def _mig(value: object) -> bool | list[Fields]:
    """Read whether a GPU is in MIG mode, or its instances, each with its profile and their number."""
    entries = value.split("/") if isinstance(value, str) else value
    return [_instances(entry) for entry in entries] if isinstance(entries, list) else forms.switch(entries)


def _instances(entry: object) -> Fields:
    if not isinstance(entry, str):
        fields = Where("").fields(entry, _INSTANCE)
        if "profile" not in fields:
            raise ValueError(f"{entry!r} has no profile")
        return {"count": 1, **fields}
    match = _PROFILES.fullmatch(entry.strip())
    if match is None:
        raise ValueError(f"{entry.strip()!r} is neither true nor false, nor instances like 1g.10gb*7")
    return {"profile": match["profile"], "count": _count(match["count"] or "1")}


def _count(value: object) -> int:
    if not 1 <= (count := forms.whole(value)) <= MOST_GPUS:
        raise ValueError(f"{count} is not a number of GPUs or instances; write 1 to {MOST_GPUS}")
    return count


def _action(value: object) -> int | None:
    """Read a recovery action by name or number; null means that the driver does not report it."""
    return ACTIONS.index(forms.one_of(ACTIONS)(value)) if isinstance(value, str) else forms.or_null(forms.whole)(value)


_STATE: Readers = {
    "mig": _mig,
    "lost": forms.switch,
    "error": forms.or_null(forms.text),
    "ecc": forms.or_null(forms.whole),
    "remap": forms.one_of(("none", "pending", "failed")),
    "recovery_action": _action,
    "processes": _processes,
    "limits": forms.limits,
    "used": forms.size,
    **CONDITION,
}
_INSTANCE_STATE: Readers = {"error": forms.or_null(forms.text), "processes": _processes, "used": forms.size}
_INSTANCE: Readers = {
    "profile": forms.text,
    "count": _count,
    "gi": forms.whole,
    "uuid": forms.text,
    "memory": forms.size,
    **_INSTANCE_STATE,
}
_AFTER_RESET = {"ecc": 0, "ecc_corrected": 0, "recovery_action": 0, "remap": "none", "error": None, "lost": False}
_GPU: Readers = {
    "model": forms.one_of(MODELS, "a known model; give memory instead, or use one of"),
    "count": _count,
    "product": forms.text,
    "memory": forms.size,
    "reserved": forms.size,
    "uuid": forms.text,
    "index": forms.whole,
    "minor": forms.or_null(forms.whole),
    "devices": forms.devices,
    "partition": forms.one_of(PARTITIONS),
    "pci": forms.or_null(forms.text),
    "numa": forms.or_null(forms.whole),
    "memory_limits": forms.switch,
    "unified": forms.switch,
    "architecture": forms.or_null(forms.text),
    **_STATE,
}
_any: Reader = lambda value: value  # noqa: E731 - checked once the GPUs are known
_GPU_EVENT: Readers = {
    "at": forms.seconds,
    "gpu": _any,
    "instance": _any,
    "xid": forms.whole,
    "gi": forms.whole,
    "ci": forms.whole,
    "reset": forms.switch,
    **_STATE,
}
_LINK: Readers = {
    "gpus": list,
    "closeness": lambda value: CLOSENESS[forms.one_of(CLOSENESS)(value)],
    "nvlinks": forms.whole,
}
_NODE_EVENT: Readers = {
    "at": forms.seconds,
    "hang": forms.hang,
    "crash": forms.switch,
    "failure": forms.one_of(("none", *driver.ADVICE)),
    "driver": forms.text,
}
_PROCESS: Readers = {"pid": forms.whole, "used": forms.or_null(forms.size), "sm": forms.or_null(forms.at_most(100))}
_TOP: Readers = {
    "driver": forms.or_null(forms.text),
    "cgroup": forms.or_null(forms.whole),
    "gpus": _any,
    "links": _any,
    "events": _any,
}
