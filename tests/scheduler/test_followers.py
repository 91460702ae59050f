"""What the API server tells of pods and nodes, as the fleet gets it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from gpu_device_plugin.features.elastic.scheduler import Resizes
from gpu_device_plugin.features.idle.scheduler import IdleActions
from gpu_device_plugin.kubernetes.objects.decoding import NodeReader
from gpu_device_plugin.model.contract.keys import NODE_GPUS, NODE_USE, PLACEMENT_LABEL
from gpu_device_plugin.model.contract.node_use import used_mib
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.scheduler.cluster_follower import ClusterFollower
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod
from tests import builders
from tests.names import COUNT, MEM
from tests.resources import RESOURCES
from tests.scheduler.contexts import context


def fleet() -> Fleet:
    return Fleet(RESOURCES, vanished_grace_s=30)


def followed(fleet: Fleet, *features: SchedulerFeature, clock: Callable[[], float] = lambda: 0.0) -> ClusterFollower:
    parts = context(fleet, clock=clock)
    for feature in features:
        parts.features.add(feature)
    return ClusterFollower(parts)


def node(
    name: str,
    mem: int | None = None,
    count: int | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> NodeRecord:
    """Return a node as it is read from JSON."""
    made = builders.node(name, mem=mem, count=count, annotations=annotations, labels=labels)
    made["metadata"]["uid"] = f"uid-{name}"
    reader = NodeReader((MEM, COUNT), {NODE_GPUS, PLACEMENT_LABEL}.__contains__)
    return reader.read(json.dumps(made).encode())


def pod(name: str, mem: int, node_name: str = "", *, running: bool = False) -> Pod:
    containers = (Container("main", ContainerKind.APP, 0, {MEM: mem}),)
    return Pod(f"uid-{name}", "default", name, node_name=node_name, running=running, containers=containers)


class Arrivals(SchedulerFeature):
    """A learner that writes down which pods came."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def bound(self, pod: Pod | OtherPod) -> None:
        self.names.append(pod.uid if isinstance(pod, OtherPod) else pod.name)


def frees(fleet: Fleet, name: str) -> tuple[int, ...]:
    return tuple(room.free for room in fleet.candidates[name].rooms)


def test_a_node_is_what_its_agent_says_or_what_its_capacity_divides_into() -> None:
    """16 on 2 GPUs are 8 each; the agent of b says 5 and 3."""
    made = fleet()
    said = json.dumps(
        {"version": 1, "shareMiB": 256, "gpus": [{"index": 0, "shares": 5}, {"index": 1, "shares": 3}], "links": []}
    )
    store = followed(made).nodes
    store.replace([node("a", 16, 2), node("b", 16, 2, {NODE_GPUS: said}, {PLACEMENT_LABEL: "spread"}), node("cpu")])
    assert (frees(made, "a"), frees(made, "b"), frees(made, "cpu")) == ((8, 8), (5, 3), ())
    assert (made.candidates["b"].gpus.policy, made.candidates["b"].gpus.share_mib) == ("spread", 256)
    store.put(node("cpu", 4, 1))
    assert frees(made, "cpu") == (4,)
    store.remove(node("b"))
    assert made.candidates.keys() == {"a", "cpu"}
    store.replace([node("a", 16, 2)])
    assert made.candidates.keys() == {"a"}


def test_a_node_with_half_of_the_two_numbers_shares_nothing() -> None:
    made = fleet()
    followed(made).nodes.replace([node("mem", 16), node("count", None, 2)])
    assert (frees(made, "mem"), frees(made, "count")) == ((), ())


def test_pods_come_change_and_go_at_the_time_of_the_clock() -> None:
    """At 100 a pod vanishes while it runs: it counts until 130."""
    made = fleet()
    now = 100.0
    followed(made).nodes.put(node("a", 8, 1))
    store = followed(made, clock=lambda: now).pods
    store.replace([pod("p", 3, "a"), pod("waits", 1)])
    assert (frees(made, "a"), len(made.pending)) == ((5,), 1)
    store.put(pod("waits", 1, "a", running=True))
    assert (frees(made, "a"), len(made.pending)) == ((4,), 0)
    store.remove(pod("waits", 1, "a", running=True))
    made.expire(129.9)
    assert frees(made, "a") == (4,)
    made.expire(130.0)
    assert frees(made, "a") == (5,)
    now = 200.0
    store.replace([])
    made.expire(229.9)
    assert frees(made, "a") == (5,)
    made.expire(230.0)
    assert frees(made, "a") == (8,)


def other(name: str, node_name: str, *, ended: bool = False, bound: bool = False, created: str = "") -> OtherPod:
    return OtherPod(name, "1", node_name, Amounts(500, 64), ended, bound, created)


