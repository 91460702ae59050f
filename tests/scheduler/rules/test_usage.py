"""What a pod takes of its node's GPUs."""

import json
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    DEV,
    IDX,
    INIT_ALLOCATION,
    MEMORY_HELD,
    MEMORY_PROMISED,
    POD,
)
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.scheduler.rules.candidate import rooms_of
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import NOTHING, Usage, Usages, promise, usage_of
from tests.resources import COUNT, MEM

SIZES = {0: 15, 1: 15}
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
    assert before.as_listed(SIZES) == Usage(((0, 4),), (1,), 4, 3, settling_shares=(2,), settling_whole=(4,))


def test_what_lies_on_an_instance_that_the_node_knows_takes_nothing_of_its_gpus() -> None:
    """Position 2 is that of an instance that is given whole, or exists no more; 3 is not known."""
    before = Usage(((0, 4), (2, 3), (3, 1)), (1, 2), 1)
    assert before.as_listed(SIZES, {2}) == Usage(((0, 4),), (1,), 2)
    assert Usage(((0, 4),), (2,)).as_listed(SIZES, {2}) == Usage(((0, 4),))
    use = Usage(((0, 4),), (1,))
    assert use.as_listed(SIZES, {2}) is use


@pytest.mark.parametrize("use", [NOTHING, Usage(((0, 4),), (1,), 2, 3, (7,), (8,))])
def test_what_lies_on_listed_gpus_stays_there(use: Usage) -> None:
    assert use.as_listed(SIZES) is use


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


def test_equal_use_is_one_object_whatever_the_containers_are_called() -> None:
    def of(name: str, **annotations: str) -> Usage:
        containers = (Container(name, ContainerKind.APP, 0, {MEM.name: 4}),)
        return usages.of(Pod(f"u-{name}", "default", "a", "node", annotations=annotations, containers=containers))

    usages = Usages((MEM, COUNT))
    assert of("a", **{IDX: "1"}) == Usage(((1, 4),))
    assert of("b", **{IDX: "1"}) is of("a", **{IDX: "1"})
    assert of("a", **{IDX: "2"}) == Usage(((2, 4),))
    long = json.dumps({"0": {"1": 4}, "1": {str(n): 1 for n in range(64)}})
    assert of("a", **{ALLOCATION: long}) == of("a", **{IDX: "1"})
    assert of("a", **{ALLOCATION: long}) is not of("a", **{ALLOCATION: long})


def test_of_a_pod_that_has_ended_remains_which_gpus_it_was_on() -> None:
    assert Usage(((0, 3), (2, 1)), (4,), 5, 6).settling == Usage(settling_shares=(0, 2), settling_whole=(4,))
    assert Usage(settling_shares=(0,), settling_whole=(1,)).settling == NOTHING


# --- What a pod is guaranteed beyond its requests


def grown(
    mem: dict[str, int], places: dict[str, Any], promised: Any = None, held: Any = None, usages: Usages | None = None
) -> Usage:
    """What a pod takes whose containers have these guarantees; `places` are the lists of its GPUs."""
    containers = tuple(
        Container(name, KINDS[name[0]], int(name[1:]), {MEM.name: amount}) for name, amount in mem.items()
    )
    answers = {MEMORY_PROMISED: promised, MEMORY_HELD: held}
    annotations = {
        **{key: json.dumps(at) for key, at in zip((ALLOCATION, INIT_ALLOCATION), places.values(), strict=False)},
        **{key: json.dumps({"guarantees": said}) for key, said in answers.items() if said is not None},
    }
    pod = Pod("u", "default", "a", "node", annotations=annotations, containers=containers)
    return usages.of(pod) if usages is not None else usage_of(pod, (MEM, COUNT))


