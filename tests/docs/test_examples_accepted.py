"""What the pages apply and what they say is refused, before a real API server with our admission policies in force."""

from pathlib import Path

import pytest

from tests.builders import GPU_MEM, container, pod
from tests.deploy.conftest import api  # noqa: F401 - a fixture, asked for by its name below
from tests.deploy.policies_world import PERSON, PolicyWorld, Request, apply_policies, create, denial, path_of
from tests.docs.guide_world import EXAMPLES, Json, documents, pods_of
from tests.docs.pages import DOCS, blocks, sections, text_of
from tests.kubernetes.conftest import real_server  # noqa: F401 - a fixture, asked for by the next one

_STAYS = {"Namespace", "PriorityClass"}
"""What others name; all else is tried and not kept."""


@pytest.fixture(scope="module")
async def world(api: PolicyWorld) -> PolicyWorld:  # noqa: F811 - a fixture
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    await api.make({**runtime, "handler": "nvidia"})
    await apply_policies(api)
    refused = create(pod("refused", container(mem=0)))
    await api.until(PERSON, refused, lambda answer: denial(answer)[0] == "gpushare-no-zero")
    return api


async def make(world: PolicyWorld, body: Json, *, stays: bool) -> None:
    """Create an object, and let no field pass that the API server does not know."""
    query = "?fieldValidation=Strict" + ("" if stays else "&dryRun=All")
    status, answer = await world.ask(PERSON, Request("POST", path_of(body) + query, body), dry_run=False)
    assert status == 201 or (stays and status == 409), answer


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
async def test_the_api_server_accepts_it_to_the_last_field_and_so_do_our_policies(
    world: PolicyWorld, path: Path
) -> None:
    """The pods too that a controller would make of it."""
    for body in documents(path):
        await make(world, body, stays=body["kind"] in _STAYS)
        for each in pods_of(body):
            await make(world, each, stays=False)


async def test_the_quota_refuses_one_notebook_more_in_the_words_of_the_guide(world: PolicyWorld) -> None:
    (shown,) = (block.text.strip() for block in blocks(text_of(DOCS / "guide.md"), "text") if "quota" in block.text)
    namespace, quota, deployment = documents(EXAMPLES / "quota.yaml")
    await make(world, namespace, stays=True)
    await make(world, quota, stays=True)
    # Two notebooks are there, as a controller that is not here would count them.
    name = "/api/v1/namespaces/team-a/resourcequotas/gpus"
    body = await world.call("GET", name)
    hard = body["spec"]["hard"]
    body["status"] = {"hard": hard, "used": {**hard, "requests.aliyun.com/gpu-mem": "16"}}
    status, answer = await world.ask(None, Request("PUT", f"{name}/status", body), dry_run=False)
    assert status == 200, answer
    third, *_ = pods_of(deployment)
    status, answer = await world.ask(PERSON, create(third))
    assert (status, shown in answer["message"]) == (403, True), answer


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ({"limits": {GPU_MEM: "0.5"}}, "must be an integer"),
        ({"limits": {GPU_MEM: "10GiB"}}, "quantities must match the regular expression"),
        ({"requests": {GPU_MEM: "1"}}, "Limit must be set for non overcommitable resources"),
        ({"requests": {GPU_MEM: "1"}, "limits": {GPU_MEM: "2"}}, f"must be equal to {GPU_MEM} limit of 2"),
    ],
    ids=["a part of a unit", "no such unit", "a request alone", "a request that differs"],
)
async def test_what_kubernetes_says_of_a_pod_is_explained(resources: Json, told: str, world: PolicyWorld) -> None:
    _, answer = await world.ask(PERSON, create(pod("amounts", {**container(), "resources": resources})))
    assert told in answer["message"]
    assert f"| `{told}` | Kubernetes |" in sections(text_of(DOCS / "troubleshooting.md"))["A pod cannot be created"]
