"""Our API server scales workloads as the real one does, where there is a real one (KUBE_BIN)."""

import uuid
from typing import Any

import pytest

from gpu_device_plugin.kubernetes.client.api_client import PatchType
from tests.cluster_double.owned import workload
from tests.kubernetes.conftest import Api

APPS = "/apis/apps/v1/namespaces/default"
MERGE = PatchType.MERGE.value
WORKLOADS = pytest.mark.parametrize(
    ("plural", "kind"),
    [("deployments", "Deployment"), ("replicasets", "ReplicaSet"), ("statefulsets", "StatefulSet")],
)


@pytest.fixture
def name() -> str:
    """A name that no other test uses: the real server lives as long as all of them."""
    return f"t{uuid.uuid4().hex[:10]}"


async def made(api: Api, name: str, kind: str = "Deployment", **more: Any) -> dict[str, Any]:
    status, answer = await api.ask("POST", f"{APPS}/{kind.lower()}s", workload(name, kind=kind, **more))
    assert status == 201, answer
    found: dict[str, Any] = answer
    return found


@WORKLOADS
async def test_the_scale_of_a_workload_is_a_part_of_it(api: Api, name: str, plural: str, kind: str) -> None:
    found = await made(api, name, kind, replicas=3)
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (3, 1)
    assert found["status"].get("replicas") == (None if kind == "Deployment" else 0)
    status, scale = await api.ask("GET", f"{APPS}/{plural}/{name}/scale")
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    assert (status, scale) == (
        200,
        {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {key: found["metadata"][key] for key in kept},
            "spec": {"replicas": 3},
            "status": {"replicas": 0, "selector": f"app={name}"},
        },
    )


@WORKLOADS
async def test_a_patch_of_the_scale_changes_the_replicas_alone(api: Api, name: str, plural: str, kind: str) -> None:
    before = await made(api, name, kind)
    assert before["spec"]["replicas"] == 1
    body = {"metadata": {"annotations": {"a": "b"}}, "spec": {"replicas": 0}}
    status, scale = await api.ask("PATCH", f"{APPS}/{plural}/{name}/scale", body, MERGE)
    assert (status, scale["spec"]) == (200, {})
    _, after = await api.ask("GET", f"{APPS}/{plural}/{name}")
    assert (after["spec"]["replicas"], after["metadata"]["generation"]) == (0, 2)
    assert "a" not in (after["metadata"].get("annotations") or {})
    assert scale["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


async def test_a_scale_is_compared_and_swapped(api: Api, name: str) -> None:
    before = await made(api, name)
    path = f"{APPS}/deployments/{name}"
    await api.ask("PATCH", path, {"metadata": {"annotations": {"a": "b"}}}, MERGE)
    stale = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}, "spec": {"replicas": 0}}
    status, answer = await api.ask("PATCH", f"{path}/scale", stale, MERGE)
    assert (status, answer["reason"]) == (409, "Conflict")
    _, after = await api.ask("GET", path)
    assert after["spec"]["replicas"] == 1


async def test_a_negative_scale_is_invalid(api: Api, name: str) -> None:
    await made(api, name)
    status, answer = await api.ask("PATCH", f"{APPS}/deployments/{name}/scale", {"spec": {"replicas": -1}}, MERGE)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert answer["details"]["causes"][0]["field"] == "spec.replicas"


async def test_the_status_is_written_apart_from_the_rest(api: Api, name: str) -> None:
    await made(api, name)
    path = f"{APPS}/deployments/{name}"
    body = {"spec": {"replicas": 7}, "status": {"replicas": 1}}
    status, answer = await api.ask("PATCH", f"{path}/status", body, MERGE)
    assert (status, answer["spec"]["replicas"], answer["status"]["replicas"]) == (200, 1, 1)
    _, scale = await api.ask("GET", f"{path}/scale")
    assert scale["status"]["replicas"] == 1


@pytest.mark.parametrize("missing", ["selector", "template"])
async def test_a_workload_needs_a_selector_and_a_template(api: Api, name: str, missing: str) -> None:
    body = workload(name)
    del body["spec"][missing]
    status, answer = await api.ask("POST", f"{APPS}/deployments", body)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert any(cause["field"].startswith(f"spec.{missing}") for cause in answer["details"]["causes"])


async def test_a_workload_that_is_not_there_has_no_scale(api: Api, name: str) -> None:
    status, answer = await api.ask("GET", f"{APPS}/deployments/{name}/scale")
    assert (status, answer["reason"]) == (404, "NotFound")