ON_1 = {"app": {"0": {"1": 4}}}
GROWN: dict[str, tuple[dict[str, int], dict[str, Any], Any, Any, Usage]] = {
    "promised": ({"c0": 4}, ON_1, {"c0": 6}, None, Usage(((1, 6),), grown=((1, 2),))),
    "held": ({"c0": 4}, ON_1, None, {"c0": 7}, Usage(((1, 7),), grown=((1, 3),))),
    "what is promised, before it is held": ({"c0": 4}, ON_1, {"c0": 9}, {"c0": 7}, Usage(((1, 9),), grown=((1, 5),))),
    "nothing that anybody wrote as held": ({"c0": 4}, ON_1, {"c0": 6}, {"c0": 15}, Usage(((1, 6),), grown=((1, 2),))),
    "nothing that anybody wrote as held without a promise": ({"c0": 4}, ON_1, {}, {"c0": 15}, Usage(((1, 4),))),
    "never less than the request": ({"c0": 4}, ON_1, {"c0": 2}, {"c0": 3}, Usage(((1, 4),))),
    "nothing of another container": ({"c0": 4}, ON_1, {"c1": 6}, None, Usage(((1, 4),))),
    "nothing of a pod on an unknown GPU": ({"c0": 4}, {}, {"c0": 6}, None, Usage(unplaced_shares=4)),
    "nothing of a container on two GPUs": (
        {"c0": 4},
        {"app": {"0": {"0": 2, "1": 2}}},
        {"c0": 8},
        None,
        Usage(((0, 2), (1, 2))),
    ),
    "of an init container nothing, of the others beside what it leaves": (
        {"i0": 5, "c0": 4},
        {"app": {"0": {"1": 4}}, "init": {"0": {"1": 5}}},
        {"i0": 9, "c0": 6},
        None,
        Usage(((1, 7),), grown=((1, 2),)),
    ),
    "nothing where the places contradict each other": (
        {"i0": 5, "c0": 4},
        {"app": {"0": {"1": 4}}, "init": {"0": {"0": 5}}},
        {"c0": 6},
        None,
        Usage(unplaced_shares=5),
    ),
    "of two containers on one GPU": (
        {"c0": 4, "c1": 1},
        {"app": {"0": {"1": 4}, "1": {"1": 1}}},
        {"c0": 6, "c1": 3},
        None,
        Usage(((1, 9),), grown=((1, 4),)),
    ),
}
"""What containers ask, where they are, what they are promised, what is held for them, and what the pod takes."""


@pytest.mark.parametrize(("asked", "places", "promised", "held", "taken"), GROWN.values(), ids=GROWN)
def test_a_container_counts_with_its_request_or_the_larger_promise_or_what_is_held_without_one(
    asked: dict[str, int], places: dict[str, Any], promised: Any, held: Any, taken: Usage
) -> None:
    assert grown(asked, places, promised, held) == taken
    assert grown(asked, places, promised, held, Usages((MEM, COUNT))) == taken
    assert taken.requested == grown(asked, places)


def test_usage_is_remembered_by_what_is_beyond_the_requests_too() -> None:
    usages = Usages((MEM, COUNT))
    plain = grown({"c0": 4}, ON_1, usages=usages)
    assert grown({"c0": 4}, ON_1, {"c0": 6}, usages=usages).growth == 2
    assert grown({"c0": 4}, ON_1, None, {"c0": 8}, usages=usages).growth == 4
    assert grown({"c0": 4}, ON_1, {"c1": 6}, usages=usages) == plain


@pytest.mark.parametrize("forged", ["", "[]", '{"guarantees":{"c0":0}}', '{"guarantees":{"c0":9999999}}'])
def test_a_malformed_annotation_adds_nothing(forged: str) -> None:
    containers = (Container("c0", ContainerKind.APP, 0, {MEM.name: 4}),)
    pod = Pod("u", "default", "a", "node", annotations={IDX: "1", MEMORY_HELD: forged}, containers=containers)
    assert usage_of(pod, (MEM, COUNT)) == Usage(((1, 4),))


def test_a_forged_guarantee_counts_at_most_as_its_whole_gpu() -> None:
    """The GPUs have 15 shares, and 24 in the second case; a request that is larger than its GPU stays what it is."""
    forged = grown({"c0": 4}, ON_1, {"c0": 1 << 20})
    assert forged.within(SIZES) == Usage(((1, 15),))
    assert forged.as_listed({0: 24}) == Usage(unplaced_shares=24)
    assert forged.size(SIZES) == 15
    assert Usage(((1, 20),), grown=((1, 2),)).within(SIZES) == Usage(((1, 18),))
    assert Usage(((0, 4), (1, 6)), grown=((1, 2),)).as_listed(SIZES) == Usage(((0, 4), (1, 6)))
    there = NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15)))
    assert [room.free for room in rooms_of(there, [forged, Usage(((0, 4),))])] == [11, 0]


# --- What the scheduler writes on a pod for its place

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
    assert isinstance(found, GpuRequest)
    placements = (Placement(part.demand, tuple(at.items())) for part, at in zip(found.parts, places, strict=True))
    return dict(promise(found, list(placements), GPUS, 7))


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
        MEMORY_PROMISED: "{}",
    }
    assert MEMORY_PROMISED not in promised({"c0": 1}, {1: 15}, resource=COUNT)


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


WHOLE_PROMISES: dict[str, tuple[dict[str, int], list[dict[int, int]], object, object]] = {
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


@pytest.mark.parametrize(("asked", "places", "app", "init"), WHOLE_PROMISES.values(), ids=WHOLE_PROMISES)
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