def test_every_pod_that_takes_room_for_gpus_is_counted_once_when_it_is_bound() -> None:
    """And those of a list in the order of their creation. A pod that waits costs its owner nothing."""
    made, arrivals = fleet(), Arrivals()
    followed(made).nodes.replace([node("a", 16, 2), node("cpu")])
    store = followed(made, arrivals).pods
    first, waits = pod("first", 3, "a"), pod("waits", 1)
    store.replace(
        [
            replace(waits, created="2026-11-20T12:00:03Z"),
            replace(first, created="2026-11-20T12:00:01Z"),
            other("without", "a", created="2026-11-20T12:00:02Z"),
            other("elsewhere", "cpu"),
            other("waiting", ""),
            other("of every node", "a", bound=True),
            other("over", "a", ended=True),
        ]
    )
    assert arrivals.names == ["first", "without"]
    store.put(pod("waits", 1))
    store.put(pod("waits", 1, "a"))
    store.put(other("without", "a"))
    store.put(pod("waits in vain", 41))
    made.put_pod(pod("new", 2))
    made.claim(pod("new", 2, "a"))
    made.confirm("uid-new")
    store.put(pod("new", 2, "a"))
    store.put(replace(pod("ended", 2, "a"), phase="Succeeded"))
    store.put(replace(pod("going", 2, "a"), deleting=True))
    store.replace([pod("waits", 1, "a"), other("without", "a"), pod("new", 2, "a")])
    assert arrivals.names == ["first", "without", "waits", "new"]
    store.remove(other("without", "a"))
    store.put(replace(pod("waits", 1, "a"), phase="Failed"))
    store.put(replace(pod("waits", 1, "a"), phase="Failed", labels={"a": "b"}))
    assert arrivals.names == ["first", "without", "waits", "new"]


def test_pods_without_gpus_leave_less_cpu_to_the_others() -> None:
    """A node of the double has 16 CPUs and 64 GiB."""
    made = fleet()
    followed(made).nodes.put(node("a", 16, 2))
    store = followed(made).pods
    store.put(other("p", "a"))
    assert made.candidates["a"].left == Amounts(15_500, 65_472)
    store.remove(other("p", "a"))
    assert made.candidates["a"].left == Amounts(16_000, 65_536)


def test_pods_that_teach_nothing_do_not_push_others_out_of_the_count() -> None:
    """Two pods with GPUs are older than 10,000 pods on a node without GPUs."""
    made, arrivals = fleet(), Arrivals()
    followed(made).nodes.replace([node("a", 16, 2), node("cpu")])
    old = [replace(pod(name, 1, "a"), created="2026-11-20T12:00:00Z") for name in ("p", "q")]
    others = [other(f"o{number}", "cpu", created="2026-11-21T12:00:00Z") for number in range(10_000)]
    followed(made, arrivals).pods.replace([*others, *old])
    assert arrivals.names == ["p", "q"]


def test_the_use_of_a_node_is_known_to_the_features_that_read_it_and_goes_with_the_node() -> None:
    parts = context(fleet())
    elastic, idle = Resizes(parts), IdleActions(parts)
    parts.features.add(elastic)
    parts.features.add(idle)
    follower = ClusterFollower(parts)

    def told(use: str | None) -> NodeRecord:
        made = builders.node("a", mem=8, count=1, annotations={} if use is None else {NODE_USE: use})
        made["metadata"]["uid"] = "uid-a"
        return follower.read_node(msgspec.Raw(json.dumps(made).encode()))

    def known() -> tuple[Mapping[str, Mapping[int, int]], Mapping[str, float]]:
        read = {name: used_mib(use)[1] for name, use in idle._use.items()}
        return (
            {name: used_mib(use)[0] for name, use in elastic._use.items()},
            {name: at for name, at in read.items() if at is not None},
        )

    at = "2026-01-01T00:00:00Z"
    text = json.dumps({"version": 1, "at": at, "gpus": [{"index": 0, "used": 700}], "containers": [{"pod": "p" * 999}]})
    record = told(text)
    assert len(record.annotations[NODE_USE]) < 100
    assert known() == ({}, {}), "to read a node changes nothing"
    follower.put_node(record)
    assert known() == ({"a": {0: 700}}, {"a": epoch_s(at)})
    follower.put_node(told("junk"))
    assert known() == ({"a": {}}, {})
    follower.put_node(record)
    follower.nodes.replace([node("b", 8, 1)])
    assert known() == ({}, {})
    follower.put_node(record)
    follower.remove_node(record)
    assert known() == ({}, {})
    follower.put_node(record)
    follower.put_node(told(None))
    assert known() == ({}, {})


class Seen(SchedulerFeature):
    """Keeps what it is told."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, str] = {}

    def put_pod(self, pod: Pod) -> None:
        assert pod.uid in {*self.fleet.entries, *self.fleet.pending}, "the fleet knows it already"
        self.pods[pod.uid] = pod

    def remove_pod(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def kept_pods(self, pods: Mapping[str, Pod]) -> None:
        self.pods = dict(pods)

    def put_node(self, node: NodeRecord) -> None:
        assert node.name in self.fleet.candidates
        self.nodes[node.name] = node.uid

    def remove_node(self, name: str) -> None:
        assert name not in self.fleet.candidates
        del self.nodes[name]


def test_features_know_the_pods_with_gpus_and_the_nodes_after_the_fleet() -> None:
    made = fleet()
    seen = Seen(made)
    follower = followed(made, seen)
    follower.nodes.replace([node("a", 8, 1), node("b", 8, 1)])
    follower.pods.replace([pod("p", 3, "a"), other("without", "a")])
    follower.pods.put(pod("q", 3))
    follower.pods.put(other("more", "a"))
    assert (set(seen.pods), seen.nodes) == ({"uid-p", "uid-q"}, {"a": "uid-a", "b": "uid-b"})
    follower.pods.remove(pod("q", 3))
    follower.pods.remove(other("more", "a"))
    follower.nodes.remove(node("b"))
    assert (set(seen.pods), seen.nodes) == ({"uid-p"}, {"a": "uid-a"})
    follower.pods.replace([pod("r", 1)])
    follower.nodes.replace([replace(node("a", 8, 1), uid="of another of this name"), node("c", 8, 1)])
    assert (set(seen.pods), seen.nodes) == ({"uid-r"}, {"a": "of another of this name", "c": "uid-c"})
