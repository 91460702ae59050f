"""What the documentation shows in its blocks, for tests to hold against the truth."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README, README_ZH = ROOT / "README.md", ROOT / "README.zh.md"

_BLOCK = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (.*?) -->\n\Z")
_MEANT = re.compile(r"(?:needs: .+?|run by: (\S+?))(?:, for (\S+))?")
_INLINE = re.compile(r"`(kubectl [^`]+)`")


def pages() -> list[Path]:
    """Return every page that people read."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """A block of code."""

    language: str
    text: str
    mark: str = ""
    """The HTML comment directly above it."""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Of a block of the language console every command, without its comment, with what is shown below it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ ").partition("  #")[0].rstrip(), []))
            elif line.startswith("> "):  # a command goes on
                command, output = found.pop()
                found.append((f"{command.removesuffix(chr(92))}{line.removeprefix('> ').strip()}", output))
            else:
                found[-1][1].append(line)
        return [(command, "\n".join(output).strip("\n")) for command, output in found]

    @property
    def lines(self) -> list[str]:
        """What it tells to do: one command after the other, or a script as a whole."""
        return [self.text] if self.language == "sh" else [command for command, _ in self.commands]


@dataclass(frozen=True)
class Command:
    """What a page tells to do: a line of a console, alone or within a sentence, or a script."""

    page: Path
    text: str
    mark: str = ""
    """What stands above its block: `needs: WHAT` or `run by: FILE`, with `, for WORD` where commands with it are meant.

    Nothing above a command of kubectl means that it needs a cluster alone.
    """
    inline: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"

    @property
    def understood(self) -> bool:
        return not self.mark or _MEANT.fullmatch(self.mark) is not None

    @property
    def needs_more(self) -> bool:
        """Whether it has what it needs from nobody but those whom its mark names."""
        meant = _MEANT.fullmatch(self.mark)
        return meant is not None and (meant[2] is None or meant[2] in self.text.split())

    @property
    def runner(self) -> str:
        """The file that its mark names."""
        meant = _MEANT.fullmatch(self.mark)
        return (meant[1] or "") if meant is not None and self.needs_more else ""


def commands(page: Path) -> list[Command]:
    """Return every command of a page, in order; those within sentences after those in blocks."""
    text = text_of(page)
    shown = [Command(page, each, block.mark) for block in blocks(text, "console", "sh") for each in block.lines]
    return shown + [Command(page, each, inline=True) for each in _INLINE.findall(_BLOCK.sub("", text))]


def blocks(text: str, *languages: str) -> list[Block]:
    """Return the blocks of these languages, or of all, in order."""
    return [block for block in _blocks(text) if not languages or block.language in languages]


def _blocks(text: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(text):
        mark = _MARK.search(text[: match.start()])
        shown = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        yield Block(match[2], shown, mark[1] if mark is not None else "")


def sections(text: str) -> dict[str, str]:
    """Return what stands under each heading of the second level, by the heading."""
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return {heading: body for heading, _, body in (part.partition("\n") for part in parts)}
