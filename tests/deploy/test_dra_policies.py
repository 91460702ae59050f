"""The policies for claims (DRA), before a real API server: what an agent may write, and which pods get claims."""

from itertools import chain
from typing import Any

import pytest

from gpu_device_plugin.features.claims import contract as dra
from tests.builders import container, pod
from tests.deploy.manifests import Json, documents, the
from tests.deploy.policies_world import (
    AGENT_A,
    AGENT_B,
    AGENT_UNBOUND,
    MERGE,
    PERSON,
    PolicyWorld,
    Request,
    User,
    create,
    denial,
    furnish,
    path_of,
)

DRA = "/apis/resource.k8s.io/v1"
FILES = {name: documents(f"optional/{name}") for name in ("dra", "dra-templates", "dra-mutating-policy")}
for template in FILES["dra-templates"]:
    template["metadata"]["namespace"] = "moving"
SLICES = f"{DRA}/resourceslices"
CLAIMS = f"{DRA}/namespaces/moving/resourceclaims"

OWN_SLICES = "gpushare-own-slices"
OWN_CLAIMS = "gpushare-own-claims"
UUID = "GPU-1b2c3d4e-0000-4820-abfc-e83e94318197"


@pytest.fixture(scope="module")
async def world(api: PolicyWorld) -> PolicyWorld:
    version = await api.call("GET", "/version")
    if int(version["minor"].rstrip("+")) < 36:
        pytest.skip("this API server gives no shares of devices (Kubernetes 1.36)")
    await furnish(api)
    labelled = {"name": "moving", "labels": {"gpu-device-plugin/claims": "true"}}
    await api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": labelled})
    # What is there before the policies.
    await api.make(piece("theirs", "node-b"))
    await api.make(piece("another", "node-a", driver="gpu.example.com"))
    await api.make(piece("anywhere", "", driver="gpu.example.com"))
    for body in (*chain(*FILES.values()), *as_before_granular_rights()):
        await api.make(body)
    await claim(api, "mine", "node-a")
    await claim(api, "others", "node-b")
    await api.until(AGENT_A, publish(piece("x", "node-b")), lambda answer: denial(answer)[0] == OWN_SLICES)
    await api.until(AGENT_A, patch_claim("mine", {"reservedFor": None}), lambda answer: denial(answer)[0] == OWN_CLAIMS)
    await api.until(PERSON, moving(container(mem=4)), lambda answer: "resourceClaims" in answer.get("spec", {}))
    return api


# --- Slices ----------------------------------------------------------------------------------------------------------


def piece(name: str, node: str, *, driver: str = dra.DRIVER, pool: str = "") -> Json:
    """Return a slice with two devices, as an agent publishes it."""
    attributes = {dra.UUID: {"string": UUID}, dra.INDEX: {"int": 0}}
    memory = {"value": "16Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}
    devices = [
        {
            "name": dra.device_name(UUID),
            "allowMultipleAllocations": True,
            "attributes": {**attributes, dra.TYPE: {"string": dra.SHARED}},
            "capacity": {dra.MEMORY: memory},
        },
        {
            "name": f"{dra.device_name(UUID)}-other",
            "attributes": {**attributes, dra.TYPE: {"string": dra.WHOLE}},
        },
    ]
    where = {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool or node or "anywhere", "generation": 1, "resourceSliceCount": 1},
            **where,
            "devices": devices,
        },
    }


def publish(body: Json) -> Request:
    return Request("POST", SLICES, body)


def emptied(body: Json) -> Request:
    """Return the replacement of a slice by one without devices: agents have the right to update, not to patch."""
    return Request("PUT", f"{SLICES}/{body['metadata']['name']}", {**body, "spec": {**body["spec"], "devices": []}})


def drop(name: str) -> Request:
    return Request("DELETE", f"{SLICES}/{name}", {})


async def test_an_agent_publishes_changes_and_removes_slices_of_its_node(world: PolicyWorld) -> None:
    made = piece("ours", "node-a")
    for asked, status in ((publish(made), 201), (emptied(made), 200), (drop("ours"), 200)):
        found, answer = await world.ask(AGENT_A, asked, dry_run=False)
        assert found == status, answer


