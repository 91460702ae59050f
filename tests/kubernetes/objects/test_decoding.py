"""What is kept of a pod, and what is ignored."""

import json
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.objects.decoding import (
    NODES,
    PODS,
    NodeReader,
    PodReader,
    UnreadableObjectError,
    read_version,
    version_number,
)
from gpu_device_plugin.kubernetes.objects.quantity import whole_quantity
from gpu_device_plugin.model.contract.keys import ALLOCATION, AVOID_MODEL, READ_ON_PODS, TOO_LONG, USE_MODEL
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Container, ContainerEnd, ContainerKind, Owner, Pod
from gpu_device_plugin.model.resources import Amounts
from tests.builders import GPU_COUNT, GPU_MEM, container, node, pod
from tests.cluster_double.owned import mirror

READER = PodReader([GPU_MEM, GPU_COUNT], lambda key: key.startswith("ours/"))
OURS = PodReader([GPU_MEM, GPU_COUNT], READ_ON_PODS.__contains__)


def read(body: dict[str, Any]) -> tuple[Pod, tuple[str, ...]]:
    return READER.read(json.dumps(body).encode())


def test_a_pod_is_reduced_to_what_concerns_us() -> None:
    body = pod(
        "a",
        container("web"),
        container("train", mem=8, count=1, limits={"cpu": "2"}),
        init=(container("load", mem=4), container("log", mem=1, sidecar=True)),
        uid="u-1",
        node="n",
        created="2026-01-02T03:04:05Z",
        phase="Running",
        annotations={"ours/promise": "1", "theirs": "secret"},
        labels={"ours/job": "x", "app": "y"},
    )
    body["metadata"]["resourceVersion"] = "77"
    body["spec"]["containers"][1]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    assert read(body) == (
        Pod(
            uid="u-1",
            namespace="default",
            name="a",
            node_name="n",
            phase="Running",
            running=True,
            created="2026-01-02T03:04:05Z",
            resource_version="77",
            annotations={"ours/promise": "1"},
            labels={"ours/job": "x"},
            containers=(
                Container("load", ContainerKind.INIT, 0, {GPU_MEM: 4}),
                Container("log", ContainerKind.SIDECAR, 1, {GPU_MEM: 1}),
                Container("train", ContainerKind.APP, 1, {GPU_MEM: 8, GPU_COUNT: 1}),
            ),
        ),
        (),
    )


HASH = "0123456789abcdef0123456789abcdef"


def test_a_kubelets_mirror_pod_is_known_by_the_uid_of_its_static_pod() -> None:
    found, _ = read(mirror(pod("static-n", uid="u", node="n"), HASH))
    assert (found.static_uid, found.kubelet_uid, found.uid) == (HASH, HASH, "u")
    plain, _ = read(pod("a", uid="u", node="n"))
    assert (plain.static_uid, plain.kubelet_uid) == ("", "u")


OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "x", "controller": True}


@pytest.mark.parametrize(
    ("uid", "owners"),
    [
        ("0b5d1f3a-0000-4000-8000-000000000001", [OWNER]),
        (HASH.upper(), [OWNER]),
        (HASH[1:], [OWNER]),
        (f"{HASH}\n", [OWNER]),
        ("", [OWNER]),
        (HASH, []),
        (HASH, [{**OWNER, "name": "m"}]),
        (HASH, [{**OWNER, "kind": "ReplicaSet"}]),
        (HASH, [{**OWNER, "apiVersion": "example.com/v1"}]),
        (HASH, [{**OWNER, "controller": False}]),
        (HASH, [{key: value for key, value in OWNER.items() if key != "controller"}]),
        (HASH, [OWNER, {**OWNER, "kind": "ReplicaSet"}]),
    ],
    ids=str,
)
def test_a_forged_mirror_pod_is_a_pod_like_any_other(uid: str, owners: list[dict[str, Any]]) -> None:
    """Any client can write the annotation, with the UID of a pod that should not be evicted."""
    body = mirror(pod("a", uid="u", node="n"), uid)
    body["metadata"]["ownerReferences"] = owners
    found, _ = read(body)
    assert (found.static_uid, found.kubelet_uid) == ("", "u")


def test_a_pod_without_a_node_is_no_mirror() -> None:
    body = mirror(pod("a", uid="u", node="n"), HASH)
    del body["spec"]["nodeName"]
    body["metadata"]["ownerReferences"] = [{**OWNER, "name": ""}]
    assert read(body)[0].static_uid == ""


