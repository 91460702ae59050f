"""Derive which compute units of AMD GPUs a container is asked to keep to, by the numbers of its shares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpu_device_plugin.model.shares import Shares, parse_id

VARIABLE = "HSA_CU_MASK"
"""``0:0-37,40-41;1:0-75``: by the number of a GPU in the container, those of its compute units. ROCm follows it, and
the program may change it."""
_DRIVER = "amdgpu"
_PAIR = 2
"""RDNA has its compute units in pairs, of which a mask names both or none."""


def compute_mask(shares: Shares, device_ids: Collection[str]) -> Mapping[str, str]:
    """Return the variable for a container with these shares; none if the driver tells no compute units of its GPUs.

    Equal shares mean equal parts: share n of N stands for the n-th of N parts of the pairs. Where a pair lies in two
    parts, both have it, so that no share is without one. ROCm numbers GPUs in their order on the PCI bus.
    """
    numbers: dict[str, list[int]] = {}
    for uuid, number in map(parse_id, device_ids):
        if number is not None:
            numbers.setdefault(uuid, []).append(number)
    found = sorted(
        (
            (shared, numbers[shared.gpu.uuid])
            for shared in shares.gpus
            if shared.gpu.uuid in numbers and shared.gpu.driver == _DRIVER
        ),
        key=lambda each: each[0].gpu.index,
    )
    masks = [
        f"{ordinal}:{','.join(_ranges(sorted(own), len(shared.shares), shared.gpu.compute_units))}"
        for ordinal, (shared, own) in enumerate(found)
        if shared.gpu.compute_units
    ]
    return {VARIABLE: ";".join(masks)} if masks else {}


def _ranges(own: Sequence[int], count: int, units: int) -> Iterator[str]:
    """Yield the compute units that the shares with these numbers, of `count`, stand for, as ``first-last``."""
    pairs = -(-units // _PAIR)
    begin = end = -1
    for number in own:
        first, after = number * pairs // count, -(-(number + 1) * pairs // count)
        if first > end:
            if begin >= 0:
                yield _range(begin, end, units)
            begin = first
        end = max(end, after)
    yield _range(begin, end, units)


def _range(begin: int, end: int, units: int) -> str:
    return f"{begin * _PAIR}-{min(end * _PAIR, units) - 1}"
