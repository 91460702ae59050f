"""Nodes and pods from what a user names: a file of any known format, entries in words, or the cluster."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import msgspec

from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.decoding import UnreadableObjectError
from gpu_device_plugin.kubernetes.objects.quantity import allocatable_amounts
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.simulate.clusterlist import read_cluster
from gpu_device_plugin.programs.simulate.entries import EntryError, begins_with_model, nodes_in, pods_in
from gpu_device_plugin.programs.simulate.model import MOST_ARRIVALS, Inputs, Recording, Workload, counted, told
from gpu_device_plugin.report.rules.printing import first, shortened
from gpu_device_plugin.settings.forms import duration
from gpu_device_plugin.settings.knobs import UsageError

CLUSTER = "cluster"
"""The word for the cluster that kubectl reads."""
MOST_BYTES = 256 << 20
_MOST_NODES = 100_000
_WORDS = re.compile(r"\s*-?[0-9]+x|[^/]*=", re.IGNORECASE)
_YAML = re.compile(rb"^(?:apiVersion|kind|metadata|items|pods)[ \t]*:", re.MULTILINE)
_MOST_YAML = 16 << 20
"""Reading YAML takes a second for each MiB."""
_FIRST = 1 << 16
"""Bytes in which a file of YAML has one of these keys."""
_FORMATS = "give manifests, or what kubectl get nodes,pods -A -o json prints"
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
"""How packed files begin."""
_MOST_TOLD = 3
_LONGEST = 200
"""Characters that are told of what a flag was given."""
_NODE_EXAMPLE = "10x gpus=4 mem=24 cpu=64 memory=256Gi"
_POD_EXAMPLE = "40x mem=8 cpu=4 memory=16Gi; 5x count=2"


def inputs_of(
    nodes: str,
    pods: str | None,
    added: str,
    *,
    resources: Sequence[Resource],
    kubectl: Callable[[], bytes],
    from_empty: bool,
    skip_misfits: bool,
    nodes_flag: str = "--nodes",
) -> Inputs:
    """Return nodes and pods by their sources, of which each file, and the cluster, is read once; `pods` None: the same.

    `added` is the kind of node that may be added, in words; `from_empty`: the running pods with GPUs come again, before
    the waiting ones; `skip_misfits`: pods that fit on no node, not even on an empty one, are left out; `nodes_flag`:
    where the user wrote the nodes.

    Raises:
        UsageError: one of them cannot be read, or is empty; the message says which and why.
    """
    opened = partial(_opened, resources=resources, kubectl=kubectl, from_empty=from_empty)
    if not pods and _in_words(nodes):
        raise UsageError(f"--pods is missing: nodes in words have no pods; give some, as --pods {_POD_EXAMPLE!r}")
    with _explained(nodes_flag, nodes):
        named = f"nodes such as {_NODE_EXAMPLE!r}"
        there = Inputs(nodes_in(nodes), Workload.of(())) if _in_words(nodes) else opened(nodes, named)
    with _explained("--pods" if pods else nodes_flag, pods or nodes):
        if pods and _in_words(pods):
            coming = Inputs((), Workload.of(pods_in(pods)))
        else:
            coming = opened(pods, f"pods such as {_POD_EXAMPLE!r}") if pods and pods != nodes else there
    found, workload = there.nodes, coming.workload
    notes = tuple(dict.fromkeys((*there.notes, *coming.notes)))
    named = shortened(pods or nodes, _LONGEST)
    left_out = [note for note in notes if "left out" in note]
    because = f" ({first(left_out, _MOST_TOLD, separator='; ')})" if left_out else ""
    if not any(node.shape.sizes for node in found):
        none = (
            f"none of {counted(len(found), 'node')} has a GPU that is shared" if found else "there is no node with GPUs"
        )
        raise UsageError(
            f"{nodes_flag}: {shortened(nodes, _LONGEST)}: {none}{because}; give nodes with GPUs, as in --nodes "
            f"{_NODE_EXAMPLE!r}"
        )
    if len(found) > _MOST_NODES:
        raise UsageError(f"--nodes: {len(found):,} nodes are more than {_MOST_NODES:,}; give fewer")
    if not workload.pods:
        beside = f" beside {counted(len(coming.nodes), 'node')}" if pods and coming.nodes else ""
        raise UsageError(
            f"--pods: {named}: there is no pod to place{beside}{because}; give some, as in --pods "
            f"{_POD_EXAMPLE!r}" + ("" if from_empty or pods else ", or take the running ones with --from-empty")
        )
    if len(workload.pods) > MOST_ARRIVALS:
        raise UsageError(f"--pods: {len(workload.pods):,} pods are more than {MOST_ARRIVALS:,}; give fewer")
    with _explained("--nodes-needed", added):
        more = nodes_in(added)
    if added and len({node.shape for node in more}) != 1:
        raise UsageError(
            f"--nodes-needed: {shortened(added, _LONGEST)}: name one kind of node, such as '8x H100 cpu=96'"
        )
    workload, misfits = _misfits((*found, *more), workload, skip=skip_misfits)
    return Inputs(found, workload, coming.ordered, (*notes, *misfits), more[0] if more else None)


def _opened(
    text: str, otherwise: str, *, resources: Sequence[Resource], kubectl: Callable[[], bytes], from_empty: bool
) -> Inputs:
    content = _of_cluster(kubectl) if text == CLUSTER else _read(text, otherwise)
    if content.lstrip()[:1] == b"[":
        content = b'{"kind":"List","items":' + content + b"}"
    try:
        return recorded_in(content) or read_cluster(content, resources, from_empty=from_empty)
    except UnreadableObjectError as error:
        _check_json(content)
        raise EntryError(f"{error}; {_FORMATS}") from None


def _of_cluster(kubectl: Callable[[], bytes]) -> bytes:
    content = kubectl()
    if len(content) > MOST_BYTES:
        raise ClusterUnreadableError(
            f"the cluster's nodes and pods are more than {MOST_BYTES >> 20} MiB of JSON; write those that matter "
            "into a file and give it as --nodes"
        )
    return content


@contextmanager
def _explained(flag: str, text: str) -> Iterator[None]:
    """Name the flag, and what it was given, in the error of a source that cannot be read."""
    try:
        yield
    except (EntryError, UnreadableObjectError) as error:
        raise UsageError(f"{flag}: {shortened(text, _LONGEST)}: {error}") from None


def _in_words(text: str) -> bool:
    return (_WORDS.match(text) is not None or begins_with_model(text)) and not Path(text).exists()


def _read(path: str, otherwise: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "not a path"
        raise EntryError(f"the file cannot be read: {why}; give a file, the word {CLUSTER}, or {otherwise}") from None
    if packed := next((name for magic, name in _PACKED.items() if content.startswith(magic)), None):
        raise EntryError(f"the file is compressed ({packed}); decompress it first")
    if len(content) > MOST_BYTES:
        raise EntryError(f"the file is larger than {MOST_BYTES >> 20} MiB; give a smaller one")
    if not content.strip():
        raise EntryError(f"the file is empty; {_FORMATS}")
    content = _in_utf8(content)
    if _is_json(content):
        return content
    if (at := content.find(b"\n{", 0, _FIRST)) >= 0 and _is_json(content[at:]) and b":" in content[:at]:
        line = content.count(b"\n", 0, at) + 2
        raise EntryError(f"the JSON begins in line {line}; remove the lines before it, such as a warning of kubectl's")
    if not _YAML.search(content[:_FIRST]) and not path.endswith((".yaml", ".yml")):
        raise EntryError(f"the file is neither JSON nor YAML; {_FORMATS}")
    found = _json_of(content)
    if not _is_json(found):
        raise EntryError(f"this is YAML without an object of Kubernetes; {_FORMATS}")
    return found


def _in_utf8(content: bytes) -> bytes:
    """Return a text in UTF-8, without a mark: PowerShell writes what a program prints in UTF-16."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return content.decode("utf-16").encode()
        except UnicodeError:
            raise EntryError(f"the file is neither JSON nor YAML; {_FORMATS}") from None
    return content.removeprefix(codecs.BOM_UTF8)


