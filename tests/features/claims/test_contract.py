"""The names of our devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.claims.contract import (
    device_name,
    is_former_name,
    is_instance,
    monitor_name,
    parse_device_name,
    parse_monitor_name,
)

UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
INSTANCE = "MIG-1b2c3d4e-0000-1111-2222-333344445555"


@pytest.mark.parametrize("uuid", [UUID, INSTANCE])
def test_a_name_leads_back_to_its_gpu_or_instance(uuid: str) -> None:
    name = device_name(uuid)
    assert name == uuid[:3].lower() + "-1b2c3d4e-0000-1111-2222-333344445555"
    assert parse_device_name(name) == uuid
    assert is_instance(name) is is_instance(uuid) is (uuid == INSTANCE)


@pytest.mark.parametrize(
    ("uuid", "name"),
    [
        ("GPU-0123456789ABCDEF", "gpu-0123456789abcdef"),
        ("GPU-0123456789ABCDEF-p7", "gpu-0123456789abcdef-p7"),
        ("PCI-0000:03:00.0", "pci-0000-03-00-0"),
        ("PCI-10000:1f:1f.7-p2", "pci-10000-1f-1f-7-p2"),
    ],
)
def test_a_gpu_without_a_uuid_of_nvidias_kind_has_a_name_that_is_a_dns_label(uuid: str, name: str) -> None:
    assert device_name(uuid) == name
    assert (parse_device_name(name), parse_device_name(f"{name}-whole"), is_instance(name)) == (uuid, uuid, False)
    assert (monitor_name(uuid), parse_monitor_name(f"{name}-monitor")) == (f"{name}-monitor", uuid)


def test_the_device_by_which_a_former_agent_gave_a_gpu_whole_leads_to_it_too() -> None:
    name = device_name(UUID) + "-whole"
    assert (parse_device_name(name), is_former_name(name), is_former_name(device_name(UUID))) == (UUID, True, False)


@pytest.mark.parametrize(
    "name", ["gpu-0", "gpu-0-whole", "-whole", "", UUID, f"{UUID.lower()}-half", "gpu-1-2-3-4-5", "pci-0000:03:00.0"]
)
def test_other_names_are_not_ours(name: str) -> None:
    assert parse_device_name(name) == ""


def test_a_monitor_has_a_name_of_its_own() -> None:
    name = monitor_name(UUID)
    assert name == "gpu-1b2c3d4e-0000-1111-2222-333344445555-monitor"
    assert (parse_monitor_name(name), parse_device_name(name)) == (UUID, "")
    for other in (device_name(UUID), f"{device_name(UUID)}-whole", "gpu-0-monitor", "-monitor", ""):
        assert parse_monitor_name(other) == ""
    assert parse_monitor_name(monitor_name(INSTANCE)) == INSTANCE


@given(kind=st.sampled_from(["GPU", "MIG"]), uuid=st.uuids())
def test_every_uuid_has_a_name_that_is_a_dns_label(kind: str, uuid: object) -> None:
    name = device_name(f"{kind}-{uuid}")
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert parse_device_name(name) == f"{kind}-{uuid}"
