"""The pictures of the documentation are what their texts say, and can be read by everybody."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

from tests.docs import plots
from tests.docs.pages import DOCS, text_of
from tests.docs.pictures import IMAGES, draw


@pytest.mark.parametrize("source", sorted(IMAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_a_picture_is_what_its_text_says(source: Path) -> None:
    assert text_of(source.with_suffix(".svg")) == draw(text_of(source)), "run: python -m tests.docs.pictures"


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_plot_is_what_the_program_draws(name: str, tmp_path: Path) -> None:
    """Another version of matplotlib may place the same texts elsewhere."""
    plots.draw(name, tmp_path / name)
    committed, drawn = text_of(IMAGES / name), text_of(tmp_path / name)
    if f"Matplotlib v{mpl.__version__}," in committed:
        assert committed == drawn, "run: python -m tests.docs.plots"
    assert re.findall(">([^<>]+)</text>", committed) == re.findall(">([^<>]+)</text>", drawn)
    assert len(committed) < 100_000


def test_every_picture_is_shown_somewhere_and_described_in_words() -> None:
    shown = {
        (page.parent / path).resolve(): words
        for page in DOCS.rglob("*.md")
        for words, path in re.findall(r"!\[([^\]]*)\]\((\S+)\)", text_of(page))
    }
    assert shown.keys() == {path.resolve() for path in IMAGES.glob("*.svg")}
    assert all(len(words) > 40 for words in shown.values())


def test_a_picture_of_lines_shares_and_words() -> None:
    """One cell is 8.5 x 19 pixels, behind a margin of 12: the words begin in the fourth cell, at 12 + 3 * 8.5."""
    svg = draw("A title & more\n\n█─ two words\n")
    assert "<title>A title &amp; more</title>" in svg
    assert '<path class="used" d="M13,15h6.5v13h-6.5z"/>' in svg
    assert '<path class="line" d="M24.75,21.5h-4.25M24.75,21.5h4.25"/>' in svg
    assert 'x="37.5" y="26" textLength="76.5" lengthAdjust="spacingAndGlyphs">two words</text>' in svg
