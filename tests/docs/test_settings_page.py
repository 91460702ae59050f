"""The page of settings is what the settings say of themselves; `python tests/docs/test_settings_page.py` writes it."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS
from gpu_device_plugin.features.limits import LimitHelperSettings
from gpu_device_plugin.features.mps import MpsSupervisorSettings
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.settings.knobs import Knob, knobs_of
from gpu_device_plugin.settings.web import WebSettings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
SECTIONS = {
    "## The node agent: `gpu-device-plugin node`": NODE_SETTINGS,
    "## The scheduler extender: `gpu-device-plugin extender`": EXTENDER_SETTINGS,
    "## The MPS supervisor: `gpu-device-plugin mps`": MpsSupervisorSettings,
    "## The limit helper: `gpu-device-plugin limits`": LimitHelperSettings,
    "## The page in the cluster: `gpu-device-plugin web`": WebSettings,
}
SEVERAL = "## Settings of several programs\n\n`--help` shows which of these a program has."
PROSE = PAGE.read_text(encoding="utf-8").partition(next(iter(SECTIONS)))[0]
"""What people write; the lists below it come from the settings."""


def item(each: Knob) -> str:
    default = f"={each.default}" if each.default else ""
    live = r"\*" if each.live else ""
    text = f"* `{each.flag}{default}`{live}: {each.help}"
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def listed(items: Iterable[str]) -> str:
    """Return settings as a Markdown list, for the documentation."""
    return "\n".join(items) + "\n"


def page() -> str:
    """Return the page: settings that several programs have alike stand once, at the end."""
    items = {heading: [item(each) for each in knobs_of(settings)] for heading, settings in SECTIONS.items()}
    count = Counter(each for own in items.values() for each in own)
    lists = {heading: listed(each for each in own if count[each] == 1) for heading, own in items.items()}
    lists[SEVERAL] = listed(each for each in count if count[each] > 1)
    return PROSE + "\n".join(f"{heading}\n\n{text}" for heading, text in lists.items())


def test_variables_are_made_of_flags_as_the_page_says() -> None:
    for settings in SECTIONS.values():
        for each in knobs_of(settings):
            assert each.variable == f"GPUSHARE_{each.flag.removeprefix('--').replace('-', '_').upper()}"


def test_the_page_of_settings_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python tests/docs/test_settings_page.py"


@pytest.mark.parametrize("settings", SECTIONS.values())
def test_no_text_of_a_setting_breaks_the_list(settings: type) -> None:
    """Two asterisks after the bullet would be emphasis, and a line that begins like an item would be one."""
    for each in knobs_of(settings):
        assert item(each).replace(r"\*", "").count("*") <= 2
        assert not re.search(r"^  ([*+-]|\d+[.)]) ", item(each), re.MULTILINE)


def test_what_cannot_stand_in_a_profile_is_named() -> None:
    (named,) = re.findall(r"^Not allowed in a profile, .*?: (.*?)\.$", PROSE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == {knob.name for knob in knobs_of(NODE_SETTINGS) if not knob.in_profile}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
