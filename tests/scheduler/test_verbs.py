"""What kube-scheduler is answered about a cluster of a few nodes, byte for byte or in the words a person reads."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_device_plugin.features.preemption.scheduler import Preemption
from gpu_device_plugin.features.sample_misses.scheduler import Nominator, SampleMisses
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.metrics import VERDICTS, Count, Metrics
from gpu_device_plugin.model.contract.keys import ALLOCATION, IDX, NODE_GPUS, POD
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.scheduler.verbs import Verbs
from tests.builders import GPU_COUNT, GPU_MEM, Json, container, pod
from tests.resources import RESOURCES
from tests.scheduler.contexts import BINPACK, context

READER = PodReader([GPU_MEM, GPU_COUNT], lambda _key: True, sums=True)
SECRET = "hunter2-in-an-environment-variable"  # noqa: S105 - what must never be seen again


@pytest.fixture(autouse=True)
def _nothing_secret_in_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert SECRET not in caplog.text
    assert all(SECRET not in repr(record.__dict__) for record in caplog.records)


class Counted(Metrics):
    """Keeps what was counted."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}

    def count(self, what: Count, *labels: str, times: int = 1) -> None:
        key = (what.name, *labels)
        self.counts[key] = self.counts.get(key, 0) + times


@dataclass
class World:
    """A fleet, and the scheduler's questions about it."""

    fleet: Fleet = field(default_factory=lambda: Fleet(RESOURCES, vanished_grace_s=30))
    metrics: Counted = field(default_factory=Counted)
    node_policy: str = "binpack"
    gpu_policy: str = "binpack"
    why_not_ready: str = ""
    client: Any = None
    """Gets the nominations if somebody runs the nominator."""

    def __post_init__(self) -> None:
        parts = context(
            self.fleet,
            client=self.client,
            metrics=self.metrics,
            settings=lambda: replace(BINPACK, node_policy=self.node_policy, gpu_policy=self.gpu_policy),
        )
        waiting = cast("Fleet", SimpleNamespace(pending={"u-new"}))
        self.missed = SampleMisses(parts)
        self.nominator = self.missed.nominator = Nominator(replace(parts, fleet=waiting))
        parts.features.add(Preemption(parts))
        parts.features.add(self.missed)
        self.verbs = Verbs(parts, lambda: self.why_not_ready)

    def node(self, name: str, *shares: int, labels: Mapping[str, str] | None = None, **more: Any) -> World:
        """Add a node whose agent says that its GPUs have so many shares of 1 GiB."""
        annotations = {NODE_GPUS: node_gpus(*shares, **more)}
        self.fleet.put_node(name, gpus_of_node(annotations, labels or {}, sum(shares), len(shares)))
        return self

    def gpushare_node(self, name: str, memory: int, count: int) -> World:
        """Add a node of gpushare's own device plugin."""
        self.fleet.put_node(name, gpus_of_node({}, {}, memory, count))
        return self

    def runs(self, *pods: Json) -> World:
        """Have pods, which are bound."""
        for each in pods:
            self.fleet.put_pod(read(each))
        return self

    def filter(self, wanted: Json, *names: str) -> Json:
        """Ask for nodes, and return what is said of them."""
        found: Json = self._asked(self.verbs.filter, {"Pod": wanted, "Nodes": None, "NodeNames": list(names)})
        return found

    def scores(self, wanted: Json, *names: str) -> dict[str, int]:
        """Ask how well nodes suit."""
        body = {"Pod": wanted, "Nodes": None, "NodeNames": list(names)}
        return {each["Host"]: each["Score"] for each in self._asked(self.verbs.prioritize, body)}

    def preempt(self, wanted: Json, **victims: Sequence[str]) -> dict[str, list[str]]:
        """Ask whom to evict, node by node."""
        nodes = {
            name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for name, uids in victims.items()
        }
        answer = self._asked(
            self.verbs.preempt, {"Pod": wanted, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes}
        )
        return {name: [each["UID"] for each in to["Pods"]] for name, to in answer["NodeNameToMetaVictims"].items()}

    def inspect(self, name: str = "") -> Json:
        """Look at a node, or at all."""
        page = self.verbs.inspect(name)
        assert page.content_type == "application/json"
        found: Json = json.loads(page.body)
        return found

    def devs(self, name: str) -> list[tuple[int, int, list[str]]]:
        """Return for each GPU of a node its number, the shares in use and the pods."""
        (node,) = self.inspect(name)["nodes"]
        return [(dev["id"], dev["usedGPU"], [each["name"] for each in dev["pods"]]) for dev in node["devs"]]

    def _asked(self, verb: Callable[[bytes], bytes], body: Any) -> Any:
        answer = verb(json.dumps(body).encode()).decode()
        assert SECRET not in answer
        return json.loads(answer)


