"""The page of settings is what the settings say of themselves; `python tests/docs/test_settings_page.py` writes it."""

from __future__ import annotations

from pathlib import Path

from gpu_device_plugin.settings import KNOBS, table

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
HEAD = """\
# Settings of the node agent

Each can be given as a flag, as a variable of the environment, or in the file that `--config` (or `GPUSHARE_CONFIG`)
names; a flag beats the variable, which beats the file. In the file a setting is called as its flag, without the dashes
before it and with `_` for `-`:

```yaml
share_size: 256MiB
policy: spread
exclude_gpus: [GPU-6f1c2f4e-0d2b-4f0c-9a57-0a2f0b0c1d2e]
```

Sizes are written like `256MiB` or `1GiB`, durations like `200ms`, `5s` or `2m`. SIGHUP has all of it read again and
changes what can be changed without a restart. `gpu-device-plugin node --help` tells the form of every value, too.

"""


def page() -> str:
    return HEAD + table()


def test_the_page_of_settings_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python tests/docs/test_settings_page.py"


def test_no_cell_of_the_table_breaks_it() -> None:
    """A bar within a cell would begin another one."""
    assert {line.count("|") for line in table().splitlines()} == {6}
    assert len(table().splitlines()) == 2 + len(KNOBS)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
