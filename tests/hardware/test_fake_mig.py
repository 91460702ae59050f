"""Fake GPUs that are divided into MIG instances: described, placed or refused, divided anew, and failing."""

from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.hardware.fake.description import read
from gpu_device_plugin.hardware.fake.fake_driver import Fake
from gpu_device_plugin.hardware.fake.gpu_models import SIZES, profiles_of
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from tests.hardware.fake.test_fake_driver import Clock, opened, written


def instances(driver: Fake) -> list[tuple[str, int, int, str, int]]:
    """Return label, GPU instance, compute instance, profile and memory of each instance, as they are listed."""
    found = []
    for gpu in driver.inventory()["gpus"]:
        if (own := gpu["instance"]) is not None:
            label = f"{gpu['index']}:{own['number']}"
            found.append((label, own["gi"], own["ci"], own["profile"], gpu["total_mib"]))
    return found


def test_a_short_description_divides_gpus_into_mig_instances() -> None:
    gpus = opened("fake:1xT4,2xH100:mig=3g.40gb/1g.10gb*2,1xH200-141GiB").inventory()["gpus"]
    h100 = "NVIDIA H100 80GB HBM3"
    assert [(gpu["index"], gpu["product"], gpu["total_mib"], gpu["mig"]) for gpu in gpus] == [
        (0, "Tesla T4", 15360, False),
        *(
            (index, *rest)
            for index in (1, 2)
            for rest in (
                (h100, 81559, True),
                (f"{h100} MIG 3g.40gb", 40448, False),
                (f"{h100} MIG 1g.10gb", 9984, False),
                (f"{h100} MIG 1g.10gb", 9984, False),
            )
        ),
        (3, "NVIDIA H200", 141 * 1024, False),
    ]


def test_an_instance_is_described_as_a_part_of_its_gpu() -> None:
    _, _, parent, one, other = opened("fake:1xT4,1xH100:mig=1g.10gb,1xH100:mig=1g.10gb*2").inventory()["gpus"][-5:]
    shared = ("index", "device_paths", "pci_bus_id", "numa_node", "architecture")
    for instance in (one, other):
        assert [instance[key] for key in shared] == [parent[key] for key in shared]
        assert (instance["reserved_mib"], instance["mig"], instance["memory_limits"]) == (0, False, False)
    # The driver lists the capabilities of each GPU by its minor number: 135 of each, the first of GPU 2 being 273.
    assert one["instance"] == {
        "parent": parent["uuid"],
        "number": 0,
        "profile": "1g.10gb",
        "gi": 7,
        "ci": 0,
        "alone": True,
        "caps": [273 + 7 * 9, 273 + 7 * 9 + 1],
    }
    assert parent["instance"] is None


def test_instances_have_uuids_of_their_own_that_come_back_with_their_place_and_profile() -> None:
    def uuids(mig: str) -> list[str]:
        return [gpu["uuid"] for gpu in opened(f"fake:2xH100:mig={mig}").inventory()["gpus"] if gpu["instance"]]

    sevens = uuids("1g.10gb*7")
    assert sevens == uuids("1g.10gb*7")
    assert len(set(sevens)) == 14
    assert all(uuid.startswith("MIG-") and len(uuid) == 40 for uuid in sevens)
    assert uuids("1g.10gb*2") == [*sevens[:2], *sevens[7:9]]
    assert set(uuids("2g.20gb*3")).isdisjoint(uuids("1g.20gb*3"))  # in the same places