def node_gpus(
    *shares: int,
    unhealthy: Mapping[int, str] | None = None,
    model: str = "Tesla T4",
    share_mib: int = 1024,
    **more: Any,
) -> str:
    """Write the annotation of an agent."""
    bad = unhealthy or {}
    gpus = [
        {"uuid": f"GPU-{n}", "index": n, "model": model, "memoryMiB": size * share_mib, "shares": size}
        | ({"healthy": False, "reason": bad[n]} if n in bad else {"healthy": True})
        for n, size in enumerate(shares)
    ]
    return json.dumps({"version": 1, "shareMiB": share_mib, "gpus": gpus} | more)


def secretive(each: Json) -> Json:
    """Return a pod with a secret in the environment of each container."""
    spec = dict(each["spec"])
    for key in ("containers", "initContainers"):
        if key in spec:
            spec[key] = [{**one, "env": [{"name": "PASSWORD", "value": SECRET}]} for one in spec[key]]
    return {**each, "spec": spec}


def wanting(*shares: int, priority: int = 0, **more: Any) -> Json:
    """A pod with a container for each of these amounts of shares."""
    made = pod("new", *(container(f"c{n}", mem=amount) for n, amount in enumerate(shares)), uid="u-new", **more)
    made["spec"]["priority"] = priority
    return secretive(made)


def wanting_whole(gpus: int, **more: Any) -> Json:
    return secretive(pod("new", container(count=gpus), uid="u-new", **more))


def running(name: str, on: str, at: int, shares: int, *, uid: str = "", priority: int = 0, **more: Any) -> Json:
    """A pod with so many shares of GPU `at` of node `on`."""
    notes = {IDX: str(at), POD: str(shares), ALLOCATION: json.dumps({"0": {str(at): shares}})}
    made = pod(name, container(mem=shares), uid=uid or f"u-{name}", node=on, phase="Running", annotations=notes, **more)
    made["spec"]["priority"] = priority
    return made


def running_whole(name: str, on: str, *at: int, shares: int = 8) -> Json:
    notes = {ALLOCATION: json.dumps({"0": {str(position): shares for position in at}})}
    return pod(name, container(count=len(at)), uid=f"u-{name}", node=on, phase="Running", annotations=notes)


def read(each: Json) -> Pod:
    found, _ = READER.read(json.dumps(each).encode())
    return found


def two_nodes() -> World:
    """Node a has 5 GiB free on each of two GPUs of 8, node b has 8 on one of them."""
    world = World().node("a", 8, 8).node("b", 8, 8)
    return world.runs(running("a0", "a", 0, 3), running("a1", "a", 1, 3), running("b0", "b", 0, 8))


# --- filter ----------------------------------------------------------------------------------------------------------


def test_the_answer_byte_for_byte() -> None:
    body = json.dumps({"Pod": wanting(9), "Nodes": None, "NodeNames": ["a", "b", "zz"]})
    assert two_nodes().verbs.filter(body.encode()) == (
        b'{"Nodes":null,"NodeNames":[],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{"a":"the largest GPU has only 8 GiB","b":"the largest GPU has only 8 GiB",'
        b'"zz":"this node is not known to the GPU scheduler yet"},"Error":""}'
    )


