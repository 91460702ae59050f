"""Fake GPUs of other drivers than NVIDIA's: their models, names, partitions and device nodes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from gpu_device_plugin.hardware.fake.description import read
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.fake.gpu_models import MODELS, OTHERS
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.hardware.messages import read as message
from gpu_device_plugin.model.gpus import Closeness
from gpu_device_plugin.settings.node import _gpu_name
from tests.hardware.amdgpu import trees

Json = dict[str, Any]


def listed(source: str) -> list[Json]:
    gpus: list[Json] = Fake(source).inventory()["gpus"]
    return gpus


def described(tmp_path: Path, document: Json) -> str:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_the_models_have_what_the_kernel_tells_of_them() -> None:
    kept = ("product", "total_mib", "reserved_mib", "driver", "architecture", "compute_units", "device_paths")
    assert [tuple(gpu[key] for key in kept) for gpu in listed("fake:1xMI300X,1xRX7900XTX,1xB580")] == [
        ("AMD Instinct MI300X", 206141652992 >> 20, 0, "amdgpu", "gfx942", 304, []),
        ("AMD Radeon RX 7900 XTX", 25753026560 >> 20, 0, "amdgpu", "gfx1100", 96, []),
        ("Intel GPU 8086:e20b", 12216, 0, "xe", None, None, []),
    ]


@pytest.mark.parametrize("model", OTHERS)
def test_every_model_of_another_driver_is_known_and_its_uuid_is_a_setting(model: str) -> None:
    assert model in MODELS
    (gpu,) = listed(f"fake:1x{model}")
    assert gpu["total_mib"] > 12000
    assert _gpu_name(gpu["uuid"]) == gpu["uuid"]


def test_a_board_that_is_partitioned_is_eight_gpus_at_one_address_with_an_eighth_of_the_memory_each() -> None:
    gpus = listed("fake:2xMI300X:partition=cpx,1xRX7900XTX")
    first, second, other = gpus[:8], gpus[8:16], gpus[16:]
    assert len(other) == 1
    for board in (first, second):
        (name,) = {gpu["uuid"].rpartition("-")[0] for gpu in board}
        assert len(name) == len("GPU-") + 16
        assert [gpu["uuid"] for gpu in board] == [f"{name}-p{part}" for part in range(8)]
        assert {(gpu["total_mib"], gpu["compute_units"], gpu["memory_limits"]) for gpu in board} == {(24574, 38, False)}
        assert len({(gpu["pci_bus_id"], gpu["numa_node"]) for gpu in board}) == 1
    assert len({gpu["pci_bus_id"] for gpu in gpus}) == 3
    assert [gpu["index"] for gpu in gpus] == list(range(17))


def test_a_board_in_one_partition_is_one_gpu() -> None:
    assert listed("fake:1xMI300X:partition=spx") == listed("fake:1xMI300X")


@pytest.mark.parametrize(("mode", "count"), [("dpx", 2), ("qpx", 4), ("cpx", 8)])
def test_a_mode_says_how_many_partitions_there_are(mode: str, count: int, tmp_path: Path) -> None:
    gpus = listed(
        described(tmp_path, {"gpus": [{"model": "MI300X", "partition": mode, "uuid": "GPU-0123456789ABCDEF"}]})
    )
    assert [gpu["uuid"] for gpu in gpus] == [f"GPU-0123456789ABCDEF-p{part}" for part in range(count)]


def test_a_whole_machine_in_its_smallest_partitions_can_be_described() -> None:
    answer = {"inventory": Fake("fake:8xMI300X:partition=cpx").inventory(), "probes": []}
    decoded = message(json.dumps({"answer": answer}).encode()).answer
    assert decoded is not None
    assert decoded.inventory is not None
    assert len(decoded.inventory.gpus) == 64


@pytest.mark.parametrize(
    ("written", "source"),
    [
        (lambda root: trees.mi300x(root, 2), "fake:2xMI300X"),
        (lambda root: trees.mi300x(root, 1, 8), "fake:1xMI300X:partition=cpx"),
        (trees.rx7900xtx, "fake:1xRX7900XTX"),
        (trees.b580, "fake:1xB580"),
    ],
)
def test_fakes_are_as_the_driver_lists_such_gpus(
    written: Callable[[Path], object], source: str, tmp_path: Path
) -> None:
    written(tmp_path)
    found, fake = Drm(["amdgpu", "xe"], str(tmp_path)).inventory(), Fake(source).inventory()
    kept = ("index", "total_mib", "reserved_mib", "driver", "compute_units", "architecture", "mig", "unified")
    assert [[gpu[key] for key in kept] for gpu in fake["gpus"]] == [[gpu[key] for key in kept] for gpu in found["gpus"]]
    forms = [
        [re.sub("[0-9A-Fa-f]{16}|[0-9a-f]{2}:00", "", gpu["uuid"]) for gpu in each["gpus"]] for each in (fake, found)
    ]
    assert forms[0] == forms[1]
    levels = [[(link["closeness"], link["nvlinks"]) for link in each["links"]] for each in (fake, found)]
    assert levels[0] == levels[1]


def test_boards_of_one_model_are_linked_as_their_driver_tells() -> None:
    links = Fake("fake:8xMI300X").inventory()["links"]
    assert {(link["closeness"], link["nvlinks"]) for link in links} == {(Closeness.NVLINK, 1)}
    (link,) = Fake("fake:2xRX7900XTX").inventory()["links"]
    assert (link["closeness"], link["nvlinks"]) == (Closeness.SYSTEM, 0)


@pytest.mark.parametrize(
    ("gpus", "complaint"),
    [
        ("1xT4:partition=cpx", "gpus.partition: T4 cannot be partitioned; MI300X, MI308X or MI355X can"),
        ("1xRX7900XTX:partition=cpx", "gpus.partition: RX7900XTX cannot be partitioned; MI300X, MI308X or MI355X can"),
        ("1xMI308X:partition=qpx", "gpus.partition: 'qpx' is no mode of this model; it has spx, dpx, cpx"),
        ("1xMI300X:partition=npx", "gpus.partition: 'npx' is not one of spx, dpx, qpx, cpx"),
        (
            "1xMI300X:mig=1g.10gb",
            "gpus.mig: MI300X cannot be divided into instances; A30, A100, H100, H200, B200 or GB200",
        ),
        ("17xMI300X:partition=cpx", "gpus: 136 GPUs are too many; 128 is the maximum for one node"),
        (
            [{"model": "MI300X", "partition": "cpx", "memory_limits": True}],
            "gpus[0].memory_limits: the kernel limits the memory of a board, not that of its partitions",
        ),
        ([{"memory": "7GiB", "partition": "cpx"}], "gpus[0].partition: a GPU without a model cannot be partitioned"),
        *(
            ([{"model": "B580", "devices": devices}], f"gpus[0].devices: {devices!r} is no list of up to 8 paths like")
            for devices in (["/etc/passwd"], ["/dev/../etc"], "/dev/kfd", ["/dev/kfd"] * 9, [f"/dev/{'x' * 65}"], [1])
        ),
    ],
)
def test_what_no_such_gpu_has_is_refused(gpus: Any, complaint: str, tmp_path: Path) -> None:
    source = described(tmp_path, {"gpus": gpus})
    with pytest.raises(DescriptionError) as refused:
        read(source)
    assert str(refused.value).startswith(f"{source}: {complaint}")


def test_device_nodes_are_those_that_are_described_and_of_nvidia_those_of_its_minor(tmp_path: Path) -> None:
    nodes = ["/dev/kfd", "/dev/dri/renderD128"]
    gpus = [
        {"model": "MI210", "devices": nodes},
        "1xMI210",
        {"model": "T4", "minor": 5},
        {"model": "T4", "minor": None},
    ]
    found = listed(described(tmp_path, {"gpus": gpus}))
    assert [gpu["device_paths"] for gpu in found] == [nodes, [], ["/dev/nvidia5"], []]


@pytest.mark.parametrize(
    ("gpus", "version"),
    [("2xMI300X", "6.14.14"), ("1xMI300X,1xB580", "6.14.14"), ("1xB580", "6.17.0"), ("1xMI300X,1xT4", "580.65.06")],
)
def test_the_driver_is_of_the_version_that_nvml_or_else_the_kernel_tells(gpus: str, version: str) -> None:
    assert Fake(f"fake:{gpus}").inventory()["driver_version"] == version


def test_the_kernels_drivers_tell_less_of_the_condition_of_a_gpu() -> None:
    groups = ["thermal", "power", "clocks", "load", "pcie", "nvlink", "memory-errors"]
    driver = Fake("fake:2xMI300X,1xB580,1xT4")
    driver.inventory()
    board, _, intel, nvidia = driver.condition(groups)
    assert (board["power_limit_mw"], intel["power_limit_mw"]) == (750_000, 190_000)
    assert nvidia.keys() - board.keys() == {"persistence", "encoder_percent", "decoder_percent", "remapped_rows"}
    assert {"slowdown_c", "throttle", "sm_percent", "nvlink_errors"} <= board.keys()
    assert not {"slowdown_c", "throttle", "sm_percent", "nvlink_errors"} & intel.keys()


def test_a_gpu_that_is_gone_is_named_without_words_of_nvml(tmp_path: Path) -> None:
    gone = [{"model": "MI300X", "uuid": "GPU-0123456789ABCDEF", "lost": True}]
    driver = Fake(described(tmp_path, {"gpus": gone}))
    (trouble,) = driver.inventory()["troubles"]
    assert trouble == "the GPU GPU-0123456789ABCDEF is left out, it cannot be read: it is gone from the PCI bus"
    later = {"gpus": [{**gone[0], "lost": False}], "events": [{"at": "0s", "gpu": 0, "lost": True}]}
    driver = Fake(described(tmp_path, {"gpus": later["gpus"]}))
    driver.inventory()
    described(tmp_path, later)
    assert driver.probe()[0]["error"] == "the driver cannot read it: it is gone from the PCI bus"


def test_limits_are_kept_as_those_of_nvidia_are(tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    driver = Fake(described(tmp_path, {"gpus": [{"model": "MI300X", "memory_limits": True}]}))
    (gpu,) = driver.inventory()["gpus"]
    assert gpu["memory_limits"]
    (limit,) = driver.set_limits([(gpu["uuid"], str(group), 4096, 0)])
    assert (limit["code"], limit["hard_mib"]) == (0, 4096)
    assert driver.limits([(gpu["uuid"], str(group))]) == [limit]
