"""What the scheduler writes on a pod for its place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.cluster.fitting import Fit
from gpu_device_plugin.core.cluster.pod_demand import Ask, ask
from gpu_device_plugin.core.cluster.promising import promise
from gpu_device_plugin.core.contract.keys import ALLOCATION, ASSIGNED, ASSUME_TIME, DEV, IDX, INIT_ALLOCATION, POD
from gpu_device_plugin.core.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.core.model.placing import Placement
from gpu_device_plugin.core.model.pods import Container, ContainerKind, Pod
from tests.resources import COUNT, MEM

if TYPE_CHECKING:
    from gpu_device_plugin.core.model.resources import Resource

KINDS = {"i": ContainerKind.INIT, "s": ContainerKind.SIDECAR, "c": ContainerKind.APP}
GPUS = NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15), ListedGpu(2, 24), ListedGpu(3, 24)))


def promised(
    asked: dict[str, int], *places: dict[int, int], resource: Resource = MEM, gpus: str = "1"
) -> dict[str, str]:
    """What is written for containers c0, s1, i2, whose parts lie at these places; the moment is 7."""
    containers = tuple(
        Container(name, KINDS[name[0]], int(name[1:]), {resource.name: amount}) for name, amount in asked.items()
    )
    pod = Pod("u", "default", "a", containers=containers, labels={"aliyun.com/gpu-count": gpus})
    found = ask(pod, (MEM, COUNT))
    assert isinstance(found, Ask)
    placements = (Placement(part.demand, tuple(at.items())) for part, at in zip(found.parts, places, strict=True))
    return dict(promise(found, Fit(tuple(placements)), GPUS, 7))


def lists(written: dict[str, str]) -> tuple[object, object]:
    """What stands in the lists for containers and for init containers."""
    return tuple(json.loads(written[key]) if key in written else None for key in (ALLOCATION, INIT_ALLOCATION))  # type: ignore[return-value]  # two


def test_a_pod_that_asks_for_nothing_is_promised_nothing() -> None:
    assert promised({}) == {}


def test_one_container_is_promised_as_the_original_does_it_and_by_list() -> None:
    assert promised({"c0": 4}, {1: 4}) == {
        IDX: "1",
        POD: "4",
        DEV: "15",
        ASSIGNED: "false",
        ASSUME_TIME: "7",
        ALLOCATION: '{"0":{"1":4}}',
    }


def test_containers_on_one_gpu_are_promised_it_and_each_its_own() -> None:
    written = promised({"c0": 4, "c2": 3}, {1: 4}, {1: 3})
    assert (written[IDX], written[POD], written[DEV]) == ("1", "7", "15")
    assert lists(written) == ({"0": {"1": 4}, "2": {"1": 3}}, None)


def test_more_gpus_than_one_are_told_by_list_alone() -> None:
    """The larger GPU says how many shares a GPU has, as where the agent writes."""
    written = promised({"c0": 4, "c1": 3}, {2: 4}, {0: 3})
    assert (IDX in written, written[POD], written[DEV]) == (False, "7", "24")
    assert lists(written) == ({"0": {"2": 4}, "1": {"0": 3}}, None)


def test_a_split_is_promised_on_every_gpu() -> None:
    written = promised({"c0": 6}, {0: 3, 2: 3}, gpus="2")
    assert (IDX in written, written[POD], written[DEV]) == (False, "6", "24")
    assert lists(written) == ({"0": {"0": 3, "2": 3}}, None)


def test_init_containers_are_promised_the_gpu_of_their_part() -> None:
    """What the pod holds at once are 5 shares: the container gets 4 of those that the init container had."""
    written = promised({"i0": 5, "c0": 4}, {1: 5})
    assert (written[IDX], written[POD]) == ("1", "5")
    assert lists(written) == ({"0": {"1": 4}}, {"0": {"1": 5}})


def test_a_pod_of_init_containers_alone_has_no_list_for_others() -> None:
    assert lists(promised({"i0": 5, "s1": 2}, {1: 5})) == (None, {"0": {"1": 5}, "1": {"1": 2}})


def test_sidecars_have_a_gpu_of_their_own() -> None:
    written = promised({"s0": 2, "i1": 3, "c0": 4}, {0: 2}, {3: 4})
    assert lists(written) == ({"0": {"3": 4}}, {"0": {"0": 2}, "1": {"3": 3}})


def test_one_whole_gpu_is_promised_with_all_its_shares() -> None:
    written = promised({"c0": 1}, {2: 24}, resource=COUNT)
    assert (written[IDX], written[POD], written[DEV]) == ("2", "24", "24")
    assert lists(written) == ({"0": {"2": 24}}, None)


WHOLE: dict[str, tuple[dict[str, int], list[dict[int, int]], object, object]] = {
    "two": ({"c0": 2}, [{0: 15, 3: 24}], {"0": [0, 3]}, None),
    "each its own": ({"c0": 1, "c1": 1}, [{3: 24}, {0: 15}], {"0": [3], "1": [0]}, None),
    "handed on": ({"i0": 2, "c0": 1}, [{0: 15, 1: 15}], {"0": [0]}, {"0": [0, 1]}),
    "handed on and more": ({"i0": 1, "c0": 2}, [{0: 15, 1: 15}], {"0": [0, 1]}, {"0": [0]}),
    "handed on to several": (
        {"i0": 2, "c0": 1, "c1": 2},
        [{0: 15, 1: 15, 2: 24}],
        {"0": [0], "1": [1, 2]},
        {"0": [0, 1]},
    ),
    "handed on to many": (
        {"i0": 3, "c0": 1, "c1": 1, "c2": 1},
        [{0: 15, 1: 15, 2: 24}],
        {"0": [0], "1": [1], "2": [2]},
        {"0": [0, 1, 2]},
    ),
    # The second init container uses again what the sidecar left of the first.
    "used again": (
        {"i0": 2, "s1": 1, "i2": 2, "c0": 1},
        [{0: 15, 1: 15, 2: 24}],
        {"0": [1]},
        {"0": [0, 1], "1": [0], "2": [1, 2]},
    ),
}
"""What containers ask, where their parts lie, and whose GPUs they are."""


@pytest.mark.parametrize(("asked", "places", "app", "init"), WHOLE.values(), ids=WHOLE)
def test_whole_gpus_are_promised_in_the_order_in_which_they_are_handed_on(
    asked: dict[str, int], places: list[dict[int, int]], app: dict[str, list[int]], init: dict[str, list[int]] | None
) -> None:
    sizes = {gpu.position: gpu.shares for gpu in GPUS.gpus}
    written = promised(asked, *places, resource=COUNT)
    by_shares = [
        {index: {str(n): sizes[n] for n in positions} for index, positions in (said or {}).items()} or None
        for said in (app, init)
    ]
    assert lists(written) == tuple(by_shares)
    assert int(written[POD]) == sum(sum(place.values()) for place in places)