def test_only_the_nominated_node_can_be_made_to_fit() -> None:
    """kube-scheduler evicts nobody from a node that its own plugins pass, and should wait where it has evicted."""
    wanted = wanting(8)
    wanted["status"] = {"nominatedNodeName": "b"}
    answer = two_nodes().runs(running("b1", "b", 1, 8)).filter(wanted, "a", "b")
    assert answer["FailedNodes"] == {"b": "no GPU has 8 GiB free"}
    assert answer["FailedAndUnresolvableNodes"] == {"a": "no GPU has 8 GiB free"}


def test_a_pod_that_asks_for_nothing_goes_anywhere() -> None:
    """A quantity of 0 makes the scheduler ask."""
    assert two_nodes().filter(wanting(0), "a", "zz")["NodeNames"] == ["a", "zz"]
    assert two_nodes().scores(wanting(0), "a", "zz") == {"a": 0, "zz": 0}


def test_a_limit_that_is_no_whole_number_is_an_error() -> None:
    odd = secretive(pod("new", container("web", limits={GPU_MEM: "1500m"}), uid="u-new"))
    assert (
        two_nodes().filter(odd, "a")["Error"]
        == "container 'web': the limit of aliyun.com/gpu-mem is not a whole number"
    )
    assert two_nodes().scores(odd, "a") == {"a": 0}
    assert two_nodes().preempt(odd, a=["u-a0"]) == {}


def test_nothing_is_said_before_the_cluster_is_known() -> None:
    world = two_nodes()
    world.why_not_ready = "pods are still being listed"
    assert world.filter(wanting(1), "a") == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": "pods are still being listed",
    }
    assert world.scores(wanting(1), "a", "b") == {"a": 0, "b": 0}
    assert world.preempt(wanting(8, priority=1), a=["u-a0"]) == {}


def test_a_pod_without_uid_is_judged() -> None:
    """A person tries the extender with curl. Nothing is reserved, so that nothing depends on the uid."""
    nameless = wanting(8)
    nameless["metadata"] = {"namespace": "default"}
    world = two_nodes()
    assert world.filter(nameless, "a", "b")["NodeNames"] == ["b"]
    assert world.fleet.entries.keys() == {"u-a0", "u-a1", "u-b0"}


def test_verdicts_are_counted() -> None:
    """Why nodes do not suit is told, and counted, of a pod that fits on none of them."""
    world = two_nodes().node("c", 4)
    world.filter(wanting(8), "a", "b", "c", "zz", "zz2")
    world.filter(wanting(8), "a", "c", "zz", "zz2")
    name = VERDICTS.name
    assert world.metrics.counts == {
        (name, "fits"): 1,
        (name, "full"): 1,
        (name, "unresolvable"): 1,
        (name, "unknown"): 2,
    }


# --- The best nodes ---------------------------------------------------------------------------------------------------


def passed(world: World, wanted: Json, *names: str) -> list[str]:
    """Return the nodes that pass, of which the answer says nothing else."""
    answer = world.filter(wanted, *names)
    assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"], answer["Error"]) == ({}, {}, "")
    found: list[str] = answer["NodeNames"]
    return found


def test_only_the_best_nodes_pass_and_no_reasons_are_given() -> None:
    """Binpack: on node a the pod leaves the unused GPU of b alone. On c it does not fit."""
    assert passed(two_nodes().node("c", 1), wanting(2), "c", "b", "zz", "a") == ["a"]


def test_of_equally_good_nodes_kube_scheduler_chooses_among_sixteen() -> None:
    world, names = World(), [f"n{number}" for number in range(40)]
    for name in names:
        world.node(name, 8)
    assert passed(world, wanting(2), *names) == names[14:30]


def test_a_pod_that_comes_again_may_go_to_all_nodes_but_those_that_were_best() -> None:
    """Its binding has failed, or a plugin or an extender that kube-scheduler asks later."""
    world = two_nodes().node("c", 8, 8, 8)
    offered = [passed(world, wanting(2), "a", "b", "c") for _ in range(5)]
    assert offered == [["a"], ["b", "c"], ["c"], ["a", "b", "c"], ["b", "c"]]
    assert passed(world, wanting(2), "b") == ["b"]
    other = wanting(2)
    other["metadata"]["uid"] = "u-other"
    assert passed(world, other, "a", "b") == ["a"]


