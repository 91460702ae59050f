"""MIG: the names of profiles and of their resources."""

import pytest

from gpu_device_plugin.model.mig import (
    MigMode,
    is_mig_resource,
    is_profile,
    profile_name,
    resource_name,
)

# Memory of the GPU in MiB; of each profile its name, the memory in MiB of its GPU instance, and the GPU's slices of
# compute that it has. As `nvidia-smi mig -lgip` was seen to print them; where it was not (None), the names are those of
# NVIDIA's MIG User Guide and of the default configuration of mig-parted.
TABLES: dict[str, tuple[int, tuple[tuple[str, int | None, int], ...]]] = {
    "A30": (
        24576,
        (
            ("1g.6gb", 5952, 1),
            ("1g.6gb+me", 5952, 1),
            ("2g.12gb", 11968, 2),
            ("4g.24gb", 24000, 4),
        ),
    ),
    "A100 40GB": (
        40960,
        (
            ("1g.5gb", 4864, 1),
            ("1g.10gb", 9984, 1),
            ("2g.10gb", 9984, 2),
            ("3g.20gb", 20096, 3),
            ("4g.20gb", 20096, 4),
            ("7g.40gb", 40320, 7),
        ),
    ),
    "A100 80GB": (
        81920,
        (
            ("1g.10gb", 9728, 1),
            ("1g.20gb", 19968, 1),
            ("2g.20gb", 19968, 2),
            ("3g.40gb", 40192, 3),
            ("4g.40gb", 40192, 4),
            ("7g.80gb", 80640, 7),
        ),
    ),
    "H100": (
        81559,
        (
            ("1g.10gb", 9984, 1),
            ("1g.20gb", 20096, 1),
            ("2g.20gb", 20096, 2),
            ("3g.40gb", 40448, 3),
            ("4g.40gb", 40448, 4),
            ("7g.80gb", 81152, 7),
        ),
    ),
    "H100 NVL": (
        95830,
        (
            ("1g.12gb", None, 1),
            ("1g.24gb", None, 1),
            ("2g.24gb", None, 2),
            ("3g.47gb", None, 3),
            ("4g.47gb", None, 4),
            ("7g.94gb", None, 7),
        ),
    ),
    "H200": (
        143771,
        (
            ("1g.18gb", 16384, 1),
            ("1g.35gb", 33024, 1),
            ("2g.35gb", 33024, 2),
            ("3g.71gb", 71168, 3),
            ("4g.71gb", 71168, 4),
            ("7g.141gb", 143104, 7),
        ),
    ),
    "B200": (
        183359,
        (
            ("1g.23gb", 22528, 1),
            ("1g.45gb", 45312, 1),
            ("2g.45gb", 45312, 2),
            ("3g.90gb", None, 3),
            ("4g.90gb", None, 4),
            ("7g.180gb", None, 7),
        ),
    ),
    "GB200": (
        189471,
        (
            ("1g.23gb", 22528, 1),
            ("1g.47gb", 46592, 1),
            ("2g.47gb", 46592, 2),
            ("3g.93gb", None, 3),
            ("4g.93gb", None, 4),
            ("7g.186gb", None, 7),
        ),
    ),
    "RTX PRO 6000": (
        97887,
        (
            ("1g.24gb", 24192, 1),
            ("1g.24gb+me", 24192, 1),
            ("1g.24gb+gfx", 24192, 1),
            ("1g.24gb+me.all", 24192, 1),
            ("1g.24gb-me", 24192, 1),
            ("2g.48gb", 48512, 2),
            ("2g.48gb+gfx", 48512, 2),
            ("2g.48gb+me.all", 48512, 2),
            ("2g.48gb-me", 48512, 2),
            ("4g.96gb", 97280, 4),
            ("4g.96gb+gfx", 97280, 4),
        ),
    ),
}
ROWS = [(model, total_mib, *row) for model, (total_mib, rows) in TABLES.items() for row in rows]


def attributes_of(name: str) -> str:
    return name.partition("gb")[2]


