"""The keys of annotations and labels on pods and nodes, which other programs know."""

import pytest

from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CGPU_DISABLE_LABEL,
    DEV,
    IDX,
    INIT_ALLOCATION,
    INSTANCES,
    LONGEST,
    LONGEST_WORD,
    NODE_GPUS,
    NODE_LABELS,
    POD,
    POD_ANNOTATIONS,
    READ_BY_AGENT,
    TOO_LONG,
    USE_MODEL,
    kept,
    too_long,
)
from gpu_device_plugin.model.contract.nodegpus import NODE_GPUS_VERSION
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS, PodAllocation, write_allocation
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.pods import Container, ContainerKind


def test_the_keys_are_those_of_gpushare() -> None:
    assert {IDX, POD, DEV, ASSIGNED, ASSUME_TIME} == {
        f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "POD", "DEV", "ASSIGNED", "ASSUME_TIME")
    }
    assert ALLOCATION == "scheduler.framework.gpushare.allocation"
    assert {IDX, POD, DEV, ASSIGNED, ASSUME_TIME, ALLOCATION, INIT_ALLOCATION} == POD_ANNOTATIONS
    assert CGPU_DISABLE_LABEL == "cgpu.disable.isolation"
    assert (NODE_GPUS, NODE_LABELS, NODE_GPUS_VERSION) == ("gpu-device-plugin/gpus", "gpu-device-plugin/", 1)


@pytest.mark.parametrize("key", sorted(READ_BY_AGENT))
def test_a_value_is_kept_up_to_its_longest_and_nothing_of_a_longer_one(key: str) -> None:
    most = LONGEST.get(key, LONGEST_WORD)
    assert kept(key, "x" * most, MOST_CONTAINERS) == "x" * most
    assert kept(key, "x" * (most + 1), MOST_CONTAINERS) == TOO_LONG
    assert (too_long(key, "x" * most), too_long(key, "x" * (most + 1)), too_long(key, TOO_LONG)) == (False, True, True)


@pytest.mark.parametrize(("key", "most"), [(ALLOCATION, 2048), (INIT_ALLOCATION, 2048), (INSTANCES, 8192)])
def test_where_a_pod_is_takes_no_more_than_its_containers_can_need(key: str, most: int) -> None:
    assert kept(key, "x" * 3 * most, 3) == "x" * 3 * most
    assert kept(key, "x" * (3 * most + 1), 3) == TOO_LONG
    assert kept(key, "{}", 0) == TOO_LONG


def test_wishes_do_not_depend_on_the_number_of_containers() -> None:
    assert kept(USE_MODEL, "A100", 0) == "A100"


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_promise_of_all_gpus_to_each_container_is_kept(number: int) -> None:
    """No other allocation of so many containers is longer; a GPU is cut into 4,000 shares at most."""
    shares = dict.fromkeys(range(MOST_GPUS), 4000)
    places = [(Container(f"c{n}", ContainerKind.INIT, n), shares) for n in range(number)]
    for key, text in write_allocation(PodAllocation.of(places, shares)).items():
        assert kept(key, text, number) == text
