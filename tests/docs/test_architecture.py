"""The page of the architecture shows the package as it is."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.mkdocs_hooks import modules_page
from tests.docs.pages import DOCS, ROOT, blocks, sections, text_of

PACKAGE = ROOT / "gpu_device_plugin"
PAGE = DOCS / "architecture.md"
GENERATED = "_proto"

ROOMS = sorted(
    folder
    for folder in (PACKAGE, *PACKAGE.rglob("*"))
    if (folder / "__init__.py").exists() and folder.name != GENERATED
)
FILES = [path for room in ROOMS for path in sorted(room.glob("*.py")) if path.name != "__init__.py"]


def contracts() -> dict[str, list[str]]:
    """Return the layers of every contract, the highest first, by the package within which it holds."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [each for each in tool["contracts"] if each["type"] == "layers"]
    assert all(each["exhaustive"] for each in layers), "a new module would stand outside of the contract"
    return {container: each["layers"] for each in layers for container in each["containers"]}


def test_every_module_has_its_sentence_on_the_page_of_modules() -> None:
    page = modules_page(ROOT)
    assert [path.name for path in FILES if f"| `{path.name}` | " not in page] == []


def test_the_layers_on_the_page_are_those_that_the_import_contracts_hold() -> None:
    (shown,) = blocks(text_of(PAGE), "layers")
    said = {}
    for paragraph in shown.text.strip().split("\n\n"):
        name, *layers = (line.strip() for line in paragraph.splitlines())
        said[name.replace("/", ".")] = layers
    assert said == contracts()


def test_the_tree_on_the_page_has_every_package_and_every_module_at_the_top() -> None:
    (shown,) = blocks(text_of(PAGE), "tree")
    above: list[str] = []
    found = set()
    for line in shown.text.splitlines():
        names = line[: line.find("  ", len(line) - len(line.lstrip()))] if "  " in line.strip() else line
        depth = (len(line) - len(line.lstrip())) // 2
        for name in names.split():
            above[depth:] = [name.rstrip("/")]
            found.add("/".join(above))
    packages = {room.relative_to(ROOT).as_posix() for room in ROOMS}
    top = {path.relative_to(ROOT).as_posix() for path in FILES if path.parent == PACKAGE}
    assert found == packages | top


@pytest.mark.parametrize(
    "place", sorted(set(re.findall(r"`([\w/]+(?:\.py|/))`", sections(text_of(PAGE))["Where to look"])))
)
def test_where_to_look_there_is_something(place: str) -> None:
    assert (PACKAGE / place).exists()


@pytest.mark.parametrize("page", [PAGE, *sorted((DOCS / "decisions").glob("*.md"))], ids=lambda page: page.name)
def test_a_module_that_a_page_names_is_there(page: Path) -> None:
    rooms = "|".join(room.name for room in PACKAGE.iterdir() if (room / "__init__.py").exists())
    named = set(re.findall(rf"`((?:{rooms})/[\w/]+?)(?:\.py|/)?`", text_of(page)))
    assert {name for name in named if not ((PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists())} == set()


def test_a_module_of_more_than_450_lines_says_why() -> None:
    long = {path: text for path in FILES if (text := path.read_text(encoding="utf-8")).count("\n") > 450}
    assert [path for path, text in long.items() if "one piece" not in (ast.get_docstring(ast.parse(text)) or "")] == []


def test_no_folder_has_more_than_15_modules() -> None:
    modules = {room.relative_to(ROOT).as_posix(): sum(path.parent == room for path in FILES) for room in ROOMS}
    assert {room: number for room, number in modules.items() if number > 15} == {}
