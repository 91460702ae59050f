"""Which running containers are guaranteed more of their GPU, by the rules of the agents and of the extender."""

from gpu_device_plugin.features.elastic.contract import Allowance
from gpu_device_plugin.features.elastic.rules.reservations import GpuRoom, Growth, GrowthRequest, grow

GPU = GpuRoom("GPU 0", total=12, free=5, share_mib=1024)
FREELY = {"default": Allowance("default", 99)}
TOO_LITTLE = "{gpu} has {free}, not {more}"


def request(name: str, more: int, *, room: GpuRoom = GPU, namespace: str = "default") -> GrowthRequest:
    """Return the request of a container that has 4 shares."""
    return GrowthRequest(("uid", name), namespace, room, 4 + more, more)


def test_a_container_gets_all_that_it_asks_for_or_nothing_and_leaves_the_rest_to_the_next() -> None:
    asked = [request("a", 3), request("b", 3), request("c", 2)]
    found = grow(asked, FREELY, TOO_LITTLE)
    refused = {("uid", "b"): "GPU 0 has 2 GiB, not 3 GiB"}
    assert found == Growth(frozenset({("uid", "a"), ("uid", "c")}), refused)


def test_each_gpu_has_its_own_room() -> None:
    asked = [request("a", 5), request("b", 5, room=GPU._replace(name="GPU 1"))]
    assert len(grow(asked, FREELY, TOO_LITTLE).granted) == 2


def test_what_is_larger_than_the_gpu_is_told_its_size_however_much_is_free() -> None:
    assert grow([request("a", 9)], {}, TOO_LITTLE).refused == {("uid", "a"): "GPU 0 has 12 GiB in all"}
    unknown = GPU._replace(share_mib=None, total=1)
    assert grow([request("a", 1, room=unknown)], {}, TOO_LITTLE).refused == {("uid", "a"): "GPU 0 has 1 share in all"}


def test_a_closed_gpu_says_why_before_anything_else() -> None:
    closed = GPU._replace(closed="it is closed")
    assert grow([request("a", 99, room=closed)], {}, TOO_LITTLE).refused == {("uid", "a"): "it is closed"}


def test_an_allowance_is_needed_only_where_there_is_room_and_counts_what_was_just_granted() -> None:
    asked = [request("a", 9, namespace="x"), request("b", 2, namespace="y"), request("c", 2), request("d", 1)]
    found = grow(asked, {"default": Allowance("default", 4, 1)}, TOO_LITTLE, {"default": 1})
    assert (found.granted, found.unknown, found.by_bound) == (frozenset({("uid", "c")}), frozenset({"y"}), True)
    assert found.refused["uid", "d"].endswith("and have 4")
    assert grow([request("a", 1)], {"default": "it is away"}, TOO_LITTLE).refused == {("uid", "a"): "it is away"}
