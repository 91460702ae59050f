"""Which nodes come first when several readers look."""

from gpu_device_plugin.programs.web.streams import MOST_NODES, Views


def test_readers_take_turns_and_each_node_comes_once() -> None:
    views = Views()
    one, two = views.open("ann"), views.open("bob")
    assert not views.nodes
    assert views.show(one, "ann", ["a", "b", "c"])
    assert views.show(two, "bob", ["c", "d"])
    assert list(views.nodes) == ["a", "c", "b", "d"]
    assert views.show(one, "ann", [])
    assert list(views.nodes) == ["c", "d"]
    views.close(two)
    views.close(one)
    assert list(views.nodes) == []


def test_a_stream_is_its_users_and_forgotten_at_its_end() -> None:
    views = Views()
    stream = views.open("ann")
    assert not views.show(stream, "bob", ["a"])
    assert not views.show("other", "ann", ["a"])
    assert list(views.nodes) == []
    views.close(stream)
    assert not views.show(stream, "ann", ["a"])


def test_many_nodes_of_many_readers_are_bounded() -> None:
    views = Views()
    for reader in range(5):
        stream = views.open("ann")
        assert views.show(stream, "ann", [f"node-{reader}-{number}" for number in range(2 * MOST_NODES)])
    assert len(views.nodes) == MOST_NODES
    assert {name.split("-")[1] for name in views.nodes} == {"0", "1", "2", "3", "4"}
