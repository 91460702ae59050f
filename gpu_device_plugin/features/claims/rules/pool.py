"""Decide which ResourceSlices a node has, and which writes bring the API server in line with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_device_plugin.features.claims.contract import DRIVER

_DEVICES = 64
"""Most devices of a slice whose devices have taints (Kubernetes 1.36)."""
_LONGEST_NAME = 253
_TIME = "timeAdded"
"""The field of a taint that the API server sets where it is absent."""

Content = dict[str, Any]
"""What one slice offers: its ``devices``."""


@dataclass(frozen=True, slots=True)
class Present:
    """A slice of our pool as the API server has it."""

    name: str
    resource_version: str
    generation: int
    count: int
    """The number of slices that its pool is said to have."""
    content: Content
    """With the times that the API server adds to taints."""
    uid: str = ""
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Writes:
    """What to write, in this order: first what is put, then what is deleted."""

    put: tuple[tuple[str, Mapping[str, Any], Present | None], ...] = ()
    """The name of a slice, its ``spec``, and what it replaces."""
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.put or self.delete)


NOTHING = Writes()


def contents(devices: Sequence[dict[str, Any]]) -> tuple[Content, ...]:
    """Return what the slices offer of a node with these devices. Without devices, one is empty.

    An empty slice says that the driver runs and offers nothing, which no slice does not.
    """
    starts = range(0, len(devices) or 1, _DEVICES)
    return tuple({"devices": list(devices[start : start + _DEVICES])} for start in starts)


def slice_name(node: str, number: int) -> str:
    """Return the name of a slice. Names of one pool sort like their numbers: the scheduler reads slices by name."""
    ending = f"-{DRIVER}-{number}"
    if len(node) + len(ending) <= _LONGEST_NAME:
        return node + ending
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{node[: _LONGEST_NAME - len(ending) - 17].rstrip('-.')}-{digest}{ending}"


def writes(node: str, wanted: Sequence[Content], present: Iterable[Present]) -> Writes:
    """Return the writes that bring the pool of a node from `present`, all slices of our driver on it, to `wanted`.

    The scheduler uses a pool only when as many slices of its newest generation are there as each of them says. So a
    change of one slice keeps the generation, and any other raises it on all slices.
    """
    there = {found.name: found for found in present}
    names = [slice_name(node, number) for number in range(len(wanted))]
    contents = {name: _timed(content, there.get(name)) for name, content in zip(names, wanted, strict=True)}
    delete = tuple(sorted(there.keys() - set(names)))
    newest = max((found.generation for found in there.values()), default=0)
    settled = not delete and all(
        name in there and (there[name].generation, there[name].count) == (newest, len(wanted)) for name in names
    )
    changed = [name for name, content in contents.items() if name not in there or there[name].content != content]
    if settled and not changed:
        return NOTHING
    if settled and len(changed) == 1:
        generation, concerned = newest, set(changed)
    else:
        generation, concerned = newest + 1, set(names)
    return Writes(
        tuple(
            (name, _spec(node, content, generation, len(wanted)), there.get(name))
            for name, content in contents.items()
            if name in concerned
        ),
        delete,
    )


def dropped(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the fields of a slice's spec that the API server did not store, as an older one does."""
    return tuple(sorted(set(_missing("", sent, stored))))


def _missing(name: str, sent: Any, stored: Any) -> Iterator[str]:
    if isinstance(sent, dict):
        for key, value in sent.items():
            there = isinstance(stored, dict) and key in stored
            yield from _missing(key, value, stored[key]) if there else (key,)
    elif isinstance(sent, list):
        if isinstance(stored, list) and len(stored) == len(sent):
            for one, other in zip(sent, stored, strict=True):
                yield from _missing(name, one, other)
        else:
            yield name


def _timed(content: Content, present: Present | None) -> Content:
    """Return the content with the times of the taints that the slice has already: they count for evictions."""
    if present is None:
        return content
    times = {
        _key(device, taint): taint[_TIME]
        for device in present.content["devices"]
        for taint in device.get("taints", ())
        if _TIME in taint
    }

    def timed(device: dict[str, Any], taint: dict[str, Any]) -> dict[str, Any]:
        key = _key(device, taint)
        return {**taint, _TIME: times[key]} if key in times else taint

    return {
        "devices": [
            device | {"taints": [timed(device, taint) for taint in device["taints"]]} if "taints" in device else device
            for device in content["devices"]
        ]
    }


def _key(device: Mapping[str, Any], taint: Mapping[str, Any]) -> tuple[Any, ...]:
    return device["name"], taint.get("key"), taint.get("value"), taint.get("effect")


def _spec(node: str, content: Content, generation: int, count: int) -> dict[str, Any]:
    return {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
        **content,
    }