@pytest.mark.parametrize(
    ("user", "asked", "told"),
    [
        (AGENT_A, publish(piece("x", "node-b")), "on node 'node-b' in the pool 'node-b'"),
        (AGENT_B, publish(piece("x", "node-a")), "this token is of node 'node-b'"),
        (AGENT_A, publish(piece("x", "node-a", pool="node-b")), "in the pool 'node-b'"),
        (AGENT_A, publish(piece("x", "node-a", driver="gpu.example.com")), "of the driver 'gpu.example.com'"),
        (AGENT_A, publish(piece("x", "", pool="node-a")), "on node '' in the pool 'node-a'"),
        (AGENT_UNBOUND, publish(piece("x", "node-a")), "this token is of node ''"),
        (AGENT_A, drop("theirs"), "on node 'node-b'"),
        (AGENT_A, drop("another"), "of the driver 'gpu.example.com'"),
        (AGENT_A, emptied(piece("theirs", "node-b")), "on node 'node-b'"),
    ],
)
async def test_other_slices_are_refused_an_agent(world: PolicyWorld, user: User, asked: Request, told: str) -> None:
    status, answer = await world.ask(user, asked)
    policy, said = denial(answer)
    assert (status, policy) == (403, OWN_SLICES), answer
    assert told in said


@pytest.mark.parametrize(
    "asked", [publish(piece("x", "node-b", driver="gpu.example.com")), drop("theirs"), drop("anywhere")], ids=str
)
async def test_nobody_else_is_refused_slices(world: PolicyWorld, asked: Request) -> None:
    status, answer = await world.ask(PERSON, asked)
    assert status in {200, 201}, answer


# --- Claims ----------------------------------------------------------------------------------------------------------

SHARE_ID = "b9cedc78-5d3a-4f7e-9d36-0e8f6d0f6a51"


def as_before_granular_rights() -> list[Json]:
    """Return a role that lets the agents write all of a claim's status, as one right did before Kubernetes 1.36."""
    metadata = {"name": "as-before"}
    verbs = ["update", "patch", "arbitrary-node:update", "arbitrary-node:patch"]
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceclaims/binding", "resourceclaims/driver"],
        "verbs": verbs,
    }
    ours = the("ClusterRoleBinding", "optional/dra")
    return [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]},
        {**ours, "metadata": metadata, "roleRef": {**ours["roleRef"], "name": "as-before"}},
    ]


THEIRS = {"driver": "nic.example.com", "pool": "nics", "device": "nic-0"}


async def claim(world: PolicyWorld, name: str, node: str) -> None:
    """Make a claim as the scheduler has allocated it: a share of a GPU, and a device of another driver."""
    asked = [{"name": each, "exactly": {"deviceClassName": dra.SHARED_CLASS}} for each in ("gpu", "nic")]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "moving"},
        "spec": {"devices": {"requests": asked}},
    }
    await world.make(body)
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    status = {
        "allocation": {
            "nodeSelector": {"nodeSelectorTerms": [selector]},
            "devices": {"results": [{"request": "gpu", **device(node)}, {"request": "nic", **THEIRS}]},
        },
        "reservedFor": [{"resource": "pods", "name": "a", "uid": "a"}],
        "devices": [{**THEIRS, "data": {"address": "10.0.0.1"}}],
    }
    answer = await world.ask(
        PERSON, Request("PATCH", f"{CLAIMS}/{name}/status", {"status": status}, MERGE), dry_run=False
    )
    assert answer[0] == 200, answer[1]


def device(node: str) -> Json:
    return {"driver": dra.DRIVER, "pool": node, "device": dra.device_name(UUID), "shareID": SHARE_ID}


def patch_claim(name: str, status: Json) -> Request:
    return Request("PATCH", f"{CLAIMS}/{name}/status", {"status": status}, MERGE)


SAID = {"data": {"uuid": UUID, "memoryMiB": 4096, "limits": "driver"}}


async def test_an_agent_says_on_a_claim_what_became_of_the_devices_of_its_node(world: PolicyWorld) -> None:
    ours = {**device("node-a"), **SAID}
    status, answer = await world.ask(
        AGENT_A, patch_claim("mine", {"devices": [{**THEIRS, "data": {"address": "10.0.0.1"}}, ours]})
    )
    assert status == 200, answer
    assert answer["status"]["devices"][1]["data"] == SAID["data"]


