"""The page of settings is what the settings say of themselves; `python tests/docs/test_settings_page.py` writes it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.knobs import Knob, knobs_of
from gpu_device_plugin.settings.mps import MpsSettings
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.web import WebSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
HEAD = """\
# Settings

Set each as a flag, as an environment variable, or in the file that `--config` (or `GPUSHARE_CONFIG`) names; a flag
overrides the variable, which overrides the file. In the file a setting has its flag's name, without the leading dashes
and with `_` for `-`:

```yaml
share_size: 256MiB
policy: spread
exclude_gpus: [GPU-6f1c2f4e-0d2b-4f0c-9a57-0a2f0b0c1d2e]
```

The variable of `--share-size` is `GPUSHARE_SHARE_SIZE`, and so on. Sizes are written like `256MiB` or `1GiB`, durations
like `200ms`, `5s` or `2m`; `--help` shows the form of every value. Programs may share variables and the file: each
ignores the others' settings and refuses unknown ones. A renamed setting is valid under its former name for one more
release; the log names each place to change.

## In the cluster

The manifests and the chart have the settings in two ConfigMaps, `gpushare-node` for the agents and `gpushare-extender`
for the extender. `--config` names the directory where they are mounted, and `default.yaml` in it is the file.

```console
$ kubectl -n gpushare patch configmap gpushare-node --type=merge \\
> -p '{"data":{"default.yaml":"share_size: 1GiB\\npolicy: spread\\n"}}'
$ kubectl -n gpushare describe configmap gpushare-node
```

`kubectl apply -f deploy/` and `helm upgrade` overwrite the ConfigMaps from their files and values: change these too.

The kubelet delivers a changed ConfigMap within a minute or two. The tables below show which settings are live, that is,
change at once. The others wait: the log names them, and for an agent so does an Event on its node, `SettingsWait`, with
the command that restarts this agent:

```console
$ kubectl get events --field-selector involvedObject.kind=Node
$ kubectl -n gpushare delete pod -l app.kubernetes.io/component=node --field-selector spec.nodeName=NODE
```

No program restarts an agent for that ([why](decisions/0013-settings-wait-for-a-person.md)), but every restart applies
waiting settings, with one exception: a changed `share_size` waits while a container of the node holds shares, because
the kubelet knows shares by number and the same memory could be allocated twice. [Drain the
node](recipes.md#change-the-share-size), then restart its agent. An invalid file changes no setting; the log and the
Event `SettingsRefused` name the file, the line and the error.

## A profile for some nodes

Any other `.yaml` file of the directory is a profile. On nodes whose label `gpu-device-plugin/config` names the file,
the agent adds it to `default.yaml`, whose settings it overrides:

```console
$ kubectl -n gpushare patch configmap gpushare-node --type=merge -p '{"data":{"large.yaml":"share_size: 4GiB"}}'
$ kubectl label node NODE gpu-device-plugin/config=large
```

Pods count in units: if nodes differ in `share_size`, choose the node by its label `gpu-device-plugin/share-mib`. Label
a node before it shares its GPUs, because a changed share size waits. A changed label takes effect within a minute.
`default`, or no label, means `default.yaml` alone.

While there are profiles, an agent shares nothing before it knows its node's. It waits ten seconds for the API server,
then uses the node's last profile. Without one, or if the label names a missing profile, it keeps waiting: `/readyz`,
the log and an Event (`SettingsRefused`) give the reason. A running agent keeps its settings when its label becomes
invalid.

Not allowed in a profile, because an agent needs them before it reads one: `api`, `node_name`, `device_plugin_dir`,
`pod_resources_socket`, `cdi_dir`, `http`, `mps_dir` and `log_format`.
"""
NODE = """
## The node agent: `gpu-device-plugin node`

"""
EXTENDER = """
## The scheduler extender: `gpu-device-plugin extender`

"""
MPS = """
## The MPS supervisor: `gpu-device-plugin mps`

"""
WEB = """
## The page in the cluster: `gpu-device-plugin web`

"""
SEVERAL = """
## Settings of several programs

`--help` shows which of these a program has.

"""


def row(each: Knob) -> str:
    default = f"`{each.default}`" if each.default else "empty"
    return f"| `{each.flag}` | {default} | {'yes' if each.live else 'no'} | {each.description} |"


def table(rows: Iterable[str]) -> str:
    """Return settings as a Markdown table, for the documentation."""
    return "\n".join(("| Flag | Default | Live | Meaning |", "|---|---|---|---|", *rows)) + "\n"


def page() -> str:
    """Return the page: settings that several programs have alike stand once, at the end."""
    parts = {NODE: NodeSettings, EXTENDER: ExtenderSettings, MPS: MpsSettings, WEB: WebSettings}
    rows = {head: [row(each) for each in knobs_of(settings)] for head, settings in parts.items()}
    count = Counter(each for own in rows.values() for each in own)
    own = "".join(head + table(each for each in of if count[each] == 1) for head, of in rows.items())
    return HEAD + own + SEVERAL + table(each for each in count if count[each] > 1)


def test_variables_are_made_of_flags_as_the_page_says() -> None:
    for settings in (NodeSettings, ExtenderSettings, MpsSettings, WebSettings):
        for each in knobs_of(settings):
            assert each.variable == f"GPUSHARE_{each.flag.removeprefix('--').replace('-', '_').upper()}"


def test_the_page_of_settings_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: .venv/bin/python tests/docs/test_settings_page.py"


@pytest.mark.parametrize("settings", [NodeSettings, ExtenderSettings, MpsSettings, WebSettings])
def test_no_cell_of_the_table_breaks_it(settings: type) -> None:
    """A bar within a cell would begin another one."""
    assert {row(each).count("|") for each in knobs_of(settings)} == {5}


def test_a_row_shows_the_default_and_whether_a_change_needs_a_restart() -> None:
    rows = [row(each) for each in knobs_of(NodeSettings)]
    assert rows[0].startswith("| `--gpus` | `nvml` | no | Source of the GPUs: nvml")
    assert any(each.startswith("| `--http` | empty | no | ") for each in rows)


def test_what_cannot_stand_in_a_profile_is_named() -> None:
    (named,) = re.findall(r"^Not allowed in a profile, .*?: (.*?)\.$", HEAD, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == {knob.name for knob in knobs_of(NodeSettings) if not knob.in_profile}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
