"""The kubelet's records and the API's pods say together which container has how much of which GPU."""

from dataclasses import replace

from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.node.rules.advertised_devices import offers
from gpu_device_plugin.node.rules.ledger import held_through_others
from gpu_device_plugin.node.rules.node import assigned_shares
from tests.mig import inventory, mig_node
from tests.names import COUNT, MEM, OURS
from tests.nodes import ids, node, uuid

# --- The GPUs of a pod are known once the checkpoint shows all of its containers --------------------------------------

RESOURCES = (Resource(Kind.MEMORY, MEM), Resource(Kind.COUNT, COUNT))


def asking(*asked: tuple[str, int]) -> Pod:
    """Return a pod with a container for each amount of a resource."""
    containers = (Container(f"c{n}", ContainerKind.APP, n, {name: amount}) for n, (name, amount) in enumerate(asked))
    return Pod("u", "default", "a", containers=tuple(containers))


def test_every_container_has_its_shares_and_a_whole_gpu_has_all_of_them() -> None:
    records = {
        ("u", "c0", Kind.MEMORY): frozenset([*ids(0, [1, 2]), *ids(1, [3])]),
        ("u", "c1", Kind.COUNT): frozenset([uuid(2)]),
    }
    assert assigned_shares(asking((MEM, 3), (COUNT, 1)), records, node(8, 8, 4), RESOURCES) == {
        ("c0", Kind.MEMORY): {0: 2, 1: 1},
        ("c1", Kind.COUNT): {2: 4},
    }


def test_a_device_that_is_not_on_the_node_leaves_the_pod_unassigned() -> None:
    records = {("u", "c0", Kind.MEMORY): frozenset([*ids(0, [0]), *ids(5, [0])])}
    assert assigned_shares(asking((MEM, 2)), records, node(8), RESOURCES) == {}


# --- GPUs that containers hold through resources that are not ours, or not theirs any more ----------------------------

ONE_G, THREE_G = "aliyun.com/mig-1g.10gb", "aliyun.com/mig-3g.30gb"


def through(resource: str, *device_ids: str) -> Allocation:
    return Allocation("p", "main", OURS.kind_of(resource), frozenset(device_ids), through=resource)


def test_gpus_that_another_plugin_gives_are_found() -> None:
    shares = mig_node((10, 10), 4, mode=MigMode.WHOLE).shares
    of_others = [through("nvidia.com/gpu", "GPU-1"), through("nvidia.com/mig-1g.10gb", "MIG-0-0")]
    assert held_through_others([*of_others, through(ONE_G, "MIG-0-1"), through("x/y", "GPU-9")], shares) == {
        "GPU-1": "nvidia.com/gpu",
        "MIG-0-0": "nvidia.com/mig-1g.10gb",
    }


def test_shares_and_whole_gpus_of_ours_are_not_of_others() -> None:
    shares = mig_node((10,), 4).shares
    held = [through(COUNT, "GPU-1"), through(MEM, "MIG-0-0::3"), through(ONE_G, "MIG-0-0")]
    assert held_through_others(held, shares) == {}


def test_an_instance_that_was_made_again_as_another_profile_is_held_through_the_former_one() -> None:
    """Both resources list its ID: neither gives it to anybody while the pod of the earlier instance is there."""
    node = mig_node((10,), mode=MigMode.WHOLE, whole=["MIG-0-0"])
    shares = node.shares.with_inventory(inventory((30,)), mig=MigMode.WHOLE)
    found = held_through_others([through(ONE_G, "MIG-0-0")], shares)
    assert found == {"MIG-0-0": ONE_G}
    assert held_through_others([through(THREE_G, "MIG-0-0")], shares) == {}
    held = replace(node, shares=shares, ledger=node.ledger.with_held_by_other_resource(found))
    for profile in ("1g.10gb", "3g.30gb"):
        (offer,) = offers(held, (Kind.INSTANCE, profile))
        assert list(offer.devices((Kind.INSTANCE, profile))) == [("MIG-0-0", False)]


def test_who_holds_an_instance_that_exists_no_more_bars_nobody() -> None:
    shares = mig_node((10, 10), mode=MigMode.WHOLE).shares.with_inventory(inventory((10,)), mig=MigMode.WHOLE)
    assert held_through_others([through(THREE_G, "MIG-0-1")], shares) == {}