async def test_an_agent_applies_its_part_of_a_status_and_leaves_that_of_others(world: PolicyWorld) -> None:
    """As the driver writes it: by server-side apply."""
    applied = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "mine", "namespace": "moving"},
        "status": {"devices": [{**device("node-a"), **SAID}]},
    }
    path = f"{CLAIMS}/mine/status?fieldManager=gpu-device-plugin&force=true"
    asked = Request("PATCH", path, applied, "application/apply-patch+yaml")
    status, answer = await world.ask(AGENT_A, asked, dry_run=False)
    assert status == 200, answer
    assert [each["driver"] for each in answer["status"]["devices"]] == [THEIRS["driver"], dra.DRIVER]
    status, answer = await world.ask(AGENT_B, asked, dry_run=False)
    assert status == 200, answer  # it says nothing new
    applied["status"] = {"devices": [{**device("node-a"), "data": {}}]}
    status, answer = await world.ask(AGENT_B, asked, dry_run=False)
    assert (status, denial(answer)[0]) == (403, OWN_CLAIMS), answer


@pytest.mark.parametrize(
    ("user", "name", "status", "told"),
    [
        (AGENT_A, "mine", {"reservedFor": None}, "status.reservedFor"),
        (AGENT_A, "mine", {"allocation": None, "reservedFor": None, "devices": None}, "status.allocation"),
        (AGENT_A, "mine", {"devices": [{**THEIRS, "data": {"address": "10.0.0.2"}}]}, "status.devices"),
        (AGENT_A, "mine", {"devices": None}, "status.devices"),
        (AGENT_A, "others", {"devices": [{**device("node-b"), **SAID}]}, "this token is of node 'node-a'"),
        (AGENT_B, "mine", {"devices": [{**device("node-a"), **SAID}]}, "this token is of node 'node-b'"),
    ],
)
async def test_an_agent_is_refused_the_rest_of_a_claim(
    world: PolicyWorld, user: User, name: str, status: Json, told: str
) -> None:
    code, answer = await world.ask(user, patch_claim(name, status))
    policy, said = denial(answer)
    assert (code, policy) == (403, OWN_CLAIMS), answer
    assert told in said


async def test_an_agent_changes_no_claim_beside_its_status(world: PolicyWorld) -> None:
    """Its role does not let it, and needs no policy for that."""
    for asked in (
        Request("PATCH", f"{CLAIMS}/mine", {"metadata": {"labels": {"a": "b"}}}, MERGE),
        Request("DELETE", f"{CLAIMS}/mine", {}),
    ):
        status, answer = await world.ask(AGENT_A, asked)
        assert (status, denial(answer)[0]) == (403, ""), answer


# --- Pods ------------------------------------------------------------------------------------------------------------


def moving(*containers: Json, namespace: str = "moving", **more: Any) -> Request:
    """Create a pod in the namespace that moves to claims."""
    body = pod(
        "a", *containers, namespace=namespace, **{k: v for k, v in more.items() if k in {"annotations", "labels"}}
    )
    rest = {key: value for key, value in more.items() if key not in {"annotations", "labels"}}
    return create({**body, "spec": {**body["spec"], **rest}})


def asked_of(answer: Json) -> list[Json]:
    return [each["resources"] for each in answer["spec"]["containers"]]


@pytest.mark.parametrize("amount", [1, 2, 4, 8, 16])
async def test_a_limit_with_a_template_becomes_a_claim(world: PolicyWorld, amount: int) -> None:
    status, answer = await world.ask(PERSON, moving(container(mem=amount)))
    assert status == 201, answer
    template = f"gpu-mem-{amount}gi"
    assert answer["spec"]["resourceClaims"] == [{"name": "gpu-mem-0", "resourceClaimTemplateName": template}]
    assert asked_of(answer) == [{"claims": [{"name": "gpu-mem-0"}]}]
    found, made = await world.ask(
        None, Request("GET", f"{DRA}/namespaces/moving/resourceclaimtemplates/{template}", {}), dry_run=False
    )
    assert found == 200, made


