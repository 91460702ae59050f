"""Whatever a stranger writes on a pod, and however much of it: deciding on the pod is little work.

Work is counted, not timed. `make bench` says how long the worst of these takes with 5,000 nodes.
"""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bench.hostile import CLEARLY_REFUSED, PODS, pod
from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES
from gpu_device_plugin.kubernetes.node_pods import NodePods
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.metrics import Metrics
from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    IDX,
    INIT_ALLOCATION,
    NODE_GPUS,
    POD_ANNOTATIONS,
    SPLIT_LABEL,
    WISHES,
)
from gpu_device_plugin.model.contract.promises import assignment
from gpu_device_plugin.model.pods import ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.matching import Call
from gpu_device_plugin.node.waiting_pods import WaitingPods
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.scheduler.rules.fitting import fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import usage_of
from gpu_device_plugin.scheduler.verbs import Verbs
from tests import nodes
from tests.builders import GPU_COUNT, GPU_MEM
from tests.resources import RESOURCES
from tests.scheduler.contexts import context
from tests.scheduler.test_verbs import node_gpus
from tests.work import counted

Json = dict[str, Any]

READER = PodReader([GPU_MEM, GPU_COUNT], (WISHES | POD_ANNOTATIONS | {SPLIT_LABEL}).__contains__, sums=True)
NODES = [f"n{number}" for number in range(40)]
FOR_AN_ANSWER = 200_000
"""Lines. A pod that can be put onto GPUs in very many ways takes most of it, until so many were tried."""
FOR_VICTIMS = 500_000
"""Lines for the question whom to evict, until it is given up."""
FOR_A_CONTAINER = 150
"""Lines besides. A pod has as many containers as its owner likes, and each is looked at."""


def _fleet() -> Fleet:
    """Nodes of 8 GPUs of two models, on which small pods use more or less of each."""
    fleet = Fleet(RESOURCES, vanished_grace_s=0)
    for number, name in enumerate(NODES):
        said = json.loads(node_gpus(*[16] * 8, model="Tesla T4"))
        for gpu in said["gpus"][number % 5 :]:
            gpu["model"] = "NVIDIA A100-SXM4-80GB"
        fleet.put_node(name, gpus_of_node({NODE_GPUS: json.dumps(said)}, {}, 128, 8))
        for gpu in range(8):
            for n in range(number * (gpu + 3) % 7):
                small = pod({GPU_MEM: "2"}, annotations={IDX: str(gpu)}, node=name)
                small["metadata"]["uid"] = f"{name}-{gpu}-{n}"
                fleet.put_pod(READER.read(json.dumps(small).encode())[0])
    return fleet


FLEET = _fleet()


def extender() -> Verbs:
    """Return an extender that remembers nothing of pods yet."""
    parts = context(FLEET)
    parts.features.make(EXTENDER_FEATURES, parts)
    verbs = Verbs(parts, lambda: "")
    parts.evaluator.prepare()
    return verbs


def decide(wanted: Json) -> None:
    """Take every decision of the extender's on a pod. Raises TooMuchWorkError as soon as one is too much work."""
    spec = wanted["spec"]
    for_containers = FOR_A_CONTAINER * (len(spec["containers"]) + len(spec["initContainers"]))
    verbs = extender()
    victims = {
        name: {"Pods": [{"UID": entry.uid} for entry in islice(FLEET.on_node(name), 2)], "NumPDBViolations": 0}
        for name in NODES
    }
    asked = json.dumps({"Pod": wanted, "NodeNames": NODES}).encode()
    important = {**wanted, "spec": {**wanted["spec"], "priority": 1000}}
    preempting = json.dumps({"Pod": important, "NodeNameToMetaVictims": victims}).encode()
    raw = json.dumps({**wanted, "spec": {**wanted["spec"], "nodeName": "n1"}}).encode()
    for verb, body, most in (
        (verbs.filter, asked, FOR_AN_ANSWER),
        (verbs.filter, asked, FOR_AN_ANSWER),
        (verbs.prioritize, asked, FOR_AN_ANSWER),
        (verbs.preempt, preempting, FOR_VICTIMS),
    ):
        with counted(most + for_containers):
            verb(body)
    with counted(FOR_AN_ANSWER + for_containers):
        there, _ = READER.read(raw)
        usage_of(there, RESOURCES)
    with counted(FOR_AN_ANSWER + for_containers):
        found = ask(there, RESOURCES)
        if isinstance(found, GpuRequest):
            fit(found, FLEET.candidates["n1"], "binpack")


# --- Any size, any shape ----------------------------------------------------------------------------------------------

amounts = st.sampled_from(("0", "1", "3", "16", "64", "1Mi", "1Ki", str(1 << 20), str(2**63 - 1), "9.9", "junk"))
limits = st.dictionaries(st.sampled_from((GPU_MEM, GPU_COUNT, "cpu")), amounts, max_size=2)
sizes = st.sampled_from((1, 2, 7, 16, 17, 63, 64, 65, 300, 1500))


def repeated(texts: st.SearchStrategy[str], *, most: int) -> st.SearchStrategy[str]:
    """A text that is as long as its owner likes."""
    return st.tuples(texts, st.sampled_from((1, 2, 64, 65, 4096, 50_000))).map(lambda one: (one[0] * one[1])[:most])


