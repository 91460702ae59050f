"""The page of settings is what the settings say of themselves; `python tests/docs/test_settings_page.py` writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_device_plugin import extender_settings, settings
from gpu_device_plugin.knobs import Knob, table

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
HEAD = """\
# Settings

Each can be given as a flag, as a variable of the environment, or in the file that `--config` (or `GPUSHARE_CONFIG`)
names; a flag beats the variable, which beats the file. In the file a setting is called as its flag, without the dashes
before it and with `_` for `-`:

```yaml
share_size: 256MiB
policy: spread
exclude_gpus: [GPU-6f1c2f4e-0d2b-4f0c-9a57-0a2f0b0c1d2e]
```

Sizes are written like `256MiB` or `1GiB`, durations like `200ms`, `5s` or `2m`. SIGHUP has all of it read again and
changes what can be changed without a restart. `--help` after a command tells the form of every value, too.

Variables and the file may serve both programs: each passes over what only the other one knows, and refuses what neither
does.
"""
AGENT = """
## The node agent: `gpu-device-plugin node`

"""
EXTENDER = """
## The scheduler extender: `gpu-device-plugin extender`

"""


def page() -> str:
    return HEAD + AGENT + table(settings.KNOBS) + EXTENDER + table(extender_settings.KNOBS)


def test_the_page_of_settings_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python tests/docs/test_settings_page.py"


@pytest.mark.parametrize("knobs", [settings.KNOBS, extender_settings.KNOBS])
def test_no_cell_of_the_table_breaks_it(knobs: tuple[Knob, ...]) -> None:
    """A bar within a cell would begin another one."""
    assert {line.count("|") for line in table(knobs).splitlines()} == {6}
    assert len(table(knobs).splitlines()) == 2 + len(knobs)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