@pytest.mark.parametrize(
    ("mig", "places"),
    [
        ("7g.80gb", [0]),
        ("4g.40gb/3g.40gb", [1, 2]),
        ("3g.40gb/4g.40gb", [1, 2]),
        ("2g.20gb*3", [3, 4, 5]),
        ("1g.20gb*4", [3, 4, 5, 6]),
        ("1g.10gb*7", [7, 8, 9, 10, 11, 12, 13]),
        ("1g.10gb*3/3g.40gb", [1, 11, 12, 13]),
        ("3g.40gb/1g.10gb*4", [2, 7, 8, 9, 10]),  # only four of the small ones fit on the left
        ("2g.20gb*2/3g.40gb", [2, 3, 4]),
        ("1g.10gb+me/1g.10gb*6", [7, 8, 9, 10, 11, 12, 13]),
        ("1c.3g.40gb*3", [1, 1, 1]),
        ("1c.3g.40gb*2/2c.3g.40gb", [1, 1, 2]),
    ],
)
def test_instances_are_where_the_hardware_places_them(mig: str, places: list[int]) -> None:
    """The whole GPU is the GPU instance 0, its halves are 1 and 2, its quarters 3 to 6 and its eighths 7 to 14."""
    assert [gi for _, gi, *_ in instances(opened(f"fake:1xH100:mig={mig}"))] == places


def test_a_gpu_of_four_slices_has_other_numbers() -> None:
    assert instances(opened("fake:1xA30:mig=1g.6gb*2/2g.12gb")) == [
        ("0:0", 1, 0, "2g.12gb", 11968),
        ("0:1", 5, 0, "1g.6gb", 5952),
        ("0:2", 6, 0, "1g.6gb", 5952),
    ]


def test_compute_instances_share_the_memory_of_their_gpu_instance() -> None:
    driver = opened("fake:1xH200:mig=1c.3g.71gb*2/1g.18gb")
    assert instances(driver) == [
        ("0:0", 1, 0, "1c.3g.71gb", 71168),
        ("0:1", 1, 1, "1c.3g.71gb", 71168),
        ("0:2", 11, 0, "1g.18gb", 16384),
    ]
    alone = [gpu["instance"]["alone"] for gpu in driver.inventory()["gpus"] if gpu["instance"]]
    assert alone == [False, False, True]
    caps = [gpu["instance"]["caps"] for gpu in driver.inventory()["gpus"] if gpu["instance"]]
    assert caps == [[12, 13], [12, 14], [102, 103]]


@pytest.mark.parametrize(("model", "total_mib"), SIZES)
def test_every_profile_of_a_model_is_as_often_there_as_it_can_be(model: str, total_mib: int) -> None:
    for name, (memory_mib, _, most, _) in profiles_of(model, total_mib).items():
        found = instances(opened(f"fake:1x{model}-{total_mib}MiB:mig={name}*{most}"))
        assert [(profile, memory) for *_, profile, memory in found] == [(name, memory_mib)] * most
        assert len({gi for _, gi, *_ in found}) == most


