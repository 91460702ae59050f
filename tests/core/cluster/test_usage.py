"""What a pod takes of its node's GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_device_plugin.core.cluster.usage import NOTHING, Usage, usage_of
from gpu_device_plugin.core.contract.keys import ALLOCATION, IDX, INIT_ALLOCATION, POD
from gpu_device_plugin.core.model.pods import Container, ContainerKind, Pod
from tests.resources import COUNT, MEM

KINDS = {"i": ContainerKind.INIT, "s": ContainerKind.SIDECAR, "c": ContainerKind.APP}


def usage(
    mem: dict[str, int] | None = None,
    count: dict[str, int] | None = None,
    *,
    idx: int | str | None = None,
    app: Any = None,
    init: Any = None,
) -> Usage:
    """What a pod takes whose containers, c0, s1, i2, have a kind and an index by their names."""
    mem, count = mem or {}, count or {}
    containers = tuple(
        Container(name, KINDS[name[0]], int(name[1:]), {MEM.name: mem.get(name, 0), COUNT.name: count.get(name, 0)})
        for name in dict.fromkeys([*mem, *count])
    )
    annotations = {
        **({} if idx is None else {IDX: str(idx)}),
        **({} if app is None else {ALLOCATION: json.dumps(app)}),
        **({} if init is None else {INIT_ALLOCATION: json.dumps(init)}),
    }
    pod = Pod("u", "default", "a", "node", annotations=annotations, containers=containers)
    return usage_of(pod, iter((MEM, COUNT)))


def test_a_pod_that_asks_for_nothing_takes_nothing_whatever_is_written_on_it() -> None:
    """E8 of the original: an annotation that anybody may write counted as use."""
    assert usage() is NOTHING
    assert usage({"c0": 0}, idx=1, app={"0": {"0": 4}}) is NOTHING


def test_what_lies_on_a_gpu_that_the_node_does_not_list_is_unplaced() -> None:
    """The node lists GPUs 0 and 1. What its pod has left a moment ago is no use of theirs, listed or not."""
    before = Usage(((0, 4), (2, 3)), (1, 3, 4), 1, 1, settling_shares=(2,), settling_whole=(4,))
    assert before.as_listed({0, 1}) == Usage(((0, 4),), (1,), 4, 3, settling_shares=(2,), settling_whole=(4,))


def test_what_lies_on_an_instance_that_the_node_knows_takes_nothing_of_its_gpus() -> None:
    """Position 2 is that of an instance that is given whole, or exists no more; 3 is not known."""
    before = Usage(((0, 4), (2, 3), (3, 1)), (1, 2), 1)
    assert before.as_listed({0, 1}, {2}) == Usage(((0, 4),), (1,), 2)
    assert Usage(((0, 4),), (2,)).as_listed({0, 1}, {2}) == Usage(((0, 4),))
    use = Usage(((0, 4),), (1,))
    assert use.as_listed({0, 1}, {2}) is use


@pytest.mark.parametrize("use", [NOTHING, Usage(((0, 4),), (1,), 2, 3, (7,), (8,))])
def test_what_lies_on_listed_gpus_stays_there(use: Usage) -> None:
    assert use.as_listed({0, 1}) is use


MEMORY: dict[str, tuple[dict[str, int], dict[str, Any], Usage]] = {
    "nobody wrote anything": ({"c0": 4}, {}, Usage(unplaced_shares=4)),
    "the original wrote one GPU": ({"c0": 4}, {"idx": 1}, Usage(((1, 4),))),
    "one GPU for all containers": ({"c0": 4, "c1": 3}, {"idx": 1}, Usage(((1, 7),))),
    "a list": ({"c0": 4}, {"app": {"0": {"2": 4}}}, Usage(((2, 4),))),
    "containers on two GPUs, and by position": (
        {"c0": 4, "c1": 3},
        {"app": {"0": {"2": 4}, "1": {"0": 3}}},
        Usage(((0, 3), (2, 4))),
    ),
    "junk in one annotation is junk in all": (
        {"c0": 4},
        {"idx": "x", "app": {"0": {"0": 4}}},
        Usage(unplaced_shares=4),
    ),
    "more than is asked is not believed": ({"c0": 4}, {"app": {"0": {"0": 5}}}, Usage(unplaced_shares=4)),
    "an init container hands on": (
        {"i0": 4, "c0": 4},
        {"app": {"0": {"1": 4}}, "init": {"0": {"1": 4}}},
        Usage(((1, 4),)),
    ),
    "what only an init container had stays with it": (
        {"i0": 5, "c0": 4},
        {"app": {"0": {"1": 4}}, "init": {"0": {"1": 5}}},
        Usage(((1, 5),)),
    ),
    "and what is asked beyond it may be anywhere": (
        {"i0": 5, "c0": 7},
        {"init": {"0": {"1": 5}}},
        Usage(((1, 5),), unplaced_shares=2),
    ),
    "only an init container": ({"i0": 5}, {"init": {"0": {"1": 5}}}, Usage(((1, 5),))),
    "only an init container, and nothing": ({"i0": 5}, {}, Usage(unplaced_shares=5)),
    "a sidecar keeps what it has": (
        {"s0": 2, "c0": 4},
        {"app": {"0": {"1": 4}}, "init": {"0": {"0": 2}}},
        Usage(((0, 2), (1, 4))),
    ),
    "a sidecar and what it leaves to others": (
        {"i0": 6, "s1": 2, "c0": 3},
        {"app": {"0": {"1": 3}}, "init": {"0": {"1": 6}, "1": {"1": 2}}},
        Usage(((1, 6),)),
    ),
    "init containers of two parts": (
        {"i0": 4, "s1": 4, "i2": 3, "c0": 1},
        {"app": {"0": {"2": 1}}, "init": {"0": {"1": 4}, "1": {"1": 4}, "2": {"2": 3}}},
        Usage(((1, 4), (2, 3))),
    ),
    "an init container cannot be elsewhere than the others": (
        {"i0": 5, "c0": 4},
        {"app": {"0": {"1": 4}}, "init": {"0": {"0": 5}}},
        Usage(unplaced_shares=5),
    ),
}
"""What containers ask, what is written on the pod, and what it takes."""


@pytest.mark.parametrize(("asked", "written", "taken"), MEMORY.values(), ids=MEMORY)
def test_memory_is_taken_as_it_is_asked_and_where_it_is_promised(
    asked: dict[str, int], written: dict[str, Any], taken: Usage
) -> None:
    assert usage(asked, **written) == taken


WHOLE: dict[str, tuple[dict[str, int], dict[str, Any], Usage]] = {
    "nobody wrote anything": ({"c0": 2}, {}, Usage(unplaced_gpus=2)),
    "one GPU": ({"c0": 1}, {"idx": 3}, Usage(whole=(3,))),
    "one GPU is not two": ({"c0": 2}, {"idx": 3}, Usage(unplaced_gpus=2)),
    "a list": ({"c0": 2}, {"app": {"0": {"3": 15, "0": 15}}}, Usage(whole=(0, 3))),
    "a GPU too many is not believed": ({"c0": 1}, {"app": {"0": {"3": 15, "0": 15}}}, Usage(unplaced_gpus=1)),
    "the same GPU twice is one": (
        {"c0": 1, "c1": 1},
        {"app": {"0": {"3": 15}, "1": {"3": 15}}},
        Usage(whole=(3,), unplaced_gpus=1),
    ),
    "one GPU for two containers is one": ({"c0": 1, "c1": 1}, {"idx": 3}, Usage(whole=(3,), unplaced_gpus=1)),
    "an init container hands on": (
        {"i0": 2, "c0": 1},
        {"app": {"0": {"1": 15}}, "init": {"0": {"0": 15, "1": 15}}},
        Usage(whole=(0, 1)),
    ),
    "what only an init container had is not known": (
        {"i0": 2, "c0": 1},
        {"app": {"0": {"1": 15}}},
        Usage(whole=(1,), unplaced_gpus=1),
    ),
    "an init container cannot be elsewhere than the others": (
        {"i0": 1, "c0": 1},
        {"app": {"0": {"1": 15}}, "init": {"0": {"0": 15}}},
        Usage(unplaced_gpus=1),
    ),
}


@pytest.mark.parametrize(("asked", "written", "taken"), WHOLE.values(), ids=WHOLE)
def test_whole_gpus_are_taken_as_they_are_asked_and_where_they_are_promised(
    asked: dict[str, int], written: dict[str, Any], taken: Usage
) -> None:
    assert usage(count=asked, **written) == taken


def test_memory_and_whole_gpus_of_one_pod_are_told_apart() -> None:
    assert usage({"c0": 4}, {"c1": 1}, app={"0": {"0": 4}, "1": {"1": 15}}) == Usage(((0, 4),), (1,))
    assert usage({"c0": 4}, {"c1": 1}) == Usage(unplaced_shares=4, unplaced_gpus=1)


def test_how_much_is_written_on_the_pod_is_not_believed() -> None:
    containers = (Container("c0", ContainerKind.APP, 0, {MEM.name: 4}),)
    pod = Pod("u", "default", "a", "node", annotations={IDX: "1", POD: "0"}, containers=containers)
    assert usage_of(pod, (MEM, COUNT)) == Usage(((1, 4),))


def test_of_a_pod_that_has_ended_remains_which_gpus_it_was_on() -> None:
    assert Usage(((0, 3), (2, 1)), (4,), 5, 6).settling == Usage(settling_shares=(0, 2), settling_whole=(4,))
    assert Usage(settling_shares=(0,), settling_whole=(1,)).settling == NOTHING
