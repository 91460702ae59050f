"""The names of our devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.dra import device_name, monitor_name, parse_device_name, parse_monitor_name

UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"


@pytest.mark.parametrize("whole", [False, True])
def test_a_name_leads_back_to_its_gpu(*, whole: bool) -> None:
    name = device_name(UUID, whole=whole)
    assert name == "gpu-1b2c3d4e-0000-1111-2222-333344445555" + "-whole" * whole
    assert parse_device_name(name) == (UUID, whole)


@pytest.mark.parametrize("name", ["gpu-0", "gpu-0-whole", "-whole", "", UUID, f"{UUID.lower()}-half", "gpu-1-2-3-4-5"])
def test_other_names_are_not_ours(name: str) -> None:
    assert parse_device_name(name) is None


def test_a_monitor_has_a_name_of_its_own() -> None:
    name = monitor_name(UUID)
    assert name == "gpu-1b2c3d4e-0000-1111-2222-333344445555-monitor"
    assert (parse_monitor_name(name), parse_device_name(name)) == (UUID, None)
    for other in (device_name(UUID, whole=False), device_name(UUID, whole=True), "gpu-0-monitor", "-monitor", ""):
        assert parse_monitor_name(other) == ""


@given(uuid=st.uuids(), whole=st.booleans())
def test_every_uuid_has_a_name_that_is_a_dns_label(*, uuid: object, whole: bool) -> None:
    name = device_name(f"GPU-{uuid}", whole=whole)
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert parse_device_name(name) == (f"GPU-{uuid}", whole)
