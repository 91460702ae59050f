"""Our API server evicts pods and keeps conditions as the real one does, where there is a real one (KUBE_BIN)."""

import asyncio
import uuid
from datetime import datetime
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.kubernetes.client.api_client import PatchType
from gpu_device_plugin.kubernetes.objects.decoding import NODES
from gpu_device_plugin.kubernetes.writers.evictions import EvictionOutcome, evict
from gpu_device_plugin.model.pods import Pod
from tests.builders import node, pod
from tests.kubernetes.conftest import Api

IN_DEFAULT = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MERGE = PatchType.MERGE.value
VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


@pytest.fixture
def name() -> str:
    """A name that no other test uses: the real server lives as long as all of them."""
    return f"t{uuid.uuid4().hex[:10]}"


async def running(api: Api, name: str, *, ready: bool = True, grace_s: int | None = None) -> Pod:
    """Make a pod that runs on a node, with its name as a label."""
    status, made = await api.ask("POST", IN_DEFAULT, pod(name, node=name, labels={"app": name}, grace_s=grace_s))
    assert status == 201, made
    ready_now = {"type": "Ready", "status": "True" if ready else "False"}
    body = {"status": {"phase": "Running", "conditions": [ready_now]}}
    status, answer = await api.ask("PATCH", f"{IN_DEFAULT}/{name}/status", body, MERGE)
    assert status == 200, answer
    return Pod(made["metadata"]["uid"], "default", name, grace_s=30 if grace_s is None else grace_s)


async def budget(api: Api, name: str, app: str, expressions: list[dict[str, Any]] | None = None, **status: int) -> None:
    """Make a PodDisruptionBudget for the pods with a label, with the status that its controller writes."""
    selector = {"matchExpressions": expressions} if expressions else {"matchLabels": {"app": app}}
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": selector},
    }
    code, answer = await api.ask("POST", BUDGETS, body)
    assert code == 201, answer
    if status:
        found = {"observedGeneration": 1, "expectedPods": 1, "desiredHealthy": 1, "currentHealthy": 1, **status}
        code, answer = await api.ask("PATCH", f"{BUDGETS}/{name}/status", {"status": found}, MERGE)
        assert code == 200, answer


async def post(
    api: Api, pod: Pod, uid: str = "", *, grace_s: int | None = None, **metadata: str
) -> tuple[int, dict[str, Any]]:
    options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace, **metadata},
        "deleteOptions": {"preconditions": {"uid": uid or pod.uid}, **options},
    }
    return await api.ask("POST", f"{IN_DEFAULT}/{pod.name}/eviction", body)


async def found(api: Api, name: str) -> dict[str, Any]:
    _, answer = await api.ask("GET", f"{IN_DEFAULT}/{name}")
    made: dict[str, Any] = answer
    return made


