"""ResourceClaims on the page: followed once a node serves them, and told to be missing where they cannot be read."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import ALLOCATION, NODE_GPUS
from gpu_device_plugin.model.contract.nodegpus import write_node_gpus
from tests.builders import container, node, pod
from tests.claim_values import claim_json, part_json, serving
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer
from tests.programs.web.harness import served


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


def serving_node(name: str) -> Any:
    return node(name, annotations={NODE_GPUS: write_node_gpus(serving(8, 8))})


def parts(shown: Any, name: str) -> list[tuple[str, int]]:
    return [(each["name"], each["shares"]) for gpu in shown["nodes"][name]["gpus"] for each in gpu.get("pods", ())]


async def test_claims_stand_beside_pods(api: ApiServer) -> None:
    api.add(serving_node("dra"))
    api.add(node("plugin", mem=15, count=1))
    api.add(pod("a", container(mem=5), node="plugin", annotations={ALLOCATION: json.dumps({"0": {"0": 5}})}))
    api.add(claim_json("c", part_json(0, "4Gi", "dra"), pods=("web",)))
    async with served(api) as page, page.live() as stream:
        shown = await stream.until(lambda known: known["nodes"])
        assert (parts(shown, "dra"), parts(shown, "plugin")) == ([("web", 4)], [("a", 5)])
        assert (shown["nodes"]["dra"]["claims"], shown["notes"]) == (True, [])
        api.add(claim_json("d", part_json(1, "2Gi", "dra")))
        await stream.until(lambda known: parts(known, "dra") == [("web", 4), ("claim:d", 2)])
        api.delete("resourceclaims", "c", namespace="default")
        await stream.until(lambda known: parts(known, "dra") == [("claim:d", 2)])


async def test_claims_are_read_from_when_a_node_serves_them(api: ApiServer) -> None:
    api.add(node("n", mem=16, count=2))
    api.add(claim_json("c", part_json(0, "4Gi", "n")))
    async with served(api) as page, page.live() as stream:
        shown = await stream.until(lambda known: known["nodes"])
        assert parts(shown, "n") == []
        assert not [request for request in api.requests if request.resource == "resourceclaims"]
        api.delete("nodes", "n")
        api.add(serving_node("n"))
        await stream.until(lambda known: "n" in known["nodes"] and parts(known, "n") == [("claim:c", 4)])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            Answer(404, reason="NotFound", message="the server could not find the requested resource"),
            "this cluster has none (resource.k8s.io/v1 comes with Kubernetes 1.34).",
        ),
        (
            Answer(403, reason="Forbidden", message="resourceclaims is forbidden"),
            "the right to list resourceclaims.resource.k8s.io in the whole cluster is missing.",
        ),
    ],
)
async def test_without_claims_all_else_is_shown_with_one_sentence(api: ApiServer, answer: Answer, why: str) -> None:
    api.add(serving_node("dra"))
    api.fail(answer, verbs=["list"], resources=["resourceclaims"])
    async with served(api) as page, page.live() as stream:
        shown = await stream.until(lambda known: known["notes"])
    assert shown["notes"] == [f"ResourceClaims are not shown, so GPU usage may be under-reported: {why}"]
    assert sorted(shown["nodes"]) == ["dra"]
    assert shown["read"]["live"] is True


async def test_pods_that_wait_for_claims_are_listed_with_the_others(api: ApiServer) -> None:
    api.add(serving_node("dra"))
    for name, namespace in (("late", "a"), ("other", "b"), ("placed", "a")):
        waits = pod(name, container(), namespace=namespace)
        waits["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
        api.add(waits)
    api.add(claim_json("late-gpu", memory="16Gi", namespace="a"))
    api.add(claim_json("placed-gpu", part_json(0, "1Gi", "dra"), namespace="a"))
    async with served(api) as page, page.live() as stream:
        shown = await stream.until(lambda known: known["waiting"] and known["waiting"][0].get("why"))
        (late,) = shown["waiting"]
        assert (late["namespace"], late["name"], late["asks"]) == (
            "a",
            "late",
            "16 GiB of one GPU, through ResourceClaims",
        )
        assert late["why"] == ("Does not fit on dra, the only node that shares GPUs: the largest GPU has only 8 GiB.")
        api.add(claim_json("other-gpu", memory="1Gi", namespace="b"))
        shown = await stream.until(lambda known: [bool(each.get("why")) for each in known["waiting"]] == [True, True])
        whys = {each["name"]: each["why"] for each in shown["waiting"]}
        assert whys.keys() == {"late", "other"}
        assert whys["other"].startswith("1 node has room for it now; ")
        api.delete("resourceclaims", "late-gpu", namespace="a")
        await stream.until(lambda known: [each["name"] for each in known["waiting"]] == ["other"])