def _check_json(content: bytes) -> None:
    """Raise EntryError with the line where a text is no JSON; otherwise it is what it says that is wrong."""
    try:
        json.loads(content)
    except json.JSONDecodeError as error:
        end = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        why = "it ends too early; was it written to its end?" if end else f"{error.msg}; correct it there"
        raise EntryError(f"line {error.lineno}: this is not valid JSON: {why}") from None
    except (UnicodeDecodeError, RecursionError):
        return


def _json_of(content: bytes) -> bytes:
    """Return the documents of a file of YAML as JSON: several as one list."""
    import yaml  # noqa: PLC0415 - a megabyte that only files of YAML need

    if len(content) > _MOST_YAML:
        raise EntryError(
            f"a file of YAML has at most {_MOST_YAML >> 20} MiB; give JSON, as kubectl prints with -o json"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml, where PyYAML was built with it
    try:
        found = [each for each in yaml.load_all(content, Loader=loader) if each is not None]
        if len(found) > 1:
            lists = (each.get("items") if isinstance(each, dict) else None for each in found)
            several = [items if isinstance(items, list) else [each] for items, each in zip(lists, found, strict=True)]
            found = [{"kind": "List", "items": [item for items in several for item in items]}]
        return _joined(json.JSONEncoder(default=str).iterencode(found[0] if found else {}))
    # Besides its own errors PyYAML lets some of its parts through; a list that contains itself is a ValueError.
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as error:
        if isinstance(error, EntryError):
            raise
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        why = getattr(error, "problem", None) or "it cannot be parsed"
        raise EntryError(f"{line}this is not valid YAML: {why}; correct it there") from None


def _joined(texts: Iterable[str]) -> bytes:
    """Return texts in UTF-8, within a bound: a few aliases of YAML can stand for any number of bytes."""
    found = bytearray()
    for text in texts:
        found += text.encode()
        if len(found) > _MOST_YAML:
            raise EntryError(f"with its aliases written out the file has more than {_MOST_YAML >> 20} MiB; use fewer")
    return bytes(found)


def _is_json(content: bytes) -> bool:
    return content.lstrip()[:1] in {b"{", b"["}


def _misfits(nodes: Sequence[Start], workload: Workload, *, skip: bool) -> tuple[Workload, Sequence[str]]:
    """Return the workload, and a sentence about the pods that fit on no node, were it empty; `skip`: without these."""
    shapes = {node.shape for node in nodes}
    hosted = [any(shape.hosts(kind) for shape in shapes) for kind in workload.kinds]
    misfits = [pod for pod in workload.pods if not hosted[pod]]
    if not misfits:
        return workload, ()
    example = told(workload.kinds[misfits[0]])
    if len(misfits) == len(workload.pods):
        raise UsageError(
            f"--pods: no pod fits on any node, not even on an empty one; the first asks for {example}. Compare mem, "
            "count, model, cpu and memory with the nodes"
        )
    one = len(misfits) == 1
    asks = f"asks for {example}" if one else f"one of them asks for {example}"
    fits = f"{counted(len(misfits), 'pod')} {'fits' if one else 'fit'} on no node, not even on an empty one"
    if not skip:
        return workload, [f"{fits}; {'it ' if one else ''}{asks}"]
    rest = [pod for pod in workload.pods if hosted[pod]]
    named = ((workload.name(pod), workload.kinds[pod]) for pod in rest)
    kept = replace(workload, pods=tuple(rest)) if workload.recordings else Workload.of(named)
    return kept, [f"{fits}, and {'is' if one else 'are'} left out; {'it ' if one else ''}{asks}"]


# --- Pods with the GPU memory that they used, from a list of ours or from an answer of Prometheus ---------------------

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


def recorded_in(content: bytes) -> Inputs | None:
    """Return the pods of a file, with a sentence for each thing left out; None: the file is of another format.

    Raises:
        EntryError: it is of one of these formats, and cannot be used.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not file.pods and not file.data:
        return None
    try:
        found = _of_prometheus(msgspec.json.decode(file.data, type=_Matrix)) if file.data else _of_list(file)
    except (msgspec.DecodeError, RecursionError) as error:
        what = "an answer of Prometheus to a range query" if file.data else "a list of pods with their use"
        raise EntryError(f"it is not {what}: {error}") from None
    if sum(len(each.use_gib) for each in found.workload.recordings) > _MOST_VALUES:
        raise EntryError(f"there are more than {_MOST_VALUES:,} values; record fewer pods, or use a longer step")
    return found


def _of_list(file: _File) -> Inputs:
    pods: list[int] = []
    kinds: list[PodKind] = []
    recordings: list[Recording] = []
    names: list[str] = []
    try:
        step_s = duration().read(str(file.step))
    except ValueError as error:
        raise EntryError(f"step: {error}") from None
    for at, pod in enumerate(msgspec.json.decode(file.pods, type=list[_Pod])):
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
    return Inputs((), Workload(tuple(kinds), tuple(pods), tuple(names), tuple(recordings), step_s))


def _of_prometheus(matrix: _Matrix) -> Inputs:
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
    return Inputs((), workload, notes=tuple(notes))


def _bytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or not 0 <= value <= _MOST_GIB * _GIB:
        raise EntryError(f"{text[:40]!r} is no number of bytes")
    return value