def test_a_node_on_which_the_binding_failed_is_not_offered_first() -> None:
    """kube-scheduler chose node c, which was not among the best."""
    world = two_nodes().node("c", 8, 8, 8)
    assert passed(world, wanting(2), "a", "b", "c") == ["a"]
    assert passed(world, wanting(2), "a", "b", "c") == ["b", "c"]
    world.verbs.not_bound("u-new", "c")
    world.verbs.not_bound("u-nobody", "c")
    assert passed(world, wanting(2), "a", "b", "c") == ["a", "b", "c"]


def test_no_more_is_remembered_than_of_a_thousand_pods() -> None:
    world = two_nodes()
    for number in range(1001):
        wanted = wanting(2)
        wanted["metadata"]["uid"] = f"u-{number}"
        assert passed(world, wanted, "a", "b") == ["a"]
    assert passed(world, wanted, "a", "b") == ["b"]
    wanted["metadata"]["uid"] = "u-0"
    assert passed(world, wanted, "a", "b") == ["a"]


TERM = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"]}]}}
NEAR = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {PREFERRED: [TERM]}}},
        {"affinity": {"podAffinity": {PREFERRED: [NEAR]}}},
        {"affinity": {"podAntiAffinity": {PREFERRED: [NEAR]}}},
        {"topologySpreadConstraints": [SPREAD | {"whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
    ids=["nodes", "pods", "not pods", "spreading"],
)
def test_a_pod_with_preferences_may_go_to_all_nodes_with_room(spec: Json) -> None:
    """kube-scheduler weighs its preferences against the scores of these nodes."""
    wanted = wanting(2)
    wanted["spec"] |= spec
    world = two_nodes().node("c", 1)
    assert [passed(world, wanted, "a", "b", "c") for _ in range(2)] == [["a", "b"]] * 2
    assert world.scores(wanted, "a", "b") == {"a": 7, "b": 4}


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
        {"topologySpreadConstraints": [SPREAD | {"whenUnsatisfiable": "DoNotSchedule"}]},
    ],
    ids=["affinity", "spreading"],
)
def test_what_a_pod_requires_kube_scheduler_has_checked_already(spec: Json) -> None:
    wanted = wanting(2)
    wanted["spec"] |= spec
    assert passed(two_nodes(), wanted, "a", "b") == ["a"]


def test_beside_nodes_that_prefer_to_have_no_pods_all_with_room_pass() -> None:
    """By a taint with the effect PreferNoSchedule."""
    world = two_nodes()
    there = world.fleet.candidates["a"].gpus
    world.fleet.put_node("a", there, averse=True)
    assert passed(world, wanting(2), "a", "b") == ["a", "b"]
    assert passed(world, wanting(2), "b") == ["b"]
    world.fleet.put_node("a", there)
    assert passed(world, wanting(2), "a", "b") == ["a"]


def test_a_search_that_takes_long_goes_on_with_the_next_request_and_refuses_nobody() -> None:
    """On the first nodes there is no room, which takes long to find; on the last there is, which takes a search too."""
    world = (
        World().node("a", 11, 12, 13, 19, 20, 26).node("b", 11, 11, 13, 19, 20, 26).node("c", 12, 12, 13, 18, 19, 26)
    )
    world.node("room", 14, 14, 14, 15, 19, 19)
    wanted = wanting(7, 9, 7, 5, 10, 7, 10, 7, 7, 7, 9, 10)
    names, answers = ["a", "b", "c", "room"], list[Json]()
    while not answers or answers[-1]["Error"]:
        answers.append(world.filter(wanted, *names))
        assert len(answers) < 10
    assert len(answers) > 1
    assert {answer["Error"] for answer in answers[:-1]} == {
        "the search for GPUs for all containers of the pod together is not finished yet"
    }
    assert answers[-1]["NodeNames"] == ["room"]