@pytest.mark.parametrize(
    ("spec", "deletion", "expected"),
    [
        (None, None, 30),
        (10**9, None, 10**9),
        (0, None, 0),
        (-5, None, 1),
        (30, 10**9, 10**9),
        (10**9, 20, 20),
        (10**9, -5, 1),
        (30, 0, 0),
    ],
)
def test_a_pod_has_the_time_to_end_of_its_deletion_else_of_its_spec(
    spec: int | None, deletion: int | None, expected: int
) -> None:
    body = pod("a", uid="u", grace_s=spec)
    if deletion is not None:
        body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": deletion}
    found, _ = read(body)
    assert (found.grace_s, found.deleting) == (expected, deletion is not None)


def test_limits_of_mig_profiles_of_any_domain_are_kept_where_they_matter() -> None:
    limits = {"nvidia.com/mig-1g.10gb": "1", "example.com/mig-1g.5gb.me": "2", "nvidia.com/gpu": "1", "x/mig-big": "1"}
    raw = json.dumps(pod("one", container(limits=limits), uid="u")).encode()
    found, _ = PodReader([GPU_MEM], lambda _: False, mig=True).read(raw)
    assert [each.limits for each in found.containers] == [{"nvidia.com/mig-1g.10gb": 1, "example.com/mig-1g.5gb.me": 2}]
    assert READER.read(raw)[0].containers == ()


def test_the_controller_of_a_pod_is_one_object_for_all_its_pods_where_it_matters() -> None:
    other = {"apiVersion": "example.com/v1", "kind": "Queue", "name": "q", "uid": "u-q"}
    controller = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u-rs", "controller": True}
    reader = PodReader([GPU_MEM], lambda _: False, owners=True)
    bodies = [pod(name, container(mem=1), uid=name) for name in ("a", "b", "bare")]
    for body in bodies[:2]:
        body["metadata"]["ownerReferences"] = [other, controller]
    bodies[2]["metadata"]["ownerReferences"] = [other]
    one, two, bare = (reader.read(json.dumps(body).encode())[0].owner for body in bodies)
    assert one == Owner("ReplicaSet", "rs", "u-rs", "apps/v1")
    assert one is two
    assert bare is None
    assert read(bodies[0])[0].owner is None


