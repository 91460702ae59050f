"""Our API server answers as the real one does. Every test runs against both, where there is a real one (KUBE_BIN)."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubernetes.client.api_client import Client, PatchType, Timing
from gpu_device_plugin.kubernetes.client.errors import ApiError, ConflictError, InvalidError, NotFoundError
from gpu_device_plugin.kubernetes.lease import Lease, LeaseTiming
from gpu_device_plugin.kubernetes.node_pods import NodePods
from gpu_device_plugin.kubernetes.objects.decoding import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    NodeReader,
    PodReader,
    read_metadata,
    read_version,
)
from gpu_device_plugin.kubernetes.reflector import Reflector, ReflectorTiming
from gpu_device_plugin.kubernetes.store import Store
from gpu_device_plugin.kubernetes.writers.binder import Binder, BindError, PodRef
from gpu_device_plugin.kubernetes.writers.events import EventSubject, EventWriter, about_node
from gpu_device_plugin.kubernetes.writers.own_node import NodeMetadata, OwnNode
from gpu_device_plugin.kubernetes.writers.pod_writer import PodWriter
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from tests.builders import GPU_COUNT, GPU_MEM, container, node, pod
from tests.cluster_double.owned import mirror
from tests.kubernetes.conftest import Api, beside
from tests.patience import patience

IN_DEFAULT = "/api/v1/namespaces/default/pods"
MERGE = PatchType.MERGE.value


@pytest.fixture
def name() -> str:
    """A name that no other test uses: the real server lives as long as all of them."""
    return f"t{uuid.uuid4().hex[:10]}"


async def created(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    namespace = body["metadata"].get("namespace")
    path = f"/api/v1/namespaces/{namespace}/pods" if body["kind"] == "Pod" else "/api/v1/nodes"
    status, answer = await api.ask("POST", path, body)
    assert status == 201, answer
    found: dict[str, Any] = answer
    return found


async def refused(api: Api, method: str, path: str, body: object = None, **how: Any) -> dict[str, Any]:
    """Return what an error answers to compare: all but the message's fine print."""
    status, answer = await api.ask(method, path, body, **how)
    assert answer["kind"] == "Status"
    assert answer["status"] == "Failure"
    assert answer["code"] == status
    found: dict[str, Any] = answer
    return found


async def watched(api: Api, since: str, count: int, **selection: Any) -> list[tuple[str, dict[str, Any]]]:
    async with patience(api), api.client.watch(PODS, since=since, **selection) as events:
        return [await _next(events) for _ in range(count)]


async def _next(events: AsyncIterator[Any]) -> tuple[str, dict[str, Any]]:
    event = await anext(events)
    while event.type == "BOOKMARK":
        event = await anext(events)
    return event.type, msgspec.json.decode(event.object)


