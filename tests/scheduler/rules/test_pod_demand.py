"""What a pod asks of a node's GPUs."""

import pytest

from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.keys import GPU_POLICY, SPLIT_LABEL, USE_MODEL
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Impossible, Part, ask, parts_of
from tests.resources import COUNT, MEM, RESOURCES

KINDS = {"i": ContainerKind.INIT, "s": ContainerKind.SIDECAR, "c": ContainerKind.APP}


def pod(
    *asked: tuple[str, int],
    resource: Resource = MEM,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Pod:
    """A pod whose containers have names by their kind: i for init, s for sidecar, c for the others."""
    containers = tuple(
        Container(name, KINDS[name[0]], n, {resource.name: amount}) for n, (name, amount) in enumerate(asked)
    )
    return Pod("u", "default", "a", containers=containers, labels=labels or {}, annotations=annotations or {})


def memory(amount: int, gpus: int = 1) -> Part:
    return Part(Demand(Kind.MEMORY, amount, gpus))


def whole(amount: int) -> Part:
    return Part(Demand(Kind.COUNT, amount))


def asked(there: Pod) -> GpuRequest:
    found = ask(there, RESOURCES)
    assert isinstance(found, GpuRequest)
    return found


def refused(there: Pod) -> str:
    found = ask(there, RESOURCES)
    assert isinstance(found, Impossible)
    return found.sentence


PARTS: dict[str, tuple[list[tuple[str, int]], list[tuple[int, str]]]] = {
    "one container": ([("c0", 4)], [(4, "c0")]),
    "two containers choose each for itself": ([("c0", 4), ("c1", 3)], [(4, "c0"), (3, "c1")]),
    "a container that asks for nothing is in no part": ([("c0", 0), ("c1", 3), ("c2", -1)], [(3, "c1")]),
    "an init container hands all on": ([("i0", 4), ("c1", 4)], [(4, "i0 c1")]),
    "one that asks more takes what is handed on and more": ([("i0", 2), ("c1", 5)], [(5, "i0 c1")]),
    "one that asks less leaves the rest held": ([("i0", 5), ("c1", 2)], [(5, "i0 c1")]),
    "the rest goes to the next": ([("i0", 5), ("c1", 2), ("c2", 3)], [(5, "i0 c1 c2")]),
    "and binds the next however little it is": ([("i0", 5), ("c1", 4), ("c2", 6)], [(10, "i0 c1 c2")]),
    "what is handed on whole binds nobody further": ([("i0", 4), ("c1", 4), ("c2", 6)], [(4, "i0 c1"), (6, "c2")]),
    "init containers use the same again": ([("i0", 2), ("i1", 6), ("i2", 3), ("c3", 4)], [(6, "i0 i1 i2 c3")]),
    "a sidecar keeps what it has": ([("s0", 2), ("i1", 4), ("c2", 4)], [(2, "s0"), (4, "i1 c2")]),
    "a sidecar takes what was handed on": ([("i0", 4), ("s1", 1), ("i2", 5), ("c3", 1)], [(6, "i0 s1 i2 c3")]),
    "a sidecar that takes all ends the part": ([("i0", 2), ("s1", 2), ("i2", 3)], [(2, "i0 s1"), (3, "i2")]),
    "only init containers": ([("i0", 2), ("i1", 1)], [(2, "i0 i1")]),
    "nothing": ([("c0", 0)], []),
    "no container": ([], []),
}
"""Containers with the amount each asks; the parts with their size and members."""


@pytest.mark.parametrize("resource", RESOURCES, ids=["memory", "whole"])
@pytest.mark.parametrize(("containers", "parts"), PARTS.values(), ids=PARTS)
def test_containers_that_hand_devices_on_form_a_part(
    resource: Resource, containers: list[tuple[str, int]], parts: list[tuple[int, str]]
) -> None:
    found = asked(pod(*containers, resource=resource)).parts
    assert [(part.demand, " ".join(container.name for container, _ in part.members)) for part in found] == [
        (Demand(resource.kind, size), names) for size, names in parts
    ]
    amounts = dict(containers)
    assert all(amount == amounts[container.name] for part in found for container, amount in part.members)


def test_both_resources_of_a_pod_are_told_apart() -> None:
    """Devices are handed on within one resource only. Memory comes before whole GPUs."""
    both = Pod(
        "u",
        "default",
        "a",
        containers=(
            Container("i0", ContainerKind.INIT, 0, {COUNT.name: 2}),
            Container("i1", ContainerKind.INIT, 1, {MEM.name: 3}),
            Container("c0", ContainerKind.APP, 0, {COUNT.name: 1}),
            Container("c1", ContainerKind.APP, 1, {MEM.name: 4}),
        ),
    )
    assert asked(both) == GpuRequest((memory(4), whole(2)))
    assert [[c.name for c, _ in part.members] for part in parts_of(both, RESOURCES)] == [["i1", "c1"], ["i0", "c0"]]
    assert asked(both).parts == parts_of(both, iter(RESOURCES))


def test_pods_that_ask_the_same_are_equal_whoever_asks() -> None:
    one, other = asked(pod(("i0", 2), ("c1", 4))), asked(pod(("c7", 4)))
    assert one == other
    assert hash(one) == hash(other)
    assert one != asked(pod(("c0", 5)))
    assert one != asked(pod(("c0", 4), annotations={USE_MODEL: "T4"}))


def test_what_the_owner_wishes_is_part_of_it() -> None:
    there = pod(("c0", 4), annotations={USE_MODEL: "T4", GPU_POLICY: "spread"})
    assert asked(there) == GpuRequest((memory(4),), GpuSelector(use_models=("T4",), gpu_policy="spread"))


def test_both_resources_in_one_container_are_impossible() -> None:
    limits = {MEM.name: 4, COUNT.name: 1}
    both = Pod("u", "default", "a", containers=(Container("main", ContainerKind.APP, 0, limits),))
    assert refused(both) == (
        "container 'main' requests aliyun.com/gpu-mem and aliyun.com/gpu-count, which are the same hardware; request "
        "one of them"
    )


def test_nothing_of_the_other_resource_is_no_contradiction() -> None:
    there = Pod("u", "d", "a", containers=(Container("main", ContainerKind.APP, 0, {MEM.name: 4, COUNT.name: 0}),))
    assert asked(there) == GpuRequest((memory(4),))


def test_a_pod_that_asks_for_nothing_may_have_anything_written_on_it() -> None:
    assert asked(pod(labels={SPLIT_LABEL: "many"}, annotations={GPU_POLICY: "best", USE_MODEL: "T4"})) == GpuRequest()


# --- one container over several GPUs


def test_memory_is_split_over_as_many_gpus_as_the_label_says() -> None:
    found = asked(pod(("c0", 6), labels={SPLIT_LABEL: "2"}))
    assert found == GpuRequest((memory(6, gpus=2),))
    assert [(container.name, amount) for container, amount in found.parts[0].members] == [("c0", 6)]


@pytest.mark.parametrize("text", ["1", "01", "000000001"])
def test_one_gpu_is_no_split(text: str) -> None:
    assert asked(pod(("c0", 4), ("c1", 3), labels={SPLIT_LABEL: text})) == GpuRequest((memory(4), memory(3)))


def test_the_label_says_nothing_to_who_asks_for_no_memory() -> None:
    assert asked(pod(("c0", 3), resource=COUNT, labels={SPLIT_LABEL: "2"})) == GpuRequest((whole(3),))


@pytest.mark.parametrize("text", ["", "0", "-2", "+2", "2.0", " 2", "two", "²", "1000000000", "9" * 5000])
def test_a_split_that_is_no_number_is_impossible(text: str) -> None:
    assert refused(pod(("c0", 4), labels={SPLIT_LABEL: text})) == (
        "the pod label aliyun.com/gpu-count is not a number of GPUs; write 2, for example"
    )


def test_a_split_over_more_gpus_than_a_node_can_have_is_impossible() -> None:
    assert asked(pod(("c0", 128), labels={SPLIT_LABEL: "128"})) == GpuRequest((memory(128, gpus=128),))
    for gpus in ("129", "999999999"):
        assert refused(pod(("c0", 1 << 20), labels={SPLIT_LABEL: gpus})) == (
            f"the pod label aliyun.com/gpu-count asks for {gpus} GPUs, and no node can have more than 128"
        )


@pytest.mark.parametrize("containers", [[("c0", 4), ("c1", 4)], [("i0", 4), ("c1", 4)]], ids=["two parts", "one part"])
def test_memory_of_several_containers_is_not_split(containers: list[tuple[str, int]]) -> None:
    """The kubelet would hand an init container's devices on as it likes, and not in equal parts."""
    assert refused(pod(*containers, labels={SPLIT_LABEL: "2"})) == (
        "the pod label aliyun.com/gpu-count splits the GPU memory of one container, and several containers of this "
        "pod request some; have only one request it, or remove the label"
    )


def test_a_split_that_is_not_even_is_impossible() -> None:
    assert refused(pod(("c0", 5), labels={SPLIT_LABEL: "2"})) == (
        "the pod label aliyun.com/gpu-count asks for 2 GPUs, and a gpu-mem of 5 cannot be split evenly over them; "
        "ask for a multiple"
    )


def test_a_pod_of_very_many_parts_is_not_tried() -> None:
    assert isinstance(ask(pod(*[(f"c{n}", 1) for n in range(16)]), RESOURCES), GpuRequest)
    assert "more than 16 of its containers request GPUs" in refused(pod(*[(f"c{n}", 1) for n in range(17)]))


def test_who_writes_bytes_is_told_that_shares_are_counted() -> None:
    """The API server gives us 10Gi as 10,737,418,240."""
    assert isinstance(ask(pod(("c0", 1 << 20)), RESOURCES), GpuRequest)
    for shares in ((1 << 20) + 1, 10 << 30):
        assert refused(pod(("c0", 1), ("c1", shares))) == (
            "gpu-mem counts shares of GPU memory (1 GiB each unless configured otherwise): write 10, not 10Gi"
        )


def test_more_whole_gpus_than_a_node_can_have_are_impossible() -> None:
    assert asked(pod(("c0", 128), resource=COUNT)) == GpuRequest((whole(128),))
    for gpus in (129, 2**63 - 1):
        assert refused(pod(("c0", gpus), resource=COUNT)) == (
            f"it requests {gpus} whole GPUs, and no node can have more than 128"
        )


def test_a_pod_of_very_many_containers_is_not_looked_at() -> None:
    """Whatever they ask for, be it nothing; those that name none of our resources do not count."""
    sentence = "more than 64 of its containers have a limit of aliyun.com/gpu-mem or aliyun.com/gpu-count; use fewer"
    assert isinstance(ask(pod(*[(f"i{n}", 1) for n in range(64)]), RESOURCES), GpuRequest)
    assert refused(pod(*[(f"i{n}", 1) for n in range(65)])) == sentence
    assert refused(pod(*[(f"i{n}", 0) for n in range(65)])) == sentence


def test_of_several_pods_the_largest_is_the_one_with_most_whole_gpus_and_then_the_largest_part() -> None:
    sizes = [
        asked(pod(("c0", 2), resource=COUNT)).size,
        GpuRequest((memory(16, gpus=2), memory(3))).size,
        GpuRequest((whole(1), memory(4))).size,
        GpuRequest().size,
    ]
    assert sizes == [(2, 0), (0, 8), (1, 4), (0, 0)]
