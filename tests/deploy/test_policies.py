"""deploy/policies.yaml refuses what would break sharing, and nothing else."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan
from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import client_grant
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.kubernetes.writers.events import CONTROLLER
from gpu_device_plugin.model.contract import keys as wire
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL
from gpu_device_plugin.model.contract.nodelabels import NodeLimits, node_labels, our_annotations, our_labels
from gpu_device_plugin.model.contract.variables import OF_FRAMEWORKS
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.container_grants import DELIVERIES, Delivery, GrantOwner
from tests.builders import container, pod
from tests.deploy.manifests import DEPLOY, Json, documents, the
from tests.deploy.policies_cases import CASES, Case, mirror
from tests.deploy.policies_world import (
    AGENT_A,
    API,
    EXTENDER,
    KUBELET,
    MERGE,
    MUTATING,
    PERSON,
    PLACED,
    PODS,
    VALIDATING,
    PolicyWorld,
    Request,
    User,
    annotate,
    apply_policies,
    bind,
    create,
    denial,
    furnish,
    patch,
)
from tests.docs.pages import blocks
from tests.kubeconfig import kubeconfig
from tests.limiting import granted
from tests.mig_gpus import SMALL, in_mig_mode
from tests.node import harness
from tests.patience import eventually

PAGE = DEPLOY.parent / "docs" / "policies.md"
ALL = [*documents(VALIDATING), *documents(MUTATING)]
POLICIES = {each["metadata"]["name"]: each for each in ALL if each["kind"].endswith("Policy")}
VALIDATING_POLICIES = {name: each for name, each in POLICIES.items() if each["kind"].startswith("Validating")}


def expressions(policy: Json) -> Iterator[str]:
    """Yield every CEL text of a policy."""
    spec = policy["spec"]
    for each in (*spec["matchConditions"], *spec.get("variables", ()), *spec.get("validations", ())):
        yield each["expression"]
        if "messageExpression" in each:
            yield each["messageExpression"]
    for mutation in spec.get("mutations", ()):
        yield mutation["applyConfiguration"]["expression"]


def quoted(text: str) -> set[str]:
    return set(re.findall(r"'([^']*)'", text))


def variable(policy: str, name: str) -> str:
    (found,) = (each["expression"] for each in POLICIES[policy]["spec"]["variables"] if each["name"] == name)
    assert isinstance(found, str)
    return found


def condition(policy: str, name: str) -> str:
    (found,) = (each["expression"] for each in POLICIES[policy]["spec"]["matchConditions"] if each["name"] == name)
    assert isinstance(found, str)
    return found


# What the files say, without an API server


def test_every_policy_has_one_binding_of_its_name_that_denies() -> None:
    bindings = {each["metadata"]["name"]: each for each in ALL if each["kind"].endswith("Binding")}
    assert bindings.keys() == POLICIES.keys()
    assert len(ALL) == 2 * len(POLICIES)
    for name, binding in bindings.items():
        assert binding["kind"] == POLICIES[name]["kind"] + "Binding"
        assert binding["spec"] == {
            "policyName": name,
            **({"validationActions": ["Deny"]} if name in VALIDATING_POLICIES else {}),
        }


INSTANCES = Resource.of_profile("1g.10gb", NODE_SETTINGS().domain_of_mig).name.removesuffix("1g.10gb")
"""How the names of the resources of MIG profiles begin."""
OF_INSTANCES = {f"gpushare-{name}" for name in ("variables", "size", "devices", "one-resource", "placement")}
"""The policies on what a pod sees, and on who says which instances it has. The others are on amounts and places, which
are right for whole instances anyway."""


def test_resources_are_those_that_the_agent_offers() -> None:
    offered = {resource.name for resource in NODE_SETTINGS().offered}
    for name, policy in POLICIES.items():
        if not name.startswith(("gpushare-own-", "gpushare-mirror-", "gpushare-moves")):
            instances = {INSTANCES} if name in OF_INSTANCES else set()
            assert quoted(condition(name, "asks-for-gpus")) - {"Binding"} == offered | instances
        used = {word for text in expressions(policy) for word in re.findall(r"'([a-z.]+\.com/[\w-]+)'", text)}
        assert used <= offered | {INSTANCES}


def test_variables_are_those_that_the_agent_sets() -> None:
    """Whatever way the GPU takes into the container, whichever resource is asked for, and whatever limits it.

    Those of frameworks are the pod's to set. The one by which AMD's container runtime adds GPUs the agent never sets.
    """
    card = Inventory((Gpu("GPU-a", 0, "T4", 15_360, device_paths=("/dev/nvidia0",)),))
    shares = Shares(1024).with_inventory(card)
    placements = (Placement(Demand(Kind.MEMORY, 3), ((0, 3),)), Placement(Demand(Kind.COUNT, 1), ((0, 15),)))
    daemon = MpsGpu(MpsStatus.READY, pipe_directory="/run/gpushare/mps/a")
    every = GrantOwner(frameworks=tuple(OF_FRAMEWORKS))

    clients = partial(client_grant, daemons={"GPU-a": daemon}, shm="/run/gpushare/mps/shm", compute=True)

    def plan(enforcement: Enforcement) -> LimitPlan:
        others = {Enforcement.MPS: clients}
        return LimitPlan({"GPU-a": GpuEnforcement(enforcement, "")}, others=others)

    set_by_us = {
        variable
        for placement in placements
        for way in DELIVERIES
        for enforcement in Enforcement
        for variable in granted(
            placement,
            shares,
            plan(enforcement),
            Delivery(methods=frozenset({way}), cgpu_disable=True),
            owner=every,
        ).envs
    } - {variable for variable, _ in OF_FRAMEWORKS.values()}
    assert quoted(variable("gpushare-variables", "ours")) == set_by_us | {"AMD_VISIBLE_DEVICES"}


LISTS = (wire.USE_MODEL, wire.AVOID_MODEL, wire.USE_UUID, wire.AVOID_UUID)


def test_annotations_are_those_of_the_wire_contract() -> None:
    changes = condition("gpushare-placement", "changes-a-placement")
    answers = {wire.MEMORY_PROMISED, wire.MEMORY_HELD}
    assert quoted(changes) == wire.POD_ANNOTATIONS | {wire.INSTANCES} | answers
    assert changes.replace("exists(", "filter(") == variable("gpushare-placement", "changed")
    told = {wire.OVER_USE, wire.INSTANCES, wire.IDLE_SINCE}
    ours = quoted(variable("gpushare-size", "annotations"))
    assert ours == wire.POD_ANNOTATIONS | told | answers | {wire.MOVE_REFUSED}
    most = f".size() > {1000 + len(ours)}"
    assert all(
        most in variable(f"gpushare-{name}", key)
        for name, key in (("devices", "naming"), ("own-promise", "annotations"))
    )
    overlong = variable("gpushare-size", "overlong")
    assert {key: wire.LONGEST[key] for key in quoted(overlong) if key} == dict.fromkeys(LISTS, 4096)
    assert ".size() > 4096 &&" in overlong
    annotations, labels = (quoted(variable("gpushare-own-node", name)) - {"Node"} for name in ("annotations", "labels"))
    told |= {wire.MEMORY_HELD}
    assert annotations - wire.POD_ANNOTATIONS - told == wire.AGENT_ANNOTATIONS | {wire.CORDONS}
    assert set(our_annotations([*annotations, wire.CONFIG_LABEL])) == wire.AGENT_ANNOTATIONS
    assert annotations >= wire.POD_ANNOTATIONS | told
    promised = quoted(variable("gpushare-own-promise", "annotations")) - {"metadata.annotations"}
    assert promised == wire.POD_ANNOTATIONS | {wire.MEMORY_PROMISED, wire.MOVE_TO, wire.MOVE_REFUSED}
    assert wire.MOVE_TO in condition("gpushare-moves", "wants-a-move")
    assert wire.MEMORY_GUARANTEE in variable("gpushare-guarantee", "text")
    assert wire.RESIZE_BOUND in variable("gpushare-guarantee", "label")
    assert f".size() > {wire.LONGEST[wire.MEMORY_GUARANTEE]} ?" in variable("gpushare-guarantee", "wish")
    models = quoted(variable("gpushare-own-node", "mislabelled")) - {"Pod", "metadata.labels"}
    card = Inventory(
        (Gpu("GPU-a", 0, "T4", 15_360, device_paths=("/dev/nvidia0",)), *in_mig_mode(1, SMALL)), driver_version="570.1"
    )
    limits = NodeLimits({0: GpuEnforcement(Enforcement.ADVISORY, "")})
    written = node_labels(Shares(1024).with_inventory(card, mig=MigMode.SHARE), card, "binpack", limits)
    assert labels == {label for label in written if not label.startswith(tuple(models))}
    of_models = {"gpu-device-plugin/product.T4", "gpu-device-plugin/mig-1g.10gb"}
    assert {label for label in written if label.startswith(tuple(models))} == of_models
    assert set(our_labels(labels | of_models)) == labels | of_models
    assert wire.NODE_GPUS.startswith(wire.NODE_LABELS)
    known = wire.POD_ANNOTATIONS | {wire.STATIC_POD}
    variables = quoted(variable("gpushare-variables", "ours"))
    for policy in POLICIES.values():
        for text in expressions(policy):
            assert {word for word in quoted(text) if re.match("ALIYUN|scheduler\\.|kubernetes\\.io/config", word)} <= (
                known | variables
            )


def test_accounts_are_those_of_the_manifests() -> None:
    agent = the("ServiceAccount", "daemonset")["metadata"]
    account = f"system:serviceaccount:{agent['namespace']}:{agent['name']}"
    assert quoted(variable("gpushare-placement", "agents")) == {account}
    assert quoted(condition("gpushare-own-node", "is-an-agent")) == {account}
    assert quoted(condition("gpushare-own-events", "is-an-agent")) == {account}
    assert CONTROLLER in quoted(variable("gpushare-own-events", "foreign"))
    assert quoted(variable("gpushare-placement", "schedulers")) == {EXTENDER.name}
    for policy in ("gpushare-own-promise", "gpushare-own-scheduling"):
        assert quoted(condition(policy, "is-the-scheduler")) == {EXTENDER.name}
    assert quoted(condition("gpushare-own-evictions", "is-ours")) == {account, EXTENDER.name}


def test_every_policy_is_tried_both_ways() -> None:
    refusing = Counter(policy for case in CASES for policy in case.refusals)
    assert refusing.keys() == VALIDATING_POLICIES.keys()
    assert sum(case.accepted for case in CASES) >= 30
    assert len({case.name for case in CASES}) == len(CASES)


# What a real API server makes of them


@pytest.fixture(scope="module")
async def world(api: PolicyWorld) -> PolicyWorld:
    await furnish(api)
    await apply_policies(api)
    for policy in VALIDATING_POLICIES:
        probe = next(case for case in CASES if [*case.refusals] == [policy])
        await api.until(probe.user, probe.request, partial(refused_by, policy))
    if api.mutates:
        await api.until(PERSON, create(pod("a", container(mem=4))), lambda answer: scheduler(answer) == OURS)
    return api


OURS = "gpushare-scheduler"


def refused_by(policy: str, answer: Json) -> bool:
    return denial(answer)[0] == policy


def scheduler(answer: Json) -> str:
    name: str = answer["spec"]["schedulerName"]
    return name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_api_server_decides_as_the_table_says(world: PolicyWorld, case: Case) -> None:
    status, answer = await world.ask(case.user, case.request)
    if case.accepted:
        assert status in {200, 201}, answer
    else:
        policy, said = denial(answer)
        assert policy in case.refusals, answer
        assert case.refusals[policy] in said


async def test_a_refusal_names_no_value_of_a_variable(world: PolicyWorld) -> None:
    secret = pod("a", {**container(mem=4), "env": [{"name": "CGPU_DISABLE", "value": "hunter2"}]})
    _, answer = await world.ask(PERSON, create(secret))
    assert refused_by("gpushare-variables", answer)
    assert "hunter2" not in answer["message"]


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
async def test_other_subresources_carry_no_annotations(world: PolicyWorld, subresource: str) -> None:
    """Which is why no policy looks at annotations there."""
    status, answer = await world.ask(PERSON, annotate("placed", {wire.IDX: "1"}, subresource))
    if status == 404 and subresource == "resize":
        pytest.skip("this API server does not resize pods (Kubernetes 1.33)")
    assert status == 200, answer
    assert answer["metadata"]["annotations"] == PLACED


async def test_the_patches_that_the_page_gives_are_accepted(world: PolicyWorld) -> None:
    """A warning in place of a refusal, and a namespace left out."""
    shown = blocks(PAGE.read_text(encoding="utf-8"), "console")
    form = r"kubectl patch validatingadmissionpolicybinding (\S+) --type=merge +-p '(.+)'"
    given = [found for block in shown for command, _ in block.commands for found in re.findall(form, command)]
    assert len(given) == 2
    for name, body in given:
        path = f"{API}/validatingadmissionpolicybindings/{name}"
        status, answer = await world.ask(PERSON, Request("PATCH", path, json.loads(body), MERGE))
        assert status == 200, answer
        (field,) = json.loads(body)["spec"]
        assert field in answer["spec"]


SPEC: dict[str, Any] = pod("a", container(mem=4))["spec"]


@pytest.mark.parametrize(
    ("made", "namespace", "expected"),
    [
        ({}, "default", OURS),
        ({"schedulerName": "default-scheduler"}, "default", OURS),
        ({"containers": [container(count=1)]}, "default", OURS),
        ({"containers": [container()], "initContainers": [container("prepare", mem=1)]}, "default", OURS),
        ({"schedulerName": "volcano"}, "default", "volcano"),
        ({"containers": [container()]}, "default", "default-scheduler"),
        ({}, "apart", "default-scheduler"),
    ],
    ids=["shares", "names the default", "whole GPUs", "init container", "another scheduler", "no GPU", "opted out"],
)
async def test_pods_that_ask_for_gpus_go_to_the_scheduler_that_knows_them(
    world: PolicyWorld, made: Json, namespace: str, expected: str
) -> None:
    if not world.mutates:
        pytest.skip("this API server does not know MutatingAdmissionPolicy v1 (Kubernetes 1.36)")
    body = pod("a", namespace=namespace)
    status, answer = await world.ask(PERSON, create({**body, "spec": {**SPEC, **made}}))
    assert status == 201, answer
    assert scheduler(answer) == expected


async def test_a_static_pod_keeps_what_its_node_says(world: PolicyWorld) -> None:
    static = mirror(container(mem=4))
    status, answer = await world.ask(KUBELET, create(static))
    assert status == 201, answer
    assert scheduler(answer) == "default-scheduler"


@pytest.mark.parametrize(
    "asked",
    [
        patch("placed", {"status": {"phase": "Failed"}}, "status"),
        patch("placed", {"metadata": {"annotations": {}}}, "ephemeralcontainers"),
        Request("PUT", f"{PODS}/placed", pod("placed")),
        Request("DELETE", f"{PODS}/placed", {}),
        create(pod("new")),
        bind("waiting"),
        Request("GET", "/api/v1/nodes", {}),
        Request("GET", f"{PODS}/placed", {}),
        Request("GET", "/api/v1/namespaces/gpushare/secrets", {}),
        Request("GET", "/api/v1/namespaces/gpushare/configmaps", {}),
        Request("POST", "/api/v1/namespaces/gpushare/serviceaccounts/gpushare-node/token", {}),
    ],
    ids=lambda asked: f"{asked.method} {asked.path.removeprefix('/api/v1')}",
)
async def test_what_an_agent_never_does_its_role_does_not_let_it(world: PolicyWorld, asked: Request) -> None:
    """On its own node and pods too; nobody needs a policy for that."""
    status, answer = await world.ask(AGENT_A, asked)
    assert (status, denial(answer)[0]) == (403, ""), answer


async def test_the_agent_itself_needs_no_more_than_its_role_and_the_policies_leave_it(
    world: PolicyWorld, tmp_path: Path
) -> None:
    """It publishes its GPUs, says what a pod got, and takes its own from the node when the label is gone."""
    file = kubeconfig(world.config, tmp_path / "kubeconfig", token=world.tokens["node-a"])
    await lasting(world, PERSON, create(pod("served", container(mem=4))))
    await lasting(world, PERSON, switch("true"))
    async with harness.world(api=str(file), node_name="node-a") as node:
        agent = await node.start_agent()
        there = await until(world, "/api/v1/nodes/node-a", lambda found: wire.NODE_GPUS in notes(found))
        assert [gpu["shares"] for gpu in json.loads(notes(there)[wire.NODE_GPUS])["gpus"]] == [14, 14]
        await lasting(world, EXTENDER, bind("served", PLACED))
        uid = (await lasting(world, PERSON, Request("GET", f"{PODS}/served", {})))["metadata"]["uid"]
        assert agent.cluster is not None
        followed = agent.cluster.followed
        await node.until(lambda: uid in followed.pods)
        made = await node.kubelet.admit(replace(harness.pod("served", mem=4), uid=uid))
        assert made.phase == "Running"
        await until(world, f"{PODS}/served", lambda found: notes(found)[wire.ASSIGNED] == "true")
        await lasting(world, PERSON, switch(None))
        await agent.cluster.published.announce_shutdown()
        await node.stop_agent()
        await agent.cluster.cleanup.run()
    left = await lasting(world, PERSON, Request("GET", "/api/v1/nodes/node-a", {}))
    assert wire.NODE_GPUS not in notes(left)
    assert [label for label in left["metadata"]["labels"] if label.startswith(wire.NODE_LABELS)] == []


def switch(value: str | None) -> Request:
    return Request("PATCH", "/api/v1/nodes/node-a", {"metadata": {"labels": {SWITCH_LABEL: value}}}, MERGE)


def notes(found: Json) -> dict[str, str]:
    annotations: dict[str, str] = found["metadata"].get("annotations", {})
    return annotations


async def lasting(world: PolicyWorld, user: User, request: Request) -> Json:
    """Ask for something that is no dry run and is granted."""
    status, answer = await world.ask(user, request, dry_run=False)
    assert status in {200, 201}, answer
    return answer


async def until(world: PolicyWorld, path: str, condition: Callable[[Json], bool]) -> Json:
    found: Json = {}

    async def so() -> bool:
        nonlocal found
        found = await lasting(world, PERSON, Request("GET", path, {}))
        return condition(found)

    await eventually(so, pause_s=0.1)
    return found
