"""Plans of moves on the page: the same as on the terminal, for those who may see all of it, one at a time."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import ALLOCATION
from gpu_device_plugin.programs.web import page_plans
from gpu_device_plugin.programs.web.callers import ReviewedCallers
from gpu_device_plugin.programs.web.page_plans import PagePlans
from tests.builders import container, node, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.reviews import Account
from tests.cluster_double.troubles import Hang
from tests.patience import eventually
from tests.programs.web.harness import Page, served, served_by
from tests.programs.web.test_page_server import READABLE, bearer

PLAN = "api/v1/plans/default/want"
VIEWER = {("get", "pods", ""), ("list", "nodes", ""), ("list", "poddisruptionbudgets.policy", "")}
NODES = {("list", "nodes"), ("watch", "nodes")}
WEB = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8", "uid": "web", "controller": True}


def bound(name: str, shares: int, at: str, *, owned: bool = True) -> Any:
    annotations = {ALLOCATION: json.dumps({"0": {"0": shares}})}
    made = pod(name, container(mem=shares), node=at, phase="Running", annotations=annotations, labels={"app": "web"})
    if owned:
        made["metadata"]["ownerReferences"] = [WEB]
    return made


def budget(allowed: int) -> Any:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """Each of two GPUs has 9 of 15 shares free, and a pod wants 12."""
    async with ApiServer() as running:
        for name in ("gpu-1", "gpu-2"):
            running.add(node(name, mem=15, count=1))
        running.add(bound("web-0", 6, "gpu-1"))
        running.add(bound("bare", 6, "gpu-2", owned=False))
        running.add(pod("want", container(mem=12)))
        yield running


async def read(page: Page, path: str = PLAN, **headers: str) -> tuple[int, Any]:
    await eventually(lambda: page.server.page_state.complete and page.server.page_state.current)
    return await page.get(path, **headers)


async def test_a_plan_is_that_of_the_terminal(api: ApiServer) -> None:
    async with served(api) as page:
        status, told = await read(page)
    assert status == 200
    move = {"pod": "default/web-0", "from": {"node": "gpu-1", "gpus": [0]}, "to": {"node": "gpu-2", "gpus": {"0": 6}}}
    assert told["plans"] == [
        {"for": "default/want", "found": True, "fewestPossible": 1, "exact": True, "moves": [move]}
    ]
    bare = {"default/bare": 6}
    assert told["gpus"] == [
        {
            "node": "gpu-1",
            "gpu": 0,
            "before": {"default/web-0": 6},
            "freeBefore": 9,
            "after": {"default/want (new)": 12},
            "freeAfter": 3,
        },
        {
            "node": "gpu-2",
            "gpu": 0,
            "before": bare,
            "freeBefore": 9,
            "after": {**bare, "default/web-0": 6},
            "freeAfter": 3,
        },
    ]
    assert told["stays"] == [{"pod": "default/bare", "node": "gpu-2", "why": "no controller would replace it"}]
    assert told["verdict"].startswith("1 move makes room for default/want.")
    assert told["notes"] == []


async def test_pods_that_stay_elsewhere_matter_only_without_a_plan(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.add(node("gpu-3", mem=15, count=1))
    for number in range(3):
        api.add(bound(f"x{number}", 5, "gpu-3", owned=False))
    api.add(pod("huge", container(mem=16)))
    async with served(api) as page:
        _, found = await read(page)
        _, none = await read(page, "api/v1/plans/default/huge")
        assert [each["node"] for each in found["stays"]] == ["gpu-2"]
        assert len(none["stays"]) == 4
        assert none["verdict"] == "No set of moves was found to make room for default/huge."
    monkeypatch.setattr(page_plans, "_MOST_STAYING", 3)
    async with served(api) as page:
        _, none = await read(page, "api/v1/plans/default/huge")
        assert (len(none["stays"]), none["notes"]) == (3, ["1 more pod is not moved."])


async def test_budgets_count_for_those_who_may_see_them(api: ApiServer) -> None:
    api.add(budget(0))
    fewer = VIEWER - {("list", "poddisruptionbudgets.policy", "")}
    api.accounts |= {"all": Account("all", rights=VIEWER), "some": Account("some", rights=fewer)}
    async with served(api) as page:
        _, told = await read(page)
        assert told["verdict"] == "No set of moves was found to make room for default/want."
        assert {"pod": "default/web-0", "node": "gpu-1", "why": "its PodDisruptionBudget allows no disruption"} in told[
            "stays"
        ]
        client = page.server.routes.client
        async with served_by(client, callers=ReviewedCallers(client), mode="cluster") as shared:
            _, every = await read(shared, Authorization=bearer("all"))
            _, some = await read(shared, Authorization=bearer("some"))
    assert every == told
    assert some["plans"][0]["found"]
    missing = "The right to list poddisruptionbudgets.policy in the whole cluster is missing"
    assert some["notes"] == [f"{missing}: the API server may refuse evictions that the plan counts on."]


@pytest.mark.parametrize(
    ("rights", "missing"),
    [
        ({("get", "pods", "default"), ("list", "nodes", "")}, "get pods"),
        ({("get", "pods", "")}, "list nodes"),
    ],
)
async def test_a_plan_is_for_those_who_may_see_all_nodes_and_pods(
    api: ApiServer, rights: set[tuple[str, str, str]], missing: str
) -> None:
    api.accounts["bob"] = Account("bob", rights=rights)
    async with served(api) as page:
        client = page.server.routes.client
        async with served_by(client, callers=ReviewedCallers(client), mode="cluster") as shared:
            status, told = await read(shared, Authorization=bearer("bob"))
    assert status == 403
    why = f"the right to {missing} in the whole cluster is missing."
    assert told == {"error": f"A plan concerns all nodes and their pods: {why}"}


async def test_what_the_kubeconfig_may_not_read_is_said(api: ApiServer) -> None:
    api.allowed = frozenset(READABLE | NODES)
    async with served(api) as page:
        _, told = await read(page)
        assert told["plans"][0]["found"]
        assert "list poddisruptionbudgets.policy" in told["notes"][0]


async def test_a_cluster_without_the_api_of_budgets_has_none(api: ApiServer) -> None:
    api.without = {"policy"}
    async with served(api) as page:
        _, told = await read(page)
    assert (told["plans"][0]["found"], told["notes"]) == (True, [])


async def test_where_not_all_pods_can_be_read_there_is_no_plan(api: ApiServer) -> None:
    async with served(api) as page:
        await read(page, "api/v1/session")
        api.allowed = frozenset({("list", "nodes"), ("list", "poddisruptionbudgets")})
        status, told = await page.get(PLAN)
    assert status == 403
    assert told["error"].startswith("This is not shown: the right to list pods in the whole cluster is missing")


async def test_where_no_nodes_can_be_read_there_is_no_plan(api: ApiServer) -> None:
    api.allowed = frozenset((READABLE | {("list", "poddisruptionbudgets")}) - NODES)
    async with served(api) as page:
        status, told = await read(page)
    assert status == 403
    assert told["error"].startswith("This is not shown: the right to list nodes in the whole cluster is missing")


async def test_plans_are_made_one_at_a_time_and_remembered_for_a_while(api: ApiServer) -> None:
    api.add(pod("also", container(mem=12)))
    now = [100.0]
    async with served(api) as page:
        await read(page, "api/v1/session")
        plans = PagePlans(page.server.routes.client, page.server.page_state, lambda: now[0])
        before = len(api.requests)

        async def made(name: str, *, budgets: bool = True) -> bytes | None:
            return await plans.document(f"default/{name}", "alice", budgets=budgets)

        def read_since() -> list[str]:
            return [each.resource for each in api.requests[before:] if each.verb == "list"]

        once = ["poddisruptionbudgets", "pods"]
        first, second, _ = await asyncio.gather(made("want"), made("want"), made("also"))
        assert first is second
        assert read_since() == [*once, *once]
        assert await made("want") is first
        assert read_since() == [*once, *once]
        await made("want", budgets=False)
        assert read_since() == [*once, *once, "pods"]
        now[0] += 10
        assert (again := await made("want")) is not first
        assert again == first


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("default/web-0", 404, "The pod default/web-0 does not wait for GPUs by its limits."),
        ("default/gated", 404, "The pod default/gated does not wait for GPUs by its limits."),
        ("default/..%2f..", 400, "This is no name of a pod; write NAMESPACE/NAME."),
    ],
)
async def test_there_are_plans_for_waiting_pods_alone(api: ApiServer, path: str, status: int, why: str) -> None:
    gated = pod("gated", container(mem=12))
    gated["spec"]["schedulingGates"] = [{"name": "kueue"}]
    api.add(gated)
    async with served(api) as page:
        assert await read(page, f"api/v1/plans/{path}") == (status, {"error": why})


async def test_the_stream_goes_on_beside_a_plan_and_a_reader_who_leaves_holds_up_nobody(api: ApiServer) -> None:
    api.fail(Hang(), verbs=["list"], resources=["poddisruptionbudgets"], times=1)
    async with served(api) as page, page.live() as stream:
        await read(page, "api/v1/session")
        leaves = asyncio.create_task(page.get(PLAN))
        await eventually(lambda: api.count("list", "poddisruptionbudgets"))
        waits = asyncio.create_task(page.get(PLAN))
        api.add(pod("late", container(mem=12)))
        await stream.until(lambda shown: "late" in str(shown["waiting"]))
        assert not waits.done()
        leaves.cancel()
        status, told = await waits
    assert (status, told["plans"][0]["found"]) == (200, True)
