"""Requests as kube-scheduler writes them, and answers as Go would write them: byte for byte."""

import json

import pytest
from msgspec import Raw

from gpu_device_plugin.scheduler import wire
from gpu_device_plugin.scheduler.wire import (
    BindingArgs,
    ExtenderArgs,
    HostPriority,
    UnreadableRequestError,
    Victims,
)

POD = '{"metadata":{"name":"web-0","namespace":"default","uid":"u-0"},"spec":{"containers":null}}'
NODES = ['{"metadata":{"name":"node-a"},"spec":{},"status":{"Capacity":null}}', '{"metadata":{"name":"node-b"}}']


def text(raw: Raw) -> str:
    return bytes(raw).decode()


def args(body: str) -> tuple[str, list[str], list[str] | None]:
    found = wire.read_args(body.encode())
    return text(found.pod), found.names, None if found.nodes is None else [text(node) for node in found.nodes]


# --- filter and prioritize -------------------------------------------------------------------------------------------


def test_a_request_by_names() -> None:
    """What a scheduler sends with nodeCacheCapable: true."""
    body = f'{{"Pod":{POD},"Nodes":null,"NodeNames":["node-a","node-b"]}}'
    assert args(body) == (POD, ["node-a", "node-b"], None)


def test_a_request_with_whole_nodes() -> None:
    """What it sends without; nothing of the nodes is lost."""
    body = f'{{"Pod":{POD},"Nodes":{{"metadata":{{}},"items":[{",".join(NODES)}]}},"NodeNames":null}}'
    assert args(body) == (POD, ["node-a", "node-b"], NODES)


def test_a_list_of_no_nodes_is_a_list() -> None:
    assert args(f'{{"Pod":{POD},"Nodes":null,"NodeNames":[]}}') == (POD, [], None)
    assert args(f'{{"Pod":{POD},"Nodes":{{"metadata":{{}},"items":null}},"NodeNames":null}}') == (POD, [], [])


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "the request is not what kube-scheduler sends: Input data was truncated"),
        ("null", "the request is not what kube-scheduler sends: Expected `object`, got `null`"),
        ("[]", "the request is not what kube-scheduler sends: Expected `object`, got `array`"),
        ("{", "the request is not what kube-scheduler sends: Input data was truncated"),
        ("{}", "the request has no Pod"),
        ('{"Pod":null,"Nodes":null,"NodeNames":["a"]}', "the request has no Pod"),
        (
            '{"Pod":{},"Nodes":null,"NodeNames":null}',
            "the request has no list of nodes, neither as NodeNames nor as Nodes",
        ),
        ('{"Pod":{}}', "the request has no list of nodes, neither as NodeNames nor as Nodes"),
        (
            '{"Pod":{},"NodeNames":["a",5]}',
            "the request is not what kube-scheduler sends: Expected `str`, got `int` - at `$.NodeNames[1]`",
        ),
        (
            '{"Pod":{},"Nodes":[]}',
            "the request is not what kube-scheduler sends: Expected `object`, got `array`",
        ),
        (
            '{"Pod":{},"Nodes":{"items":[{}]}}',
            "the request is not what kube-scheduler sends: Object missing required field `metadata`",
        ),
    ],
)
def test_a_request_that_cannot_be_read(body: str, sentence: str) -> None:
    with pytest.raises(UnreadableRequestError) as caught:
        wire.read_args(body.encode())
    assert str(caught.value) == sentence
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b'{"Pod":{},"NodeNames":["\xff"]}',
        b'{"Pod":{},"NodeNames":["\\ud800"]}',
        b'{"Pod":' + b"[" * 100_000,
    ],
)
def test_a_request_that_is_no_text_or_has_no_end(body: bytes) -> None:
    with pytest.raises(UnreadableRequestError, match="is not what kube-scheduler sends"):
        wire.read_args(body)


def named() -> ExtenderArgs:
    return wire.read_args(f'{{"Pod":{POD},"Nodes":null,"NodeNames":["node-a","node-b","node-c"]}}'.encode())


def test_an_answer_by_names() -> None:
    answer = wire.filter_result(
        named(), ["node-a"], {"node-b": "no GPU has 8 GiB free"}, {"node-c": "it shares no GPU"}
    )
    assert answer == (
        b'{"Nodes":null,"NodeNames":["node-a"],"FailedNodes":{"node-b":"no GPU has 8 GiB free"},'
        b'"FailedAndUnresolvableNodes":{"node-c":"it shares no GPU"},"Error":""}'
    )


def test_an_answer_of_no_nodes_is_a_list_too() -> None:
    """null would be taken for nothing at all, and the pod's owner would see no reason."""
    answer = wire.filter_result(named(), [], {}, {"node-a": "it shares no GPU"})
    assert answer == (
        b'{"Nodes":null,"NodeNames":[],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{"node-a":"it shares no GPU"},"Error":""}'
    )