async def error_of(answer: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as failed:
        await answer
    return failed.value


def test_there_is_a_real_api_server_to_compare_with() -> None:
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-apiserver and etcd to compare with a real API server")


async def test_a_pod_is_created_with_what_the_server_chooses(api: Api, name: str) -> None:
    found = await created(api, pod(name, container(mem=1000), phase="Running", uid="mine"))
    assert found["metadata"]["uid"] != "mine"
    assert found["metadata"]["creationTimestamp"].endswith("Z")
    assert found["status"]["phase"] == "Pending"
    assert found["spec"]["schedulerName"] == "default-scheduler"
    assert found["spec"]["containers"][0]["resources"] == {"limits": {GPU_MEM: "1k"}, "requests": {GPU_MEM: "1k"}}


async def test_what_is_there_cannot_be_created(api: Api, name: str) -> None:
    await created(api, pod(name))
    answer = await refused(api, "POST", IN_DEFAULT, pod(name))
    assert (answer["code"], answer["reason"]) == (409, "AlreadyExists")
    assert answer["message"] == f'pods "{name}" already exists'


async def test_a_pod_without_containers_is_invalid(api: Api, name: str) -> None:
    answer = await refused(api, "POST", IN_DEFAULT, {**pod(name), "spec": {}})
    assert (answer["code"], answer["reason"]) == (422, "Invalid")
    assert answer["details"]["causes"][0]["field"] == "spec.containers"


async def test_what_is_not_there_is_not_found(api: Api, name: str) -> None:
    answer = await refused(api, "GET", f"{IN_DEFAULT}/{name}")
    assert (answer["code"], answer["reason"]) == (404, "NotFound")
    assert answer["message"] == f'pods "{name}" not found'
    assert answer["details"] == {"name": name, "kind": "pods"}
    assert (await refused(api, "DELETE", f"{IN_DEFAULT}/{name}"))["code"] == 404
    assert (await refused(api, "PATCH", f"{IN_DEFAULT}/{name}", {}, content_type=MERGE))["code"] == 404
    body = {"metadata": {"name": name}, "target": {"name": "n"}}
    assert (await refused(api, "POST", f"{IN_DEFAULT}/{name}/binding", body))["code"] == 404


async def test_strangers_are_told_what_they_may_not_do(api: Api) -> None:
    answer = await refused(api, "POST", f"{IN_DEFAULT}/a/binding", {}, config=api.stranger)
    assert (answer["code"], answer["reason"]) == (403, "Forbidden")
    assert 'cannot create resource "pods/binding" in API group "" in the namespace "default"' in answer["message"]


async def test_unknown_people_are_told_nothing(api: Api) -> None:
    nobody = replace(api.config, token="nobody")  # noqa: S106 - made up
    answer = await refused(api, "GET", IN_DEFAULT, config=nobody)
    assert (answer["code"], answer["reason"], answer["message"]) == (401, "Unauthorized", "Unauthorized")


async def test_an_unknown_format_of_patch_is_refused(api: Api, name: str) -> None:
    await created(api, pod(name))
    assert (await refused(api, "PATCH", f"{IN_DEFAULT}/{name}", {}))["code"] == 415


async def test_a_list_names_its_version_and_leaves_out_kinds(api: Api, name: str) -> None:
    await created(api, pod(name, labels={"test": name}))
    status, answer = await api.ask("GET", f"{IN_DEFAULT}?labelSelector=test%3D{name}")
    assert (status, answer["kind"], answer["apiVersion"]) == (200, "PodList", "v1")
    assert int(answer["metadata"]["resourceVersion"]) >= int(answer["items"][0]["metadata"]["resourceVersion"])
    assert "kind" not in answer["items"][0]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("labelSelector=test%3D{name}", "ab"),
        ("labelSelector=test%3D%3D{name},one", "a"),
        ("labelSelector=test%3D{name},!one", "b"),
        ("labelSelector=test%3D{name},one!%3D1", "b"),
        ("labelSelector=test%3D{name},one+in+(1,2)", "a"),
        ("labelSelector=test%3D{name},one+notin+(1,2)", "b"),
        ("labelSelector=test%3D{name}&fieldSelector=spec.nodeName%3D{name}", "b"),
        ("labelSelector=test%3D{name}&fieldSelector=spec.nodeName%3D", "a"),
        ("labelSelector=test%3D{name}&fieldSelector=metadata.name%3D{name}a,status.phase%3DPending", "a"),
        ("labelSelector=test%3D{name}&fieldSelector=status.phase!%3DPending", ""),
        ("labelSelector=test%3D{name}&fieldSelector=metadata.namespace%3Ddefault", "ab"),
    ],
)
async def test_selectors_mean_the_same(api: Api, name: str, selector: str, expected: str) -> None:
    await created(api, pod(f"{name}a", labels={"test": name, "one": "1"}))
    await created(api, pod(f"{name}b", labels={"test": name}, node=name))
    _, answer = await api.ask("GET", f"/api/v1/pods?{selector.format(name=name)}")
    assert "".join(item["metadata"]["name"].removeprefix(name) for item in answer["items"]) == expected


@pytest.mark.parametrize("selector", ["fieldSelector=spec.foo%3Dx", "fieldSelector=spec", "labelSelector=a%20b"])
async def test_selectors_that_mean_nothing_are_refused(api: Api, selector: str) -> None:
    answer = await refused(api, "GET", f"{IN_DEFAULT}?{selector}")
    assert (answer["code"], answer["reason"]) == (400, "BadRequest")


async def test_a_long_list_comes_in_pages_of_one_version(api: Api, name: str) -> None:
    for letter in "abc":
        await created(api, pod(name + letter, labels={"test": name}))
    pages = []
    async for page in api.client.pages(PODS, namespace="default", labels=f"test={name}", limit=2):
        pages.append(page)
        if len(pages) == 1:
            await created(api, pod(f"{name}d", labels={"test": name}))
    assert [len(page.items or ()) for page in pages] == [2, 1]
    assert len({page.metadata.resource_version for page in pages}) == 1


