"""In which way a node is to serve."""

import pytest

from gpu_device_plugin.node.rules.serving_mode import ServingMode, wanted_mode

PLUGIN, DRA = ServingMode.DEVICE_PLUGIN, ServingMode.DRA


@pytest.mark.parametrize(
    ("setting", "label", "expected"),
    [
        ("auto", None, PLUGIN),
        ("dra", None, DRA),
        ("device-plugin", None, PLUGIN),
        ("auto", "dra", DRA),
        ("dra", "device-plugin", PLUGIN),
        ("dra", "auto", PLUGIN),
        ("dra", "", DRA),
        ("dra", "DRA", DRA),
    ],
)
def test_the_label_counts_before_the_setting(setting: str, label: str | None, expected: ServingMode) -> None:
    labels = {} if label is None else {"gpu-device-plugin/serve": label}
    assert wanted_mode(setting, labels) is expected
