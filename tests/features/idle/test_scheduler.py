"""Idle pods are warned, and then evicted or their workloads scaled to zero, by the active extender alone."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from gpu_device_plugin import metrics as m
from gpu_device_plugin.features.idle.scheduler import IdleActions
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.kubernetes.writers.binder import Binder
from gpu_device_plugin.kubernetes.writers.events import EventSubject, EventWriter
from gpu_device_plugin.model.contract.keys import (
    IDLE_SINCE,
    NODE_USE,
    NOTEBOOK_STOPPED,
    READ_BY_AGENT,
    REPLICAS_BEFORE_IDLE,
    WHEN_IDLE,
)
from gpu_device_plugin.model.contract.node_use import NodeUse, write_node_use
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import epoch_s, rfc3339
from tests.builders import GPU_MEM, container, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.owned import owned, workload
from tests.cluster_double.troubles import Answer
from tests.scheduler.contexts import BINPACK, context
from tests.scheduler.harness import LEASE_RIGHTS, RIGHTS, world

SINCE = "2026-11-22T09:00:00Z"
NOW = 1_795_342_000.0
GRANTED = {
    ("create", "pods/eviction"),
    ("get", "replicasets"),
    ("get", "deployments"),
    ("patch", "deployments"),
    ("patch", "deployments/scale"),
    ("get", "statefulsets"),
    ("patch", "statefulsets"),
    ("patch", "statefulsets/scale"),
    ("get", "notebooks"),
    ("patch", "notebooks"),
    ("create", "events"),
    ("patch", "events"),
}
"""What deploy/optional/idle.yaml grants."""
WARNING_S = 600.0
LABELS = {"app": "web", "pod-template-hash": "1"}
"""Of the pods of the Deployment `web`, as its ReplicaSet selects them."""
READER = PodReader([GPU_MEM], READ_BY_AGENT.__contains__, owners=True)


class Events:
    """A writer of Events that remembers them."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        """Pod, reason and note."""

    def post(self, about: EventSubject, *, reason: str, note: str, action: str, warning: bool = False) -> None:
        assert (about.kind, action, warning) == ("Pod", "Reclaim", True)
        self.told.append((about.name, reason, note))


class Counted(m.Metrics):
    """Counts what was done."""

    def __init__(self) -> None:
        self.counted: list[tuple[str, ...]] = []

    def count(self, what: m.Count, *labels: str, times: int = 1) -> None:
        self.counted += [labels] * times if what is m.IDLE_ACTIONS else []


SETTINGS = replace(BINPACK, idle_warning_s=WARNING_S)


def use_read_at(at_s: float) -> str:
    """Return the use of a node that its agent read then, in seconds since the epoch."""
    return json.dumps({"at": rfc3339(at_s)})


@dataclass
class Scene:
    """A cluster with idle pods on node n, and the part of the extender under test."""

    api: ApiServer
    client: Client
    events: Events = field(default_factory=Events)
    metrics: Counted = field(default_factory=Counted)
    seconds: float = 1000.0
    use: dict[str, str] = field(default_factory=lambda: {"n": use_read_at(NOW)})

    def __post_init__(self) -> None:
        self.idle = self.another()

    def another(self) -> IdleActions:
        parts = context(
            client=self.client,
            binder=Binder(self.client, READER),
            metrics=self.metrics,
            settings=lambda: SETTINGS,
            clock=lambda: self.seconds,
            wall=lambda: NOW,
        )
        idle = IdleActions(parts, look_s=0.0)
        idle._events, idle._use = cast("EventWriter", self.events), self.use
        return idle

    def pod(
        self,
        name: str,
        when: str | None = None,
        owner: dict[str, Any] | None = None,
        *,
        idle: bool = True,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add an idle pod, with the labels that its owner selects."""
        notes = ({IDLE_SINCE: SINCE} if idle else {}) | ({} if when is None else {WHEN_IDLE: when})
        selected = {} if owner is None else owner.get("spec", {}).get("selector", {}).get("matchLabels", {})
        body = pod(name, container(mem=4), node="n", phase="Running", annotations=notes, labels=labels or selected)
        self.api.add(body if owner is None else owned(body, owner))
        self.watch()

    def watch(self) -> None:
        """Let the extender see the pods as they are now."""
        pods = [READER.read(json.dumps(each).encode())[0] for each in self.api.all("pods")]
        self.idle.kept_pods({pod.uid: pod for pod in pods})

    async def look(self, seconds: float = 0.0) -> None:
        self.seconds += seconds
        await self.idle.look()

    async def warned_and_due(self) -> None:
        await self.look()
        await self.look(WARNING_S)

    def namespace(self, when: str) -> None:
        meta = {"name": "default", "annotations": {WHEN_IDLE: when}}
        self.api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})

    def deployment(self, replicas: int = 1, running: int | None = None, kind: str = "Deployment") -> dict[str, Any]:
        """Add a workload `web`; return the owner of its pods."""
        top = self.api.add(
            workload("web", kind=kind, replicas=replicas) | {"status": {"replicas": running or replicas}}
        )
        if kind != "Deployment":
            return top
        body = owned(workload("web-1", kind="ReplicaSet", replicas=replicas), top)
        body["spec"]["selector"] = {"matchLabels": LABELS}
        return self.api.add(body)

    def notebook(self) -> dict[str, Any]:
        meta = {"name": "lab", "namespace": "default"}
        top = self.api.add({"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "metadata": meta})
        return self.api.add(owned(workload("lab", kind="StatefulSet", replicas=1), top))

    def replicas(self, plural: str = "deployments") -> tuple[int, str | None]:
        """Return the replicas of the workload `web`, and those that it remembers."""
        found = self.api.get(plural, "web")
        remembered = found["metadata"].get("annotations", {}).get(REPLICAS_BEFORE_IDLE)
        return found["spec"]["replicas"], remembered

    def going(self, name: str) -> bool:
        return "deletionTimestamp" in self.api.get("pods", name)["metadata"]

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events.told]


@asynccontextmanager
async def scene(allowed: Iterable[tuple[str, str]] = RIGHTS | GRANTED) -> AsyncIterator[Scene]:
    async with ApiServer(allowed=allowed) as api:
        quick = Timing(connect_s=20, request_s=20, watch_s=30, silence_s=30)
        async with Client(ClusterConfig(api.url), timing=quick) as client:
            yield Scene(api, client)


async def test_an_idle_pod_is_warned_and_then_evicted() -> None:
    async with scene() as its:
        its.pod("web", "evict")
        await its.look()
        ((name, reason, note),) = its.events.told
        assert (name, reason) == ("web", "GPUIdleWarning")
        assert f"is idle since {SINCE}, and is evicted at {rfc3339(NOW + WARNING_S)}" in note
        await its.look(WARNING_S - 1)
        assert not its.going("web")
        await its.look(1)
        assert its.going("web")
        assert its.events.told[1:] == [("web", "GPUIdleEvicted", f"evicted: it is idle since {SINCE}")]
        assert its.metrics.counted == [("evict", "warned"), ("evict", "evicted")]
        its.watch()
        await its.look(WARNING_S)
        assert len(its.events.told) == 2


async def test_without_a_wish_nothing_happens() -> None:
    async with scene() as its:
        its.namespace("report")
        its.pod("plain")
        its.pod("keep", "report")
        await its.warned_and_due()
        assert (its.events.told, its.going("plain"), its.going("keep")) == ([], False, False)


async def test_the_wish_of_the_namespace_holds_for_pods_without_one_and_is_remembered_for_a_minute() -> None:
    async with scene() as its:
        its.namespace("evict")
        its.pod("plain")
        its.pod("keep", "report")
        await its.look()
        await its.look(30)
        assert its.api.count("get", "namespaces") == 1
        its.api.patch("namespaces", "default", {"metadata": {"annotations": {WHEN_IDLE: "report"}}})
        await its.look(WARNING_S)
        assert (its.going("plain"), its.going("keep")) == (False, False)
        assert [(name, reason) for name, reason, _ in its.events.told] == [("plain", "GPUIdleWarning")]


async def test_use_cancels_what_a_pod_was_warned_of() -> None:
    async with scene() as its:
        its.pod("web", "evict")
        await its.look()
        its.api.patch("pods", "web", {"metadata": {"annotations": {IDLE_SINCE: None}}})
        its.watch()
        await its.look(WARNING_S)
        assert not its.going("web")
        its.api.patch("pods", "web", {"metadata": {"annotations": {IDLE_SINCE: "2026-11-22T10:00:00Z"}}})
        its.watch()
        await its.look()
        assert its.reasons() == ["GPUIdleWarning", "GPUIdleWarning"]
        assert not its.going("web")


@pytest.mark.parametrize("change", [{IDLE_SINCE: None}, {WHEN_IDLE: "report"}], ids=str)
async def test_what_the_watch_has_not_shown_yet_cancels_it_too(change: Mapping[str, str | None]) -> None:
    async with scene() as its:
        its.pod("web", "evict")
        await its.look()
        its.api.patch("pods", "web", {"metadata": {"annotations": change}})
        await its.look(WARNING_S)
        assert not its.going("web")


async def test_another_pod_of_the_name_is_not_evicted() -> None:
    async with scene() as its:
        its.pod("web", "evict")
        await its.look()
        its.api.delete("pods", "web")
        its.api.add(pod("web", container(mem=4), node="n", phase="Running", annotations={IDLE_SINCE: SINCE}))
        await its.look(WARNING_S)
        assert not its.going("web")


async def test_an_extender_that_begins_to_lead_warns_anew() -> None:
    async with scene() as its:
        its.pod("web", "evict")
        await its.look()
        its.idle._forget("new")
        await its.look(WARNING_S)
        assert not its.going("web")
        await its.look(WARNING_S)
        assert its.going("web")
        assert its.reasons() == ["GPUIdleWarning", "GPUIdleWarning", "GPUIdleEvicted"]


async def test_a_look_is_not_repeated_at_once() -> None:
    async with scene() as its:
        its.idle.look_s = 10.0
        its.pod("a", "evict")
        await its.look()
        its.pod("b", "evict")
        await its.look(9)
        assert its.reasons() == ["GPUIdleWarning"]
        await its.look(1)
        assert its.reasons() == ["GPUIdleWarning", "GPUIdleWarning"]


async def test_nothing_happens_on_the_word_of_an_agent_that_is_silent() -> None:
    async with scene() as its:
        its.pod("web", "evict")
        its.use["n"] = use_read_at(NOW - 601)
        await its.warned_and_due()
        del its.use["n"]
        await its.look()
        assert not its.going("web")
        its.use["n"] = use_read_at(NOW - 599)
        await its.look()
        assert its.going("web")


async def test_a_budget_holds_an_eviction_up_and_it_is_tried_again_after_a_minute() -> None:
    async with scene() as its:
        its.pod("web", "evict")
        its.api.fail(Answer(429, causes=("DisruptionBudget",)), verbs={"create"}, resources={"pods/eviction"}, times=1)
        await its.warned_and_due()
        note = f"should be evicted, as it is idle since {SINCE}; its PodDisruptionBudget allows no disruption now"
        assert its.events.told[1:] == [("web", "GPUEvictionBlocked", note)]
        await its.look(59)
        assert not its.going("web")
        await its.look(1)
        assert its.going("web")


async def test_without_the_right_nothing_happens_and_the_manifest_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with scene(RIGHTS) as its:
        its.pod("alone", "evict")
        its.pod("web-0", "scale-to-zero", its.deployment())
        await its.warned_and_due()
        assert (its.going("alone"), its.replicas()) == (False, (1, None))
        told = [str(vars(record).get("why", "")) for record in caplog.records]
        assert sum("deploy/optional/idle.yaml (chart: scheduler.idle)" in why for why in told) == 2


async def test_an_eviction_that_fails_is_tried_again() -> None:
    async with scene() as its:
        its.pod("web", "evict")
        its.api.fail(Answer(500), verbs={"create"}, resources={"pods/eviction"}, times=1)
        await its.warned_and_due()
        assert (its.going("web"), its.metrics.counted[-1]) == (False, ("evict", "failed"))
        await its.look(60)
        assert its.going("web")


# --- Workloads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "plural"), [("Deployment", "deployments"), ("StatefulSet", "statefulsets")])
async def test_a_workload_is_scaled_to_zero_when_all_of_its_pods_are_idle(kind: str, plural: str) -> None:
    async with scene() as its:
        owner = its.deployment(2, kind=kind)
        its.pod("web-0", "scale-to-zero", owner)
        await its.warned_and_due()
        assert its.replicas(plural) == (2, None)
        its.pod("web-1", "scale-to-zero", owner)
        await its.look()
        await its.look(WARNING_S)
        assert its.replicas(plural) == (0, "2")
        assert its.reasons() == ["GPUIdleWarning", "GPUIdleWarning", "GPUIdleScaled", "GPUIdleScaled"]
        assert its.events.told[-1][2].endswith(
            f"; kubectl inspect gpushare wake {kind.lower()}/web -n default brings it back"
        )
        assert [its.going(name) for name in ("web-0", "web-1")] == [False, False]
        await its.look(60)
        assert its.replicas(plural) == (0, "2")
        assert its.metrics.counted.count(("scale-to-zero", "scaled")) == 1


async def test_pods_of_a_former_template_keep_their_deployment() -> None:
    async with scene() as its:
        its.pod("web-0", "scale-to-zero", its.deployment(1, running=2))
        await its.warned_and_due()
        assert its.replicas() == (1, None)


async def test_a_replica_that_came_to_use_meanwhile_keeps_its_workload() -> None:
    async with scene() as its:
        owner = its.deployment(2)
        for name in ("web-0", "web-1"):
            its.pod(name, "scale-to-zero", owner)
        await its.look()
        its.api.patch("pods", "web-1", {"metadata": {"annotations": {IDLE_SINCE: None}}})
        await its.look(WARNING_S)
        assert its.replicas() == (2, None)


@pytest.mark.parametrize("labels", [{"team": "other"}, {"app": "web"}, {"app": "web", "pod-template-hash": "2"}])
async def test_a_pod_with_a_forged_owner_scales_nobodys_workload(labels: Mapping[str, str]) -> None:
    """Whoever may make pods may write any controller on them. Kubernetes' own counts only those that it selects."""
    async with scene() as its:
        owner = its.deployment(1)
        its.pod("web-0", owner=owner, idle=False)
        its.pod("forged", "scale-to-zero", owner, labels=labels)
        await its.warned_and_due()
        assert its.replicas() == (1, None)
        why = "its labels are not those that Deployment web selects"
        assert its.events.told[-1] == (
            "forged",
            "GPUIdleNotScaled",
            f"is idle since {SINCE}, and not scaled to zero: {why}",
        )


async def test_a_forged_pod_does_not_keep_a_workload_whose_own_pods_are_idle() -> None:
    async with scene() as its:
        owner = its.deployment(1)
        its.pod("forged", "scale-to-zero", owner, labels={"team": "other"})
        its.pod("web-0", "scale-to-zero", owner)
        await its.warned_and_due()
        assert its.replicas() == (0, "1")


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_a_forged_pod_with_the_labels_stands_for_no_pod_that_is_used(kind: str) -> None:
    """A StatefulSet does not count pods that it selects and that have other names than it gives."""
    async with scene() as its:
        owner = its.deployment(1, kind=kind)
        its.pod("web-0", owner=owner, idle=False)
        its.pod("forged", "scale-to-zero", owner)
        await its.warned_and_due()
        assert its.replicas(f"{kind.lower()}s") == (1, None)


async def test_a_pod_that_has_ended_keeps_its_workload_no_longer() -> None:
    async with scene() as its:
        owner = its.deployment(1)
        its.pod("web-0", "scale-to-zero", owner)
        its.pod("evicted", owner=owner, idle=False)
        its.api.patch("pods", "evicted", {"status": {"phase": "Failed"}}, subresource="status")
        await its.warned_and_due()
        assert its.replicas() == (0, "1")


@pytest.mark.parametrize(
    ("selector", "scaled"),
    [
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["api", "web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "Like"}]}, False),
        ({}, False),
        (None, False),
    ],
    ids=str,
)
async def test_a_workload_selects_its_pods_as_kubernetes_says(selector: dict[str, Any] | None, *, scaled: bool) -> None:
    async with scene() as its:
        owner = its.deployment(1, kind="StatefulSet")
        its.api.patch("statefulsets", "web", {"spec": {"selector": None}})
        its.api.patch("statefulsets", "web", {"spec": {"selector": selector}})
        its.pod("web-0", "scale-to-zero", owner)
        await its.warned_and_due()
        assert its.replicas("statefulsets") == ((0, "1") if scaled else (1, None))


async def test_a_notebook_is_stopped_as_kubeflow_stops_it() -> None:
    async with scene() as its:
        its.pod("lab-0", "scale-to-zero", its.notebook())
        await its.warned_and_due()
        notes = its.api.get("notebooks", "lab")["metadata"]["annotations"]
        assert notes == {REPLICAS_BEFORE_IDLE: "1", NOTEBOOK_STOPPED: rfc3339(NOW)}
        assert epoch_s(notes[NOTEBOOK_STOPPED]) is not None
        await its.look(60)
        assert its.metrics.counted.count(("scale-to-zero", "scaled")) == 1
        assert its.api.get("statefulsets", "lab")["spec"]["replicas"] == 1, "that is Kubeflow's to do"


@pytest.mark.parametrize(
    ("api_version", "kind", "why"),
    [
        ("batch/v1", "Job", "Job train (batch/v1) owns it, and decides its replicas"),
        ("example.com/v1", "Deployment", "Deployment train (example.com/v1) owns it, and decides its replicas"),
    ],
)
async def test_what_cannot_be_scaled_is_told(api_version: str, kind: str, why: str) -> None:
    async with scene() as its:
        owner = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "train", "uid": "u-train"}}
        its.pod("train-0", "scale-to-zero", owner)
        await its.warned_and_due()
        assert its.events.told[-1] == (
            "train-0",
            "GPUIdleNotScaled",
            f"is idle since {SINCE}, and not scaled to zero: {why}",
        )


