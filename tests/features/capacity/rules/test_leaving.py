"""Which nodes may go without harm."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.features.capacity.rules.leaving import Leaving, leaving, refuges
from gpu_device_plugin.features.capacity.rules.movable import PlannedPod
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer, Usage
from tests.scheduler.rules.test_fitting import asking, mem, node, whole
from tests.steps import result_of

Cluster = dict[str, list[list[int]]]
"""By node and by GPU of 8 shares, the shares of each pod."""


def nodes_of(cluster: Cluster) -> dict[str, Candidate]:
    return {
        name: node(*[8] * len(gpus), used={at: sum(pods) for at, pods in enumerate(gpus) if pods})
        for name, gpus in cluster.items()
    }


def pod(
    uid: str, demand: Demand, namespace: str = "", amounts: Amounts = NO_AMOUNTS, nodes: frozenset[str] | None = None
) -> PlannedPod:
    return PlannedPod(GpuConsumer(uid, Usage(), namespace=namespace, name=uid), asking(demand), amounts, nodes)


def residents_of(cluster: Cluster, nodes: frozenset[str] | None = None) -> dict[str, list[PlannedPod]]:
    return {
        name: [
            pod(f"{name}{at}{n}", mem(size), namespace=name, nodes=nodes)
            for at, pods in enumerate(gpus)
            for n, size in enumerate(pods)
        ]
        for name, gpus in cluster.items()
    }


def found(
    cluster: Cluster,
    nodes: frozenset[str] | None = None,
    tied: Mapping[str, str] | None = None,
) -> Leaving:
    return result_of(leaving(nodes_of(cluster), residents_of(cluster, nodes), tied or {}))


@pytest.mark.parametrize(
    ("cluster", "may_go"),
    [
        ({}, set()),
        ({"a": [[]], "b": [[3]]}, {"a"}),
        # The case that was measured: by the sums all could move, GPU by GPU none can.
        ({"a": [[5], [5], [5], [5]], "b": [[5], [5], [], []]}, set()),
        ({"a": [[5], [5], [3], [3]], "b": [[5], [5], [], []]}, {"b"}),
        # Two nodes never count on the same room.
        ({"a": [[5]], "b": [[3]], "c": [[3]]}, {"b"}),
        ({"a": [[2]], "b": [[3]], "c": [[3]]}, {"a", "c"}),
    ],
)
def test_a_node_may_go_if_its_pods_have_a_place_on_those_that_stay(cluster: Cluster, may_go: set[str]) -> None:
    result = found(cluster)

    assert set(result.may_go) == may_go
    assert result.may_go.keys() | result.stay.keys() == cluster.keys()


def test_the_reasons_name_the_pod_or_the_node_that_counts_on_this_one() -> None:
    result = found({"a": [[5]], "b": [[3]], "c": [[6]]})

    assert result.stay == {
        "a": "it has the room for the pods of node b",
        "c": "no GPU of another node has room for its pod c/c00",
    }


def test_where_the_pods_own_terms_forbid_a_node_they_do_not_go_there() -> None:
    cluster: Cluster = {"a": [[3]], "b": [[4]], "c": [[5]]}

    assert [place.node for place in found(cluster).may_go["a"]] == ["c"]
    assert [place.node for place in found(cluster, frozenset({"a", "b"})).may_go["a"]] == ["b"]


def test_a_pod_that_nothing_replaces_ties_its_node() -> None:
    result = found({"a": [[3]], "b": [[5]]}, tied={"a": "it has a guest"})

    assert result.stay["a"] == "it has a guest"


def test_cpu_and_memory_count() -> None:
    full = candidate("b", node(8).gpus, (Usage(((0, 1),)),), Amounts(1000, 100), [Amounts(900, 0)])
    residents = {"a": [pod("1", mem(1), amounts=Amounts(200, 1))]}

    assert "a" in result_of(leaving({"a": node(8, used={0: 1}), "b": full}, residents, tied={"b": "kept"})).stay


def test_many_nodes_take_many_steps() -> None:
    cluster: Cluster = {f"n{n}": [[5]] for n in range(100)}
    steps = leaving(nodes_of(cluster), residents_of(cluster), {})

    assert sum(1 for _ in steps) > 100


def test_whole_gpus_are_placed_first() -> None:
    nodes = {"a": node(8, 8, used={1: 3}, taken=(0,)), "b": node(8, 8, used={0: 5})}
    residents = {"a": [pod("1", mem(3)), pod("2", whole(1))], "b": []}

    places = result_of(leaving(nodes, residents, tied={"b": "kept"})).may_go["a"]

    assert [place.pod.pod.uid for place in places] == ["2", "1"]


def test_pods_that_must_leave_get_as_many_places_as_there_are() -> None:
    residents = [pod("1", mem(3)), pod("2", mem(6)), pod("3", mem(5))]
    places = result_of(refuges({"a": node(8, used={0: 1}), "b": node(8, used={0: 3})}, residents))

    assert [(place.pod.pod.uid, place.node) for place in places] == [("2", "a"), ("3", "b")]


def moved(cluster: Cluster, name: str, *used: int) -> Candidate:
    """Return a node of a cluster once so much of each of its GPUs is in use."""
    there = node(*[8] * len(cluster[name]), used={at: shares for at, shares in enumerate(used) if shares})
    return replace(there, name=name)


def test_a_node_must_stay_once_something_takes_room_that_its_pods_rely_on() -> None:
    """The pods of `a` and `b` may go to `c`, each to a GPU of its own, or both to one of them."""
    cluster: Cluster = {"a": [[3]], "b": [[4]], "c": [[5], [4]]}
    result = found(cluster, frozenset({"c"}))

    assert set(result.may_go) == {"a", "b"}
    assert result.relying == {"c": ["a", "b"]}
    assert result.displaced(moved(cluster, "c", 5, 4)) == []
    assert result.displaced(moved(cluster, "c", 6, 4)) == ["b"], "a has taken what is left"
    assert result.displaced(moved(cluster, "c", 5, 5)) == ["b"]
    assert result.displaced(moved(cluster, "c", 5, 8)) == ["b"]
    assert result.displaced(moved(cluster, "c", 8, 8)) == ["a", "b"]
    assert result.displaced(moved(cluster, "c", 0, 8)) == [], "any GPU of the node will do"
    assert result.displaced(moved(cluster, "a", 8)) == [], "nobody relies on that"


def test_a_node_whose_pods_go_to_several_must_stay_if_one_of_these_is_full() -> None:
    cluster: Cluster = {"a": [[3], [3]], "b": [[5]], "c": [[5]]}
    result = result_of(leaving(nodes_of(cluster), residents_of(cluster), tied={"b": "kept", "c": "kept"}))

    assert [place.node for place in result.may_go["a"]] == ["b", "c"]
    for name in ("b", "c"):
        assert result.displaced(moved(cluster, name, 5)) == []
        assert result.displaced(moved(cluster, name, 6)) == ["a"]


def test_cpu_that_is_taken_counts_as_well() -> None:
    residents = {"a": [pod("1", mem(1), amounts=Amounts(200, 1))]}
    free = candidate("b", node(8).gpus, (Usage(((0, 1),)),), Amounts(1000, 100), [])
    full = candidate("b", node(8).gpus, (Usage(((0, 1),)),), Amounts(1000, 100), [Amounts(900, 0)])
    result = result_of(leaving({"a": node(8, used={0: 1}), "b": free}, residents, tied={"b": "kept"}))

    assert result.displaced(free) == []
    assert result.displaced(full) == ["a"]


def test_what_has_changed_while_it_was_decided_keeps_the_nodes_that_it_concerns() -> None:
    cluster: Cluster = {"a": [[2]], "b": [[3]], "c": [[5]], "d": [[5]]}
    result = found(cluster)
    nodes = nodes_of(cluster)

    assert {name: [place.node for place in moves] for name, moves in result.may_go.items()} == {"a": ["c"], "b": ["d"]}
    assert result.after_changes(nodes, ["c", "d"]) is result, "there is room as before"
    assert set(result.after_changes(nodes, ["a"]).may_go) == {"b"}
    assert set(result.after_changes({**nodes, "c": moved(cluster, "c", 7)}, ["c"]).may_go) == {"b"}
    gone = result.after_changes({name: node for name, node in nodes.items() if name != "d"}, ["d"])
    assert set(gone.may_go) == {"a"}
    assert "since that was decided" in gone.stay["b"]
    assert gone.displaced(moved(cluster, "d", 8)) == [], "it stays already"


POD = st.integers(1, 8)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    cluster: Cluster = {}
    for name in "abcde"[: draw(st.integers(1, 5))]:
        gpus: list[list[int]] = []
        for _ in range(draw(st.integers(1, 3))):
            pods: list[int] = []
            for size in draw(st.lists(POD, max_size=3)):
                if sum(pods) + size <= 8:
                    pods.append(size)
            gpus.append(pods)
        cluster[name] = gpus
    return cluster


@given(clusters(), st.data())
@settings(deadline=None)
def test_any_of_them_may_go_and_all_of_their_pods_fit(cluster: Cluster, data: st.DataObject) -> None:
    result = found(cluster)
    gone = data.draw(st.sets(st.sampled_from(sorted(result.may_go)))) if result.may_go else set()

    used: dict[tuple[str, int], int] = defaultdict(int)
    for name, gpus in cluster.items():
        for at, pods in enumerate(gpus):
            used[name, at] = sum(pods)
    for name in gone:
        assert len(result.may_go[name]) == sum(map(len, cluster[name]))
        for place in result.may_go[name]:
            assert place.node not in result.may_go
            for placement in place.placements:
                for at, shares in placement.shares:
                    used[place.node, at] += shares
    assert all(shares <= 8 for (name, _), shares in used.items() if name not in gone)


@given(clusters(), st.data())
@settings(deadline=None)
def test_once_pods_have_come_those_that_need_not_be_marked_may_still_go_together(
    cluster: Cluster, data: st.DataObject
) -> None:
    result = found(cluster)
    nodes = nodes_of(cluster)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(nodes)))
        at, shares = data.draw(st.integers(0, len(cluster[name]) - 1)), data.draw(POD)
        sums = [sum(pods) for pods in cluster[name]]
        sums[at] = min(8, sums[at] + shares)
        nodes[name] = moved(cluster, name, *sums)
        cluster[name] = [[each] if each else [] for each in sums]
        result = result.without([name, *result.displaced(nodes[name])], "a pod has come")
    staying = {name: node for name, node in nodes.items() if name not in result.may_go}
    pods = [move.pod for moves in result.may_go.values() for move in moves]

    assert all(move.node in staying for moves in result.may_go.values() for move in moves)
    for name, there in staying.items():
        here = [move.pod for moves in result.may_go.values() for move in moves if move.node == name]
        assert len(result_of(refuges({name: there}, here))) == len(here), (cluster, pods)
