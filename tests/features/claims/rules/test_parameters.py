"""The parameters that claims and DeviceClasses carry for our driver."""

import re
from typing import Any

import pytest

from gpu_device_plugin.features.claims.contract import (
    NO_CONFIG,
    Parameters,
    ParametersError,
    ShareConfig,
    share_config,
)
from gpu_device_plugin.model.limits import Enforcement
from tests.claims import claim, config, device


def test_a_claim_without_parameters_takes_what_the_node_has() -> None:
    assert share_config(claim(device()), "gpu") == NO_CONFIG == ShareConfig(None, None, ())


def test_each_field_is_that_of_the_claim_or_else_of_its_class() -> None:
    ours = config(limits="mps", computePercent=20)
    of_class = config(limits="driver", frameworks=["jax", "pytorch"], of_class=True)
    found = share_config(claim(device(), parameters=(of_class, ours)), "gpu")
    assert found == ShareConfig(Enforcement.MPS, 20, ("pytorch", "jax"))


def test_parameters_of_other_requests_do_not_count() -> None:
    asked = claim(device(), parameters=(config("other", limits="mps"), config("gpu", "more", computePercent=7)))
    assert share_config(asked, "gpu") == ShareConfig(None, 7)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "of apiVersion gpu-device-plugin/v1 and kind GpuShareConfig, but of None and None"),
        ({"apiVersion": "v1", "kind": "GpuShareConfig"}, "but of 'v1' and 'GpuShareConfig'"),
        ({"apiVersion": "gpu-device-plugin/v1", "kind": ["x"]}, r"but of 'gpu-device-plugin/v1' and \['x'\]"),
    ],
)
def test_parameters_of_another_kind_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParametersError, match=sentence):
        share_config(claim(device(), parameters=(Parameters(values),)), "gpu")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"memory": "4Gi"}, "the claim has the parameter 'memory', and there are only limits, computePercent, framew"),
        ({"limits": "hard"}, "the claim has limits 'hard'; write one of driver, dmem, mps, custom, advisory"),
        ({"limits": {"a": 1}}, r"the claim has limits {'a': 1}; write one of"),
        ({"limits": None}, "the claim has limits None; write one of"),
        ({"memoryLimit": "12"}, "has memoryLimit '12'; write an amount of memory, such as 12Gi"),
        ({"memoryLimit": 12}, "has memoryLimit 12; write an amount"),
        ({"memoryLimit": "0Gi"}, "has memoryLimit '0Gi'; write an amount"),
        ({"memoryLimit": "999999999999Gi"}, "has memoryLimit '999999999999Gi'; write an amount"),
        ({"whole": "yes"}, "has whole 'yes'; write true or false"),
        ({"computePercent": 0}, "has computePercent 0; write a whole number from 1 to 100"),
        ({"computePercent": 101}, "has computePercent 101"),
        ({"computePercent": True}, "has computePercent True"),
        ({"computePercent": "50"}, "has computePercent '50'"),
        ({"frameworks": "jax"}, "has frameworks 'jax'; write a list of some of pytorch, jax"),
        ({"frameworks": ["tensorflow"]}, r"has frameworks \['tensorflow'\]"),
        ({"frameworks": [["jax"]]}, r"has frameworks \[\['jax'\]\]"),
    ],
)
def test_every_fault_is_named_with_its_place(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParametersError, match=sentence):
        share_config(claim(device(), parameters=(config(**fields),)), "gpu")


@pytest.mark.parametrize(("text", "mib"), [("12Gi", 12288), ("512MiB", 512)])
def test_a_limit_of_memory_has_a_unit(text: str, mib: int) -> None:
    found = share_config(claim(device(), parameters=(config(memoryLimit=text),)), "gpu")
    assert found == ShareConfig(memory_limit_mib=mib)


@pytest.mark.parametrize("percent", [1, 100])
def test_the_least_and_the_most_compute_are_taken(percent: int) -> None:
    assert share_config(claim(device(), parameters=(config(computePercent=percent),)), "gpu").compute == percent


def test_the_class_is_named_where_the_fault_is_its_own_and_64_characters_of_a_word_are_shown() -> None:
    for words, shown in (("x" * 62, f"'{'x' * 62}'"), ("x" * 63, f"'{'x' * 60}..."), ("\x1b[31m", r"'\x1b[31m'")):
        with pytest.raises(ParametersError, match=f"^its DeviceClass has limits {re.escape(shown)};"):
            share_config(claim(device(), parameters=(config(limits=words, of_class=True),)), "gpu")
