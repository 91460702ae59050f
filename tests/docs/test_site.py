"""The documentation as a site: every link leads somewhere, and every page has there what it has on GitHub."""

import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.pages import DOCS, ROOT, text_of
from tests.sharing import made_once

PAGES = sorted(DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it strictly: a link that leads nowhere and a page that nothing leads to are errors."""

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "site", build)


class Shapes(HTMLParser):
    """Counts what a page is made of."""

    counted = frozenset({"h1", "h2", "h3", "li", "ol", "ul", "pre", "table", "tr", "td", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._main = 0
        self.feed(html)

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        """Look at nothing outside the part of the page that is its text, if it says which that is."""
        if tag == "article":
            self._main += 1
        if tag in self.counted and self._main:
            self.found[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._main -= 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_has_the_shape_that_it_has_on_github(page: Path, site: Path) -> None:
    html = f"<article>{MarkdownIt('commonmark').enable('table').render(text_of(page))}</article>"
    name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
    made = site / page.parent.relative_to(DOCS) / name
    assert Shapes(text_of(made)).found == Shapes(html).found


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    html = text_of(site / "index.html")
    assert 'src="http' not in html
    assert '<link rel="stylesheet" href="http' not in html
