"""A cluster whose extender cares for its capacity: pods of controllers, old and new nodes, and what is held there."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from gpu_device_plugin.model.contract.keys import HELD_ROOM, HOSTNAME, KEEPS, MOVE_REFUSED, MOVE_TO, STAND_IN
from gpu_device_plugin.scheduler.controller_context import ExtenderTimings
from tests import builders
from tests.cluster_double import owned as owned_objects
from tests.patience import rounds
from tests.scheduler.harness import ALLOCATION, NODE_GPUS, QUICK, RIGHTS, ExtenderWorld, gpus, world

Json = dict[str, Any]

GRANTED = {
    ("get", "nodes"),
    ("patch", "nodes"),
    ("create", "pods/eviction"),
    ("list", "capacitybuffers"),
    ("create", "capacitybuffers"),
    ("delete", "capacitybuffers"),
    ("create", "podtemplates"),
    ("delete", "podtemplates"),
    ("create", "pods"),
    ("delete", "pods"),
    ("create", "events"),
    ("patch", "events"),
    ("get", "configmaps"),
    ("patch", "configmaps"),
}
"""What deploy/optional/capacity.yaml grants the extender."""
KINDS = "gpushare-node-kinds"
"""The ConfigMap of the manifest."""
LONG_AGO = "2026-01-01T00:00:00Z"
NAMESPACE = "kube-system"
"""Where an extender outside of a cluster makes its objects."""
GOING = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
KEPT, KARPENTER = KEEPS


@asynccontextmanager
async def capacity_world(
    *, allowed: Iterable[tuple[str, str]] = RIGHTS | GRANTED, timings: ExtenderTimings = QUICK, **settings: str
) -> AsyncIterator[ExtenderWorld]:
    """Make a cluster without nodes whose extenders have the rights to care for its capacity."""
    async with world(settings, allowed=allowed, timings=timings) as w:
        w.api.add({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": KINDS, "namespace": NAMESPACE}})
        yield w


def node(w: ExtenderWorld, name: str, *sizes: int, created: str = LONG_AGO, **rest: Any) -> None:
    """Add a node that shares GPUs, by default an old one."""
    labels = {"gpushare": "true", **rest.pop("labels", {})}
    annotations = {NODE_GPUS: gpus(name, *sizes, **rest)} if sizes else {}
    mem, count = (sum(sizes), len(sizes)) if sizes else (None, None)
    body = builders.node(name, labels=labels, annotations=annotations, mem=mem, count=count)
    if created:
        body["metadata"]["creationTimestamp"] = created
    w.api.add(body)


def pod(
    w: ExtenderWorld, name: str, mem: int = 4, *, rs: str = "web", at: tuple[str, int] | None = None, **rest: Any
) -> str:
    """Create a pod of a ReplicaSet, or with `rs` empty of none; return its UID. `at` is where it runs already."""
    kind = rest.pop("kind", "ReplicaSet")
    notes = dict(rest.pop("annotations", {}))
    if at is not None:
        notes[ALLOCATION] = json.dumps({"0": {str(at[1]): mem}})
    body = builders.pod(
        name,
        builders.container(mem=mem),
        node=at[0] if at else "",
        annotations=notes,
        labels={"app": rs, **rest.pop("labels", {})},
        grace_s=rest.pop("grace_s", None),
        created=rest.pop("created", ""),
    )
    body["spec"] |= rest.pop("spec", {})
    assert not rest, rest
    if rs:
        body = owned_objects.owned(
            body, {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": rs, "uid": f"uid-{rs}"}}
        )
    made = w.api.add(body)
    if at is not None:
        w.run(name)
    return str(made["metadata"]["uid"])


def notes_on(w: ExtenderWorld, name: str) -> dict[str, str]:
    """Return the annotations of a node."""
    found: dict[str, str] = w.api.get("nodes", name)["metadata"].get("annotations", {})
    return found


def annotate(w: ExtenderWorld, name: str, **changes: str | None) -> None:
    """Write annotations of a node, as a person does."""
    w.api.patch("nodes", name, {"metadata": {"annotations": changes}})


def held(w: ExtenderWorld, name: str) -> dict[str, dict[str, int]]:
    """Return what is held on a node, by the annotation: shares by GPU for the replacement of each pod."""
    said = json.loads(notes_on(w, name).get(HELD_ROOM, "{}"))
    return {uid: room["gpus"] for uid, room in said.items()}


def kept(w: ExtenderWorld, name: str) -> str | None:
    """Return what says that the Cluster Autoscaler must not remove a node."""
    return notes_on(w, name).get(KEPT)


def taint(w: ExtenderWorld, name: str, *taints: Json) -> None:
    w.api.patch("nodes", name, {"spec": {"taints": list(taints) or None}})


def cordon(w: ExtenderWorld, name: str, *, cordoned: bool = True) -> None:
    w.api.patch("nodes", name, {"spec": {"unschedulable": cordoned or None}})


def wants(w: ExtenderWorld, name: str, to: str, gpu: int = 0, mem: int = 4) -> None:
    """Ask for a pod to be moved."""
    said(w, name, json.dumps({"node": to, "gpus": {str(gpu): mem}}))


def said(w: ExtenderWorld, name: str, text: str) -> None:
    """Write on a pod where it is to be moved."""
    w.api.patch("pods", name, {"metadata": {"annotations": {MOVE_TO: text, MOVE_REFUSED: None}}})


def refusal(w: ExtenderWorld, name: str) -> str:
    """Return why a pod is not moved; empty: nobody has said so."""
    assert not (MOVE_TO in w.annotations(name) and MOVE_REFUSED in w.annotations(name))
    return w.annotations(name).get(MOVE_REFUSED, "")


def going(w: ExtenderWorld, name: str) -> bool:
    """Whether a pod is being deleted, or is gone."""
    there = [each for each in w.api.all("pods") if each["metadata"]["name"] == name]
    return not there or "deletionTimestamp" in there[0]["metadata"]


def stand_ins(w: ExtenderWorld) -> list[Json]:
    """Return the pods that stand for wanted room."""
    return [
        each
        for each in w.api.all("pods")
        if each["metadata"]["namespace"] == NAMESPACE and STAND_IN in each["metadata"]["labels"]
    ]


def nodes_left_out(pod: Json, key: str = HOSTNAME) -> list[str]:
    """Return the host names, or the values of another label, of the nodes that a stand-in never goes to."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    (condition,) = [each for each in term["matchExpressions"] if each["key"] == key]
    assert condition["operator"] == "NotIn"
    return list(condition["values"])


async def some_rounds(w: ExtenderWorld, count: int = 8) -> None:
    """Let every extender see what there is, and take care of the capacity several times."""
    await w.seen()
    await rounds(count, QUICK.settled_s)
    await w.seen()