async def test_a_list_of_the_future_is_waited_for_in_vain(api: Api) -> None:
    answer = await refused(api, "GET", f"{IN_DEFAULT}?resourceVersion=999999999")
    assert (answer["code"], answer["reason"]) == (504, "Timeout")
    assert answer["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_a_watch_of_the_future_is_accepted_and_silent(api: Api, name: str) -> None:
    """So whoever knows more than the server does, as after a restored backup, learns it from a list alone."""
    async with (
        Client(api.config, timing=Timing(watch_s=1)) as client,
        client.watch(PODS, since="999999999", namespace="default") as events,
    ):
        await created(api, pod(name))
        assert {event.type async for event in events} <= {"BOOKMARK"}


async def test_the_newest_version_counts_what_happened_to_other_kinds(api: Api, name: str) -> None:
    """Also the list of one object that tells it, and the list of nothing."""
    before = await api.client.newest(PODS)
    made = int((await created(api, node(name)))["metadata"]["resourceVersion"])
    assert before < made <= await api.client.newest(PODS)
    _, nothing = await api.ask("GET", f"/api/v1/nodes?fieldSelector=metadata.name%3Dno-{name}")
    assert int(nothing["metadata"]["resourceVersion"]) >= made


async def test_a_version_is_a_number(api: Api) -> None:
    assert (await refused(api, "GET", f"{IN_DEFAULT}?resourceVersion=abc"))["code"] == 400


async def test_a_watch_tells_all_that_happens_to_a_pod(api: Api, name: str) -> None:
    begin = (await created(api, pod(name)))["metadata"]["resourceVersion"]
    await api.ask("PATCH", f"{IN_DEFAULT}/{name}", {"metadata": {"annotations": {"a": "b"}}}, MERGE)
    await api.ask("DELETE", f"{IN_DEFAULT}/{name}")
    events = await watched(api, begin, 3, fields=f"metadata.name={name}")
    assert [kind for kind, _ in events] == ["MODIFIED", "MODIFIED", "DELETED"]
    assert events[0][1]["kind"] == "Pod"
    assert events[0][1]["metadata"]["annotations"] == {"a": "b"}
    assert [found["metadata"].get("deletionGracePeriodSeconds") for _, found in events] == [None, 0, 0]
    versions = [int(found["metadata"]["resourceVersion"]) for _, found in events]
    assert int(begin) < versions[0] < versions[1] < versions[2]


async def test_a_watch_from_the_start_begins_with_what_there_is(api: Api, name: str) -> None:
    await created(api, pod(name))
    for since in ("", "0"):
        events = await watched(api, since, 1, fields=f"metadata.name={name}")
        assert [(kind, found["metadata"]["name"]) for kind, found in events] == [("ADDED", name)]


async def test_a_pod_that_begins_or_ceases_to_match_is_added_or_deleted(api: Api, name: str) -> None:
    """Bound: added to its node's watch. Labelled out of a watch: deleted, with the version of that change."""
    begin = (await created(api, pod(name, labels={"test": name})))["metadata"]["resourceVersion"]
    await api.ask("POST", f"{IN_DEFAULT}/{name}/binding", {"metadata": {"name": name}, "target": {"name": name}})
    _, after = await api.ask("PATCH", f"{IN_DEFAULT}/{name}", {"metadata": {"labels": {"test": None}}}, MERGE)
    on_node = await watched(api, begin, 2, fields=f"spec.nodeName={name}")
    assert [kind for kind, _ in on_node] == ["ADDED", "MODIFIED"]
    labelled = await watched(api, begin, 2, labels=f"test={name}")
    assert [kind for kind, _ in labelled] == ["MODIFIED", "DELETED"]
    assert labelled[1][1]["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    assert labelled[1][1]["metadata"]["labels"] == {"test": name}


async def test_a_quiet_watch_is_ended_by_the_server(api: Api, name: str) -> None:
    since = (await created(api, pod(name)))["metadata"]["resourceVersion"]
    async with (
        Client(api.config, timing=Timing(watch_s=1)) as client,
        client.watch(PODS, since=since, fields="spec.nodeName=nowhere") as events,
    ):
        assert {event.type async for event in events} <= {"BOOKMARK"}


@pytest.mark.parametrize(("seconds", "heard"), [(1, set()), (3, {"BOOKMARK"})])
async def test_a_short_watch_brings_a_bookmark_if_it_is_not_too_short(
    api: Api, name: str, seconds: int, heard: set[str]
) -> None:
    """And the bookmark is as new as what a list has just told."""
    since = str(await api.client.newest(PODS))
    await created(api, node(name))
    newest = await api.client.newest(PODS)
    async with api.client.watch(PODS, since=since, fields="spec.nodeName=nowhere", seconds=seconds) as events:
        told = [event async for event in events]
    assert {event.type for event in told} == heard
    assert all(read_version(event.object) >= newest for event in told[-1:])


async def test_a_merge_patch_removes_with_null(api: Api, name: str) -> None:
    await created(api, pod(name, annotations={"a": "1", "b": "2"}))
    body = {"metadata": {"annotations": {"a": None, "c": "3"}}}
    _, answer = await api.ask("PATCH", f"{IN_DEFAULT}/{name}", body, MERGE)
    assert answer["metadata"]["annotations"] == {"b": "2", "c": "3"}


async def test_a_patch_that_changes_nothing_makes_no_version(api: Api, name: str) -> None:
    before = (await created(api, pod(name, annotations={"a": "1"})))["metadata"]["resourceVersion"]
    _, answer = await api.ask("PATCH", f"{IN_DEFAULT}/{name}", {"metadata": {"annotations": {"a": "1"}}}, MERGE)
    assert answer["metadata"]["resourceVersion"] == before


@pytest.mark.parametrize("how", [PatchType.MERGE, PatchType.STRATEGIC])
async def test_a_patch_of_an_old_version_is_a_conflict(api: Api, name: str, how: PatchType) -> None:
    version = (await created(api, pod(name)))["metadata"]["resourceVersion"]
    body = {"metadata": {"annotations": {"a": "1"}, "resourceVersion": version}}
    await api.client.patch(PODS, name, body, namespace="default", how=how)
    body["metadata"]["annotations"] = {"a": "2"}
    error = await error_of(api.client.patch(PODS, name, body, namespace="default", how=how))
    assert isinstance(error, ConflictError)
    assert str(error) == (
        f'patch pods default/{name}: 409 Conflict: Operation cannot be fulfilled on pods "{name}": '
        "the object has been modified; please apply your changes to the latest version and try again"
    )


@pytest.mark.parametrize("how", [PatchType.MERGE, PatchType.STRATEGIC])
async def test_a_patch_of_a_namesake_is_invalid(api: Api, name: str, how: PatchType) -> None:
    await created(api, pod(name))
    body = {"metadata": {"uid": "another", "annotations": {"a": "1"}}}
    error = await error_of(api.client.patch(PODS, name, body, namespace="default", how=how))
    assert isinstance(error, InvalidError)
    assert "metadata.uid (FieldValueInvalid)" in str(error)


async def test_a_pods_node_cannot_be_patched(api: Api, name: str) -> None:
    """And the answer quotes the pod's spec, which our errors must not."""
    await created(api, pod(name))
    error = await error_of(api.client.patch(PODS, name, {"spec": {"nodeName": "n"}}, namespace="default"))
    assert isinstance(error, InvalidError)
    assert str(error) == f"patch pods default/{name}: 422 Invalid: spec (FieldValueForbidden)"


MIRRORED = "metadata.annotations[kubernetes.io/config.mirror]"


async def test_a_mirror_pod_is_made_as_one_on_its_node_or_never_becomes_one(api: Api, name: str) -> None:
    body = mirror(pod(name, node="n"), "0123456789abcdef" * 2)
    unassigned_usage = {**body, "spec": {key: value for key, value in body["spec"].items() if key != "nodeName"}}
    answer = await refused(api, "POST", IN_DEFAULT, unassigned_usage)
    (cause,) = answer["details"]["causes"]
    assert (answer["code"], cause["reason"], cause["field"]) == (422, "FieldValueInvalid", MIRRORED)
    assert cause["message"].endswith("must set spec.nodeName if mirror pod annotation is set")
    made = await created(api, body)
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Node"
    await created(api, pod(f"{name}b", node="n"))
    for each, value, word in (
        (name, None, "remove or update"),
        (name, "x", "remove or update"),
        (f"{name}b", "x", "add"),
    ):
        patch = {"metadata": {"annotations": {"kubernetes.io/config.mirror": value}}}
        answer = await refused(api, "PATCH", f"{IN_DEFAULT}/{each}", patch, content_type=MERGE)
        (cause,) = answer["details"]["causes"]
        assert (answer["code"], cause["reason"], cause["field"]) == (422, "FieldValueForbidden", MIRRORED)
        assert cause["message"].endswith(f"may not {word} mirror pod annotation")


async def test_status_and_the_rest_are_patched_apart(api: Api, name: str) -> None:
    """Annotations go through both doors."""
    await created(api, pod(name))
    both: dict[str, Any] = {"metadata": {"annotations": {"a": "1"}}, "status": {"phase": "Running"}}
    _, answer = await api.ask("PATCH", f"{IN_DEFAULT}/{name}", both, MERGE)
    assert (answer["status"]["phase"], answer["metadata"]["annotations"]) == ("Pending", {"a": "1"})
    both["metadata"]["annotations"]["b"] = "2"
    _, answer = await api.ask("PATCH", f"{IN_DEFAULT}/{name}/status", both, MERGE)
    assert (answer["status"]["phase"], answer["metadata"]["annotations"]) == ("Running", {"a": "1", "b": "2"})


async def test_resources_of_a_node_are_removed_through_its_status(api: Api, name: str) -> None:
    await created(api, node(name, mem=8))
    body = {"status": {"capacity": {GPU_MEM: None}, "allocatable": {GPU_MEM: None}}}
    after = msgspec.json.decode(await api.client.patch(NODES, name, body, subresource="status"))
    assert set(after["status"]["capacity"]) == {"cpu", "memory", "pods"}


async def test_a_strategic_patch_merges_by_name_and_deletes(api: Api, name: str) -> None:
    await created(api, node(name))
    for conditions, expected in (
        ([{"type": "GPUs", "status": "True"}], {"Ready": "True", "GPUs": "True"}),
        ([{"type": "GPUs", "status": "False"}], {"Ready": "True", "GPUs": "False"}),
        ([{"type": "GPUs", "$patch": "delete"}], {"Ready": "True"}),
    ):
        body = {"status": {"conditions": conditions}}
        raw = await api.client.patch(NODES, name, body, subresource="status", how=PatchType.STRATEGIC)
        found = msgspec.json.decode(raw)["status"]["conditions"]
        assert {condition["type"]: condition["status"] for condition in found} == expected


async def test_a_binding_writes_node_and_annotations_at_once(api: Api, name: str) -> None:
    uid = (await created(api, pod(name, annotations={"theirs": "1"})))["metadata"]["uid"]
    body = {
        "metadata": {"name": name, "uid": uid, "annotations": {"ours": "2"}},
        "target": {"kind": "Node", "name": "n"},
    }
    raw = await api.client.create(PODS, body, namespace="default", name=name, subresource="binding")
    assert msgspec.json.decode(raw)["status"] == "Success"
    _, found = await api.ask("GET", f"{IN_DEFAULT}/{name}")
    assert found["spec"]["nodeName"] == "n"
    assert found["metadata"]["annotations"] == {"theirs": "1", "ours": "2"}
    assert [(one["type"], one["status"]) for one in found["status"]["conditions"]] == [("PodScheduled", "True")]


async def test_a_binding_of_a_namesake_is_a_conflict(api: Api, name: str) -> None:
    await created(api, pod(name))
    body = {"metadata": {"name": name, "uid": "another"}, "target": {"name": "n"}}
    answer = await refused(api, "POST", f"{IN_DEFAULT}/{name}/binding", body)
    assert (answer["code"], answer["reason"]) == (409, "Conflict")
    assert "UID in precondition: another" in answer["message"]


async def test_a_second_binding_is_a_conflict(api: Api, name: str) -> None:
    await created(api, pod(name))
    body = {"metadata": {"name": name, "annotations": {"a": "1"}}, "target": {"name": "n"}}
    await api.ask("POST", f"{IN_DEFAULT}/{name}/binding", body)
    answer = await refused(api, "POST", f"{IN_DEFAULT}/{name}/binding", body)
    assert (answer["code"], answer["reason"]) == (409, "Conflict")
    assert answer["message"] == (
        f'Operation cannot be fulfilled on pods/binding "{name}": pod {name} is already assigned to node "n"'
    )


async def test_a_pod_that_is_held_back_cannot_be_bound(api: Api, name: str) -> None:
    held = pod(name)
    held["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    await created(api, held)
    body = {"metadata": {"name": name}, "target": {"name": "n"}}
    answer = await refused(api, "POST", f"{IN_DEFAULT}/{name}/binding", body)
    assert (answer["code"], answer["reason"]) == (409, "Conflict")


@pytest.mark.parametrize(
    ("metadata", "target", "code"),
    [
        ({}, {"name": "n"}, 400),
        ({"name": "another"}, {"name": "n"}, 400),
        ({}, {}, 400),
        ({"name": "..."}, {}, 500),
        ({"name": "..."}, {"name": "n", "kind": "Pod"}, 500),
    ],
)
async def test_a_binding_that_makes_no_sense_is_refused(
    api: Api, name: str, metadata: dict[str, str], target: dict[str, str], code: int
) -> None:
    await created(api, pod(name))
    named = {key: name if value == "..." else value for key, value in metadata.items()}
    answer = await refused(api, "POST", f"{IN_DEFAULT}/{name}/binding", {"metadata": named, "target": target})
    assert answer["code"] == code


async def test_a_running_pod_is_deleted_gracefully_and_an_unbound_one_at_once(api: Api, name: str) -> None:
    await created(api, pod(f"{name}a", node="n"))
    await created(api, pod(f"{name}b"))
    for letter in "ab":
        status, _ = await api.ask("DELETE", f"{IN_DEFAULT}/{name}{letter}")
        assert status == 200
    _, found = await api.ask("GET", f"{IN_DEFAULT}/{name}a")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 30
    assert found["metadata"]["deletionTimestamp"].endswith("Z")
    assert (await refused(api, "GET", f"{IN_DEFAULT}/{name}b"))["code"] == 404
    await api.ask("DELETE", f"{IN_DEFAULT}/{name}a?gracePeriodSeconds=0")
    assert (await refused(api, "GET", f"{IN_DEFAULT}/{name}a"))["code"] == 404


async def test_a_namesake_is_not_deleted(api: Api, name: str) -> None:
    await created(api, pod(name))
    answer = await refused(api, "DELETE", f"{IN_DEFAULT}/{name}", {"preconditions": {"uid": "another"}})
    assert (answer["code"], answer["reason"]) == (409, "Conflict")


async def test_a_deleted_node_is_answered_with_success(api: Api, name: str) -> None:
    await created(api, node(name))
    status, answer = await api.ask("DELETE", f"/api/v1/nodes/{name}")
    assert (status, answer["kind"], answer["status"]) == (200, "Status", "Success")


def event(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "test",
        "reportingInstance": "here",
        "action": "Test",
        "reason": "Testing",
        "note": "a test",
        "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"},
        **changes,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"action": ""},
        {"reason": ""},
        {"reportingController": ""},
        {"reportingInstance": ""},
        {"type": "Serious"},
        {"note": "x" * 1025},
        {"reason": "x" * 129},
        {"action": "x" * 129},
    ],
    ids="-".join,
)
async def test_an_event_that_lacks_something_is_invalid(api: Api, name: str, changes: dict[str, str]) -> None:
    error = await error_of(api.client.create(EVENTS, event(name, **changes), namespace="default"))
    assert isinstance(error, InvalidError)


