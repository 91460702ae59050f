"""Make MkDocs read lists as GitHub does, generate the page of all modules, and rank guides above decisions in a search.

In a list, GitHub wants continued text below the text of its item. MkDocs wants it four spaces to the right, an empty
line before each list, and one between items of several paragraphs.
"""

import ast
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_MARK = re.compile(r"\s*(?:[*+-]|\d+[.)])\s+")
_ROOT = Path(__file__).parents[2]
_INSIDE = ("decisions/", "architecture.md", "modules.md", "testing.md", "performance.md")
"""Pages for people who change the project. A search shows those for its users first."""


def sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring on one line.

    Raises:
        ValueError: the module has no docstring.
    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if text is None:
        raise ValueError(f"{path} has no docstring")
    return " ".join(text.split("\n\n")[0].split())


def modules_page(root: Path = _ROOT) -> str:
    """Return the page of all modules: for each package a table of its modules with their sentences."""
    parts = ["# Modules\n\nEvery module of the package, with the first sentence of its docstring.\n"]
    for init in sorted((root / "gpu_device_plugin").rglob("__init__.py")):
        modules = sorted(path for path in init.parent.glob("*.py") if path != init)
        if init.parent.name != "_proto" and modules:
            rows = "\n".join(f"| `{path.name}` | {sentence(path)} |" for path in modules)
            name = init.parent.relative_to(root).as_posix()
            parts.append(f"## {name}/\n\n{sentence(init)}\n\n| Module | Purpose |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page of all modules. Called by MkDocs with the files of the site."""
    files.append(File.generated(config, "modules.md", content=modules_page()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Return the text of a page as MkDocs needs it. Called by MkDocs for every page."""
    page.meta.setdefault("search", {})["boost"] = 0.5 if page.file.src_uri.startswith(_INSIDE) else 2
    lines = markdown.split("\n")
    found = MarkdownIt("commonmark").parse(markdown)
    items = [token.map for token in found if token.type == "list_item_open" and token.map]
    apart = {token.map[0] for token in found if token.type.endswith("_list_open") and token.map}
    # A point after one of several paragraphs.
    apart |= {end for begin, end in items if not all(line.strip() for line in lines[begin:end])}
    told: list[str] = []
    for number, line in enumerate(lines):
        # The points that this line belongs to, the outermost first; it may begin the last one.
        around = sorted(begin for begin, end in items if begin <= number < end)
        beginning = number in around
        within = [begin for begin in around if begin != number]
        if number in apart and told and told[-1]:
            told.append("")
        indent = min(_text_of(lines[within[-1]]), _blanks(line)) if within else 0
        text = line.lstrip() if beginning else line[indent:]
        told.append(" " * 4 * len(within) + text if line.strip() else "")
    return "\n".join(told)


def _text_of(line: str) -> int:
    """Return where the text of a point begins."""
    mark = _MARK.match(line)
    return mark.end() if mark is not None else 0


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip())