names = st.one_of(
    repeated(st.sampled_from((",a", "t4,", "-q", ",", " ", "ä", "x,y,-z,", "GPU-1,", ",,a100")), most=60_000),
    st.tuples(st.sampled_from((1, 8, 63, 64, 65)), st.sampled_from((1, 30, 63, 3900))).map(
        lambda one: ",".join(f"m{n}" + "-q" * (one[1] // 2) for n in range(one[0]))[:60_000]
    ),
)
places = st.one_of(
    repeated(st.sampled_from(("[", '{"0":', "1", '{"0":{"0":1}}', " ", "\\ud800")), most=60_000),
    st.tuples(st.sampled_from((1, 64, 1500)), st.sampled_from((1, 8, 64))).map(
        lambda one: json.dumps({str(c): {str(g): 1 for g in range(one[1])} for c in range(one[0])})[:200_000]
    ),
)
written: dict[str, st.SearchStrategy[str]] = {
    **dict.fromkeys(sorted(WISHES), names),
    **dict.fromkeys((ALLOCATION, INIT_ALLOCATION, IDX), places),
}


class Stranger(dict[str, Any]):
    """A pod whose `repr` fits on a page."""

    def __repr__(self) -> str:
        spec, meta = self["spec"], self["metadata"]
        said = {key: f"{text[:60]}... ({len(text)})" for key, text in meta["annotations"].items()}
        limits = [
            Counter(json.dumps(each["resources"]["limits"], sort_keys=True) for each in containers)
            for containers in (spec["containers"], spec["initContainers"])
        ]
        return f"<Stranger: {limits}, {meta['labels']}, {said}>"


@st.composite
def strangers_pods(draw: st.DrawFn) -> Json:
    """A pod that the API server would take, whoever wrote it."""

    def containers() -> list[Mapping[str, str]]:
        kinds = draw(st.lists(limits, max_size=3))
        return [kind for kind in kinds for _ in range(draw(sizes))]

    split = draw(st.none() | st.sampled_from(("0", "1", "2", "8", "64", "65", str(1 << 20), "9" * 63, "x")))
    return Stranger(
        pod(
            *containers(),
            inits=containers(),
            annotations=draw(st.fixed_dictionaries({}, optional=written)),
            labels={} if split is None else {SPLIT_LABEL: split},
        )
    )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(strangers_pods())
@example(PODS["a name that is as long as it may be, 64 times, and a UUID"])
@example(PODS["a split over as many GPUs as there are shares, beside a whole GPU"])
def test_no_pod_is_much_work(wanted: Json) -> None:
    decide(wanted)


@pytest.mark.parametrize("what", PODS)
def test_no_pod_that_was_made_to_be_much_work_is(what: str) -> None:
    decide(PODS[what])


@pytest.mark.parametrize(("what", "sentence"), CLEARLY_REFUSED.items())
def test_what_is_over_a_bound_is_unresolvable_and_the_sentence_names_the_bound(what: str, sentence: str) -> None:
    """kube-scheduler does not look for pods to evict then."""
    answer = json.loads(extender().filter(json.dumps({"Pod": PODS[what], "NodeNames": NODES}).encode()))
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(NODES, sentence)
    assert (answer["NodeNames"], answer["FailedNodes"], answer["Error"]) == ([], {}, "")


# --- On a node --------------------------------------------------------------------------------------------------------


class NodePodsDouble:
    """The pods of a node as they are."""

    def __init__(self, pods: list[Pod]) -> None:
        self.pods = {pod.uid: pod for pod in pods}


def on_a_node(raw: list[Json]) -> list[Pod]:
    bound = ({**one, "spec": {**one["spec"], "nodeName": "n"}} for one in raw)
    return [READER.read(json.dumps(one).encode())[0] for one in bound]


@pytest.mark.parametrize("what", PODS)
def test_pods_that_wait_on_a_node_hold_no_other_one_up(what: str) -> None:
    """Ten pods of a stranger wait before one of somebody else: what is written on each is read once, then looked at."""
    strangers = [{**PODS[what], "metadata": {**PODS[what]["metadata"], "uid": f"u{n}"}} for n in range(10)]
    innocent = pod({GPU_MEM: "5"}, annotations={IDX: "1"})
    innocent["metadata"] = {**innocent["metadata"], "uid": "innocent", "name": "innocent"}
    waiting = WaitingPods(
        cast("NodePods", NodePodsDouble(on_a_node([*strangers, innocent]))),
        RESOURCES,
        Metrics(),
        NodeState(nodes.node(14, 14, 14)),
    )
    with counted(100_000):
        waiting.find_now(Call(Kind.MEMORY, 5, {0: 14, 1: 14, 2: 14}))
    with counted(100_000):
        found = waiting.find_now(Call(Kind.MEMORY, 5, {0: 14, 1: 14, 2: 14}))
    assert found.match is not None


@pytest.mark.parametrize("kind", ContainerKind)
def test_what_the_agent_writes_on_a_pod_of_many_containers_is_little_work(kind: ContainerKind) -> None:
    """An init container's devices are used again, so that a pod can have any number of containers with some."""
    one = {GPU_MEM: "1"}
    many = pod(*[one] * 2000) if kind is ContainerKind.APP else pod(one, inits=[one] * 2000)
    (there,) = on_a_node([many])
    actual = {(container.name, Kind.MEMORY): {0: 1} for container in there.containers}
    with counted(400_000):
        written = assignment(there, actual, RESOURCES, [2001], 0)
    assert written[IDX] == "0"