def test_an_answer_with_whole_nodes() -> None:
    """Those that passed, as they came."""
    body = f'{{"Pod":{POD},"Nodes":{{"metadata":{{}},"items":[{",".join(NODES)}]}},"NodeNames":null}}'
    answer = wire.filter_result(
        wire.read_args(body.encode()), ["node-a"], {"node-b": "all GPUs are exclusively allocated"}, {}
    )
    assert answer.decode() == (
        f'{{"Nodes":{{"metadata":{{}},"items":[{NODES[0]}]}},"NodeNames":null,'
        '"FailedNodes":{"node-b":"all GPUs are exclusively allocated"},"FailedAndUnresolvableNodes":{},"Error":""}'
    )


def test_an_error_in_place_of_an_answer() -> None:
    assert wire.filter_error('not "ready"') == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,'
        b'"Error":"not \\"ready\\""}'
    )


def test_scores() -> None:
    assert wire.priorities([HostPriority("node-b", 10), HostPriority("node-a", 0)]) == (
        b'[{"Host":"node-b","Score":10},{"Host":"node-a","Score":0}]'
    )


# --- bind ------------------------------------------------------------------------------------------------------------


def test_a_pod_to_bind() -> None:
    body = b'{"PodName":"new-0","PodNamespace":"default","PodUID":"uid-new-0","Node":"node-a"}'
    assert wire.read_binding(body) == BindingArgs("new-0", "default", "uid-new-0", "node-a")


@pytest.mark.parametrize("key", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_a_pod_to_bind_of_which_something_is_missing(key: str) -> None:
    whole = {"PodName": "new-0", "PodNamespace": "default", "PodUID": "uid-new-0", "Node": "node-a"}
    for body in (whole | {key: ""}, {name: value for name, value in whole.items() if name != key}):
        with pytest.raises(UnreadableRequestError, match=f"^the request has no {key}$"):
            wire.read_binding(json.dumps(body).encode())


def test_what_came_of_binding() -> None:
    assert wire.binding_result("") == b'{"Error":""}'
    assert wire.binding_result("GPU-3 was taken") == b'{"Error":"GPU-3 was taken"}'


# --- preempt ---------------------------------------------------------------------------------------------------------


def test_victims_by_uid() -> None:
    """What a scheduler sends with nodeCacheCapable: true."""
    pod, victims = wire.read_preemption(
        f'{{"Pod":{POD},"NodeNameToVictims":null,"NodeNameToMetaVictims":'
        '{"node-a":{"Pods":[{"UID":"v-1"},{"UID":"v-2"}],"NumPDBViolations":1},"node-b":{"Pods":null,"NumPDBViolations":0}}}'
        "".encode()
    )
    assert text(pod) == POD
    assert victims == {"node-a": Victims(("v-1", "v-2"), 1), "node-b": Victims(())}


def test_victims_as_whole_pods() -> None:
    _, victims = wire.read_preemption(
        f'{{"Pod":{POD},"NodeNameToVictims":{{"node-a":{{"Pods":[{POD}],"NumPDBViolations":0}}}},'
        '"NodeNameToMetaVictims":null}'.encode()
    )
    assert victims == {"node-a": Victims(("u-0",))}


def test_nobody_to_preempt() -> None:
    _, victims = wire.read_preemption(f'{{"Pod":{POD},"NodeNameToVictims":null,"NodeNameToMetaVictims":{{}}}}'.encode())
    assert victims == {}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"NodeNameToMetaVictims":{}}', "the request has no Pod"),
        ('{"Pod":{}}', "the request has no nodes with victims"),
        ('{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":[{}]}}}', "the request has no UID of a victim"),
        ('{"Pod":{},"NodeNameToVictims":{"a":{"Pods":[{"metadata":{}}]}}}', "the request has no UID of a victim"),
        (
            '{"Pod":{},"NodeNameToMetaVictims":{"a":null}}',
            "the request is not what kube-scheduler sends: Expected `object`, got `null`",
        ),
    ],
)
def test_victims_that_cannot_be_read(body: str, sentence: str) -> None:
    with pytest.raises(UnreadableRequestError) as caught:
        wire.read_preemption(body.encode())
    assert str(caught.value) == sentence


def test_whom_to_evict() -> None:
    assert wire.preemption_result({"node-a": Victims(("v-1", "v-2"), 1)}) == (
        b'{"NodeNameToMetaVictims":{"node-a":{"Pods":[{"UID":"v-1"},{"UID":"v-2"}],"NumPDBViolations":1}}}'
    )


# --- A pod that a person sends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "identified"),
    [
        ('{"spec":{}}', '{"spec":{},"metadata":{"name":"unknown","uid":"unknown"}}'),
        ('{"metadata":{"name":"a","uid":""}}', '{"metadata":{"name":"a","uid":"unknown"}}'),
        ('{"metadata":{"uid":null,"name":"a"}}', '{"metadata":{"uid":"unknown","name":"a"}}'),
    ],
)
def test_a_pod_without_identity_gets_one(pod: str, identified: str) -> None:
    assert wire.with_identity(Raw(pod.encode())).decode() == identified


@pytest.mark.parametrize("pod", ["5", '"text"', "[]", '{"metadata":5}'])
def test_what_is_no_pod_gets_none(pod: str) -> None:
    with pytest.raises(UnreadableRequestError, match="is not what kube-scheduler sends"):
        wire.with_identity(Raw(pod.encode()))
