"""Facts about GPUs."""

import pytest

from gpu_device_plugin.model.gpus import short_model


@pytest.mark.parametrize(
    ("product", "short"),
    [
        ("NVIDIA H200", "H200"),
        ("Tesla T4", "Tesla T4"),
        ("AMD Instinct MI300X OAM", "Instinct MI300X OAM"),
        ("Intel GPU 8086:e20b", "Intel GPU 8086:e20b"),
    ],
)
def test_a_model_is_shown_without_its_usual_maker(product: str, short: str) -> None:
    assert short_model(product) == short