async def test_an_event_is_listed_in_its_older_form_too_by_the_object_that_it_is_about(api: Api, name: str) -> None:
    about = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": f"uid-{name}"}
    await api.client.create(EVENTS, event(name, type="Warning", regarding=about), namespace="default")
    path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid%3D"
    _, answer = await api.ask("GET", f"{path}uid-{name}")
    (found,) = answer["items"]
    assert {key: found[key] for key in ("type", "reason", "message", "lastTimestamp", "eventTime")} == {
        "type": "Warning",
        "reason": "Testing",
        "message": "a test",
        "lastTimestamp": None,
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    assert found["involvedObject"]["uid"] == f"uid-{name}"
    _, answer = await api.ask("GET", f"{path}another")
    assert answer["items"] == []


async def test_of_an_event_only_the_count_can_be_changed(api: Api, name: str) -> None:
    await api.client.create(EVENTS, event(name), namespace="default")
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}
    raw = await api.client.patch(EVENTS, name, {"series": series}, namespace="default")
    assert msgspec.json.decode(raw)["series"]["count"] == 2
    for body in ({"note": "other"}, {"series": {**series, "count": 1}}):
        assert isinstance(await error_of(api.client.patch(EVENTS, name, body, namespace="default")), InvalidError)


async def test_the_writer_of_events_is_understood(api: Api, name: str, eventually: Any) -> None:
    writer = EventWriter(api.client, instance=name, pace_s=0)
    async with beside(writer.run()):
        for _ in range(2):
            writer.post(about_node(name), reason="GPULost", action="Watch", note="x" * 2000, warning=True)
        writer.post(EventSubject("Pod", name, "kube-system", "u"), reason="Refused", action="Allocate", note="no room")
        await eventually(lambda: "0 waiting" in repr(writer))
        writer.post(about_node(name), reason="GPULost", action="Watch", note="x" * 2000, warning=True)
        await eventually(lambda: "0 waiting" in repr(writer))
    assert writer.dropped == 0
    _, answer = await api.ask("GET", "/apis/events.k8s.io/v1/events")
    counts = {
        (found["metadata"]["namespace"], found["reason"]): found.get("series", {}).get("count", 1)
        for found in answer["items"]
        if found["regarding"]["name"] == name
    }
    assert counts == {("default", "GPULost"): 3, ("kube-system", "Refused"): 1}


