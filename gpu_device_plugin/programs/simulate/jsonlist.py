"""Nodes and pods in JSON of our own: the words of the command line as keys, and ``times`` for how many there are.

As in ``{"nodes": [{"times": 10, "gpus": 4, "mem": 24}], "pods": [{"times": 40, "mem": 8, "cpu": "4"}]}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpu_device_plugin.programs.simulate.arrivals import MOST_ARRIVALS
from gpu_device_plugin.programs.simulate.entries import Entry, EntryError, nodes_of, pods_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Start

_TIMES = "times"
_NAME = "name"


class JsonList(msgspec.Struct, gc=False):
    """The two lists of a file; None: it has no such list."""

    nodes: list[dict[str, Any]] | None = None
    pods: list[dict[str, Any]] | None = None


def read_json(text: bytes) -> JsonList:
    """Read a file.

    Raises:
        EntryError: it has another form.
    """
    try:
        return msgspec.json.decode(text, type=JsonList)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error) if isinstance(error, msgspec.DecodeError) else "not UTF-8"
        raise EntryError(f"it is not JSON with lists of nodes and pods: {why}") from None


def json_nodes(listed: Sequence[Mapping[str, Any]]) -> tuple[Start, ...]:
    """Return the nodes of a list.

    Raises:
        EntryError: an entry cannot be read.
    """
    return nodes_of(_entries("nodes", listed))


def json_pods(listed: Sequence[Mapping[str, Any]]) -> list[tuple[str, PodKind]]:
    """Return the kind of every pod of a list, with the name of its entry.

    Raises:
        EntryError: an entry cannot be read.
    """
    return pods_of(_entries("pods", listed))


def _entries(what: str, listed: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    for at, entry in enumerate(listed):
        place = f"{what}[{at}]"
        times, name = entry.get(_TIMES, 1), str(entry.get(_NAME, ""))[:80]
        if type(times) is not int or not 0 <= times <= MOST_ARRIVALS:
            raise EntryError(
                f"{place}: times is {str(times)[:40]!r}; write a whole number of at most {MOST_ARRIVALS:,}"
            )
        words = {word: value for word, value in entry.items() if word not in {_TIMES, _NAME}}
        if isinstance(models := words.get("model"), list):
            words["model"] = "|".join(map(str, models))
        yield Entry(name or place, times, words, name)
