"""Read the traces of Alibaba's GPU clusters of 2023 ("openb") as they were published.

The files are in github.com/hkust-adsl/kubernetes-scheduler-simulator, in ``data/csv``. A GPU is cut into 100 shares, so
that the share of a GPU that a pod asks for, in thousandths, is rounded up to a hundredth; a whole GPU, and several, are
taken whole. A pod that asks for no CPU counts as asking for a tenth of one, as in the published experiments.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.wishes import Wishes
from gpu_device_plugin.core.model.gpus import MOST_GPUS
from gpu_device_plugin.core.worth.appraising import Left
from gpu_device_plugin.core.worth.mix import PodKind
from gpu_device_plugin.core.worth.shapes import Shape
from gpu_device_plugin.programs.simulate.model import Start, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHARES = 100
"""Of each GPU."""
_NODE = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_UNASKED_CPU = 100
_WHOLE = 1000


class TraceError(ValueError):
    """A trace cannot be read; the message says where, and what is wrong."""


def read_nodes(lines: Iterable[str]) -> tuple[Start, ...]:
    """Read a list of nodes.

    Raises:
        TraceError: a column is missing, or a number is none.
    """
    found = []
    for number, row in _rows(lines, _NODE):
        gpus = _number(row, "gpu", number)
        if gpus > MOST_GPUS:
            raise TraceError(f"line {number}, gpu: {gpus:,} are more than the {MOST_GPUS} that a node can have")
        shape = Shape(
            (SHARES,) * gpus,
            (row["model"],) * gpus,
            _number(row, "cpu_milli", number),
            _number(row, "memory_mib", number),
        )
        found.append(Start(row["sn"], shape, Left(shape.sizes, shape.cpu_milli, shape.memory_mib)))
    return tuple(found)


def read_pods(lines: Iterable[str]) -> Workload:
    """Read a list of pods.

    Raises:
        TraceError: a column is missing, or a number is none.
    """
    kinds: dict[PodKind, int] = {}
    pods = [kinds.setdefault(_kind(row, number), len(kinds)) for number, row in _rows(lines, _POD)]
    return Workload(tuple(kinds), tuple(pods))


def _kind(row: Mapping[str, str], number: int) -> PodKind:
    gpus, milli = _number(row, "num_gpu", number), _number(row, "gpu_milli", number)
    shares = -(-milli * SHARES // _WHOLE) if gpus == 1 and milli < _WHOLE else 0
    models = tuple(sorted(model for model in (row.get("gpu_spec") or "").split("|") if model))
    return PodKind(
        shares,
        gpus,
        _number(row, "cpu_milli", number) or _UNASKED_CPU,
        _number(row, "memory_mib", number),
        Wishes(models),
    )


def _rows(lines: Iterable[str], columns: Iterable[str]) -> Iterable[tuple[int, Mapping[str, str]]]:
    reader = csv.DictReader(lines)
    try:
        there = reader.fieldnames or ()
    except csv.Error as error:
        raise TraceError(f"line 1 is no CSV: {error}") from None
    missing = [name for name in columns if name not in there]
    if missing:
        raise TraceError(f"its first line has no column {missing[0]}; a trace of openb has {', '.join(columns)}")
    number = 1
    try:
        for row in reader:
            number += 1
            if any(row[name] is None for name in columns):
                raise TraceError(f"line {number} has fewer columns than the first line")
            yield number, row
    except csv.Error as error:
        raise TraceError(f"line {number + 1} is no CSV: {error}") from None


def _number(row: Mapping[str, str], name: str, number: int) -> int:
    text = row[name]
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise TraceError(f"line {number}, {name}: {text[:40]!r} is not a whole number")
    return int(text)
