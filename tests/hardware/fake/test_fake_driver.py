"""Fake hardware: how it is described, what it answers, and what happens to it over time."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.hardware.driver import CONTEXT_LOST, OTHER, HardwareError
from gpu_device_plugin.hardware.fake.description import ACTIONS, CLOSENESS, read
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.fake.gpu_models import MODELS, OTHERS, UNIFIED
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.model.gpus import Closeness


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 0.001  # so that whoever waits for it to go on does not wait for ever
        return self.now_s


def written(tmp_path: Path, document: Any, name: str = "gpus.json") -> str:
    path = tmp_path / name
    fresh = tmp_path / "fresh"
    fresh.write_text(document if isinstance(document, str) else json.dumps(document))
    fresh.rename(path)
    return str(path)


def opened(source: str, clock: Clock | None = None, since_s: float = -1.0) -> Fake:
    clock = clock or Clock()
    driver = Fake(source, origin_s=clock.now_s, since_s=since_s, clock=clock)
    driver.inventory()
    return driver


def test_a_short_description_names_models_and_how_many() -> None:
    gpus = opened("fake:2xT4,1xA10").inventory()["gpus"]
    assert [(gpu["product"], gpu["total_mib"], gpu["index"]) for gpu in gpus] == [
        ("Tesla T4", 15360, 0),
        ("Tesla T4", 15360, 1),
        ("NVIDIA A10", 23028, 2),
    ]


def test_b16_b19_every_gpu_is_one_of_its_own_and_the_same_every_time() -> None:
    gpus = opened("fake:8xT4").inventory()["gpus"]
    assert gpus == opened("fake:8xT4").inventory()["gpus"]
    assert len({gpu["uuid"] for gpu in gpus}) == len({gpu["pci_bus_id"] for gpu in gpus}) == 8
    assert all(len(gpu["uuid"]) == len("GPU-") + 36 for gpu in gpus)
    assert [gpu["numa_node"] for gpu in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("model", [model for model in MODELS if model not in UNIFIED and model not in OTHERS])
def test_every_model_has_more_memory_than_its_driver_keeps(model: str) -> None:
    (gpu,) = opened(f"fake:1x{model}").inventory()["gpus"]
    assert 0 < gpu["reserved_mib"] < 1024 < gpu["total_mib"]


def test_of_a_gpu_with_the_memory_of_the_machine_the_driver_tells_no_use() -> None:
    driver = opened("fake:1xGB10")
    (gpu,) = driver.inventory()["gpus"]
    assert (gpu["product"], gpu["unified"], gpu["total_mib"]) == ("NVIDIA GB10", True, 124610)
    assert driver.probe()[0]["used_mib"] is None
    assert driver.use(utilisation=False)[0]["used_mib"] is None


@pytest.mark.parametrize(
    ("model", "product", "gib"),
    [
        ("B300", "NVIDIA B300 SXM6 AC", 268),
        ("GB300", "NVIDIA GB300", 277),
        ("GH200", "NVIDIA GH200 480GB", 95),
        ("RTXPRO6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 95),
    ],
)
def test_newer_models_are_ready(model: str, product: str, gib: int) -> None:
    (gpu,) = opened(f"fake:1x{model}").inventory()["gpus"]
    assert (gpu["product"], gpu["total_mib"] // 1024) == (product, gib)


def test_models_are_of_the_generation_that_nvidia_names_and_any_other_gpu_of_none(tmp_path: Path) -> None:
    gpus = [*({"model": model} for model in ("T4", "A10", "RTX4090", "H200")), {"memory": "7GiB"}]
    found = opened(written(tmp_path, {"gpus": [*gpus, {"model": "T4", "architecture": None}]})).inventory()["gpus"]
    assert [gpu["architecture"] for gpu in found] == ["Turing", "Ampere", "Ada Lovelace", "Hopper", None, None]


def test_gpus_are_connected_as_their_models_usually_are_or_as_described(tmp_path: Path) -> None:
    def closeness(source: str) -> dict[tuple[int, int], tuple[Closeness, int]]:
        inventory = opened(source).inventory()
        position = {gpu["uuid"]: gpu["index"] for gpu in inventory["gpus"]}
        found = {}
        for link in inventory["links"]:
            one, other = sorted((position[link["a"]], position[link["b"]]))
            found[one, other] = Closeness(link["closeness"]), link["nvlinks"]
        return found

    assert closeness("fake:2xT4") == {(0, 1): (Closeness.SYSTEM, 0)}
    assert closeness("fake:2xH200,1xT4") == {
        (0, 1): (Closeness.NVLINK, 18),
        (0, 2): (Closeness.SYSTEM, 0),
        (1, 2): (Closeness.SYSTEM, 0),
    }
    links = [{"gpus": [1, 0], "closeness": "switch"}, {"gpus": [1, 2], "nvlinks": 4}]
    assert closeness(written(tmp_path, {"gpus": ["3xT4"], "links": links})) == {
        (0, 1): (Closeness.SWITCH, 0),
        (0, 2): (Closeness.SYSTEM, 0),
        (1, 2): (Closeness.NVLINK, 4),
    }
    assert closeness("fake:4xT4")[0, 1] == (Closeness.NODE, 0)


def test_the_names_in_a_description_are_those_of_the_core() -> None:
    levels = ("unknown", "system", "node", "host-bridge", "switches", "switch", "board", "nvlink")
    assert dict(zip(levels, Closeness, strict=True)) == CLOSENESS
    assert (ACTIONS[1], ACTIONS[5]) == ("gpu-reset", "recover-imex")


def test_a_yaml_file_describes_everything(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
driver: 615.10.01
cgroup: 1
gpus:
  - 1xT4
  - {product: Some Card, memory: 7GiB, reserved: 100MiB, uuid: GPU-x, index: 5, minor: 3, pci: "0000:3b:00.0", numa: 1,
     mig: true, memory_limits: true, architecture: Some Generation}
""",
        "gpus.yaml",
    )
    inventory = opened(path).inventory()
    assert (inventory["driver_version"], inventory["cgroup"]) == ("615.10.01", 1)
    assert not inventory["gpus"][0]["memory_limits"]
    assert inventory["gpus"][1] == {
        "uuid": "GPU-x",
        "index": 5,
        "product": "Some Card",
        "total_mib": 7168,
        "reserved_mib": 100,
        "device_paths": ["/dev/nvidia3"],
        "driver": "nvidia",
        "compute_units": None,
        "pci_bus_id": "0000:3b:00.0",
        "numa_node": 1,
        "mig": True,
        "memory_limits": True,
        "architecture": "Some Generation",
        "unified": False,
        "instance": None,
    }


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"gpus": "4xT5"}, "gpus.model: 'T5' is not a known model; give memory instead, or use one of P4,"),
        ({"gpus": "T4"}, "gpus: 'T4' is not like 4xT4, 2xH200-141GiB, 1xH100:mig="),
        ({"gpus": "0xT4"}, "gpus.count: 0 is not a number of GPUs or instances; write 1 to 128"),
        ({"gpus": "1xT4-big"}, "gpus.memory: 'big' is not an amount of memory"),
        ({"gpus": ["100xT4", "29xT4"]}, "gpus: 129 GPUs are too many; 128 is the maximum for one node"),
        ({"gpus": 4}, "gpus: 4 is not a list"),
        ({"gpus": [{"memmory": "1GiB"}]}, "gpus[0]: unknown key 'memmory'; known are model, count, product, memory,"),
        ({"gpus": [{"product": "x"}]}, "gpus[0]: a GPU needs a model or its memory"),
        ({"gpus": [{"model": "T4", "count": 2, "uuid": "GPU-x"}]}, "gpus[0]: several GPUs cannot share one uuid"),
        ({"gpus": [{"model": "T4", "uuid": "GPU-x"}] * 2}, "gpus: two GPUs have the UUID GPU-x"),
        ({"gpus": [{"model": "T4", "mig": "yes"}]}, "gpus[0].mig: 'yes' is neither true nor false"),
        ({"gpus": [{"model": "T4", "minor": -1}]}, "gpus[0].minor: -1 is not a whole number"),
        ({"gpus": [{"model": "T4", "product": 4}]}, "gpus[0].product: 4 is not a non-empty string"),
        ({"gpus": "1xT4", "events": {}}, "events: {} is not a list"),
        ({"gpus": "1xT4", "events": [{"gpu": 0, "xid": 79}]}, "events[0]: an event needs its time, as in at: 5s"),
        (
            {"gpus": "1xT4", "events": [{"at": "5s", "gpu": 0}]},
            "events[0]: the event changes nothing; it may have the keys at,",
        ),
        ({"gpus": "1xT4", "events": [{"at": "soon", "hang": True}]}, "events[0].at: 'soon' is not a duration"),
        ({"gpus": "1xT4", "events": [{"at": "1 0s", "hang": True}]}, "events[0].at: '1 0s' is not a duration"),
        ({"gpus": "1xT4", "events": [{"at": " 5s", "hang": True}]}, "events[0].at: ' 5s' is not a duration"),
        (
            {"gpus": "1xT4", "events": [{"at": 1, "gpu": 7, "xid": 1}]},
            "events[0].gpu: 7 is not a GPU of this description",
        ),
        ({"gpus": "1xT4", "events": [{"at": 1, "gpu": 0, "remap": "x"}]}, "events[0].remap: 'x' is not one of none,"),
        ({"gpus": "1xT4", "events": [{"at": 1, "failure": "odd"}]}, "events[0].failure: 'odd' is not one of none,"),
        ({"gpus": "1xT4", "events": [3]}, "events[0]: 3 is not a mapping; it may have the keys at, hang,"),
        ({"gpu": "1xT4"}, "unknown key 'gpu'; known are driver, cgroup, gpus, links, events"),
        ({"gpus": "2xT4", "links": [{"gpus": [0, 0]}]}, "links[0]: gpus must name two different GPUs"),
        ({"gpus": "2xT4", "links": [{"closeness": "near"}]}, "links[0].closeness: 'near' is not one of unknown,"),
        ("gpus: [", "is not YAML: while parsing"),
        ('{"gpus": ', "is not JSON: Expecting value"),
        ("- 1xT4", "['1xT4'] is not a mapping"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused_with_the_place_and_what_is_accepted(
    tmp_path: Path, document: Any, complaint: str
) -> None:
    path = written(tmp_path, document)
    with pytest.raises(DescriptionError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: {complaint}")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(DescriptionError, match=r"^/nowhere\.yaml: cannot be read: .*No such file"):
        read("/nowhere.yaml")


def test_what_happens_over_time_shows_in_the_readings(tmp_path: Path) -> None:
    clock = Clock()
    path = written(
        tmp_path,
        {
            "gpus": "1xT4",
            "events": [
                {"at": "5s", "gpu": 0, "ecc": 2, "remap": "pending", "recovery_action": "gpu-reset"},
                {"at": "6s", "gpu": 0, "processes": 2, "used": "3GiB", "mig": True},
                {"at": "1m", "gpu": 0, "reset": True},
                {"at": "2m", "gpu": 0, "error": "Unknown Error (999)"},
            ],
        },
    )
    driver = opened(path, clock)
    (before,) = driver.probe()
    assert before == {
        "uuid": before["uuid"],
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "recovery_action": 0,
        "processes": 0,
        "used_mib": 0,
        "mig": False,
    }
    clock.now_s += 10
    damaged = {"ecc_uncorrected": 2, "remap_pending": True, "recovery_action": 1}
    busy = {"processes": 2, "used_mib": 3072, "mig": True, "instances": []}
    assert driver.probe() == [{**before, **damaged, **busy}]
    clock.now_s += 60
    assert driver.probe() == [{**before, **busy}]
    clock.now_s += 60
    assert driver.probe() == [
        {"uuid": before["uuid"], "error": "the driver cannot read it: Unknown Error (999)", "lost": False}
    ]


def test_a_reset_does_not_make_hardware_tell_what_it_does_not_tell(tmp_path: Path) -> None:
    gpu = {"model": "T4", "recovery_action": None, "ecc": None}
    path = written(tmp_path, {"gpus": [gpu], "events": [{"at": 0, "gpu": 0, "reset": True}]})
    (reading,) = opened(path).probe()
    assert (reading["recovery_action"], reading["ecc_uncorrected"]) == (None, None)


def test_a_gpu_that_was_lost_is_found_again_only_by_opening_the_driver_anew(tmp_path: Path) -> None:
    clock = Clock()
    events = [{"at": "5s", "gpu": 0, "lost": True}, {"at": "20s", "gpu": 0, "lost": False}]
    path = written(tmp_path, {"gpus": "2xT4", "events": events})
    driver = opened(path, clock)
    clock.now_s += 10
    assert [reading.get("lost") for reading in driver.probe()] == [True, None]
    during = Fake(path, clock.now_s - 10, clock=clock).inventory()
    assert ([gpu["index"] for gpu in during["gpus"]], during["left_out"]) == ([1], 1)
    assert during["troubles"] == [
        "the GPU that nvidia-smi counts as 0 is left out, it cannot be read: GPU is lost (15)"
    ]
    clock.now_s += 20
    assert [reading.get("lost") for reading in driver.probe()] == [True, None]
    again = Fake(path, clock.now_s - 30, clock=clock)
    assert [gpu["index"] for gpu in again.inventory()["gpus"]] == [0, 1]
    assert [reading.get("lost") for reading in again.probe()] == [None, None]


def test_b7_a_gpu_lost_for_a_moment_between_two_readings_is_noticed_all_the_same(tmp_path: Path) -> None:
    clock = Clock()
    events = [{"at": "5s", "gpu": 0, "lost": True}]
    driver = opened(written(tmp_path, {"gpus": "1xT4", "events": events}), clock)
    clock.now_s += 10
    assert driver.wait_events(0.01) == []  # as on real hardware
    written(tmp_path, {"gpus": "1xT4", "events": [*events, {"at": "6s", "gpu": 0, "lost": False}]})
    assert [reading.get("lost") for reading in driver.probe()] == [True]


def test_events_are_told_once_each_with_a_reading_of_their_gpu(tmp_path: Path) -> None:
    clock = Clock()
    events = [{"at": "5s", "gpu": 1, "xid": 48, "ecc": 1}, {"at": "5s", "gpu": 1, "xid": 48, "ecc": 1}]
    driver = opened(written(tmp_path, {"gpus": "2xT4", "events": events}), clock)
    assert driver.wait_events(0.01) == []
    clock.now_s += 10
    told = driver.wait_events(1)
    uuid = driver.probe()[1]["uuid"]
    assert [record for record in told if "code" in record] == [{"uuid": uuid, "code": 48}] * 2
    assert [record["ecc_uncorrected"] for record in told if "code" not in record] == [1, 1]
    assert driver.wait_events(0.01) == []


def test_events_from_before_this_process_are_history(tmp_path: Path) -> None:
    clock = Clock()
    clock.now_s += 10
    events = [{"at": "5s", "gpu": 0, "xid": 48}, {"at": "5s", "crash": True}]
    path = written(tmp_path, {"gpus": "1xT4", "events": events})
    driver = Fake(path, clock.now_s - 10, since_s=9, clock=clock)
    driver.inventory()
    assert driver.wait_events(0.01) == []


def test_an_event_that_is_added_to_the_file_happens_even_if_its_time_is_over(tmp_path: Path) -> None:
    clock = Clock()
    path = written(tmp_path, {"gpus": "1xT4"})
    driver = opened(path, clock)
    clock.now_s += 10
    written(tmp_path, {"gpus": "1xT4", "events": [{"at": "1s", "gpu": 0, "xid": 31}]})
    assert "code" in driver.wait_events(1)[0]


def test_an_xid_of_a_gpu_that_is_not_listed_is_not_told(tmp_path: Path) -> None:
    path = written(tmp_path, {"gpus": [{"model": "T4", "lost": True}], "events": [{"at": 0, "gpu": 0, "xid": 79}]})
    assert opened(path).wait_events(0.01) == []


def test_a_hang_lasts_as_long_as_described(tmp_path: Path) -> None:
    """The clock goes on by a millisecond whenever it is asked, and nothing else lets this end."""
    clock = Clock()
    driver = opened(written(tmp_path, {"gpus": "1xT4", "events": [{"at": "5s", "hang": "20ms"}]}), clock)
    clock.now_s += 5
    began_s = clock.now_s
    driver.probe()
    assert clock.now_s - began_s >= 0.02 - 0.002  # it began up to two askings before


def test_the_driver_as_a_whole_fails_as_described(tmp_path: Path) -> None:
    path = written(tmp_path, {"gpus": "1xT4", "events": [{"at": 0, "failure": "context-lost"}]})
    with pytest.raises(HardwareError, match="daemon-reload") as failed:
        opened(path)
    assert failed.value.kind == CONTEXT_LOST


def test_a_file_that_breaks_makes_the_driver_fail_until_it_is_repaired(tmp_path: Path) -> None:
    path = written(tmp_path, {"gpus": "1xT4"})
    driver = opened(path)
    written(tmp_path, {"gpus": "none"})
    assert driver.wait_events(0.01) == []
    with pytest.raises(HardwareError, match="'none' is not like 4xT4") as failed:
        driver.probe()
    assert failed.value.kind == OTHER
    written(tmp_path, {"gpus": "1xT4"})
    assert len(driver.probe()) == 1


def test_processes_are_described_one_by_one_or_by_their_number(tmp_path: Path) -> None:
    listed = [{"pid": 7, "used": "3GiB", "sm": 40}, {"pid": 8}]
    gpus = [
        {"model": "T4", "processes": listed},
        {"model": "T4", "processes": 2, "used": "1GiB"},
        {"model": "T4", "processes": None, "used": "1GiB"},
        {"model": "T4", "processes": listed, "used": "5GiB", "mig": True},
        {"model": "T4", "error": "broken"},
    ]
    driver = opened(written(tmp_path, {"gpus": gpus}))
    assert [(each["processes"], each["used_mib"]) for each in driver.probe()[:3]] == [
        (2, 3072),
        (2, 1024),
        (None, 1024),
    ]
    described = [{"pid": 7, "used_mib": 3072, "sm_percent": 40}, {"pid": 8, "used_mib": None, "sm_percent": None}]
    read = [(each["processes"], each["used_mib"]) for each in driver.use(utilisation=True)]
    assert read == [(described, 3072), ([], 1024), (None, 1024), (None, 5120), (None, None)]
    assert [each["sm_percent"] for each in driver.use(utilisation=False)[0]["processes"] or ()] == [None, None]


def test_limits_that_are_set_are_read_back_by_another_process(tmp_path: Path) -> None:
    """As with the real driver memory in use stays, and a limit ends with its cgroup."""
    leaf, other, gone = tmp_path / "leaf", tmp_path / "other", tmp_path / "gone"
    leaf.mkdir()
    other.mkdir()
    limits = {str(leaf): {"hard": "12GiB", "used": "8GiB"}, "*/root": {"code": 3}}
    source = written(tmp_path, {"gpus": [{"model": "H200", "memory_limits": True, "limits": limits}, "1xT4"]})
    helper, agent = opened(source), opened(source)
    one, old = (gpu["uuid"] for gpu in helper.inventory()["gpus"])
    agent.inventory()
    wanted: list[tuple[str, str, int | None, int]] = [(one, str(path), 4096, 0) for path in (leaf, other, gone)]
    wanted += [(one, "/root", 1, 0), (old, str(leaf), 1, 0), (one, str(leaf), 1, 2), ("GPU-x", str(leaf), 1, 0)]
    assert [each["code"] for each in helper.set_limits(wanted)] == [0, 0, 2, 3, 13, 2]
    here = {"uuid": one, "path": str(leaf), "code": 0, "hard_mib": 4096, "soft_mib": 0, "used_mib": 8192}
    assert agent.limits([(one, str(leaf))]) == [here]
    assert helper.limits([(one, str(leaf))]) == [here]
    assert helper.set_limits([(one, str(leaf), None, 0)]) == [{**here, "hard_mib": None}]
    other.rmdir()
    assert [each["code"] for each in agent.limits([(one, str(other))])] == [6]


def test_limits_of_cgroups_are_described_by_patterns_of_their_paths(tmp_path: Path) -> None:
    limits = {
        "*/pod1/*": "4GiB",
        "*/pod2/*": {"hard": "2GiB", "soft": "1GiB", "used": "1536MiB"},
        "*/pod3/*": {"hard": None, "used": "0GiB"},
        "/": {"code": 3},
    }
    driver = opened(written(tmp_path, {"gpus": [{"model": "H200", "memory_limits": True, "limits": limits}, "1xT4"]}))
    one, other = (gpu["uuid"] for gpu in driver.inventory()["gpus"])
    wanted = [(one, f"/a/pod{number}/b") for number in (1, 2, 3, 4)] + [
        (one, "/"),
        (other, "/a/pod1/b"),
        ("GPU-x", "/"),
    ]
    read = [
        (each["uuid"], each["code"], each.get("hard_mib"), each.get("soft_mib"), each.get("used_mib"))
        for each in driver.limits(wanted)
    ]
    assert read == [
        (one, 0, 4096, 0, None),
        (one, 0, 2048, 1024, 1536),
        (one, 0, None, 0, 0),
        (one, 6, None, None, None),
        (one, 3, None, None, None),
        (other, 13, None, None, None),
    ]


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ({"processes": [{"used": "1GiB"}]}, "has no pid"),
        ({"processes": [{"pid": -1}]}, "-1 is not a whole number"),
        ({"processes": [7]}, "7 is not a mapping"),
        ({"processes": "many"}, "'many' is not a whole number"),
        ({"processes": [{"pid": 1, "sm": 101}]}, "101 is more than 100"),
        ({"limits": ["4GiB"]}, "is not a mapping of paths to limits"),
        ({"limits": {"/a": {"max": "4GiB"}}}, "unknown key 'max'; known are code, hard, soft, used"),
        ({"limits": {"/a": {"used": "many"}}}, "used: "),
        ({"limits": {"/a": 4}}, "4 is not a non-empty string"),
    ],
)
def test_processes_and_limits_that_make_no_sense_are_refused(tmp_path: Path, gpu: dict[str, Any], why: str) -> None:
    with pytest.raises(DescriptionError, match=why):
        read(written(tmp_path, {"gpus": [{"model": "T4", **gpu}]}))