async def test_a_running_pod_is_marked_and_its_kubelet_ends_it(api: Api, name: str) -> None:
    made = await running(api, name)
    status, answer = await post(api, made)
    assert (status, answer["kind"], answer["status"], answer["code"]) == (201, "Status", "Success", 201)
    left = await found(api, name)
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30
    (why,) = (one for one in left["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert (why["status"], why["reason"], why["message"]) == ("True", "EvictionByEvictionAPI", "Eviction API: evicting")
    assert (await evict(api.client, made, most_grace_s=60)).outcome is EvictionOutcome.EVICTED, (
        "it may be asked for again"
    )


@pytest.mark.parametrize(
    ("own", "asked", "granted"),
    [
        (10**9, None, 10**9),
        (10**9, 60, 60),
        (5, 60, 60),  # an eviction may lengthen, so the agent does not ask where the pod has less
        (-5, None, 1),
        (30, -5, 1),
    ],
)
async def test_a_pod_has_the_time_to_end_that_the_eviction_asks_for(
    api: Api, name: str, own: int, asked: int | None, granted: int
) -> None:
    made = await running(api, name, grace_s=own)
    assert (await post(api, made, grace_s=asked))[0] == 201
    meta = (await found(api, name))["metadata"]
    assert meta["deletionGracePeriodSeconds"] == granted


async def test_an_eviction_without_time_forgets_a_pod_that_still_runs(api: Api, name: str) -> None:
    """Its kubelet has not ended it, which is why the agent asks for a second at least."""
    assert (await post(api, await running(api, name), grace_s=0))[0] == 201
    assert (await found(api, name))["code"] == 404


async def test_another_eviction_shortens_the_end_of_a_pod_and_does_not_lengthen_it(api: Api, name: str) -> None:
    made = await running(api, name)
    await api.ask("DELETE", f"{IN_DEFAULT}/{name}", {"gracePeriodSeconds": 10**9})
    left = []
    for asked in (None, 60, 90, None, 40):
        assert (await post(api, made, grace_s=asked))[0] == 201
        left.append((await found(api, name))["metadata"])
    assert [meta["deletionGracePeriodSeconds"] for meta in left] == [10**9, 60, 60, 60, 40]
    first, *others = (datetime.fromisoformat(meta["deletionTimestamp"]) for meta in left)
    assert [(first - each).total_seconds() for each in others] == [10**9 - seconds for seconds in (60, 60, 60, 40)]


async def test_a_deletion_is_not_shortened_into_the_past(api: Api, name: str) -> None:
    made = await running(api, name)
    await api.ask("DELETE", f"{IN_DEFAULT}/{name}", {"gracePeriodSeconds": 10**6})
    await asyncio.sleep(2.1)  # times of the API are of whole seconds
    assert (await post(api, made, grace_s=1))[0] == 201
    meta = (await found(api, name))["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 1
    assert datetime.fromisoformat(meta["deletionTimestamp"]) > datetime.fromisoformat(meta["creationTimestamp"])


async def test_the_agents_eviction_gives_a_pod_its_own_time_up_to_a_bound(api: Api, name: str) -> None:
    times = {}
    for own in (10**9, 5):
        made = await running(api, f"{name}-{own}", grace_s=own)
        assert (await evict(api.client, made, most_grace_s=60)).outcome is EvictionOutcome.EVICTED
        times[own] = (await found(api, made.name))["metadata"]["deletionGracePeriodSeconds"]
    assert times == {10**9: 60, 5: 5}


async def test_what_is_gone_and_a_namesake_are_not_evicted(api: Api, name: str) -> None:
    answer = await post(api, Pod("u", "default", name))
    assert (answer[0], answer[1]["reason"], answer[1]["message"]) == (404, "NotFound", f'pods "{name}" not found')
    made = await running(api, name)
    status, answer_ = await post(api, made, uid="another")
    assert (status, answer_["reason"]) == (409, "Conflict")
    assert "another" in answer_["message"]
    assert (await evict(api.client, Pod("another", "default", name), most_grace_s=60)).outcome is EvictionOutcome.GONE
    assert "deletionTimestamp" not in (await found(api, name))["metadata"]


async def test_the_name_has_to_be_that_of_the_address(api: Api, name: str) -> None:
    status, answer = await post(api, await running(api, name), name="other")
    assert (status, answer["reason"]) == (400, "BadRequest")


async def test_a_budget_that_allows_nothing_is_respected(api: Api, name: str) -> None:
    made = await running(api, name)
    await budget(api, name, name, disruptionsAllowed=0)
    status, answer = await post(api, made)
    assert (status, answer["reason"], answer["message"]) == (429, "TooManyRequests", VIOLATES)
    (cause,) = answer["details"]["causes"]
    assert cause["reason"] == "DisruptionBudget"
    assert cause["message"] == f"The disruption budget {name} needs 1 healthy pods and has 1 currently"
    assert answer["details"].get("retryAfterSeconds", 0) == 0
    blocked = await evict(api.client, made, most_grace_s=60)
    assert (blocked.outcome, blocked.retry_after_s) == (EvictionOutcome.BLOCKED, 0)
    assert "deletionTimestamp" not in (await found(api, name))["metadata"]


async def test_a_budget_that_nobody_has_looked_at_blocks_for_a_while(api: Api, name: str) -> None:
    made = await running(api, name)
    await budget(api, name, name)
    status, answer = await post(api, made)
    assert (status, answer["details"]["retryAfterSeconds"]) == (429, 10)
    assert answer["details"]["causes"][0]["message"] == (
        f"The disruption budget {name} is still being processed by the server."
    )
    blocked = await evict(api.client, made, most_grace_s=60)
    assert (blocked.outcome, blocked.retry_after_s) == (EvictionOutcome.BLOCKED, 10)


async def test_each_eviction_takes_one_from_the_budget(api: Api, name: str) -> None:
    one, other = await running(api, name), await running(api, f"{name}b")
    await api.ask("PATCH", f"{IN_DEFAULT}/{name}b", {"metadata": {"labels": {"app": name}}}, MERGE)
    await budget(api, name, name, disruptionsAllowed=1)
    assert [(await evict(api.client, each, most_grace_s=60)).outcome for each in (one, other)] == [
        EvictionOutcome.EVICTED,
        EvictionOutcome.BLOCKED,
    ]
    _, left = await api.ask("GET", f"{BUDGETS}/{name}")
    assert left["status"]["disruptionsAllowed"] == 0


async def test_a_pod_that_is_not_ready_is_not_kept_by_a_budget_that_is_met(api: Api, name: str) -> None:
    made = await running(api, name, ready=False)
    await budget(api, name, name, disruptionsAllowed=0)
    assert (await evict(api.client, made, most_grace_s=60)).outcome is EvictionOutcome.EVICTED


async def test_a_budget_does_not_keep_a_pod_that_is_ending(api: Api, name: str) -> None:
    made = await running(api, name)
    await budget(api, name, name, disruptionsAllowed=0)
    await api.ask("DELETE", f"{IN_DEFAULT}/{name}")
    assert (await evict(api.client, made, most_grace_s=60)).outcome is EvictionOutcome.EVICTED


async def test_a_budget_does_not_keep_a_pod_that_has_not_started(api: Api, name: str) -> None:
    status, made = await api.ask("POST", IN_DEFAULT, pod(name, node=name, labels={"app": name}))
    assert status == 201, made
    await budget(api, name, name, disruptionsAllowed=0)
    assert (
        await evict(api.client, Pod(made["metadata"]["uid"], "default", name), most_grace_s=60)
    ).outcome is EvictionOutcome.EVICTED


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"operator": "In", "values": ["x", "{name}"]}, True),
        ({"operator": "In", "values": ["x"]}, False),
        ({"operator": "NotIn", "values": ["x"]}, True),
        ({"operator": "NotIn", "values": ["x", "{name}"]}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "DoesNotExist"}, False),
    ],
    ids=str,
)
async def test_a_budget_chooses_its_pods_by_expressions(
    api: Api, name: str, rule: dict[str, Any], *, kept: bool
) -> None:
    made = await running(api, name)
    values = [value.format(name=name) for value in rule.get("values", ())]
    expressions = [
        {"key": "app", **rule, **({"values": values} if values else {})},
        {"key": "app", "operator": "In", "values": [name]},
    ]
    await budget(api, name, name, expressions, disruptionsAllowed=0)
    assert (await evict(api.client, made, most_grace_s=60)).outcome is (
        EvictionOutcome.BLOCKED if kept else EvictionOutcome.EVICTED
    )


