"""Divide a described GPU into MIG instances as the hardware does: placed by its rules, or refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.hardware.fake.gpu_models import SIZES, gpu_instance, memory_slices, profiles_of
from gpu_device_plugin.model.memory import format_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.hardware.fake.gpu_models import Profile
    from gpu_device_plugin.hardware.fake.value_forms import Fields

_PART = re.compile(r"(?P<compute>[1-9])c\.(?P<profile>.+)", re.ASCII)
# /proc/driver/nvidia-caps/mig-minors lists all that a GPU can ever have: 15 GPU instances of 8 compute instances each.
# The first two capabilities are those to configure and to monitor.
_FIRST_CAP, _CAPS_OF_GI, _CAPS_OF_GPU = 3, 9, 135


@dataclass(slots=True)
class _GpuInstance:
    """A GPU instance that is to be placed, with its compute instances."""

    name: str
    memory_mib: int
    size: int
    """Its slices of the memory."""
    fixed: int | None
    """The ID that it must have; None: any."""
    starts: tuple[int, ...]
    """The slices of the memory at which it can begin."""
    free: int
    """Its slices of compute that no compute instance has."""
    parts: list[tuple[str, Fields]] = field(default_factory=list)
    """The profile of each compute instance, and what is described of it."""

    def add(self, name: str, compute: int, entry: Fields) -> None:
        self.free -= compute
        self.parts.append((name, entry))


def divided(gpu: Fields, wanted: Sequence[Fields], uuid_of: Callable[[str, str], str]) -> list[Fields]:
    """Return the instances of a GPU, in the order in which NVML counts them.

    A profile like ``1c.3g.40gb`` is a compute instance: it becomes a part of the GPU instance before it, if that is of
    the same profile and has room.

    Of the GPU, `model`, `memory`, `uuid` and `minor` count. Those `wanted` have `profile`, `count` and possibly `gi`,
    `uuid`, `memory` and further fields. `uuid_of` makes a UUID of a prefix and a seed.

    Raises:
        ValueError: the hardware cannot be divided like that; the message says why not.
    """
    if not wanted:
        return []
    table = _table(gpu)
    slices = memory_slices(gpu["model"])
    parts = _gpu_instances(wanted, table, slices)
    parts.sort(key=lambda part: -part.size)
    starts: Sequence[int] | None = ()
    for n, part in enumerate(parts):
        starts = _starts(parts[: n + 1])
        if starts is None:
            beside = ", ".join(each.name for each in parts[:n])
            raise ValueError(f"{part.name} does not fit beside {beside}; the hardware has no place for it")
    found = []
    for part, start in zip(parts, starts or (), strict=True):
        gi = gpu_instance(part.size, start, slices)
        found += [_instance(gpu, part, gi, ci, uuid_of) for ci in range(len(part.parts))]
    found.sort(key=lambda instance: (instance["gi"], instance["ci"]))
    return [{**instance, "number": number} for number, instance in enumerate(found)]


def _table(gpu: Fields) -> Mapping[str, Profile]:
    model, memory = gpu["model"], gpu["memory"]
    if table := profiles_of(model, memory):
        return table
    if sizes := [format_mib(size) for each, size in SIZES if each == model]:
        raise ValueError(
            f"the profiles of {model} with {format_mib(memory)} are not known; those with {_or(sizes)} are"
        )
    models = _or(list(dict.fromkeys(each for each, _ in SIZES)))
    raise ValueError(f"{model or 'a GPU without a model'} cannot be divided into instances; {models} can")


def _gpu_instances(wanted: Sequence[Fields], table: Mapping[str, Profile], slices: int) -> list[_GpuInstance]:
    made: list[_GpuInstance] = []
    for entry in wanted:
        part = _PART.fullmatch(entry["profile"])
        name = entry["profile"] if part is None else part["profile"]
        if name not in table:
            raise ValueError(f"{entry['profile']!r} is no profile of this model; it has {', '.join(table)}")
        if entry["count"] > 1 and "uuid" in entry:
            raise ValueError("several instances cannot share one uuid; omit uuid, or list the instances one by one")
        whole, fixed = int(name[0]), entry.get("gi")
        compute = whole if part is None else int(part["compute"])
        if part is not None and compute >= whole:
            raise ValueError(f"{entry['profile']!r} is no part of a {name}, which has {whole} slices")
        for _ in range(entry["count"]):
            into = made[-1] if made else None
            if part is None or into is None or (into.name, into.fixed) != (name, fixed) or into.free < compute:
                memory_mib, size, _, _ = table[name]
                starts = _beginnings(name, table[name], fixed, slices)
                into = _GpuInstance(name, memory_mib, size, fixed, starts, free=whole)
                made.append(into)
            into.add(entry["profile"], compute, entry)
    for name, (_, _, most, _) in table.items():
        if sum(each.name == name for each in made) > most:
            raise ValueError(f"a GPU of this model has at most {most} of {name}")
    return made


def _beginnings(name: str, profile: Profile, fixed: int | None, slices: int) -> tuple[int, ...]:
    _, size, _, starts = profile
    if fixed is None:
        return starts
    ids = [gpu_instance(size, start, slices) for start in starts]
    if fixed not in ids:
        raise ValueError(f"{name} cannot be the GPU instance {fixed}; it can be {_or(list(map(str, ids)))}")
    return (starts[ids.index(fixed)],)


def _starts(parts: Sequence[_GpuInstance], taken: int = 0, before: tuple[str, int] = ("", -1)) -> list[int] | None:
    """Return where each part begins, None if they do not fit; `taken` has a bit for each slice of the memory.

    `before` is the part that was placed last, with its beginning: equal parts need be tried in one order only.
    """
    if not parts:
        return []
    part = parts[0]
    for start in part.starts:
        own = ((1 << part.size) - 1) << start
        if own & taken or (part.fixed is None and part.name == before[0] and start < before[1]):
            continue
        rest = _starts(parts[1:], taken | own, (part.name if part.fixed is None else "", start))
        if rest is not None:
            return [start, *rest]
    return None


def _instance(gpu: Fields, part: _GpuInstance, gi: int, ci: int, uuid_of: Callable[[str, str], str]) -> Fields:
    profile, described = part.parts[ci]
    cap = _FIRST_CAP + (gpu["minor"] or 0) * _CAPS_OF_GPU + gi * _CAPS_OF_GI
    given = {key: value for key, value in described.items() if key not in {"count", "profile", "gi"}}
    return {
        # As on real hardware, an instance that is made again in its old place has its old UUID.
        "uuid": uuid_of("MIG", f"{gpu['uuid']} {gi} {ci} {profile}"),
        "profile": profile,
        "gi": gi,
        "ci": ci,
        "alone": profile == part.name,
        "caps": [] if gpu["minor"] is None else [cap, cap + 1 + ci],
        "memory": part.memory_mib,
        "processes": 0,
        "used": 0,
        "error": None,
        **given,
    }


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
