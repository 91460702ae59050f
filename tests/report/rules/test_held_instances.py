"""Whole MIG instances of a node, and the pods that have them."""

from dataclasses import replace

import pytest

from gpu_device_plugin.model.contract.keys import INSTANCES
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.report.rules.held_instances import asked_instances, instance_pod, whole_instances
from tests.views import WHOLE, holder, listed_instance, mig_view, with_instances

LARGE = "nvidia.com/mig-3g.40gb"


def pod(
    *limits: dict[str, int], kinds: str = "aaaa", annotation: str = "", node: str = "a", phase: str = "Running"
) -> Pod:
    containers = tuple(
        Container(f"c{n}", ContainerKind.APP if kind == "a" else ContainerKind.INIT, n, each)
        for n, (each, kind) in enumerate(zip(limits, kinds, strict=False))
    )
    annotations = {INSTANCES: annotation} if annotation else {}
    return Pod("uid", "shop", "web", node, phase, annotations=annotations, containers=containers)


def test_a_pod_asks_for_as_many_instances_as_its_containers_together() -> None:
    assert asked_instances(pod({WHOLE: 1}, {WHOLE: 2, LARGE: 1, "aliyun.com/gpu-mem": 3})) == {WHOLE: 3, LARGE: 1}
    assert asked_instances(pod({"aliyun.com/gpu-mem": 3, WHOLE: 0})) == {}


def test_an_init_container_hands_its_instances_on() -> None:
    assert asked_instances(pod({WHOLE: 1}, {WHOLE: 1}, kinds="ia")) == {WHOLE: 1}


def test_a_pod_on_a_node_has_the_instances_that_its_agent_wrote_on_it() -> None:
    found = instance_pod(pod({WHOLE: 1}, {WHOLE: 1}, annotation='{"c0":["MIG-1"],"c1":["MIG-0"]}'))
    assert found == holder("uid", "shop", "web", {WHOLE: 2}, frozenset({"MIG-0", "MIG-1"}))
    assert str(found) == "shop/web"
    ending = instance_pod(replace(pod({WHOLE: 1}), deleting=True))
    assert ending is not None
    assert ending.terminating


@pytest.mark.parametrize(
    "annotation",
    [
        '{"c0":["MIG-0","MIG-1","MIG-2","MIG-3","MIG-4","MIG-5","MIG-6"]}',
        '{"c0":["MIG-0","MIG-0"]}',
        '{"other":["MIG-0"]}',
        '{"plain":["MIG-0"]}',
    ],
)
def test_a_pod_that_names_more_instances_than_it_asked_for_is_not_believed(annotation: str) -> None:
    """Its owner wrote that: a pod with one instance would show as holding all seven."""
    asking = pod({WHOLE: 1}, annotation=annotation)
    plain = Container("plain", ContainerKind.APP, 1, {"aliyun.com/gpu-mem": 3})
    assert instance_pod(replace(asking, containers=(*asking.containers, plain))) == holder(
        "uid", "shop", "web", {WHOLE: 1}
    )


def test_a_pod_that_names_instances_of_another_profile_than_it_asked_for_is_not_believed() -> None:
    view = mig_view("a", with_instances("one", 0), with_instances("two", asks=1), whole=5)
    (gpus,) = (each.instances for each in view.instances())
    liar = holder("liar", "shop", "liar", {LARGE: 3}, frozenset({"MIG-2", "MIG-3"}))
    doubtful = holder("doubtful", "shop", "doubtful", {WHOLE: 1, LARGE: 3}, frozenset({"MIG-2", "MIG-3"}))
    (found,) = whole_instances(gpus, [liar, doubtful])
    assert (found.holders, found.unassigned_usage) == ({}, ((doubtful, 1),))


@pytest.mark.parametrize("annotation", ["", "{", '{"c0":["GPU-1"]}'])
def test_without_a_readable_annotation_its_instances_are_not_known(annotation: str) -> None:
    assert instance_pod(pod({WHOLE: 1}, annotation=annotation)) == holder("uid", "shop", "web", {WHOLE: 1})


@pytest.mark.parametrize(
    "other", [pod({WHOLE: 1}, node=""), pod({WHOLE: 1}, phase="Succeeded"), pod({"aliyun.com/gpu-mem": 1})]
)
def test_pods_without_instances_hold_none(other: Pod) -> None:
    assert instance_pod(other) is None


def test_instances_are_in_use_free_or_out_of_service() -> None:
    (found,) = mig_view(
        "a", with_instances("one", 0), with_instances("two", asks=1), whole=5, ill={4: "XID 94"}
    ).instances()
    assert (found.resource, found.profile, len(found.instances)) == (WHOLE, "1g.10gb", 5)
    assert (found.used, found.free, [gpu.position for gpu in found.closed]) == (2, 2, [4])
    assert {str(pod): [gpu.uuid for gpu in gpus] for pod, gpus in found.by_pod.items()} == {
        "default/one": ["MIG-0"],
        "default/two": [],
    }


def test_a_pod_may_be_known_to_have_some_of_its_instances() -> None:
    (found,) = mig_view("a", with_instances("one", 0, asks=3), whole=4).instances()
    assert (found.used, found.free, [number for _, number in found.unassigned_usage]) == (3, 1, [2])


def test_more_pods_than_instances_leave_none_free() -> None:
    (found,) = mig_view("a", with_instances("one", asks=3), whole=2).instances()
    assert (found.used, found.free) == (3, 0)


def test_resources_come_in_the_order_of_their_memory_and_each_counts_for_itself() -> None:
    large = listed_instance(0, 0, profile="3g.40gb", resource=LARGE, memory_mib=40_448)
    small = listed_instance(1, 1, resource=WHOLE)
    holder = replace(with_instances("one", 0), asked={LARGE: 1})
    found = whole_instances([large, small], [holder])
    assert [(each.resource, each.used) for each in found] == [(WHOLE, 0), (LARGE, 1)]


def test_the_smallest_profile_comes_first_whatever_its_resource_is_called() -> None:
    unknown = listed_instance(0, 0, resource="z/mig-1g.5gb", memory_mib=None)
    small = listed_instance(1, 1, resource="c/mig-1g.10gb", memory_mib=9_984)
    large = listed_instance(2, 2, resource="b/mig-2g.20gb", memory_mib=20_096)
    found = whole_instances([large, small, unknown], [])
    assert [each.resource for each in found] == ["z/mig-1g.5gb", "c/mig-1g.10gb", "b/mig-2g.20gb"]


def test_an_instance_that_two_pods_name_is_in_use_once() -> None:
    """One of them may have ended, and nobody has written so yet."""
    one, two = with_instances("one", 0), with_instances("two", 0)
    (found,) = mig_view("a", one, two, whole=2).instances()
    assert (found.used, found.free, found.holders) == (1, 1, {"MIG-0": (one, two)})


def test_what_is_no_instance_is_left_out() -> None:
    assert whole_instances([replace(listed_instance(0, 0), instance=None)], []) == ()