def test_the_newest_end_of_each_container_is_kept_where_it_matters() -> None:
    """Of one that was started again the API has it as the last state; of one that never ended it has none."""
    error = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-28T12:00:00Z"}}
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-28T13:00:00Z"}}
    statuses = [
        {"name": "again", "state": {"running": {}}, "lastState": killed},
        {"name": "waits", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": error},
        {"name": "over", "state": killed, "lastState": error},
        {"name": "bare", "state": {"terminated": {}}},
        {"name": "runs", "state": {"running": {}}, "lastState": {}},
        {"name": "new"},
    ]
    status = {"containerStatuses": statuses, "initContainerStatuses": [{"name": "init", "state": error}]}
    raw = json.dumps({**pod("a", container(mem=1), uid="u"), "status": status}).encode()
    oom = ContainerEnd(137, "OOMKilled", "2026-11-28T13:00:00Z")
    failed = ContainerEnd(1, "Error", "2026-11-28T12:00:00Z")
    found = PodReader([GPU_MEM], lambda _: False, ids=True).read(raw)[0].ends
    assert found == {"again": oom, "waits": failed, "over": oom, "bare": ContainerEnd(0, "", ""), "init": failed}
    assert PodReader([GPU_MEM], lambda _: False).read(raw)[0].ends == {}


def test_the_priority_of_a_pod_is_read() -> None:
    body = pod("a", uid="u")
    body["spec"]["priority"] = 1000
    assert read(body)[0].priority == 1000


RUNNING = {"name": "c", "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}
ENDED = {"name": "c", "state": {"terminated": {"exitCode": 0}}}
WAITING = {"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}


@pytest.mark.parametrize(
    ("node_name", "status", "running"),
    [
        ("n", {"phase": "Running", "containerStatuses": [ENDED, RUNNING]}, True),
        ("n", {"phase": "Pending", "initContainerStatuses": [RUNNING], "containerStatuses": [WAITING]}, True),
        ("n", {"phase": "Running", "containerStatuses": [ENDED], "ephemeralContainerStatuses": [RUNNING]}, True),
        ("n", {"phase": "Failed", "containerStatuses": [RUNNING]}, True),
        ("n", {"phase": "Running", "containerStatuses": [WAITING]}, False),
        ("n", {"phase": "Running", "containerStatuses": [{"name": "c"}, {"name": "d", "state": {}}]}, False),
        ("n", {"phase": "Succeeded", "containerStatuses": [ENDED]}, False),
        ("n", {"phase": "Running", "containerStatuses": None}, True),  # a kubelet that tells the phase alone
        ("n", {"phase": "Pending"}, False),
        ("", {"phase": "Running"}, False),
    ],
)
def test_a_pod_runs_while_one_of_its_containers_does(node_name: str, status: dict[str, Any], running: bool) -> None:  # noqa: FBT001
    assert read({**pod("a", uid="u", node=node_name), "status": status})[0].running is running


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("8", 8),
        ("0", 0),
        ("1k", 1000),  # what the API server makes of 1000
        ("1Ki", 1024),
        ("2e3", 2000),
        ("2E3", 2000),
        ("1E", 10**18),
        ("2000m", 2),
        ("1.5k", 1500),
        ("+4", 4),
        ("4.", 4),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("0.5", None),
        ("1500m", None),
        ("-1", None),
        ("", None),
        ("8 GiB", None),
        ("8Gi\n", None),
        ("٣", None),
        (".", None),
        ("1e", None),
    ],
)
def test_a_quantity_counts_if_it_is_a_whole_number(text: str, amount: int | None) -> None:
    assert whole_quantity(text) == amount


@pytest.mark.parametrize("junk", ["0.5", "lots", -1, 1.5, True, None, [8], {"value": 8}])
def test_a_limit_that_is_no_whole_number_is_ignored_and_reported(junk: object) -> None:
    body = pod("a", container("main", count=1, limits={"cpu": "lots"}), uid="u")
    body["spec"]["containers"][0]["resources"]["limits"][GPU_MEM] = junk
    found, ignored = read(body)
    assert found.containers == (Container("main", ContainerKind.APP, 0, {GPU_COUNT: 1}),)
    assert ignored == (f"container 'main': the limit of {GPU_MEM} is not a whole number",)


def test_of_very_many_limits_that_make_no_sense_a_few_are_told() -> None:
    _, ignored = read(pod("a", *(container(f"c{n}", limits={GPU_MEM: "lots"}) for n in range(500)), uid="u"))
    assert [sentence.split("'")[1] for sentence in ignored] == [f"c{n}" for n in range(8)]


def test_of_an_annotation_that_is_too_long_nothing_is_kept() -> None:
    """Some thousand pods with 256 KiB of annotations each, as many as the API server takes, would fill our memory."""
    body = pod("a", container(mem=1), annotations={USE_MODEL: "x" * 4096, AVOID_MODEL: "x" * 250_000}, uid="u")
    found, _ = OURS.read(json.dumps(body).encode())
    assert found.annotations == {USE_MODEL: "x" * 4096, AVOID_MODEL: TOO_LONG}


@pytest.mark.parametrize("key", sorted(READ_ON_PODS))
def test_nothing_that_an_owner_writes_on_a_waiting_pod_takes_more_than_4096_characters(key: str) -> None:
    containers = [container(f"c{n}", mem=1) for n in range(MOST_CONTAINERS)]
    found, _ = OURS.read(json.dumps(pod("a", *containers, annotations={key: "x" * 65_000}, uid="u")).encode())
    assert found.annotations == {key: TOO_LONG}


def test_what_pods_have_in_common_is_one_object_unless_it_is_long() -> None:
    def of(uid: str, number: int = 1, length: int = 10) -> Pod:
        containers = [container(f"c{n}", mem=1) for n in range(number)]
        body = pod("a", *containers, node="n", annotations={ALLOCATION: "x" * length}, uid=uid)
        return OURS.read(json.dumps(body).encode())[0]

    one, other = of("u"), of("v")
    assert one.containers is other.containers
    assert one.annotations is other.annotations
    assert one.node_name is other.node_name
    many, others = of("u", 9, 300), of("v", 9, 300)
    assert (many.containers, many.annotations) == (others.containers, others.annotations)
    assert many.containers is not others.containers
    assert many.annotations is not others.annotations


def test_a_bound_pod_keeps_a_promise_as_long_as_its_containers_can_need() -> None:
    def of(number: int, length: int) -> Pod:
        containers = [container(f"c{n}", mem=1) for n in range(number)]
        body = pod("a", *containers, node="n", annotations={ALLOCATION: "x" * length}, uid="u")
        return OURS.read(json.dumps(body).encode())[0]

    assert of(3, 6144).annotations == {ALLOCATION: "x" * 6144}
    assert of(3, 6145).annotations == {ALLOCATION: TOO_LONG}


def test_of_a_waiting_pod_no_more_containers_are_kept_than_show_that_there_are_too_many() -> None:
    """Those of a bound pod all count."""
    containers = [container(f"c{n}", mem=1) for n in range(10 * MOST_CONTAINERS)]
    waiting, _ = OURS.read(json.dumps(pod("a", *containers, uid="u")).encode())
    bound, _ = OURS.read(json.dumps(pod("a", *containers, node="n", uid="u")).encode())
    assert (len(waiting.containers), len(bound.containers)) == (MOST_CONTAINERS + 1, 10 * MOST_CONTAINERS)


def test_a_pod_in_which_something_is_nested_without_end_is_refused() -> None:
    deep = b'{"metadata":{"uid":"u","name":"a"},"spec":{"containers":[{"resources":{"limits":{"x":' + b"[" * 10**6
    with pytest.raises(UnreadableObjectError, match="not a pod"):
        READER.read(deep)


def test_a_bookmark_without_containers_is_no_trouble() -> None:
    """The API server writes null for the containers of the pod in a bookmark."""
    found, _ = READER.read(b'{"metadata":{"uid":"u","name":"a"},"spec":{"containers":null},"status":{}}')
    assert found.containers == ()


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"metadata":{}}', b'{"metadata":{"uid":7,"name":"PASSWORD"}}', b'{"metadata":"\xff"}']
)
def test_something_that_is_no_pod_is_refused_without_quoting_it(raw: bytes) -> None:
    with pytest.raises(UnreadableObjectError, match="not a pod") as refused:
        READER.read(raw)
    assert "PASSWORD" not in str(refused.value)


