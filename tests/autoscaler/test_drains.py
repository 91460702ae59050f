"""Drains by the real Cluster Autoscaler: whoever is evicted has a place, whatever happens just before."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import HELD_ROOM, HOSTNAME, KEPT_NODE
from tests.autoscaler.conftest import AGED_S, growing
from tests.autoscaler.invariants import Watch
from tests.autoscaler.kubelets import MERGE
from tests.autoscaler.world import UNNEEDED_S, WAITS_S, AutoscaledCluster

pytestmark = pytest.mark.timeout(600)

Json = dict[str, Any]

IDLE_S = 12 * UNNEEDED_S
MOMENT_S = 3.0
"""How long the replacement of an evicted pod may wait for a node, on a quiet machine."""
UNNEEDED = "DeletionCandidateOfClusterAutoscaler"
"""The autoscaler's taint on a node that it will remove soon."""
DRAINED = "ToBeDeletedByClusterAutoscaler"
_COST = "controller.kubernetes.io/pod-deletion-cost"


def watched(cluster: AutoscaledCluster) -> Watch:
    watch = Watch(IDLE_S, waits_s=MOMENT_S)
    cluster.kubelets.looked.append(watch.look)
    return watch


def rather_on(node: str) -> Json:
    """Return what a pod says that wants one node if there is room."""
    named = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
    preferred = [{"weight": 100, "preference": named}]
    return {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}}


@pytest.mark.parametrize("after_s", [4.0, 4.8, 5.2, 5.5, 5.8, 6.1])
async def test_room_that_is_taken_just_before_a_drain_is_nobodys_loss(tmp_path: Path, how: str, after_s: float) -> None:
    """Two pods could move to the other node until others take the room there. A node is drained after 5 to 6 s."""
    async with growing(tmp_path, how) as cluster:
        watch = watched(cluster)
        (stays,) = await cluster.grown(age_s=AGED_S)
        for number in range(4):
            await cluster.pod(f"stays-{number}", mem=5)
        await cluster.placed(4)
        (goes,) = await cluster.grown(age_s=AGED_S)
        watch.wanted["moves"] = 2
        await cluster.deployment("moves", 2, mem=5)
        await cluster.placed(6)
        await cluster.until(
            lambda: KEPT_NODE in notes(cluster, goes) and UNNEEDED not in taints(cluster, goes), "both nodes are needed"
        )
        for number in range(2):
            await cluster.delete(f"stays-{number}")
        await cluster.until(lambda: UNNEEDED in taints(cluster, goes), "the autoscaler is about to drain a node")
        await asyncio.sleep(after_s)

        for number in range(2):
            await cluster.pod(f"takes-{number}", rather_on(stays), mem=6)
        await cluster.placed(6, quiet_s=WAITS_S)
        await cluster.loops(10)
        assert not watch.wrong, f"{watch.wrong}\n{cluster}"
        assert not cluster.waiting(), str(cluster)
        moved = {node for pod, node in cluster.places().items() if pod.startswith("moves")}
        assert moved <= {stays, goes}, str(cluster)


@pytest.mark.parametrize("left", [(3, 1), (2, 1, 1), (3, 2, 1), (2, 2, 2)], ids=str)
async def test_no_room_stays_held_after_drains(tmp_path: Path, how: str, left: tuple[int, ...]) -> None:
    """All pods are of one Deployment, so that each replacement could have the room that is held for another."""
    async with growing(tmp_path, how) as cluster:
        watch = watched(cluster)
        full, few = 4 * len(left), sum(left)
        await cluster.grown(len(left), age_s=AGED_S)
        watch.wanted["fives"] = full
        await cluster.deployment("fives", full, mem=5)
        for _ in range(3):
            await cluster.placed(full)
            watch.wanted["fives"] = few
            await leave(cluster, "fives", left)
            await cluster.until(lambda: len(cluster.cloud.instances) == math.ceil(few / 4), "fewer nodes are enough")
            await cluster.placed(few)
            await cluster.loops(10)
            assert HELD_ROOM not in notes(cluster), str(cluster)
            watch.wanted["fives"] = full
            await cluster.scale("fives", full)
        await cluster.placed(full)
        await cluster.loops(10)
        assert not watch.wrong, f"{watch.wrong}\n{cluster}"
        assert HELD_ROOM not in notes(cluster), str(cluster)
        assert watch.evicted, "no node was drained"
        assert len(cluster.cloud.instances) == len(left), str(cluster)


async def test_no_room_stays_held_for_what_is_deleted_in_a_drain(tmp_path: Path, how: str) -> None:
    async with growing(tmp_path, how) as cluster:
        await cluster.grown(2, age_s=AGED_S)
        await cluster.deployment("fives", 8, mem=5)
        await cluster.placed(8)
        await leave(cluster, "fives", (2, 2))
        await cluster.until(
            lambda: any(DRAINED in taints(cluster, name) for name in cluster.cloud.instances), "a drain begins"
        )
        await cluster.ask("DELETE", "/apis/apps/v1/namespaces/default/deployments/fives")
        await cluster.placed(0)
        await cluster.pod("four", count=4)
        await cluster.placed(1, quiet_s=WAITS_S)
        await cluster.loops(10)
        assert HELD_ROOM not in notes(cluster), str(cluster)
        assert not cluster.cloud.bought, str(cluster)


async def leave(cluster: AutoscaledCluster, name: str, numbers: Sequence[int]) -> None:
    """Scale a Deployment down to so many pods on its nodes."""
    pods = defaultdict(list)
    for pod, node in cluster.places().items():
        pods[node].append(pod)
    for number, (_, found) in zip(numbers, sorted(pods.items()), strict=True):
        for pod in found[:number]:
            path = f"/api/v1/namespaces/default/pods/{pod}"
            await cluster.ask("PATCH", path, {"metadata": {"annotations": {_COST: "100"}}}, MERGE)
    await cluster.scale(name, sum(numbers))


def taints(cluster: AutoscaledCluster, name: str) -> set[str]:
    """Return the keys of a node's taints."""
    return {taint["key"] for node in named(cluster, name) for taint in node["spec"].get("taints", ())}


def notes(cluster: AutoscaledCluster, name: str = "") -> set[str]:
    """Return the keys of a node's annotations, or of all nodes'."""
    return {key for node in named(cluster, name) for key in node["metadata"].get("annotations", ())}


def named(cluster: AutoscaledCluster, name: str) -> list[Json]:
    return [node for node in cluster.nodes if name in {"", node["metadata"]["name"]}]
