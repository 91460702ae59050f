"""Pods with the GPU memory that they used, from a list of ours or from an answer of Prometheus."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, isfinite
from typing import Any

import msgspec

from gpu_device_plugin.cluster.objects.quantity import allocatable_amounts
from gpu_device_plugin.core.value.workload_mix import PodKind
from gpu_device_plugin.programs.simulate.inputs.entries import EntryError
from gpu_device_plugin.programs.simulate.model import MOST_ARRIVALS, Recording, Workload, counted
from gpu_device_plugin.settings.forms import duration

_MOST_VALUES = 5_000_000
"""Of all recordings together."""
_GIB = 1 << 30
_MOST_GIB = 1 << 20
GRANTED = "granted"
"""Value of the label `is` by which a query of Prometheus marks what pods were granted."""


class _File(msgspec.Struct, gc=False):
    pods: msgspec.Raw = msgspec.Raw()
    step: Any = None
    data: msgspec.Raw = msgspec.Raw()


class _Pod(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    mem: int
    use: list[float]
    name: str = ""
    number: int = 1
    priority: int = 0
    cpu: str | int = "0"
    memory: str | int = "0"


class _Series(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct, gc=False):
    result: list[_Series]


_FILES = msgspec.json.Decoder(_File)
_PODS = msgspec.json.Decoder(list[_Pod])
_MATRICES = msgspec.json.Decoder(_Matrix)


def recorded_in(content: bytes) -> tuple[Workload, tuple[str, ...]] | None:
    """Return the pods of a file, with a sentence for each thing left out; None: the file is of another format.

    Raises:
        EntryError: it is of one of these formats, and cannot be used.
    """
    try:
        file = _FILES.decode(content)
    except msgspec.DecodeError:
        return None
    if not file.pods and not file.data:
        return None
    try:
        workload, notes = _of_prometheus(_MATRICES.decode(file.data)) if file.data else _of_list(file)
    except msgspec.DecodeError as error:
        what = "an answer of Prometheus to a range query" if file.data else "a list of pods with their use"
        raise EntryError(f"it is not {what}: {error}") from None
    if sum(len(each.use_gib) for each in workload.recordings) > _MOST_VALUES:
        raise EntryError(f"there are more than {_MOST_VALUES:,} values; record fewer pods, or use a longer step")
    return workload, notes


def _of_list(file: _File) -> tuple[Workload, tuple[str, ...]]:
    pods: list[int] = []
    kinds: list[PodKind] = []
    recordings: list[Recording] = []
    names: list[str] = []
    try:
        step_s = duration().read(str(file.step))
    except ValueError as error:
        raise EntryError(f"step: {error}") from None
    for at, pod in enumerate(_PODS.decode(file.pods)):
        name = pod.name or f"pod {at + 1}"
        asked = allocatable_amounts({"cpu": pod.cpu, "memory": pod.memory})
        if asked is None:
            raise EntryError(f"{name}: cpu and memory are quantities of Kubernetes, as in cpu: 500m, memory: 16Gi")
        if not 1 <= pod.mem <= _MOST_GIB or not 1 <= pod.number <= MOST_ARRIVALS:
            raise EntryError(f"{name}: mem and number are whole numbers from 1 on")
        if not pod.use or not all(0 <= gib <= _MOST_GIB for gib in pod.use):
            raise EntryError(f"{name}: use is a list of GiB, one value for each step, such as [3.1, 3.4, 9.8]")
        names.append(name)
        kinds.append(PodKind(pod.mem, 1, asked.cpu_milli, asked.memory_mib))
        recordings.append(Recording(tuple(pod.use), pod.priority))
        pods += [at] * pod.number
    return Workload(tuple(kinds), tuple(pods), tuple(names), tuple(recordings), step_s), ()


def _of_prometheus(matrix: _Matrix) -> tuple[Workload, tuple[str, ...]]:
    """Return a pod for each container with a series of its use and one of what it was granted."""
    used: dict[tuple[str, str, str], list[tuple[float, ...]]] = {}
    granted: dict[tuple[str, str, str], float] = {}
    step_s = 0.0
    for series in matrix.result:
        values = tuple(_bytes(text) / _GIB for _, text in series.values)
        if not values:
            continue
        metric = series.metric
        key = metric.get("namespace", ""), metric.get("pod", ""), metric.get("container", "")
        if metric.get("is") == GRANTED:
            granted[key] = max(values)
            continue
        used.setdefault(key, []).append(values)
        if len(values) > 1:
            times = sorted(at for at, _ in series.values)
            step = min(later - at for at, later in pairwise(times))
            step_s = min(step_s or step, step)
    kept = {key: use for key, (use, *others) in sorted(used.items()) if not others and granted.get(key)}
    if not kept or step_s <= 0:
        raise EntryError(
            "no container has its use over several steps, and what it was granted; docs/simulate.md has the query"
        )
    left_out = len(used) - len(kept)
    notes = (
        [f"{counted(left_out, 'container')} with several GPUs, or without what it was granted, left out"]
        if left_out
        else []
    )
    workload = Workload(
        tuple([PodKind(ceil(granted[key]), 1) for key in kept]),
        tuple(range(len(kept))),
        tuple(["/".join(key) for key in kept]),
        tuple([Recording(use) for use in kept.values()]),
        step_s,
    )
    return workload, tuple(notes)


def _bytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or not 0 <= value <= _MOST_GIB * _GIB:
        raise EntryError(f"{text[:40]!r} is no number of bytes")
    return value