NODE_READER = NodeReader([GPU_MEM, GPU_COUNT], lambda key: key.startswith("ours/"))


def full_node() -> dict[str, Any]:
    body = node("n", mem=1000, count=8, labels={"ours/x": "1"}, annotations={"ours/gpus": "[]", "theirs": "long"})
    body["metadata"] |= {"uid": "u", "resourceVersion": "3"}
    body["spec"]["unschedulable"] = True
    body["status"]["allocatable"][GPU_MEM] = "1k"
    body["status"]["allocatable"][GPU_COUNT] = "many"
    body["status"]["addresses"] = [
        {"type": "Hostname", "address": "n"},
        {"type": "InternalIP", "address": "10.0.0.7"},
        {"type": "InternalIP", "address": "fd00::7"},
    ]
    return body


def test_a_node_is_reduced_to_what_concerns_us() -> None:
    assert NODE_READER.read(json.dumps(full_node()).encode()) == NodeRecord(
        name="n",
        uid="u",
        labels={"ours/x": "1"},
        annotations={"ours/gpus": "[]"},
        capacity={GPU_MEM: 1000, GPU_COUNT: 8},
        allocatable={GPU_MEM: 1000},
        cpu_and_memory=Amounts(16_000, 65_536),
        ready=True,
        unschedulable=True,
        address="10.0.0.7",
        kubelet_version="v1.36.2",
    )


def test_a_node_that_says_nothing_of_itself_is_a_node() -> None:
    found = NODE_READER.read(b'{"metadata":{"name":"n","uid":"u","resourceVersion":"3"}}')
    assert found == NodeRecord("n", "u")
    assert found.resource_version == "3"


def test_a_heartbeat_changes_nothing_that_we_look_at() -> None:
    before, body = NODE_READER.read(json.dumps(full_node()).encode()), full_node()
    body["metadata"]["resourceVersion"] = "4"
    body["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-01-02T03:04:05Z"
    assert NODE_READER.read(json.dumps(body).encode()) == before
    body["status"]["conditions"][0]["status"] = "Unknown"
    assert NODE_READER.read(json.dumps(body).encode()) != before


@pytest.mark.parametrize(
    "raw", [b"[]", b"{}", b'{"metadata":{}}', b'{"metadata":{"uid":7,"name":"PASSWORD"}}', b'{"metadata":"\xff"}']
)
def test_something_that_is_no_node_is_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableObjectError) as refused:
        NODE_READER.read(raw)
    assert "PASSWORD" not in str(refused.value)
    with pytest.raises(UnreadableObjectError):
        NodeReader().read(b"[]")


def test_the_version_of_anything_can_be_read() -> None:
    assert read_version(b'{"kind":"Any","metadata":{"name":"n","resourceVersion":"77","labels":{}}}') == 77
    assert read_version(b'{"metadata":{}}') == 0
    for raw in (b"[]", b"", b'{"metadata":{"resourceVersion":"\xff"}}'):
        with pytest.raises(UnreadableObjectError):
            read_version(raw)
    assert [version_number(text) for text in ("12", "", "abc", "\u0663")] == [12, 0, 0, 0]


def test_paths_are_those_of_kubernetes() -> None:
    assert NODES.path(name="n", subresource="status") == "/api/v1/nodes/n/status"
    assert PODS.path(namespace="ns", name="p", subresource="binding") == "/api/v1/namespaces/ns/pods/p/binding"
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path(namespace="a/b", name="c?d=e#f") == "/api/v1/namespaces/a%2Fb/pods/c%3Fd%3De%23f"