async def test_two_budgets_are_an_error(api: Api, name: str) -> None:
    made = await running(api, name)
    for each in (name, f"{name}b"):
        await budget(api, each, name, disruptionsAllowed=1)
    status, answer = await post(api, made)
    assert (status, answer["status"], answer["code"]) == (500, "Failure", 500)
    assert answer["message"].startswith("This pod has more than one PodDisruptionBudget")
    failed = await evict(api.client, made, most_grace_s=60)
    assert failed.outcome is EvictionOutcome.FAILED
    assert "more than one PodDisruptionBudget" in failed.why


async def test_a_stranger_evicts_nothing(api: Api, name: str) -> None:
    made = await running(api, name)
    status, answer = await api.ask("POST", f"{IN_DEFAULT}/{made.name}/eviction", {}, config=api.stranger)
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert 'cannot create resource "pods/eviction" in API group "" in the namespace "default"' in answer["message"]


async def test_a_condition_keeps_the_fields_that_a_patch_leaves_out(api: Api, name: str) -> None:
    """By that its last transition stays while only its heartbeat moves."""
    await api.ask("POST", "/api/v1/nodes", node(name))
    times = [f"2026-01-01T00:00:0{second}Z" for second in range(2)]
    first = {
        "type": "X",
        "status": "True",
        "reason": "R",
        "lastHeartbeatTime": times[0],
        "lastTransitionTime": times[0],
    }
    for condition in (first, {"type": "X", "reason": "S", "lastHeartbeatTime": times[1]}):
        body = {"status": {"conditions": [condition]}}
        raw = await api.client.patch(NODES, name, body, subresource="status", how=PatchType.STRATEGIC)
    (left,) = (one for one in msgspec.json.decode(raw)["status"]["conditions"] if one["type"] == "X")
    assert left == {**first, "reason": "S", "lastHeartbeatTime": times[1]} | (
        {"message": ""} if "message" in left else {}
    )