@pytest.mark.parametrize(
    ("total_mib", "name", "memory_mib", "slices"),
    [(total_mib, name, memory, slices) for _, total_mib, name, memory, slices in ROWS if memory is not None],
    ids=[f"{model} {name}" for model, _, name, memory, _ in ROWS if memory is not None],
)
def test_a_profile_has_the_name_that_nvidia_prints(total_mib: int, name: str, memory_mib: int, slices: int) -> None:
    assert profile_name(slices, memory_mib, total_mib, attributes=attributes_of(name)) == name


@pytest.mark.parametrize(
    ("total_mib", "name", "slices"),
    [(total_mib, name, slices) for _, total_mib, name, memory, slices in ROWS if memory is None],
    ids=[f"{model} {name}" for model, _, name, memory, _ in ROWS if memory is None],
)
def test_a_name_whose_memory_was_not_seen_follows_from_eighths_of_the_gpu(
    total_mib: int, name: str, slices: int
) -> None:
    """An instance has a little less than its eighths, since the driver keeps some for itself."""
    eighths = {"1g.24gb": 2, "1g.45gb": 2, "1g.47gb": 2}.get(name, {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}[slices])
    memory_mib = total_mib * eighths // 8 - 200
    assert profile_name(slices, memory_mib, total_mib, attributes=attributes_of(name)) == name


def test_a_compute_instance_is_named_before_its_gpu_instance() -> None:
    """One that has all of it is not."""
    assert profile_name(3, 40448, 81559, 1) == "1c.3g.40gb"
    assert profile_name(3, 40448, 81559, 3) == profile_name(3, 40448, 81559) == "3g.40gb"


@pytest.mark.parametrize("total_mib", [0, -1])
def test_the_name_on_a_gpu_of_unknown_memory_is_no_error(total_mib: int) -> None:
    assert profile_name(1, 0, total_mib) == "1g.0gb"


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.10gb", "mig-1g.10gb"),
        ("1g.10gb+me", "mig-1g.10gb.me"),
        ("1g.24gb+me.all", "mig-1g.24gb.me.all"),
        ("1g.24gb-me", "mig-1g.24gb-me"),
    ],
)
def test_a_resource_is_named_as_by_nvidias_device_plugin(profile: str, name: str) -> None:
    assert resource_name(profile) == name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[2]}")
def test_every_name_of_nvidias_is_a_profile_and_its_resource_one_of_mig(
    row: tuple[str, int, str, int | None, int],
) -> None:
    name = row[2]
    assert is_profile(name)
    assert is_mig_resource(f"nvidia.com/{resource_name(name)}")
    assert resource_name(name).replace(".", "").replace("-", "").isalnum()


@pytest.mark.parametrize("profile", ["1c.3g.40gb", "2c.7g.80gb+me"])
def test_a_part_of_a_gpu_instance_is_a_profile_of_its_slices(profile: str) -> None:
    assert is_profile(profile)


@pytest.mark.parametrize(
    "text",
    ["", "1g", "8g.10gb", "0g.10gb", "1g.0gb", "1g.10gib", "1g.10gb+", "g.10gb", "1g.10gb*7", "1G.10GB", "\uff11g.5gb"],
)
def test_another_text_is_no_profile(text: str) -> None:
    assert not is_profile(text)
    assert not is_mig_resource(f"nvidia.com/mig-{text}")


@pytest.mark.parametrize(
    ("resource", "domain", "is_one"),
    [
        ("nvidia.com/mig-1g.10gb", "", True),
        ("nvidia.com/mig-1g.10gb.me", "", True),
        ("nvidia.com/mig-1g.10gb", "nvidia.com", True),
        ("nvidia.com/mig-1g.10gb", "aliyun.com", False),
        ("aliyun.com/gpu-mem", "", False),
        ("nvidia.com/1g.10gb", "", False),
        ("nvidia.com/mig-", "", False),
        ("mig-1g.10gb", "", False),
        ("nvidia.com", "nvidia.com", False),
    ],
)
def test_a_resource_of_mig_is_known_by_its_name(
    resource: str,
    domain: str,
    is_one: bool,  # noqa: FBT001 (a parameter)
) -> None:
    assert is_mig_resource(resource, domain) is is_one


def test_the_ways_of_giving_instances_have_the_names_of_the_setting() -> None:
    assert list(MigMode) == ["off", "whole", "share"]