async def test_a_replica_set_without_a_deployment_and_a_deployment_of_another_controller_stay() -> None:
    async with scene() as its:
        alone = its.api.add(workload("alone", kind="ReplicaSet", replicas=1))
        its.pod("alone-0", "scale-to-zero", alone)
        service = {"apiVersion": "serving.kserve.io/v1", "kind": "InferenceService"}
        owner = service | {"metadata": {"name": "llm", "uid": "u-llm"}}
        served = its.api.add(owned(workload("served", replicas=1), owner))
        its.pod("served-0", "scale-to-zero", served)
        await its.warned_and_due()
        assert [note.partition(": ")[2] for _, reason, note in its.events.told if reason == "GPUIdleNotScaled"] == [
            "ReplicaSet alone owns it, and no Deployment owns that",
            "InferenceService llm (serving.kserve.io/v1) owns it, and decides its replicas",
        ]


async def test_another_owner_of_the_name_is_not_scaled() -> None:
    async with scene() as its:
        owner = its.deployment()
        its.pod("web-0", "scale-to-zero", {**owner, "metadata": {**owner["metadata"], "uid": "former"}})
        await its.warned_and_due()
        assert its.replicas() == (1, None)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("at", ["deployments", "deployments/scale"])
async def test_the_number_of_replicas_survives_the_loss_of_the_leader_at_every_step(at: str, *, done: bool) -> None:
    """The leader's call is lost, before or after the API server did it; another extender goes on."""
    async with scene() as its:
        its.pod("web-0", "scale-to-zero", its.deployment(1))
        its.api.fail(Answer(500, done=done), verbs={"patch"}, resources={at}, times=1)
        await its.warned_and_due()
        replicas, remembered = its.replicas()
        assert replicas == 1 or remembered == "1"
        its.idle = its.another()
        its.watch()
        await its.warned_and_due()
        assert its.replicas() == (0, "1")


