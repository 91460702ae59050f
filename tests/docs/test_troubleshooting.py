"""The messages that the documentation explains are those that the programs print."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpu_device_plugin
from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.cluster.pod_demand import Ask, Part
from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.core.contract.wishes import NO_WISHES, Wishes
from gpu_device_plugin.core.model.placing import Demand
from gpu_device_plugin.core.model.resources import Kind
from tests.docs.pages import DOCS, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(gpu_device_plugin.__path__[0])
OURS = {"agent", "extender"}
THEIRS = {"Kubernetes", "kubectl", "helm", "kubelet", "kube-scheduler", "containerd", ""}

_FEWEST = 10
"""So many letters a text of the source has besides what is filled in, or it would stand for too much."""


@dataclass(frozen=True)
class Row:
    """A row of a table whose first column is Message."""

    message: str
    source: str

    def __str__(self) -> str:
        return self.message


def rows(text: str) -> Iterator[Row]:
    """Yield the messages that are explained, each with whose it is."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        heading, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        if heading[:2] == ["Message", "From"]:
            for message, source, *_ in lines:
                yield Row(message, source)


ROWS = list(rows(text_of(DOCS / "troubleshooting.md")))


@cache
def texts() -> tuple[tuple[str, ...], ...]:
    """Return every text of the package's source, each as what stands before, between and after what is filled in."""
    found = {text for path in PACKAGE.rglob("*.py") for text in _texts(ast.parse(text_of(path)))}
    return tuple(tuple(text.split(_ANY)) for text in sorted(found | refusals()))


def refusals() -> set[str]:
    """Return what the extender says of nodes with a few GPUs, where the source has only pieces of it."""
    said = {
        unfit(Ask((Part(Demand(kind, amount, gpus)),), wishes), candidate("node-a", gpus_of(*sizes), usages))
        for kind, amount, gpus in (
            *((Kind.MEMORY, amount, gpus) for amount in (8, 16, 20, 40) for gpus in (1, 2, 4)),
            *((Kind.COUNT, amount, 1) for amount in (1, 2, 4)),
        )
        for sizes in ((5, 5), (14, 14), (14, 14, 14, 14), (3, 3, 3, 3))
        for usages in ([], [Usage(shares=tuple((at, 7) for at, _ in enumerate(sizes)))], [Usage(whole=(0, 1, 2, 3))])
        for wishes in (NO_WISHES, Wishes(avoid_uuids=("GPU-0",)))
    }
    sentences = {each.sentence for each in said if each is not None}
    return sentences | {f"node node-a: {sentence}" for sentence in sentences}  # as programs/extender/binding.py has it


def gpus_of(*sizes: int) -> NodeGpus:
    return NodeGpus(tuple(ListedGpu(at, shares, f"GPU-{at}") for at, shares in enumerate(sizes)), share_mib=1024)


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, and of each the parts that make sense alone."""
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else _ANY for part in parts
        ]
        clauses = re.split(r"(?<=[,:;]) ", re.sub(r"%s|%d", _ANY, "".join(texts)))
        for first, last in combinations(range(len(clauses) + 1), 2):
            text = " ".join(clauses[first:last]).strip(" ,:;")
            if len(text.replace(_ANY, "")) >= _FEWEST:
                yield text


_ANY = "\0"


def said(message: str) -> bool:
    """Return whether a message is made of texts of the source, one after the other."""
    ends = [len(message), *(match.start() for match in re.finditer(r"[,:;] ", message))]
    return any(_is_text(message[:end]) and (end == len(message) or said(message[end + 2 :])) for end in ends)


def _is_text(piece: str) -> bool:
    """Return whether this is a text of the source, filled in, or a part of one that has nothing to fill in."""
    return len(piece) >= _FEWEST and any(
        any(piece in part for part in text)
        or (all(part in piece for part in text) and re.fullmatch(".*?".join(map(re.escape, text)), piece))
        for text in texts()
    )


@pytest.mark.parametrize("row", [row for row in ROWS if row.source in OURS], ids=str)
def test_what_we_are_said_to_print_stands_in_the_source(row: Row) -> None:
    (message,) = re.findall(r"^`(.+)`$", row.message)
    for piece in message.split("..."):
        assert not piece.strip(" ;:") or said(piece.strip(" ;:")), piece


def test_every_event_is_explained() -> None:
    written = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r'event\("(\w+)"|reason = "(\w+)" if .* else "(\w+)"', text_of(path))
    }
    lines = re.findall(r"^\* Events on (?:its node|pods): ((?:.|\n  )*)", text_of(DOCS / "operations.md"), re.MULTILINE)
    explained = {name for line in lines for name in re.findall(r"`([A-Z]\w+)`", line)}
    assert len(lines) == 2
    assert {name for names in written for name in names if name} <= explained
    package = "".join(text_of(path) for path in PACKAGE.rglob("*.py"))
    assert [name for name in sorted(explained) if f'"{name}"' not in package] == []


def test_what_nobody_prints_is_found_out() -> None:
    for message in ("no GPU has enough memory left over", "the GPU is full", "8 GiB", "no GPU is blue"):
        assert not said(message)


def test_every_message_is_said_to_be_somebodys() -> None:
    assert {row.source for row in ROWS} <= OURS | THEIRS
    assert len([row for row in ROWS if row.source in OURS]) > 30
