"""The MIG instances of containers, and those that were destroyed."""

from gpu_device_plugin.features.mig.node import instances_by_pod, stranded
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from tests.mig import inventory, mig_node


def test_containers_with_instances_that_exist_no_more_are_found() -> None:
    shares = mig_node((10, 10)).shares.with_inventory(inventory((10,)), mig=MigMode.SHARE)
    pod = Pod("uid-b", "default", "b")
    there = {"GPU-0", "MIG-0-0"}
    held = [
        Allocation("uid-a", "main", Kind.COUNT, frozenset({"MIG-0-0", "GPU-7"})),
        Allocation("uid-b", "main", Kind.MEMORY, frozenset({"MIG-0-1::0", "MIG-0-1::1", "MIG-0-0::5"})),
        Allocation("uid-c", "main", Kind.INSTANCE, frozenset({"MIG-former"})),
    ]
    known, former = stranded(held, there, shares, {"uid-b": pod})
    assert (known.pod, known.uuid) == (pod, "MIG-0-1")
    assert known.sentence == (
        "container main was allocated GPU 1 (MIG 1g.10gb) (MIG-0-1), a MIG instance that no longer exists; delete "
        "the pod so that it gets another"
    )
    assert [(known.pod_uid, known.container), (former.pod_uid, former.container)] == [
        ("uid-b", "main"),
        ("uid-c", "main"),
    ]
    assert former.pod is None
    assert former.sentence.startswith("container main was allocated MIG-former, a MIG instance that no longer exists")
    assert stranded(held[:1], there, shares, {}) == ()


def test_a_pod_holds_the_whole_instances_of_all_its_containers() -> None:
    allocations = [
        Allocation("uid-a", "main", Kind.INSTANCE, frozenset({"MIG-0-0"})),
        Allocation("uid-a", "main", Kind.INSTANCE, frozenset({"MIG-1-0"})),
        Allocation("uid-a", "side", Kind.INSTANCE, frozenset({"MIG-0-1"})),
        Allocation("uid-b", "main", Kind.MEMORY, frozenset({"MIG-0-2::0"})),
    ]
    assert instances_by_pod(allocations) == {"uid-a": {"main": {"MIG-0-0", "MIG-1-0"}, "side": {"MIG-0-1"}}}
    assert instances_by_pod([]) == {}