async def test_a_workload_that_changes_meanwhile_is_looked_at_anew() -> None:
    """A person scales it between the reading and the patch: the patch names the version that was read."""
    async with scene() as its:
        its.pod("web-0", "scale-to-zero", its.deployment(1))
        binder = its.idle._context.binder

        class Meddling:
            async def read(self, namespace: str, name: str, *, timeout_s: float) -> Pod:
                its.api.patch("deployments", "web", {"spec": {"replicas": 3}})
                return await binder.read(namespace, name, timeout_s=timeout_s)

        its.idle._context = replace(its.idle._context, binder=cast("Binder", Meddling()))
        await its.warned_and_due()
        assert its.replicas() == (3, None)
        await its.look(60)
        assert its.replicas() == (3, None)


# --- In the extender --------------------------------------------------------------------------------------------------


async def test_an_extender_reclaims_idle_gpus_and_says_so() -> None:
    """From the agent's annotations to the workload, through the watches."""
    async with world(allowed=RIGHTS | GRANTED, idle_warning="0s") as w:
        w.node("n", 12)
        top = w.api.add(workload("web", replicas=1) | {"status": {"replicas": 1}})
        replica_set = workload("web-1", kind="ReplicaSet", replicas=1)
        replica_set["spec"]["selector"] = {"matchLabels": LABELS}
        owner = w.api.add(owned(replica_set, top))
        notes = {WHEN_IDLE: "scale-to-zero"}
        body = pod("web-0", container(mem=4), node="n", phase="Running", annotations=notes, labels=LABELS)
        w.api.add(owned(body, owner))
        (await w.start()).extender.features.of(IdleActions).look_s = 0.02
        use = write_node_use(NodeUse(rfc3339(time.time() - 3600)))
        w.api.patch("nodes", "n", {"metadata": {"annotations": {NODE_USE: use}}})
        w.api.patch("pods", "web-0", {"metadata": {"annotations": {IDLE_SINCE: SINCE}}})
        await w.until(lambda: bool([each for each in w.api.all("events") if each["reason"] == "GPUIdleWarning"]))
        assert w.api.get("deployments", "web")["spec"]["replicas"] == 1, "the agent's figures are old"
        w.api.patch(
            "nodes", "n", {"metadata": {"annotations": {NODE_USE: write_node_use(NodeUse(rfc3339(time.time())))}}}
        )
        await w.until(lambda: w.api.get("deployments", "web")["spec"]["replicas"] == 0)
        await w.until(lambda: bool([each for each in w.api.all("events") if each["reason"] == "GPUIdleScaled"]))
        assert 'gpushare_extender_idle_actions_total{outcome="scaled",wish="scale-to-zero"} 1' in await w.metrics()