async def test_the_pods_of_a_node_are_followed(
    api: Api, name: str, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Created old then young, bound young then old; one annotated, one deleted."""
    for letter in "ab":
        await created(api, pod(name + letter, container(mem=2)))
    async with asyncio.TaskGroup() as tasks:
        there = NodePods(api.client, PodReader([GPU_MEM], lambda key: key == "promise"), node=name)
        running = tasks.create_task(there.reflector.run())
        await eventually(lambda: there.reflector.live)
        for letter in "ba":
            body = {"metadata": {"name": name + letter, "annotations": {"promise": letter}}, "target": {"name": name}}
            await api.client.create(PODS, body, namespace="default", name=name + letter, subresource="binding")
        await eventually(lambda: len(there.pods) == 2)
        assert [found.annotations["promise"] for found in there.pods.values()] == ["b", "a"]
        assert {found.containers[0].limits[GPU_MEM] for found in there.pods.values()} == {2}
        writer = PodWriter(api.client)
        writing = tasks.create_task(writer.run())
        young = next(iter(there.pods.values()))
        writer.annotate(young, {"promise": "kept"})
        await eventually(lambda: next(iter(there.pods.values())).annotations == {"promise": "kept"})
        await api.ask("DELETE", f"{IN_DEFAULT}/{name}b?gracePeriodSeconds=0")
        await eventually(lambda: [found.name for found in there.pods.values()] == [f"{name}a"])
        await created(api, pod(f"{name}b"))
        writer.annotate(young, {"promise": "not for a namesake"})
        await eventually(lambda: "0 waiting" in repr(writer))
        running.cancel()
        writing.cancel()
    assert (writer.dropped, there.reflector.lists) == (0, 1)
    assert "a list corrected" not in caplog.text
    _, namesake = await api.ask("GET", f"{IN_DEFAULT}/{name}b")
    assert "annotations" not in namesake["metadata"]


async def test_the_pods_of_a_node_outlive_a_restart_of_the_api_server(api: Api, name: str, eventually: Any) -> None:
    """The new server's memory begins after the version that we know: 410, a new list, deletions found."""
    for letter in "ab":
        await created(api, pod(name + letter, node=name))
    there = NodePods(api.client, PodReader([], lambda _: False), node=name)
    async with beside(there.reflector.run()):
        await eventually(lambda: there.reflector.live)
        await api.restart()
        await api.ask("DELETE", f"{IN_DEFAULT}/{name}a?gracePeriodSeconds=0")
        await created(api, pod(f"{name}c", node=name))
        await eventually(lambda: {found.name for found in there.pods.values()} == {f"{name}b", f"{name}c"})


async def test_a_node_says_what_we_want_to_be_known(api: Api, name: str) -> None:
    await created(api, node(name))
    myself = OwnNode(api.client, name)
    wanted = Observable(NodeMetadata(labels={"example.com/gpus": "8"}, annotations={"example.com/list": "[1,2]"}))
    async with beside(myself.keep(wanted)):
        for _ in range(400):
            found = await myself.read()
            if "example.com/gpus" in found.labels:
                break
    assert found.labels["example.com/gpus"] == "8"
    assert found.annotations["example.com/list"] == "[1,2]"
    assert not await myself.publish(wanted.value)


async def test_our_own_node_may_be_missing(api: Api, name: str) -> None:
    assert isinstance(await error_of(OwnNode(api.client, name).read()), NotFoundError)


async def test_a_stranger_learns_which_right_is_missing(api: Api) -> None:
    async with Client(api.stranger) as stranger:
        error = await error_of(stranger.create(EVENTS, event("x"), namespace="default"))
    assert "grant 'create' on 'events' of the API group events.k8s.io" in str(error)


async def test_versions_of_one_object_grow(api: Api, name: str) -> None:
    first = read_metadata(msgspec.json.encode(await created(api, pod(name)))).resource_version
    raw = await api.client.patch(PODS, name, {"metadata": {"labels": {"a": "b"}}}, namespace="default")
    assert int(read_metadata(raw).resource_version) > int(first)


async def test_a_lease_is_taken_by_one_of_two(api: Api, name: str) -> None:
    """Compare-and-swap with PUT, as leader elections do."""
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"metadata": {"name": name, "namespace": "default"}, "spec": {"holderIdentity": "a"}}
    status, first = await api.ask("POST", path, lease)
    assert (status, first["spec"]) == (201, {"holderIdentity": "a"})
    assert (await refused(api, "POST", path, lease))["reason"] == "AlreadyExists"
    status, second = await api.ask("PUT", f"{path}/{name}", {**first, "spec": {"holderIdentity": "b"}})
    assert (status, second["spec"]) == (200, {"holderIdentity": "b"})
    late = await refused(api, "PUT", f"{path}/{name}", {**first, "spec": {"holderIdentity": "c"}})
    assert (late["code"], late["reason"]) == (409, "Conflict")
    blind = await refused(api, "PUT", f"{path}/{name}", lease)
    assert (blind["code"], blind["details"]["causes"][0]["field"]) == (422, "metadata.resourceVersion")


