"""Pods without GPUs, as they are read from the API."""

import json
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.objects.decoding import PodReader, UnreadableObjectError
from gpu_device_plugin.kubernetes.objects.quantity import allocatable_amounts, requested_amounts
from gpu_device_plugin.model.contract.keys import STAND_IN
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod


def body(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-11-20T12:00:00Z"},
        "spec": {"nodeName": "n", "containers": [], **spec},
        "status": {"phase": "Running"},
    }


def container(cpu: str, memory: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}


def read(pod: dict[str, Any]) -> OtherPod:
    return PodReader((), lambda _key: False).read_other(json.dumps(pod).encode())


def test_a_pod_takes_what_kube_scheduler_counts() -> None:
    """An init container asks for more CPU than both containers together, which ask for more memory; 0.5 + 0.25 CPU."""
    pod = body(
        containers=[container("500m", "1Gi"), container("0.25", "100M")],
        initContainers=[container("2", "64Mi")],
        overhead={"cpu": "10m"},
    )
    assert read(pod) == OtherPod("u", "7", "n", Amounts(2010, 1120), created="2026-11-20T12:00:00Z")


@pytest.mark.parametrize(
    ("phase", "ended"), [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)]
)
def test_a_pod_has_ended_when_none_of_its_containers_will_run_again(phase: str, *, ended: bool) -> None:
    assert read({**body(), "status": {"phase": phase}}).ended is ended


@pytest.mark.parametrize(
    ("kind", "bound"), [("DaemonSet", True), ("Node", True), ("ReplicaSet", False), ("Job", False)]
)
def test_a_pod_of_a_daemonset_and_a_static_one_have_no_choice_of_their_node(kind: str, *, bound: bool) -> None:
    pod = body()
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": "o", "uid": "x", "apiVersion": "v1"}]
    assert read(pod).bound_to_node is bound


def test_what_a_stranger_writes_counts_as_nothing() -> None:
    many = [container("1", "1Gi")] * 65
    assert read(body(containers=many)).amounts == NO_AMOUNTS
    assert read(body(containers=[container("much", "1Gi")])).amounts == NO_AMOUNTS
    assert read(body(containers=[container("-1", "1Gi")])).amounts == NO_AMOUNTS


@pytest.mark.parametrize("text", [b"", b"[]", b'{"metadata":{"name":"p"}}', b'{"metadata":{"uid":5}}', b"\xff"])
def test_what_is_no_pod_is_refused(text: bytes) -> None:
    with pytest.raises(UnreadableObjectError, match="not a pod"):
        PodReader((), lambda _key: False).read_other(text)


@pytest.mark.parametrize(
    ("changes", "kind", "ignored"),
    [
        ({"containers": [{"name": "c", "resources": {"limits": {"gpu": "1"}}}]}, Pod, 0),
        ({"initContainers": [{"name": "c", "resources": {"limits": {"gpu": 1}}}]}, Pod, 0),
        ({"containers": [{"name": "c", "resources": {"limits": {"gpu": "0.5"}}}]}, OtherPod, 1),
        ({"containers": [{"name": "c", "resources": {"requests": {"gpu": "1"}}}]}, OtherPod, 0),
        ({"nodeName": None}, Pod, 0),
        ({}, OtherPod, 0),
    ],
)
def test_a_pod_is_one_of_ours_by_its_limits_or_while_it_only_stands_for_wanted_room(
    changes: dict[str, Any], kind: type, ignored: int
) -> None:
    pod = body(**changes)
    pod["metadata"]["labels"] = {STAND_IN: "a"}
    reader, raw = PodReader(("gpu",), lambda _key: False), json.dumps(pod).encode()
    found, sentences = reader.read_either(raw)
    assert (type(found), len(sentences)) == (kind, ignored)
    assert found == (reader.read(raw)[0] if kind is Pod else reader.read_other(raw))


def test_equal_amounts_are_one_object() -> None:
    reader = PodReader((), lambda _key: False)
    pods = [reader.read_other(json.dumps(body(containers=[container("1", "1Gi")])).encode()) for _ in range(2)]
    assert pods[0].amounts is pods[1].amounts


def test_there_is_no_end_of_different_amounts_but_of_those_that_are_remembered() -> None:
    reader = PodReader((), lambda _key: False)
    for cpu in range(1, 2500):
        pod = reader.read_other(json.dumps(body(containers=[container(f"{cpu}m", "1Gi")])).encode())
        assert pod.amounts == Amounts(cpu, 1024)


@pytest.mark.parametrize(
    ("allocatable", "amounts"),
    [
        ({"cpu": "15890m", "memory": "64398484Ki"}, Amounts(15_890, 62_889)),
        ({"cpu": "96", "memory": "1Ti", "pods": "110"}, Amounts(96_000, 1_048_576)),
        ({"cpu": 4, "memory": 1048575}, Amounts(4000, 0)),
        ({"cpu": "9E", "memory": "7Ei"}, Amounts(1 << 48, 7 << 40)),
        ({"cpu": "4"}, None),
        ({"cpu": "4", "memory": "lots"}, None),
        ({}, None),
    ],
)
def test_the_room_of_a_node_is_rounded_down(allocatable: dict[str, Any], amounts: Amounts | None) -> None:
    assert allocatable_amounts(allocatable) == amounts


def test_requests_are_rounded_up() -> None:
    assert requested_amounts({"cpu": 1, "memory": 1}) == Amounts(1, 1)
    assert requested_amounts({"cpu": 1 << 62, "memory": 1 << 62}) == Amounts(1 << 48, 1 << 42)
    assert requested_amounts({"memory": 2 << 20, "ephemeral-storage": 5}) == Amounts(0, 2)
