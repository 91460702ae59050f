"""Kubernetes quantities, and the sums of a pod's requests as kube-scheduler computes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from types import MappingProxyType
from typing import Any

from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.model.sharing import Shared

_Amounts = tuple[tuple[str, Any], ...]
_Written = tuple[tuple[tuple[bool, _Amounts], ...], tuple[_Amounts, ...], _Amounts, _Amounts]

_QUANTITY = re.compile(
    r"(?P<number>\+?(?:[0-9]{1,19}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?",
    re.ASCII,
)
_SUFFIXES = {
    **{
        suffix: Decimal(10) ** power
        for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_MOST = 2**63 - 1
_MIB = 1 << 20
_MOST_AMOUNT = 1 << 48
_MOST_AMOUNTS = 128
"""A pod with more amounts is not added up: the memory for what strangers write must be bounded."""


def whole_quantity(text: str) -> int | None:
    """Read a Kubernetes quantity; None unless it is a whole number from 0 to 2^63-1.

    The API server rewrites quantities: it serves a request for 1000 shares as ``1k``.
    """
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)  # nearly all quantities are plain digits, and the general parser takes ten times as long
    value = quantity(text)
    return None if value is None or value != value.to_integral_value() else int(value)


def quantity(text: str) -> Decimal | None:
    """Read a Kubernetes quantity; None unless it is a number from 0 to 2^63-1."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    scale = _SUFFIXES.get(match["suffix"] or "", Decimal(10) ** int(match["exponent"] or 0))
    value = Decimal(match["number"]) * scale
    return value if 0 <= value <= _MOST else None


def allocatable_amounts(allocatable: Mapping[str, Any]) -> Amounts | None:
    """Return the CPU and memory that pods may request of a node, rounded down; None if it names none that is valid."""
    cpu, memory = (quantity(str(allocatable.get(name, ""))) for name in ("cpu", "memory"))
    return None if cpu is None or memory is None else _bounded(int(cpu * 1000), int(memory) // _MIB)


def requested_amounts(requests: Mapping[str, int]) -> Amounts:
    """Return the CPU and memory of a sum of requests, see `RequestSums.of`."""
    return _bounded(requests.get("cpu", 0), -(-requests.get("memory", 0) // _MIB))


def _bounded(cpu_milli: int, memory_mib: int) -> Amounts:
    """Return amounts of which thousands can be added up in 64 bits; no machine has a millionth of the bound."""
    return Amounts(min(cpu_milli, _MOST_AMOUNT), min(memory_mib, _MOST_AMOUNT))


class RequestSums:
    """Adds up what pods request, as kube-scheduler does (Kubernetes 1.36, component-helpers/resource, PodRequests).

    A pending in-place resize of a running pod counts as done.
    """

    def __init__(self, without: Collection[str] = ()) -> None:
        """Ignore the resources in `without`."""
        self._without = without
        self._known: Shared[_Written, Mapping[str, int]] = Shared()
        self._sums: Shared[tuple[tuple[str, int], ...], Mapping[str, int]] = Shared()
        self._amounts: Shared[tuple[int, int], Amounts] = Shared()

    def __repr__(self) -> str:
        return f"<RequestSums: {len(self._sums)} sums, written in {len(self._known)} ways>"

    def of(
        self,
        init: Iterable[tuple[bool, Mapping[str, Any]]],
        app: Iterable[Mapping[str, Any]],
        pod: Mapping[str, Any],
        overhead: Mapping[str, Any],
    ) -> Mapping[str, int] | None:
        """Return a pod's requests: CPU in thousandths, others in their unit, rounded up; equal sums are one object.

        None if an amount is invalid, or if there are more than `_MOST_AMOUNTS`.

        Args:
            init: for each init container, whether it is a sidecar, and its requests.
            app: the requests of each other container.
            pod: the pod-level requests, which replace those of the containers.
            overhead: the pod's overhead, which is added.
        """
        written = (
            tuple([(sidecar, tuple(requests.items())) for sidecar, requests in init]),
            tuple([tuple(requests.items()) for requests in app]),
            tuple(pod.items()),
            tuple(overhead.items()),
        )
        try:
            return self._known.one(written, lambda: self._sum(written))
        except (ValueError, TypeError):  # too many, not an amount, or not even a string or a number
            return None

    def amounts(self, requests: Mapping[str, int] | None) -> Amounts:
        """Return the CPU and memory of a sum, none where it is unknown; those of equal sums are one object."""
        if not requests:
            return NO_AMOUNTS
        return self._amounts.one(
            (requests.get("cpu", 0), requests.get("memory", 0)), lambda: requested_amounts(requests)
        )

    def _sum(self, written: _Written) -> Mapping[str, int]:
        init, app, pod, overhead = written
        if sum(map(len, (*(requests for _, requests in init), *app, pod, overhead))) > _MOST_AMOUNTS:
            raise ValueError("too many")
        kept: Counter[str] = Counter()  # by the sidecars that have started so far
        most: Counter[str] = Counter()
        for sidecar, requests in init:
            amounts = self._read(requests)
            most |= amounts + kept
            if sidecar:
                kept += amounts
        for requests in app:
            kept += self._read(requests)
        total = Counter({**(most | kept), **self._read(pod)}) + self._read(overhead)
        key = tuple(sorted(total.items()))
        return self._sums.one(key, lambda: MappingProxyType(dict(key)))

    def _read(self, requests: _Amounts) -> Counter[str]:
        return Counter({name: _amount(name, str(value)) for name, value in requests if name not in self._without})


def _amount(name: str, text: str) -> int:
    value = quantity(text)
    if value is None:
        raise ValueError(name)
    return int((value * 1000 if name == "cpu" else value).to_integral_value(ROUND_CEILING))
