"""The messages that the documentation explains are those that the programs print."""

import ast
import re
from collections.abc import Iterator

from tests.docs.pages import DOCS, ROOT, text_of

SOURCES = [text_of(path) for path in (ROOT / "gpu_device_plugin").rglob("*.py")]
NODES = [node for text in SOURCES for node in ast.walk(ast.parse(text))]
OURS = {"agent", "extender"}
THEIRS = {"Kubernetes", "kubectl", "helm", "kubelet", "kube-scheduler", "containerd", ""}


def messages() -> Iterator[tuple[str, str]]:
    """Yield the messages that are explained, each with whose it is."""
    for table in re.findall(r"(?:^\|.*\n)+", text_of(DOCS / "troubleshooting.md"), re.MULTILINE):
        heading, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        if heading[:2] == ["Message", "From"]:
            yield from ((message, source) for message, source, *_ in lines)


def printed() -> str:
    """Return every text of the package's source, one below the other."""
    constants = (node.value for node in NODES if isinstance(node, ast.Constant))
    return "\n".join(value for value in constants if isinstance(value, str))


def filled_in() -> Iterator[re.Pattern[str]]:
    """Yield the texts of two words or more into which values are filled, as patterns."""
    for node in NODES:
        if isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else None for each in node.values]
            if len(" ".join(str(part) for part in parts if part).split()) > 1:
                yield re.compile("".join(".+" if part is None else re.escape(str(part)) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            pieces = re.split(r"\{[a-z_]+\}", node.value)
            if len(pieces) > 1 and len(" ".join(pieces).split()) > 1:
                yield re.compile(".+".join(map(re.escape, pieces)))


def test_what_we_are_said_to_print_stands_in_the_source() -> None:
    """At least three words of it, one after the other, or the whole text: what else is in it may be filled in."""
    source, patterns = printed(), list(filled_in())

    def stands_there(message: str) -> bool:
        words = message.split()
        three = any(" ".join(words[at : at + 3]) in source for at in range(max(1, len(words) - 2)))
        return three or any(pattern.fullmatch(message) for pattern in patterns)

    ours = [message.strip("`") for message, whose in messages() if whose in OURS]
    assert len(ours) > 30
    assert [message for message in ours if not stands_there(message)] == []
    assert not stands_there("every card is blue")


def test_every_message_is_said_to_be_somebodys() -> None:
    assert {whose for _, whose in messages()} <= OURS | THEIRS


def test_every_event_is_explained() -> None:
    written = {
        name for text in SOURCES for name in re.findall(r'event\("(\w+)"|reason = "(\w+)" if .* else "(\w+)"', text)
    }
    lists = re.findall(
        r"^\*\*Events on a (?:node|pod)\*\*\n\n((?:[* ] .*\n)+)", text_of(DOCS / "operations.md"), re.MULTILINE
    )
    events = [item.partition(": ")[0] for items in lists for item in items.split("\n* ")]
    explained = {name for event in events for name in re.findall(r"`([A-Z]\w+)`", event)}
    assert len(lists) == 2
    assert {name for names in written for name in names if name} <= explained
    package = "".join(SOURCES)
    assert [name for name in sorted(explained) if f'"{name}"' not in package] == []