async def test_each_container_gets_a_claim_of_its_own_beside_those_that_the_pod_has(world: PolicyWorld) -> None:
    other = {"name": "nic", "resourceClaimName": "nic"}
    two = container("two", mem=2)
    two["resources"]["claims"] = [{"name": "nic"}]
    two["resources"]["limits"]["memory"] = "1Gi"
    asked = moving(container("none"), container("one", mem=16), two, resourceClaims=[other])
    status, answer = await world.ask(PERSON, asked)
    assert status == 201, answer
    assert answer["spec"]["resourceClaims"] == [
        other,
        {"name": "gpu-mem-1", "resourceClaimTemplateName": "gpu-mem-16gi"},
        {"name": "gpu-mem-2", "resourceClaimTemplateName": "gpu-mem-2gi"},
    ]
    assert asked_of(answer) == [
        {},
        {"claims": [{"name": "gpu-mem-1"}]},
        {
            "limits": {"memory": "1Gi"},
            "requests": {"memory": "1Gi"},
            "claims": [{"name": "nic"}, {"name": "gpu-mem-2"}],
        },
    ]


@pytest.mark.parametrize(("named", "placed"), [("gpushare-scheduler", "default-scheduler"), ("volcano", "volcano")])
async def test_one_scheduler_places_all_claims(world: PolicyWorld, named: str, placed: str) -> None:
    status, answer = await world.ask(PERSON, moving(container(mem=1), schedulerName=named))
    assert status == 201, answer
    assert answer["spec"]["schedulerName"] == placed
    assert "resourceClaims" in answer["spec"]


UNCHANGED = {
    "another namespace": moving(container(mem=4), namespace="default"),
    "no template of 3": moving(container(mem=3)),
    "4 beside 3": moving(container("one", mem=4), container("two", mem=3)),
    "4 beside a whole GPU": moving(container("one", mem=4), container("two", count=1)),
    "a whole GPU": moving(container(count=1)),
    "no GPU": moving(container()),
    "init container": moving(container(mem=4), initContainers=[container("prepare", mem=4)]),
    "memory of two GPUs": moving(container(mem=4), labels={"aliyun.com/gpu-count": "2"}),
    "a limit": moving(container(mem=4), annotations={"gpu-device-plugin/memory-limit": "8"}),
    "a model": moving(container(mem=4), annotations={"gpu-device-plugin/use-model": "T4"}),
    "another GPU": moving(container(mem=4), annotations={"gpu-device-plugin/avoid-uuid": UUID}),
}


@pytest.mark.parametrize("asked", UNCHANGED.values(), ids=UNCHANGED)
async def test_other_pods_stay_as_they_are(world: PolicyWorld, asked: Request) -> None:
    status, answer = await world.ask(PERSON, asked)
    assert status == 201, answer
    assert "resourceClaims" not in answer["spec"]
    wanted = [each.get("resources", {}).get("limits", {}) for each in asked.body["spec"]["containers"]]
    assert [each.get("limits", {}) for each in asked_of(answer)] == [
        {name: str(value) for name, value in each.items()} for each in wanted
    ]
    assert not any("claims" in each for each in asked_of(answer))


async def test_the_largest_pod_that_expressions_look_through_gets_its_claims(world: PolicyWorld) -> None:
    status, answer = await world.ask(PERSON, moving(*(container(f"c{number}", mem=1) for number in range(250))))
    assert status == 201, answer
    assert len(answer["spec"]["resourceClaims"]) == 250


# --- Classes and templates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
async def test_the_api_server_knows_every_field_and_finds_no_fault_with_an_expression(
    world: PolicyWorld, name: str
) -> None:
    """A policy with an expression that fails its type check says so in its status; a field unknown is an error."""
    for body in FILES[name]:
        path = f"{path_of(body)}/{body['metadata']['name']}"
        status, found = await world.ask(None, Request("GET", path, {}), dry_run=False)
        assert status == 200, found
        found["metadata"].pop("managedFields")
        strict = f"{path}?fieldValidation=Strict&fieldManager=t&force=true"
        status, answer = await world.ask(
            None, Request("PATCH", strict, body, "application/apply-patch+yaml"), dry_run=False
        )
        assert status == 200, answer
        assert "expressionWarnings" not in answer.get("status", {}).get("typeChecking", {})