def test_of_many_equally_good_nodes_each_pod_gets_others_to_choose_from() -> None:
    """kube-scheduler names the nodes of a cluster with fewer than a hundred in the same order for each pod."""
    names, world = [f"n{number}" for number in range(60)], World(node_policy="spread")
    for name in names:
        world.node(name, 8, 8)
    offered = Counter[str]()
    for number in range(60):
        wanted = wanting(1)
        wanted["metadata"]["uid"] = f"u-{number}"
        best = passed(world, wanted, *names)
        assert len(best) == 16
        offered.update(best)
    assert offered.keys() == set(names)


# --- prioritize ------------------------------------------------------------------------------------------------------


def test_scores_byte_for_byte_in_the_order_of_the_request() -> None:
    """Binpack. Node b would be 9/16 full and open an unused GPU: 6 * 9/16 = 3. Node a 7/16 and no GPU: 6 * 7/16 + 4."""
    body = json.dumps({"Pod": wanting(1), "Nodes": None, "NodeNames": ["b", "zz", "a"]})
    assert two_nodes().verbs.prioritize(body.encode()) == (
        b'[{"Host":"b","Score":3},{"Host":"zz","Score":0},{"Host":"a","Score":7}]'
    )


# --- preempt ---------------------------------------------------------------------------------------------------------


def test_a_pod_that_is_being_deleted_is_no_victim() -> None:
    """Its GPU will be free without that, and so will that of one that vanished."""
    going, gone = running("a0", "a", 0, 4), running("a2", "a", 0, 4)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world = World().node("a", 8, 2).runs(going, gone, running("a1", "a", 1, 1))
    world.fleet.remove_pod(read(gone), now=0.0)
    assert world.preempt(wanting(8, priority=10), a=["u-a1"]) == {"a": ["u-a1"]}


def test_victims_are_named_by_their_importance() -> None:
    """kube-scheduler takes the first for the most important one when it chooses among nodes; c is no pod with GPUs."""
    world = World().node("a", 8, 8).runs(*(running(f"p{n}", "a", 0, 2, priority=n) for n in range(4)))
    world.runs(running("z", "a", 1, 1, priority=2), running("y", "a", 1, 1))
    two = wanting_whole(2)
    assert world.preempt(two | {"spec": two["spec"] | {"priority": 9}}, a=["u-z", "u-c", "u-y"]) == {
        "a": ["u-p3", "u-z", "u-c", "u-p2", "u-p1", "u-y", "u-p0"]
    }


def cpu(wanted: Json, amount: str, **spec: Any) -> Json:
    """Let the containers of a pod request CPU, too."""
    for each in wanted["spec"]["containers"]:
        each["resources"]["requests"] = {**each["resources"]["limits"], "cpu": amount}
    return {**wanted, "spec": {**wanted["spec"], **spec}}


TIED: dict[str, Json] = {
    "a port of the node": {"containers": [{**container(mem=14), "ports": [{"hostPort": 80}]}]},
    "other pods": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
    "where others are": {"topologySpreadConstraints": [{"maxSkew": 1}]},
    "a claimed device": {"resourceClaims": [{"name": "nic"}]},
    "a claimed volume": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
}


