"""What every cluster comes to under the real Cluster Autoscaler, and how many nodes it may cost."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.model.contract.keys import USE_MODEL, USE_UUID
from tests.autoscaler.cloud import Group
from tests.autoscaler.conftest import AGED_S, growing
from tests.autoscaler.world import WAITS_S, AutoscaledCluster

pytestmark = pytest.mark.timeout(600)

A100 = "NVIDIA A100-PCIE-40GB"
Json = dict[str, Any]

IMPOSSIBLE: dict[str, tuple[Json, dict[str, int]]] = {
    "too-large": ({}, {"mem": 9}),
    "no-such-gpu": ({"annotations": {USE_UUID: "GPU-of-nobody"}}, {"mem": 2}),
    "too-many": ({}, {"count": 5}),
    "no-such-model": ({"annotations": {USE_MODEL: "H100"}}, {"mem": 2}),
}
"""Wishes that no node of four GPUs of 8 can fulfil: annotations, and amounts."""


async def settled(cluster: AutoscaledCluster, placed: int, bought: dict[str, int], waiting: int = 0) -> None:
    """Wait until all but the pods that have to wait have a place; then no other node may be ordered."""
    await cluster.placed(placed, waiting=waiting, quiet_s=WAITS_S)
    await cluster.loops(10)
    assert len(cluster.waiting()) == waiting, str(cluster)
    assert cluster.cloud.bought == bought, str(cluster)


async def node_of_fives(cluster: AutoscaledCluster, age_s: float, group: str = "") -> None:
    """Have a node with 3 free GiB on each of its four GPUs."""
    await cluster.grown(age_s=age_s, group=group)
    await cluster.deployment("fives", 4, mem=5)
    await cluster.placed(4)


# --- Nodes that are used in the other way -----------------------------------------------------------------------------


async def test_a_gpu_whole_gets_a_node_when_shares_are_used_of_all(tmp_path: Path, how: str, age_s: float) -> None:
    async with growing(tmp_path, how) as cluster:
        await node_of_fives(cluster, age_s)
        await cluster.pod("whole", count=1)
        await settled(cluster, 5, {"gpu": 1})


async def test_four_gpus_whole_get_a_node_when_shares_are_used_of_one(tmp_path: Path, how: str, age_s: float) -> None:
    async with growing(tmp_path, how) as cluster:
        await cluster.grown(age_s=age_s)
        await cluster.pod("five", mem=5)
        await cluster.placed(1)
        await cluster.pod("four", count=4)
        await settled(cluster, 2, {"gpu": 1})


async def test_shares_get_a_node_when_all_gpus_are_used_whole(tmp_path: Path, how: str, age_s: float) -> None:
    async with growing(tmp_path, how) as cluster:
        await cluster.grown(age_s=age_s)
        await cluster.deployment("whole", 4, count=1)
        await cluster.placed(4)
        await cluster.pod("eight", mem=8)
        await settled(cluster, 5, {"gpu": 1})


# --- Two types of GPU -------------------------------------------------------------------------------------------------


def two_types(
    folder: Path, how: str, t4: dict[str, Any] | None = None, **a100: Any
) -> AbstractAsyncContextManager[AutoscaledCluster]:
    """Run a cluster with a group of T4 and one of A100, which are larger."""
    groups = [Group("t4", **(t4 or {})), Group("a100", model=A100, shares=40, **a100)]
    return growing(folder, how, groups=groups)


@pytest.mark.parametrize(
    ("before", "labels", "wish"),
    [
        ("never-seen", "our-labels", ""),
        ("never-seen", "our-labels", "A100"),
        ("never-seen", "the-clouds-labels", ""),
        ("never-seen", "the-clouds-labels", "A100"),
        ("gone", "our-labels", "A100"),
        ("gone", "the-clouds-labels", ""),
        ("gone-and-restarted", "the-clouds-labels", ""),
        ("gone-and-restarted", "the-clouds-labels", "A100"),
    ],
)
async def test_a_pod_too_large_for_the_present_type_gets_the_other(
    tmp_path: Path, how: str, before: str, labels: str, wish: str
) -> None:
    """27 GiB are free on a T4 node, 8 on each of three GPUs; 20 are asked for. No node of the A100 is left."""
    known = {"knows_products": labels == "our-labels"}
    async with two_types(tmp_path, how, known, **known) as cluster:
        await cluster.grown(age_s=AGED_S, group="t4")
        await cluster.pod("stays", mem=5)
        await cluster.placed(1)
        if before != "never-seen":
            (seen,) = await cluster.grown(age_s=AGED_S, group="a100")
            await cluster.until(lambda: seen not in cluster.cloud.instances, "the idle A100 goes")
        if before == "gone-and-restarted":
            await cluster.extender.restart()
        await cluster.pod("twenty", {"annotations": {USE_MODEL: wish} if wish else {}}, mem=20)
        await settled(cluster, 2, {"a100": 1})


@pytest.mark.parametrize(
    ("t4", "seen"),
    [({"max_nodes": 1}, False), ({"max_nodes": 1}, True), ({"refuses": "orders"}, True), ({"refuses": "later"}, True)],
    ids=["full-other-never-seen", "full", "no-quota", "out-of-stock"],
)
async def test_the_next_type_comes_when_the_first_has_none_left(
    tmp_path: Path, how: str, age_s: float, t4: dict[str, Any], *, seen: bool
) -> None:
    """Both would do: 3 GiB are free on each present T4, none on an A100 where one is present, and 8 are asked for."""
    async with two_types(tmp_path, how, t4) as cluster:
        await node_of_fives(cluster, age_s, "t4")
        if seen:
            await cluster.grown(age_s=age_s, group="a100")
            await cluster.pod("large", mem=36)
            await cluster.pod("larger", count=3)
            await cluster.placed(6)
        await cluster.pod("eight", mem=8)
        await settled(cluster, 7 if seen else 5, {"a100": 1})
        assert cluster.cloud.refused["t4"] <= 3, str(cluster)


# --- Pods that nothing helps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [0, 1], ids=["from-nothing", "beside-an-aged-node"])
@pytest.mark.parametrize("impossible", ["too-large", "no-such-gpu", "too-many"])
async def test_three_nodes_are_bought_for_those_whom_they_help(
    tmp_path: Path, how: str, impossible: str, nodes: int
) -> None:
    """A node takes four of the pods; nodes come one after the other. Another pod waits, which no node takes."""
    async with growing(tmp_path, how, apart_s=4.0) as cluster:
        if nodes:
            await node_of_fives(cluster, AGED_S)
        more, amounts = IMPOSSIBLE[impossible]
        await cluster.pod("impossible", more, **amounts)
        await cluster.until(lambda: cluster.waiting() == ["impossible"])
        await cluster.deployment("others", 12, mem=5)
        await settled(cluster, 4 * nodes + 12, {"gpu": 3}, waiting=1)
        assert cluster.waiting() == ["impossible"], str(cluster)


async def test_pods_that_nothing_helps_change_nothing_for_another(tmp_path: Path, how: str, age_s: float) -> None:
    async with growing(tmp_path, how) as cluster:
        await node_of_fives(cluster, age_s)
        for name, (more, amounts) in IMPOSSIBLE.items():
            await cluster.pod(name, more, **amounts)
        await cluster.pod("eight", mem=8)
        await settled(cluster, 5, {"gpu": 1}, waiting=len(IMPOSSIBLE))
        assert cluster.waiting() == sorted(IMPOSSIBLE), str(cluster)


async def test_nothing_is_bought_for_a_pod_that_may_wait_for_ever(tmp_path: Path, how: str, age_s: float) -> None:
    """Of a lower priority than -10 the autoscaler serves none."""
    async with growing(tmp_path, how) as cluster:
        low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}}
        await cluster.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {**low, "value": -100})
        await node_of_fives(cluster, age_s)
        await cluster.pod("eight", {"spec": {"priorityClassName": "low"}}, mem=8)
        await cluster.loops(15)
        await settled(cluster, 4, {}, waiting=1)
