"""The real Cluster Autoscaler, which counts by sums, and what our extender adds to it."""

from pathlib import Path

import pytest

from gpu_device_plugin.model.contract.keys import STARTUP_TAINT
from tests.autoscaler.conftest import AGED_S, growing
from tests.autoscaler.world import AutoscaledCluster

pytestmark = pytest.mark.timeout(600)


async def full_of_fives(cluster: AutoscaledCluster) -> str:
    """Have one node with 3 free GiB on each of its four GPUs; return its name."""
    (node,) = await cluster.grown(age_s=AGED_S)
    await cluster.deployment("fives", 4, mem=5)
    await cluster.placed(4)
    return node


async def test_a_pod_that_fits_by_the_sum_alone_gets_a_node(tmp_path: Path, how: str) -> None:
    """12 GiB are free, 3 on each GPU; 8 are asked for."""
    async with growing(tmp_path, how) as cluster:
        await full_of_fives(cluster)
        await cluster.pod("eight", mem=8)
        await cluster.placed(5)
        await cluster.loops(10)
        assert cluster.cloud.calls == [("more", 1)], str(cluster)


async def test_one_node_is_enough_for_two_pods_that_it_has_room_for(tmp_path: Path, how: str) -> None:
    """One of which asks for a whole GPU, which no fenced node offers."""
    async with growing(tmp_path, how) as cluster:
        await full_of_fives(cluster)
        await cluster.pod("eight", mem=8)
        await cluster.pod("whole", count=1)
        await cluster.placed(6)
        await cluster.loops(10)
        assert cluster.cloud.calls == [("more", 1)], str(cluster)


async def test_the_first_node_comes_by_the_groups_template(tmp_path: Path, how: str) -> None:
    async with growing(tmp_path, how) as cluster:
        await cluster.pod("eight", mem=8)
        await cluster.placed(1)
        await cluster.loops(10)
        assert cluster.cloud.calls == [("more", 1)], str(cluster)


async def test_six_pods_of_which_a_node_takes_four_get_two_nodes(tmp_path: Path, how: str) -> None:
    """Their sum of 30 GiB is less than the 32 of one node."""
    async with growing(tmp_path, how) as cluster:
        await cluster.deployment("fives", 6, mem=5)
        await cluster.placed(6)
        await cluster.loops(10)
        assert cluster.cloud.calls == [("more", 1), ("more", 1)], str(cluster)


async def test_a_node_comes_when_every_present_one_is_used_in_another_way(tmp_path: Path, how: str) -> None:
    """One offers no GPU whole, the other no shares: whichever the autoscaler takes as its example lacks something."""
    async with growing(tmp_path, how) as cluster:
        await full_of_fives(cluster)
        await cluster.grown(age_s=AGED_S)
        await cluster.deployment("whole", 4, count=1)
        await cluster.placed(8)
        await cluster.pod("eight", mem=8)
        await cluster.placed(9)
        await cluster.loops(10)
        assert cluster.cloud.calls == [("more", 1)], str(cluster)


async def test_a_node_whose_agent_is_late_is_waited_for(tmp_path: Path, how: str) -> None:
    """Ready without GPUs it would be no help by the sums, and the autoscaler buys another in every round."""
    async with growing(tmp_path, how, boot_s=2.0, agent_s=8.0, taint=STARTUP_TAINT) as cluster:
        await cluster.pod("eight", mem=8)
        await cluster.placed(1)
        await cluster.loops(10)
        assert cluster.cloud.calls == [("more", 1)], str(cluster)


async def test_a_node_stays_whose_pods_have_nowhere_to_go_and_goes_once_they_have(tmp_path: Path, how: str) -> None:
    """The sum of the other node would take them: 12 GiB for 10, with 3 free on each GPU."""
    async with growing(tmp_path, how) as cluster:
        full = await full_of_fives(cluster)
        (half,) = await cluster.grown(age_s=AGED_S)
        await cluster.deployment("two", 2, mem=5)
        await cluster.placed(6)
        before = cluster.places()
        assert sorted(before.values()).count(half) == 2, str(cluster)
        await cluster.loops(20)
        assert (cluster.places(), cluster.cloud.calls) == (before, []), str(cluster)

        await cluster.scale("fives", 2)
        await cluster.until(lambda: len(cluster.cloud.instances) == 1, "one node is enough now")
        await cluster.placed(4)
        assert [order for order, _ in cluster.cloud.calls] == ["delete"], str(cluster)
        assert set(cluster.places().values()) <= {full, half}