@pytest.mark.parametrize("field", ["leaseDurationSeconds", "leaseTransitions"])
async def test_a_lease_with_absurd_numbers_is_invalid(api: Api, name: str, field: str) -> None:
    body = {"metadata": {"name": name}, "spec": {"holderIdentity": "a", field: -1}}
    error = await error_of(api.client.create(LEASES, body, namespace="default"))
    assert isinstance(error, InvalidError)
    assert f"spec.{field} (FieldValueInvalid)" in str(error)


async def test_a_lease_is_given_back_by_taking_the_holder_out(api: Api, name: str) -> None:
    body = {"metadata": {"name": name}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    first = msgspec.json.decode(await api.client.create(LEASES, body, namespace="default"))
    first["spec"]["holderIdentity"] = None
    second = msgspec.json.decode(await api.client.replace(LEASES, name, first, namespace="default"))
    assert second["spec"] == {"leaseDurationSeconds": 15}


async def test_one_of_two_candidates_leads_and_hands_over(api: Api, name: str, eventually: Any) -> None:
    timing = LeaseTiming(lease_s=3600, renew_s=3000, retry_s=0.05, release_s=3000)
    first, second = (Lease(api.client, "default", name, who, timing=timing) for who in "ab")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(first.run())
        await eventually(lambda: first.leading)
        waiting = tasks.create_task(second.run())
        await eventually(lambda: second.holder == "a")
        running.cancel()
        await eventually(lambda: second.leading)
        assert not first.leading
        waiting.cancel()
    spec = msgspec.json.decode(await api.client.get(LEASES, name, namespace="default"))["spec"]
    assert (spec.get("holderIdentity"), spec["leaseTransitions"]) == (None, 1)


class Held(Store[Pod]):
    """A store for the reflector."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}

    def replace(self, objects: Sequence[Pod]) -> None:
        self.pods = {found.uid: found for found in objects}

    def put(self, object: Pod) -> None:  # noqa: A002 - as the protocol has it
        self.pods[object.uid] = object

    def remove(self, object: Pod) -> None:  # noqa: A002
        self.pods.pop(object.uid, None)

    def names(self, beginning: str) -> dict[str, str]:
        """Return what is held of one test's pods: the node of each."""
        return {found.name: found.node_name for found in self.pods.values() if found.name.startswith(beginning)}


async def test_the_reflector_follows_what_the_binder_does(api: Api, name: str, eventually: Any) -> None:
    held, reader = Held(), PodReader([GPU_MEM], lambda key: key == "promise")
    await created(api, pod(f"{name}a", container(mem=2)))
    reflector = Reflector(api.client, PODS, lambda raw: reader.read(raw)[0], held)
    async with beside(reflector.run()):
        await reflector.wait_synced()
        await eventually(lambda: reflector.live)
        uid = (await created(api, pod(f"{name}b", container(mem=2))))["metadata"]["uid"]
        await Binder(api.client, PodReader((), lambda _: True)).bind(
            PodRef("default", f"{name}b", uid), name, {"promise": "1"}
        )
        await reflector.caught_up()
        assert held.names(name) == {f"{name}a": "", f"{name}b": name}
        assert held.pods[uid].annotations == {"promise": "1"}
        await api.ask("DELETE", f"{IN_DEFAULT}/{name}a")
        await created(api, node(name))  # a version that no watch of pods is told of
        await reflector.caught_up()
        assert held.names(name) == {f"{name}b": name}
    assert reflector.unreadable == 0


async def test_the_reflector_outlives_a_restart_of_the_api_server(api: Api, name: str, eventually: Any) -> None:
    held, reader = Held(), PodReader([], lambda _: False)
    for letter in "ab":
        await created(api, pod(name + letter))
    timing = ReflectorTiming(longest_retry_s=0.5)
    reflector = Reflector(api.client, PODS, lambda raw: reader.read(raw)[0], held, timing=timing)
    async with beside(reflector.run()):
        await eventually(lambda: reflector.live)
        await api.restart()
        await api.ask("DELETE", f"{IN_DEFAULT}/{name}a?gracePeriodSeconds=0")
        await created(api, pod(f"{name}c"))
        await eventually(lambda: held.names(name).keys() == {f"{name}b", f"{name}c"})


async def test_the_binder_knows_its_own_binding_from_others(api: Api, name: str) -> None:
    uid = (await created(api, pod(name)))["metadata"]["uid"]
    ref, binder = PodRef("default", name, uid), Binder(api.client, PodReader((), lambda _: True))
    for wrong, why in (
        (PodRef("default", name, "another"), f"pod default/{name} was replaced by another of the same name"),
        (PodRef("default", f"no-{name}", uid), f"pod default/no-{name} was deleted meanwhile"),
    ):
        assert str(await error_of(binder.bind(wrong, "n", {"promise": "1"}))) == why
    for _ in range(2):
        await binder.bind(ref, "n", {"promise": "1"})
    error = await error_of(binder.bind(ref, "elsewhere", {"promise": "1"}))
    assert isinstance(error, BindError)
    assert str(error) == f"pod default/{name} is already bound to node n"


async def test_a_pod_that_is_deleted_while_it_waits_is_not_bound(api: Api, name: str) -> None:
    """A finalizer keeps it visible."""
    body = pod(name)
    body["metadata"]["finalizers"] = ["example.com/wait"]
    uid = (await created(api, body))["metadata"]["uid"]
    await api.ask("DELETE", f"{IN_DEFAULT}/{name}?gracePeriodSeconds=0")
    error = await error_of(
        Binder(api.client, PodReader((), lambda _: True)).bind(PodRef("default", name, uid), "n", {})
    )
    assert str(error) == f"pod default/{name} is being deleted"
    await api.ask("PATCH", f"{IN_DEFAULT}/{name}", {"metadata": {"finalizers": None}}, MERGE)
    assert isinstance(await error_of(api.client.get(PODS, name, namespace="default")), NotFoundError)


async def test_a_node_is_read_as_the_server_writes_it(api: Api, name: str) -> None:
    body = node(name, mem=1000, count=8, labels={"ours": "1"}, annotations={"ours": "2", "theirs": "3"})
    body["spec"]["unschedulable"] = True
    body["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.7"}]
    await created(api, body)
    reader = NodeReader([GPU_MEM, GPU_COUNT], lambda key: key == "ours")

    async def read() -> NodeRecord:
        return reader.read(await api.client.get(NODES, name))

    found = await read()
    assert (found.name, found.labels, found.annotations) == (name, {"ours": "1"}, {"ours": "2"})
    assert found.capacity == found.allocatable == {GPU_MEM: 1000, GPU_COUNT: 8}
    assert (found.ready, found.unschedulable, found.address) == (True, True, "10.0.0.7")
    beat = {
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}]}
    }
    await api.client.patch(NODES, name, beat, subresource="status", how=PatchType.STRATEGIC)
    assert await read() == found
    assert (await read()).resource_version > found.resource_version


async def test_paths_that_lead_nowhere_are_not_found(api: Api) -> None:
    for path in ("/api/v1/gpus", "/apis/example.com/v1/pods", "/api/v1/namespaces/default/pods/a/b/c"):
        status, _ = await api.ask("GET", path)
        assert status == 404
    assert (await refused(api, "PUT", IN_DEFAULT, {}))["code"] == 405