@pytest.mark.parametrize("spec", TIED.values(), ids=TIED)
def test_a_victim_stays_one_where_more_than_sums_may_be_what_it_is_for(spec: Json) -> None:
    """What kube-scheduler found is that b makes room, and not why."""
    world = World().node("a", 14, 14).runs(*(running(f"p{n}", "a", n // 2, 7) for n in range(4)))
    wanted = wanting(14, priority=10)
    assert world.preempt(wanted, a=["u-p1", "u-p3"]) == {"a": ["u-p1", "u-p0"]}
    found = world.preempt({**wanted, "spec": {**wanted["spec"], **spec}}, a=["u-p1", "u-p3"])
    assert found == {"a": ["u-p1", "u-p3", "u-p0"]}


def test_a_victim_stays_one_where_the_cpu_that_it_has_is_wanted() -> None:
    """The pod asks 4 CPUs. p1 and p3 have 2 each, p0 only 1: with p0 in place of p3 it would lack one, with p2 not."""
    world = World().node("a", 14, 14)
    for n, cpus in enumerate(("1", "2", "2", "2000m")):
        world.runs(cpu(running(f"p{n}", "a", n // 2, 7), cpus))
    assert world.preempt(cpu(wanting(14, priority=10), "4"), a=["u-p1", "u-p3"]) == {"a": ["u-p3", "u-p2"]}
    assert world.preempt(cpu(wanting(14, priority=10), "3"), a=["u-p1", "u-p3"]) == {"a": ["u-p1", "u-p0"]}


def test_no_more_violations_of_budgets_are_told_than_kube_schedulers_victims_are_left() -> None:
    """It chose two against a budget, and does not say which; one of them stays."""
    world = World().node("a", 14, 14).runs(*(running(f"p{n}", "a", n // 2, 7) for n in range(4)))
    victims = {"a": {"Pods": [{"UID": "u-p1"}, {"UID": "u-p3"}], "NumPDBViolations": 2}}
    body = {"Pod": wanting(14, priority=10), "NodeNameToMetaVictims": victims}
    assert world.verbs.preempt(json.dumps(body).encode()) == (
        b'{"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"u-p1"},{"UID":"u-p0"}],"NumPDBViolations":1}}}'
    )


def test_for_a_pod_that_asks_for_nothing_the_schedulers_choice_stands() -> None:
    assert two_nodes().preempt(wanting(0, priority=10), a=["u-a0"], zz=["u-zz"]) == {"a": ["u-a0"], "zz": ["u-zz"]}


# --- inspect ---------------------------------------------------------------------------------------------------------


def test_the_cluster_in_gpushares_form_with_more_after_it() -> None:
    world = World().node("node-a", 15, 15, unhealthy={1: "XID 79"}, driver="570.1", policy="spread")
    world.runs(running("binpack-1", "node-a", 0, 3), running("big", "node-a", 1, 9, namespace="team-x"))
    assert world.verbs.inspect().body == (
        b'{"nodes":[{"name":"node-a","totalGPU":30,"usedGPU":12,"devs":['
        b'{"id":0,"totalGPU":15,"usedGPU":3,"pods":[{"name":"binpack-1","namespace":"default","usedGPU":3,'
        b'"wholeGPUs":0,"state":"bound","uid":"u-binpack-1"}],"uuid":"GPU-0","model":"Tesla T4","memoryMiB":15360,'
        b'"healthy":true,"reason":"","whole":false},'
        b'{"id":1,"totalGPU":15,"usedGPU":9,"pods":[{"name":"big","namespace":"team-x","usedGPU":9,'
        b'"wholeGPUs":0,"state":"bound","uid":"u-big"}],"uuid":"GPU-1","model":"Tesla T4","memoryMiB":15360,'
        b'"healthy":false,"reason":"XID 79","whole":false}],'
        b'"shareMiB":1024,"policy":"spread","driver":"570.1","problem":"","unplaced":[]}]}'
    )


def test_nodes_and_pods_are_sorted() -> None:
    world = World().node("b", 8).node("a", 8).node("c", 8)
    world.runs(running("z", "a", 0, 1), running("y", "a", 0, 1), running("x", "a", 0, 1, namespace="other"))
    assert [node["name"] for node in world.inspect()["nodes"]] == ["a", "b", "c"]
    assert world.devs("a") == [(0, 3, ["y", "z", "x"])]


def test_whole_gpus_are_in_use_in_full() -> None:
    world = World().node("a", 8, 8).runs(running_whole("w", "a", 0))
    (node,) = world.inspect("a")["nodes"]
    assert [(dev["usedGPU"], dev["whole"]) for dev in node["devs"]] == [(8, True), (0, False)]
    assert node["devs"][0]["pods"][0]["wholeGPUs"] == 1


def test_whole_gpus_of_which_nobody_knows_which_are_unplaced() -> None:
    """w was bound by someone else; v has GPU 1, which the node does not list any more."""
    world = World().node("a", 8).runs(pod("w", container(count=1), uid="u-w", node="a", phase="Running"))
    world.runs(running_whole("v", "a", 1))
    (node,) = world.inspect("a")["nodes"]
    assert [(each["name"], each["usedGPU"], each["wholeGPUs"]) for each in node["unplaced"]] == [
        ("v", 0, 1),
        ("w", 0, 1),
    ]
    assert world.filter(wanting(1), "a")["FailedAndUnresolvableNodes"] == {"a": "all GPUs are exclusively allocated"}


def test_where_a_pod_stands() -> None:
    """bound, binding, deleting or vanished."""
    world = World().node("a", 8)
    going = running("deleting", "a", 0, 1)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    gone = running("vanished", "a", 0, 1)
    world.runs(running("bound", "a", 0, 1), going, gone)
    world.fleet.claim(read(running("binding", "a", 0, 1)))
    world.fleet.remove_pod(read(gone), now=0.0)
    (dev,) = world.inspect("a")["nodes"][0]["devs"]
    assert [(each["name"], each["state"]) for each in dev["pods"]] == [
        (state, state) for state in ("binding", "bound", "deleting", "vanished")
    ]


def test_nodes_without_gpus_are_shown_when_asked_for() -> None:
    world = World().gpushare_node("plain", 0, 0)
    assert world.inspect()["nodes"] == []
    assert world.inspect("plain")["nodes"][0]["devs"] == []


def test_a_node_with_fewer_gpus_than_before_can_be_looked_at() -> None:
    """gpushare reads past the end of its list. What lay on the GPU that is gone may lie on any other now."""
    world = World().node("a", 8, 8).runs(running("p", "a", 1, 3)).node("a", 8)
    (node,) = world.inspect("a")["nodes"]
    assert [dev["usedGPU"] for dev in node["devs"]] == [0]
    assert [(each["name"], each["usedGPU"]) for each in node["unplaced"]] == [("p", 3)]
    assert world.filter(wanting(6), "a")["FailedAndUnresolvableNodes"] == {"a": "no GPU has 6 GiB free"}


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"5",
        b"{",
        b'{"Pod":' + b"[" * 100_000,
        b"\x00\xff",
        json.dumps({"Pod": None, "NodeNames": ["a"]}).encode(),
        json.dumps({"Pod": wanting(1)}).encode(),
        json.dumps({"Pod": wanting(1), "NodeNames": "a"}).encode(),
        json.dumps({"Pod": wanting(1), "NodeNames": [None]}).encode(),
        json.dumps({"Pod": [SECRET], "NodeNames": ["a"]}).encode(),
        json.dumps({"Pod": SECRET, "NodeNames": ["a"]}).encode(),
        json.dumps({"Pod": {"metadata": SECRET}, "NodeNames": ["a"]}).encode(),
        json.dumps({"Pod": {**wanting(1), "spec": {"containers": SECRET}}, "NodeNames": ["a"]}).encode(),
        json.dumps(
            {"Pod": {**wanting(1), "spec": {"containers": [{"resources": {"limits": SECRET}}]}}, "NodeNames": ["a"]}
        ).encode(),
        json.dumps({"Pod": wanting(-1), "NodeNames": ["a"]}).encode(),
        json.dumps({"Pod": secretive(pod("p", container(limits={GPU_MEM: SECRET}))), "NodeNames": ["a"]}).encode(),
        json.dumps({"Pod": secretive(pod("p", container(limits={GPU_MEM: "1e99"}))), "NodeNames": ["a"]}).encode(),
        json.dumps({"Pod": wanting(1), "NodeNames": ["a"]}).encode()[:-20],
    ],
)
def test_what_cannot_be_answered_is_an_error_in_words(body: bytes) -> None:
    """Of filter; the others give their safe answer: nobody suits, and nobody is evicted."""
    world = two_nodes()
    before = dict(world.fleet.entries)
    answer = json.loads(world.verbs.filter(body))
    assert answer["Error"]
    assert answer["NodeNames"] is None
    assert SECRET not in str(answer)
    assert "Traceback" not in str(answer)
    assert all(each["Score"] == 0 for each in json.loads(world.verbs.prioritize(body)))
    assert json.loads(world.verbs.preempt(body)) == {"NodeNameToMetaVictims": {}}
    assert world.fleet.entries == before


def test_names_that_are_strange_are_nodes_that_nobody_knows() -> None:
    strange = ["", "a/../b", "\u2028", "x" * 10_000, "a", "a"]
    answer = two_nodes().filter(wanting(1), *strange)
    assert answer["NodeNames"] == ["a", "a"]
    answer = two_nodes().filter(wanting(9), *strange)
    assert {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.keys() == set(strange)


def test_a_message_in_the_log_says_what_was_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    two_nodes().verbs.preempt(b"{}")
    (record,) = caplog.records
    assert record.getMessage() == "a scheduler request could not be answered"
    assert record.__dict__["why"] == "the request has no Pod"
    assert record.__dict__["verb"] == "preempt"


# --- Nodes that serve claims ------------------------------------------------------------------------------------------


def both_kinds() -> World:
    """Node a serves limits, and b claims; both have two GPUs."""
    return World().node("a", 8, 8).node("b", 8, 8, claims=True)


def test_whole_gpus_may_come_from_nodes_of_both_kinds() -> None:
    """Those of b are not counted here: kube-scheduler has seen that enough are free."""
    world = both_kinds()
    assert [world.filter(wanting_whole(2), name)["NodeNames"] for name in "ab"] == [["a"], ["b"]]
    world.runs(running_whole("a0", "a", 0), running_whole("b0", "b", 0), running_whole("b1", "b", 1))
    assert world.filter(wanting_whole(2), "a")["FailedAndUnresolvableNodes"] == {"a": "fewer than 2 unused GPUs"}
    assert world.filter(wanting_whole(2), "a", "b")["NodeNames"] == ["b"]
    assert world.scores(wanting_whole(1), "a", "b")["b"] == 5
    assert world.metrics.counts == {(VERDICTS.name, "fits"): 3, (VERDICTS.name, "full"): 1}


# --- MIG


def instance(position: int, size: int, parent: str, **more: Any) -> Json:
    """Return a MIG instance as an agent lists it."""
    place = {"parent": parent, "gpu": 1, "number": position, "profile": "1g.10gb", "gi": position + 7}
    return {
        "uuid": f"MIG-{position}",
        "index": position,
        "model": "H100 MIG 1g.10gb",
        "shares": size,
        "mig": place | more,
    }


GPU = {"uuid": "GPU-0", "index": 0, "model": "H100", "shares": 80}


def nodes_with_mig() -> World:
    """Node a has a GPU and two instances, node b three instances, node c gives its instances whole."""
    whole = {"resource": "aliyun.com/mig-1g.10gb"}
    return (
        World()
        .node("a", gpus=[GPU, instance(1, 9, "GPU-1"), instance(2, 9, "GPU-1")])
        .node("b", gpus=[instance(n, 9, "GPU-2") for n in range(3)])
        .node("c", gpus=[], instances=[instance(n, 9, "GPU-3", **whole) for n in range(2)])
    )


def test_a_pod_that_asks_for_whole_instances_only_is_none_of_ours() -> None:
    """kube-scheduler counts them; nothing of the node's GPUs is taken, and every node passes."""
    world = nodes_with_mig()
    mig = pod("mig", container(limits={"aliyun.com/mig-1g.10gb": "1"}), uid="u-mig")
    assert world.filter(secretive(mig), "a", "b", "c")["NodeNames"] == ["a", "b", "c"]
    assert world.scores(secretive(mig), "a", "b", "c") == {"a": 0, "b": 0, "c": 0}
    assert world.preempt(secretive(mig), a=["u-x"]) == {"a": ["u-x"]}
    before = dict(world.fleet.candidates)
    world.runs(pod("mig", container(limits={"aliyun.com/mig-1g.10gb": "1"}), uid="u-mig", node="c", phase="Running"))
    assert dict(world.fleet.candidates) == before


def test_a_pod_on_an_instance_that_has_become_a_whole_one_takes_nothing_of_the_others() -> None:
    whole = instance(1, 9, "GPU-1", resource="aliyun.com/mig-1g.10gb")
    world = World().node("a", gpus=[GPU], instances=[whole]).runs(running("old", "a", 1, 9))
    assert world.devs("a") == [(0, 0, [])]
    assert world.filter(wanting(80), "a")["NodeNames"] == ["a"]
