"""The page's files, without a browser: nothing inline or from elsewhere, both languages whole, all in the wheel."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpu_device_plugin.programs.web.web_routes import static_files
from tests.web.page_server import PAGE, TYPES

ROOT = Path(__file__).parents[2]
VENDOR = PAGE / "vendor"
EVERY = sorted(path for path in PAGE.rglob("*") if path.is_file())
FILES = [path for path in EVERY if VENDOR not in path.parents]
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
WORDS: dict[str, dict[str, str]] = {
    name: json.loads((PAGE / f"{name}.json").read_text(encoding="utf-8")) for name in ("en", "zh")
}
del WORDS["zh"]["messages"]  # see tests/report/rules/test_messages.py
STATES = dict(
    each
    for path in (*PAGE.parents[2].glob("features/*/report.py"), PAGE.parents[2] / "report" / "rules" / "node_view.py")
    for each in re.findall(r'\bState\(\s*\d+,\s*"([\w-]+)",\s*Tone\.(\w+)', path.read_text(encoding="utf-8"))
)
"""The codes of states that are told, each with its tone."""


class Markup(HTMLParser):
    """Collects the elements of index.html and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text_in_scripts = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in {"script", "style"}:
            self.text_in_scripts += data.strip()


@pytest.fixture(scope="module")
def markup() -> Markup:
    found = Markup()
    found.feed((PAGE / "index.html").read_text(encoding="utf-8"))
    return found


def test_all_files_are_of_known_kinds() -> None:
    assert {path.suffix for path in FILES} == set(TYPES)
    assert {"index.html", "page.css", "main.js"} <= {path.name for path in FILES}


def test_the_files_of_others_are_as_they_came() -> None:
    """Of lit-html 3.3.3, as npm has it."""
    assert {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in EVERY
        if VENDOR in path.parents
    } == {
        "lit-html/LICENSE": "2b66f9390afde29edfe4314daff93f01fb182e1178053e228120178987e5db75",
        "lit-html/directive-helpers.js": "f7fb1154b8f72ed2cc08b05eaeed71c99270e9ad2d48620ed24688a1af4c2b62",
        "lit-html/directive.js": "3344c4f41c69cd0701d3937e8f9ef90bd845614bf6456d0b8314b7c51d415b9d",
        "lit-html/directives/repeat.js": "083140026ecd8665fedd15b17769f9d516252a9f1502f1e91e6967686ee82626",
        "lit-html/lit-html.js": "b878e7f95dec8a9b6e9b217faca6b6a11bad82ebc44c0caa77419ed83edd81f2",
    }


def test_only_one_script_uses_the_library() -> None:
    """So each text on the page goes through its `plain`."""
    assert [path.name for path in SCRIPTS if "vendor/" in path.read_text(encoding="utf-8")] == ["dom.js"]


def test_the_server_has_exactly_the_files_of_known_kinds() -> None:
    """Also those in folders, each by its path: nothing else can be asked for."""
    known = {path.relative_to(PAGE).as_posix() for path in EVERY if path.suffix in TYPES}
    assert set(static_files()) == known | {""}


def test_the_markup_has_no_scripts_styles_or_handlers_in_it(markup: Markup) -> None:
    """The policy forbids them; a browser would leave them out."""
    assert markup.text_in_scripts == ""
    assert [tag for tag, _ in markup.elements if tag in {"style", "base", "iframe", "object", "embed"}] == []
    assert [
        (tag, name) for tag, given in markup.elements for name in given if name == "style" or name.startswith("on")
    ] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text) == []
    assert "@import" not in text


def test_what_the_markup_names_is_there(markup: Markup) -> None:
    named = [given.get("src") or given.get("href") for tag, given in markup.elements if tag in {"script", "link"}]
    assert [name for name in named if name and not name.startswith("data:") and not (PAGE / name).is_file()] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_make_no_markup_and_no_code_of_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert (
        re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|\.srcdoc|setHTML",
            text,
        )
        == []
    )
    assert [name for name in re.findall(r'from "([^"]+)"', text) if not (PAGE / name).is_file()] == []
    assert text.startswith("/** ")
    assert text.count("\n") <= 450


def test_every_word_is_there_in_both_languages() -> None:
    """In the same order, and both have the same blanks to fill in."""
    assert list(WORDS["en"]) == list(WORDS["zh"])
    for key, english in WORDS["en"].items():
        chinese = WORDS["zh"][key]
        blanks = [set(re.findall(r"\{(\w+)\}", form)) for form in english.split("|")]
        assert set(re.findall(r"\{(\w+)\}", chinese)) == set().union(*blanks), key
        assert "|" not in chinese, key
        assert chinese, key


def test_every_word_that_is_used_is_there_and_every_word_is_used(markup: Markup) -> None:
    scripts = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    used = {
        value for _, given in markup.elements for name, value in given.items() if name.startswith("data-t") and value
    }
    used |= set(re.findall(r'\bt\("(\w+)"', scripts))
    assert used - set(WORDS["en"]) == set()
    begun = tuple(re.findall(r"\bt\(`(\w+)\$\{", scripts))  # such as t(`count_${key}`)
    quoted = set(re.findall(r'"(\w+)"', scripts)) | set(
        re.findall(r'"(\w+)"', (PAGE / "amounts.js").read_text(encoding="utf-8"))
    )
    of_states = tuple(f"{place}_{code}" for place in ("state", "badge", "note", "problem") for code in STATES)
    assert [key for key in WORDS["en"] if key not in used | quoted and not key.startswith((*begun, *of_states))] == []


def test_every_problem_is_counted_in_words() -> None:
    """Those of nodes as one kind."""
    bad = {code for code, tone in STATES.items() if tone == "BAD"} - {"agent-away", "node-problem", "not-ready"}
    assert bad == {"over", "trespass", "unhealthy", "limit-not-held"}
    assert {f"count_{code}" for code in (*bad, "node")} <= WORDS["en"].keys()


def test_the_wheel_has_the_page(tmp_path: Path) -> None:
    """Of a copy: building writes beside the sources."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "hatch_build.py", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "gpu_device_plugin", source / "gpu_device_plugin", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    top = "gpu_device_plugin/programs/web/page/"
    packed = {name.removeprefix(top) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(top)}
    assert packed == {path.relative_to(PAGE).as_posix() for path in EVERY}