@pytest.mark.parametrize(
    ("model", "total_mib", "names"),
    [
        ("A30", 24576, "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
        ("A100", 40960, "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("H200", 143771, "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        ("B200", 183359, "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
        ("GB200", 189471, "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
    ],
)
def test_profiles_have_the_names_that_nvidia_smi_prints(model: str, total_mib: int, names: str) -> None:
    assert list(profiles_of(model, total_mib)) == names.split()


def test_instances_are_described_one_by_one(tmp_path: Path) -> None:
    mig = [
        "1g.10gb*2",
        {"profile": "1g.10gb", "gi": 13, "uuid": "MIG-last", "memory": "9GiB", "used": "1GiB"},
        {"profile": "2g.20gb", "gi": 5, "processes": [{"pid": 7, "used": "3GiB", "sm": 40}]},
    ]
    gpu = {"model": "H100", "minor": None, "mig": mig}
    driver = opened(written(tmp_path, {"gpus": [gpu]}))
    assert instances(driver) == [
        ("0:0", 5, 0, "2g.20gb", 20096),
        ("0:1", 7, 0, "1g.10gb", 9984),
        ("0:2", 8, 0, "1g.10gb", 9984),
        ("0:3", 13, 0, "1g.10gb", 9216),
    ]
    gpus = driver.inventory()["gpus"]
    assert gpus[-1]["uuid"] == "MIG-last"
    assert [gpu["instance"]["caps"] for gpu in gpus if gpu["instance"]] == [[], [], [], []]  # it has no device node
    parent, *readings = driver.probe()
    assert (parent["processes"], parent["used_mib"]) == (1, 4096)
    assert [(each["processes"], each["used_mib"]) for each in readings] == [(1, 3072), (0, 0), (0, 0), (0, 1024)]
    assert [(each["processes"], each["used_mib"]) for each in driver.use(utilisation=True)] == [
        (None, 4096),
        ([{"pid": 7, "used_mib": 3072, "sm_percent": None}], 3072),  # no driver tells the use of an instance
        ([], 0),
        ([], 0),
        ([], 1024),
    ]


@pytest.mark.parametrize("mig", [True, [], "1g.10gb*7"])
def test_a_gpu_in_mig_mode_names_the_instances_that_it_has(tmp_path: Path, mig: Any) -> None:
    driver = opened(written(tmp_path, {"gpus": [{"model": "H100", "mig": mig, "ecc": 2}]}))
    parent, *rest = driver.probe()
    assert parent["mig"]
    assert parent["instances"] == [reading["uuid"] for reading in rest]
    assert len(rest) == (7 if isinstance(mig, str) else 0)
    # A driver tells errors of the memory only while there are no instances.
    assert (parent["ecc_uncorrected"], parent["remap_failed"]) == ((None, None) if rest else (2, False))


def test_a_gpu_that_is_divided_anew_shows_it_in_its_reading_and_by_an_event(tmp_path: Path) -> None:
    clock = Clock()
    events = [{"at": "5s", "gpu": 1, "mig": "3g.40gb/1g.10gb*2"}, {"at": "20s", "gpu": 1, "mig": False}]
    path = written(tmp_path, {"gpus": "2xH100:mig=1g.10gb*7", "events": events})
    driver = opened(path, clock)
    _, parent, *before = (reading["uuid"] for reading in driver.probe()[7:])
    clock.now_s += 10
    (event,) = driver.wait_events(1)
    assert (event["uuid"], event.get("mig_changed")) == (parent, True)
    assert isinstance(named := event.get("instances"), list)
    assert len(named) == 3
    reading, *rest = driver.probe()[8:]
    assert (reading["uuid"], reading["mig"]) == (parent, True)
    again = opened(path, Clock(), since_s=30)
    present = reading["instances"] or []
    assert [each["uuid"] for each in rest] == [uuid for uuid in present if uuid in before]
    assert 0 < len(rest) < len(present)
    assert [each["uuid"] for each in driver.use(utilisation=False)[9:]] == [each["uuid"] for each in rest]
    clock.now_s += 20
    assert [(each["uuid"], each["mig"], "instances" in each) for each in driver.probe()[8:]] == [(parent, False, False)]
    assert len(again.probe()) == 16


def test_an_xid_can_name_a_gpu_instance_and_a_compute_instance(tmp_path: Path) -> None:
    xids = [{"xid": 43}, {"xid": 43, "gi": 7}, {"xid": 43, "gi": 7, "ci": 0}]
    events = [{"at": "5s", "gpu": 0, **xid} for xid in xids]
    driver = opened(written(tmp_path, {"gpus": "1xH100:mig=1g.10gb*7", "events": events}), clock := Clock())
    uuid = driver.probe()[0]["uuid"]
    clock.now_s += 10
    told = [record for record in driver.wait_events(1) if "code" in record]
    assert told == [
        {"uuid": uuid, "code": 43},
        {"uuid": uuid, "code": 43, "gi": 7},
        {"uuid": uuid, "code": 43, "gi": 7, "ci": 0},
    ]


@pytest.mark.parametrize("by_uuid", [False, True])
def test_something_happens_to_an_instance(tmp_path: Path, *, by_uuid: bool) -> None:
    gpus = "1xH100:mig=1g.10gb*3"
    uuid = opened(f"fake:{gpus}").inventory()["gpus"][2]["uuid"]
    event = {"at": "5s", "gpu": 0, "instance": uuid if by_uuid else 1, "processes": [{"pid": 7, "used": "3GiB"}]}
    broken = {**event, "at": "20s", "error": "Unknown Error (999)"}
    driver = opened(written(tmp_path, {"gpus": gpus, "events": [event, broken]}), clock := Clock())
    clock.now_s += 10
    assert driver.wait_events(0.01) == []
    assert [each["used_mib"] for each in driver.probe()] == [3072, 0, 3072, 0]
    assert [each["processes"] for each in driver.use(utilisation=False)] == [
        None,
        [],
        [{"pid": 7, "used_mib": 3072, "sm_percent": None}],
        [],
    ]
    clock.now_s += 20
    assert driver.probe()[2] == {
        "uuid": uuid,
        "error": "the driver cannot read it: Unknown Error (999)",
        "lost": False,
    }
    assert driver.use(utilisation=False)[2] == {"uuid": uuid, "processes": None, "used_mib": None}


def test_instances_are_lost_with_their_gpu(tmp_path: Path) -> None:
    """The driver then has no word for them; what is wrong with a GPU is wrong with its instances."""
    path = written(tmp_path, {"gpus": "1xT4,1xH100:mig=1g.10gb*3", "events": [{"at": "5s", "gpu": 1, "lost": True}]})
    driver = opened(path, clock := Clock())
    clock.now_s += 10
    assert [each.get("lost") for each in driver.probe()] == [None, True]
    assert [each["used_mib"] for each in driver.use(utilisation=False)] == [0, None]
    inventory = Fake(path, clock.now_s - 10, clock=clock).inventory()
    assert (len(inventory["gpus"]), inventory["left_out"]) == (1, 1)


def test_gpus_are_connected_and_their_instances_are_not() -> None:
    inventory = opened("fake:2xH100:mig=1g.10gb*7").inventory()
    assert [len(inventory["links"]), len(inventory["gpus"])] == [1, 16]


@pytest.mark.parametrize(
    ("gpus", "complaint"),
    [
        ("1xT4:mig=1g.10gb", "gpus.mig: T4 cannot be divided into instances; A30, A100, H100, H200, B200 or GB200 can"),
        (
            "1xH100:mig=1g.5gb",
            "gpus.mig: '1g.5gb' is no profile of this model; it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb,",
        ),
        (
            "1xA100-50GiB:mig=1g.5gb",
            "gpus.mig: the profiles of A100 with 50 GiB are not known; those with 40 GiB or 80",
        ),
        ("1xH100:mig=1g.10gb*8", "gpus.mig: a GPU of this model has at most 7 of 1g.10gb"),
        ("1xH100:mig=1g.10gb+me*2", "gpus.mig: a GPU of this model has at most 1 of 1g.10gb+me"),
        (
            "1xH100:mig=1g.10gb/4g.40gb/3g.40gb",
            "gpus.mig: 1g.10gb does not fit beside 4g.40gb, 3g.40gb; the hardware has no place for it",
        ),
        ("1xH100:mig=3g.40gb/1g.10gb*5", "gpus.mig: 1g.10gb does not fit beside 3g.40gb, 1g.10gb, 1g.10gb, 1g.10gb,"),
        ("1xH100:mig=3c.3g.40gb", "gpus.mig: '3c.3g.40gb' is no part of a 3g.40gb, which has 3 slices"),
        ("1xH100:mig=1g.10gb*0", "gpus.mig: 0 is not a number of GPUs or instances; write 1 to 128"),
        ("1xH100:mig=on", "gpus.mig: 'on' is neither true nor false, nor instances like 1g.10gb*7"),
        (
            "1xH100:mig=",
            "gpus: '1xH100:mig=' is not like 4xT4, 2xH200-141GiB, 1xH100:mig=1g.10gb*7 or 1xMI300X:partition=cpx",
        ),
        ("17xH100:mig=1g.10gb*7", "gpus: 17 GPUs with 119 instances are too many; 128 is the maximum for one node"),
        ([{"model": "H100", "mig": 7}], "gpus[0].mig: 7 is neither true nor false"),
        ([{"model": "H100", "mig": [7]}], "gpus[0].mig: 7 is not a mapping; it may have the keys profile, count, gi,"),
        ([{"model": "H100", "mig": [{"gi": 7}]}], "gpus[0].mig: {'gi': 7} has no profile"),
        (
            [{"memory": "7GiB", "mig": ["1g.10gb"]}],
            "gpus[0].mig: a GPU without a model cannot be divided into instances",
        ),
        (
            [{"model": "H100", "mig": [{"profile": "1g.10gb", "gi": 3}]}],
            "gpus[0].mig: 1g.10gb cannot be the GPU instance 3; it can be 7, 8, 9, 10, 11, 12 or 13",
        ),
        (
            [{"model": "H100", "mig": [{"profile": "1g.10gb", "gi": 7}] * 2}],
            "gpus[0].mig: 1g.10gb does not fit beside 1g.10gb; the hardware has no place for it",
        ),
        (
            [{"model": "H100", "mig": [{"profile": "1g.10gb", "count": 2, "uuid": "MIG-x"}]}],
            "gpus[0].mig: several instances cannot share one uuid; omit uuid, or list the instances one by one",
        ),
        (
            [{"model": "H100", "mig": [{"profile": "1g.10gb", "uuid": "MIG-x"}] * 2}],
            "gpus: two GPUs have the UUID MIG-x; omit uuid, or make the UUIDs differ",
        ),
    ],
)
def test_instances_that_the_hardware_cannot_have_are_refused(tmp_path: Path, gpus: Any, complaint: str) -> None:
    path = written(tmp_path, {"gpus": gpus})
    with pytest.raises(DescriptionError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: {complaint}")


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([{"mig": "1g.5gb"}], "events[0].mig: '1g.5gb' is no profile of this model"),
        ([{"mig": True}, {"mig": "1g.10gb*9"}], "events[1].mig: a GPU of this model has at most 7 of 1g.10gb"),
        ([{"instance": 1, "used": "1GiB"}], "events[0].instance: 1 is not an instance that the GPU has then; name one"),
        (
            [{"mig": []}, {"instance": 0, "used": "1GiB"}],
            "events[1].instance: 0 is not an instance that the GPU has then",
        ),
        ([{"instance": 0}], "events[0]: the event changes nothing"),
        ([{"instance": 0, "xid": 43}], "events[0]: xid is of the whole GPU; leave it or instance out"),
        ([{"gi": 7, "used": "1GiB"}], "events[0]: gi and ci say which instance an xid concerns, as in xid: 43, gi: 3,"),
        ([{"ci": 7, "xid": 43}], "events[0]: gi and ci say which instance an xid concerns"),
        (
            [{"gpu": 1, "mig": [{"profile": "1g.10gb", "uuid": "MIG-x"}]}],
            "events[0].mig: two GPUs have the UUID MIG-x; omit uuid, or make the UUIDs differ",
        ),
    ],
)
def test_events_of_instances_that_make_no_sense_are_refused(tmp_path: Path, events: Any, complaint: str) -> None:
    gpu = {"model": "H100", "mig": [{"profile": "1g.10gb", "uuid": "MIG-x"}]}
    timed = [{"at": n, "gpu": 0, **event} for n, event in enumerate(events)]
    path = written(tmp_path, {"gpus": [gpu, "1xH100"], "events": timed})
    with pytest.raises(DescriptionError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: {complaint}")


def test_an_instance_is_named_as_of_the_time_of_its_event(tmp_path: Path) -> None:
    """Events are described in any order."""
    events = [
        {"at": "9s", "gpu": 0, "instance": 2, "used": "1GiB"},
        {"at": "5s", "gpu": 0, "mig": "2g.20gb*3"},
    ]
    driver = opened(written(tmp_path, {"gpus": "1xH100:mig=1g.10gb", "events": events}), clock := Clock())
    clock.now_s += 10
    assert driver.probe()[0]["used_mib"] == 1024
