"""Format numbers, durations, names and limits, and escape untrusted text so that it cannot control a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from gpu_device_plugin.model.limits import Enforcement, LimitStatus

if TYPE_CHECKING:
    from gpu_device_plugin.model.contract.node_use import ContainerUse
    from gpu_device_plugin.model.contract.nodegpus import ListedGpu

MOST_NAMED = 5
"""The most names in one list; the others are counted."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 GPU``, ``2 GPUs``; `many` is the plural, if it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def first(items: Sequence[str], most: int = MOST_NAMED, separator: str = ", ") -> str:
    """Return the first items and the number of the others: ``a, b, c, d, e and 3 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{separator.join(items[:most])}{more}"


def shortened(text: str, most: int) -> str:
    """Return at most so many characters of a text, with ``...`` where its end was cut off."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Iterable[str]) -> str:
    """Return the first of the sorted names, and the number of the others."""
    return first(sorted(names))


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as people write them: ``0-3,6``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


def gpu_names(gpus: Iterable[ListedGpu]) -> str:
    """Return the names of GPUs and MIG instances by position: ``GPU 0, 3 (MIG 0:2 1g.10gb)``.

    ``0:2`` is the number of an instance in nvidia-smi.
    """
    each = (
        f"{gpu.position}" + ("" if gpu.instance is None else f" (MIG {gpu.instance.label} {gpu.instance.profile})")
        for gpu in gpus
    )
    return f"GPU {', '.join(each)}"


def place(gpu: ListedGpu) -> str:
    """Return a position for a column of a table, of an instance with its number: ``0``, or ``3 (0:2)``."""
    return f"{gpu.position}" if gpu.instance is None else f"{gpu.position} ({gpu.instance.label})"


def short_uuid(uuid: str) -> str:
    """Return the first part of a GPU's UUID, and a partition's number: enough to tell the GPUs of a node apart."""
    first, _, rest = uuid.removeprefix("MIG-").removeprefix("GPU-").removeprefix("PCI-").partition("-")
    first = first if ":" in first else first[:8]
    return f"{first}-{rest}" if rest.startswith("p") else first or "-"


def printable(text: str) -> str:
    """Return `text` with every unprintable character escaped in Python's notation.

    By Unicode's categories these are the control characters (C0, DEL and C1: an 8-bit terminal takes U+009B for ESC [),
    line and paragraph separators, formatting such as bidirectional overrides, surrogates, unassigned code points, and
    all spaces but U+0020. Any user may give a pod, a node or a file such a name.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


_encode = json.JSONEncoder(default=str, ensure_ascii=False).encode


def json_line(value: object) -> str:
    """Return `value` as JSON on one line, with the same characters escaped in JSON's notation.

    A value that JSON cannot represent is written as a string.
    """
    text = _encode(value)
    if text.isprintable():
        return text
    # JSON syntax is printable, so every unprintable character is inside a string.
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


_UNITS = ((86400, "days"), (3600, "h"), (60, "min"))
"""Seconds of a unit, the largest first."""


def mib(amount: int | None) -> str:
    """Format an amount that is compared with others, which all have the same unit; None: unknown."""
    return "unknown" if amount is None else f"{amount:,} MiB"


def gib(mib: int | None) -> str:
    """Format an amount for a narrow column, rounded to a tenth of a GiB; None: unknown."""
    if mib is None:
        return "-"
    return f"{mib / 1024:.1f}G" if mib % 1024 else f"{mib // 1024}G"


def duration(seconds: float) -> str:
    """Format a duration in the largest unit of which it has two, rounded down: ``119 s``, ``3 min``, ``2 h``."""
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), (1, "s"))
    return f"{int(max(0.0, seconds) // size)} {unit}"


def age(seconds: float | None) -> str:
    """Format how long ago something was read; None: unknown."""
    return "at an unknown time" if seconds is None else f"{duration(seconds)} ago"


class OfContainer(Protocol):
    """What belongs to a container of a pod, as far as that is known: each part may be empty."""

    @property
    def namespace(self) -> str: ...  # noqa: D102

    @property
    def pod(self) -> str: ...  # noqa: D102

    @property
    def container(self) -> str: ...  # noqa: D102


def container(part: OfContainer) -> str:
    """Return ``namespace/pod/container``, with the parts that are known."""
    return "/".join(filter(None, (part.namespace, part.pod, part.container)))


def limit(part: ContainerUse) -> str:
    """Return the limit of a container: the means, whether it holds, and both numbers where they differ."""
    if part.enforcement is None:
        return "-"
    if part.enforcement is Enforcement.ADVISORY or part.held is None:
        return part.enforcement.value
    if part.held is LimitStatus.DIFFERS:
        expected = "granted" if part.limit_mib is None else "allowed"
        return f"{part.enforcement} limit {mib(part.found_mib)}, {expected} {mib(part.most_mib)}"
    return f"{part.enforcement}: {part.held}" + (f" ({mib(part.most_mib)})" if part.held is LimitStatus.MISSING else "")


def nearest(word: str, known: Iterable[str], otherwise: str, *, prefix: str = "") -> str:
    """Return a question that suggests the known word most similar to `word`, or `otherwise` if none is similar.

    A common `prefix` of the known words does not count as similarity, and case does not count as difference.
    """
    stems = {name.removeprefix(prefix).lower(): name for name in known}
    import difflib  # noqa: PLC0415 - only a mistake needs it

    found = difflib.get_close_matches(word.removeprefix(prefix).lower(), stems, n=1)
    return f"did you mean {stems[found[0]]}?" if found else otherwise