async def test_only_the_extender_acts_whose_scheduler_leads() -> None:
    async with world(allowed=RIGHTS | GRANTED | LEASE_RIGHTS, idle_warning="0s") as w:
        w.node("n", 12)
        w.pod("web", mem=4, node="n", phase="Running", annotations={WHEN_IDLE: "evict", IDLE_SINCE: SINCE})
        use = write_node_use(NodeUse(rfc3339(time.time())))
        w.api.patch("nodes", "n", {"metadata": {"annotations": {NODE_USE: use}}})
        started = await w.start(identity="pod-a", scheduler_lease="sched", lease_namespace="default")
        started.extender.features.of(IdleActions).look_s = 0.02
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "sched"}}
        spec = {"holderIdentity": "pod-b_1", "leaseTransitions": 1, "leaseDurationSeconds": 15}
        w.api.add({**lease, "spec": spec})
        asked = w.api.count("get", "leases")
        await w.until(lambda: w.api.count("get", "leases") > asked + 1)
        assert (w.api.all("events"), w.api.count("create", "pods/eviction")) == ([], 0)
        w.api.patch("leases", "sched", {"spec": {**spec, "holderIdentity": "pod-a_1", "leaseTransitions": 2}})
        await w.until(lambda: "deletionTimestamp" in w.get("web")["metadata"])


async def test_an_api_server_in_trouble_is_waited_for() -> None:
    async with world(allowed=RIGHTS | GRANTED, idle_warning="0s") as w:
        w.node("n", 12)
        w.pod("web", mem=4, node="n", phase="Running")
        (await w.start()).extender.features.of(IdleActions).look_s = 0.02
        fault = w.api.fail(Answer(500), verbs={"get"}, resources={"namespaces"})
        w.api.patch("pods", "web", {"metadata": {"annotations": {IDLE_SINCE: SINCE}}})
        await w.until(lambda: fault.happened > 1)
        await w.until(lambda: any("idle pods wait" in line for line in w.logs))
