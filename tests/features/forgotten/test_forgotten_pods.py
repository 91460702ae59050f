"""A kubelet that lost its checkpoint allocates what running pods have. The agent keeps it for them until they end."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_device_plugin.testing.pod_specs import Pod
from tests import builders
from tests.cluster_double.owned import mirror
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, Cluster, cluster
from tests.node.harness import NodeWorld, gpus_of, pod, without, world

KEPT = "its record of them was lost with its checkpoint; they become free when the pods"


def deleted(checkpoint: Path) -> None:
    checkpoint.unlink()


def cut(checkpoint: Path) -> None:
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)


def edited(checkpoint: Path) -> None:
    """Still JSON, and only the kubelet can tell by the checksum."""
    checkpoint.write_text(checkpoint.read_text().replace('"main"', '"mean"'))


LOSSES = pytest.mark.parametrize("lose", [deleted, cut, edited])


async def kubelet_loses(node: NodeWorld, lose: Callable[[Path], None], *, agent_too: bool = False) -> None:
    """Kill the kubelet, and the agent too if wanted, damage the checkpoint, and start what was killed."""
    await node.confirmed()
    await node.rounds(1)
    await node.kubelet.stop()
    if agent_too:
        await node.stop_agent()
    lose(node.kubelet.checkpoint)
    await node.kubelet.start()
    if agent_too:
        await node.start_agent()
    await node.ready()
    await node.rounds(2, now=True)
    node.kubelet.publish()


async def end(there: Cluster, made: Pod) -> None:
    there.api.delete("pods", made.name)
    await there.node.kubelet.delete(made)


def devices(made: Pod) -> set[str]:
    return {*made.devices(MEM), *made.devices(COUNT)}


@LOSSES
@pytest.mark.parametrize("killed", ["the kubelet", "the agent too"])
async def test_a12_what_running_pods_have_is_given_to_nobody_until_they_end(
    lose: Callable[[Path], None], killed: str
) -> None:
    """GPU 0 has 14 GiB in whole use, GPU 1 has 10 of 14 GiB in use: there is room for one pod of 4 GiB."""
    async with cluster() as there:
        await there.start_agent()
        node = there.node
        whole = await there.run(pod("whole", count=1))
        most = await there.run(pod("most", mem=10))
        await there.assigned("whole", "most")
        assert devices(whole).isdisjoint(gpus_of(most))
        before = node.held
        await kubelet_loses(node, lose, agent_too=killed == "the agent too")
        assert {known.phase for known in node.kubelet.pods} == {"Running"}
        assert (node.kubelet.allocated, node.held) == ({}, before)
        await node.healthy_is(MEM, 14)
        node.kubelet.publish()
        last = await there.run(pod("last", mem=4))
        assert last.phase == "Running"
        assert last.devices(MEM).isdisjoint(before)
        refused = [await there.run(pod(f"p{n}", mem=4)) for n in range(3)] + [await there.run(pod("w", count=1))]
        assert {each.phase for each in refused} == {"Failed"}
        assert KEPT in refused[0].message
        assert KEPT in refused[-1].message
        assert there.events("DevicesForgotten")
        await end(there, most)
        await node.until(lambda: node.held == devices(whole) | last.devices(MEM))
        assert (await there.run(pod("next", mem=10))).phase == "Running"
        await end(there, whole)
        await node.healthy_is(MEM, 28)
        assert (await there.run(pod("other", mem=14))).phase == "Running"


@LOSSES
async def test_without_the_api_the_processes_of_a_pod_show_that_it_runs(lose: Callable[[Path], None]) -> None:
    async with world("fake:1xT4") as node:
        node.show_processes()
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=10))
        node.process(11, made, "5ad9" * 16)
        await kubelet_loses(node, lose, agent_too=True)
        assert node.held == made.devices(MEM)
        assert KEPT in (await node.kubelet.admit(pod("second", mem=5))).message
        await node.kubelet.delete(made)
        await node.rounds(2)
        assert node.held == made.devices(MEM), "it takes its time to end"
        shutil.rmtree(node.proc / "11")
        await node.until(lambda: not node.held)
        assert (await node.kubelet.admit(pod("third", mem=14))).phase == "Running"


@pytest.mark.parametrize("lose", [deleted, cut])
async def test_where_nothing_shows_whether_pods_run_a_lost_checkpoint_counts_until_the_next_boot(
    lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with world("fake:1xT4") as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=10))
        await kubelet_loses(node, lose)
        await node.kubelet.delete(made)
        await node.rounds(2)
        assert node.held == made.devices(MEM)
        assert any("has lost its record of 10 devices of the pod with UID" in each for each in caplog.messages)
        await node.stop_agent()
        await node.kubelet.reboot(ready=True)
        await node.start_agent()
        assert node.held == set()


async def test_after_a_reboot_nothing_of_before_counts() -> None:
    """The checkpoint was lost on the way, and no process has survived."""
    async with cluster() as there:
        await there.start_agent()
        await there.run(pod("p", mem=10))
        await there.assigned("p")
        await there.node.stop_agent()
        there.node.kubelet.checkpoint.unlink()
        await there.node.kubelet.reboot()
        await there.start_agent()
        await there.node.rounds(2, now=True)
        assert there.node.held == set()


async def one_deleted_while_nothing_runs(there: Cluster) -> tuple[Pod, Pod]:
    """Stop agent and kubelet of two pods, and delete one of them in the API; return that one and the other."""
    await there.start_agent()
    gone, stays = await there.run(pod("gone", mem=10)), await there.run(pod("stays", mem=6))
    await there.assigned("gone", "stays")
    await there.node.confirmed()
    await there.node.rounds(1)
    await there.node.stop_agent()
    await there.node.kubelet.stop()
    there.api.delete("pods", "gone")
    return gone, stays


async def test_pods_that_were_deleted_while_neither_kubelet_nor_agent_ran_hold_nothing() -> None:
    async with cluster() as there:
        gone, stays = await one_deleted_while_nothing_runs(there)
        await there.node.kubelet.delete(gone, force=True)
        there.node.kubelet.checkpoint.unlink()
        await there.node.kubelet.start()
        await there.start_agent()
        await there.node.until(lambda: there.node.held == stays.devices(MEM))


async def test_while_the_api_is_away_all_of_them_count_until_it_is_back() -> None:
    async with cluster() as there:
        gone, stays = await one_deleted_while_nothing_runs(there)
        await there.node.kubelet.delete(gone)
        there.node.kubelet.checkpoint.unlink()
        away = {"api": "http://127.0.0.1:9"}
        before, there.node.settings = dict(there.node.settings), {**there.node.settings, **away}
        await there.node.kubelet.start()
        await there.node.start_agent()
        await there.node.rounds(2)
        assert there.node.held == gone.devices(MEM) | stays.devices(MEM)
        await there.node.stop_agent()
        there.node.settings = before
        await there.start_agent()
        await there.node.until(lambda: there.node.held == stays.devices(MEM))


async def test_annotations_of_a_pods_owner_hold_nothing() -> None:
    """Only what the kubelet itself has shown before counts."""
    async with cluster() as there:
        await there.start_agent()
        made = await there.run(pod("p", mem=2))
        await there.assigned("p")
        forged = {"scheduler.framework.gpushare.allocation": '{"0": {"0": 14, "1": 14}}', "ALIYUN_COM_GPU_MEM_IDX": "1"}
        there.api.patch("pods", "p", {"metadata": {"annotations": forged}})
        await kubelet_loses(there.node, deleted, agent_too=True)
        assert there.node.held == made.devices(MEM)


async def test_a_pod_that_poses_as_the_mirror_of_another_keeps_no_devices_of_that_one() -> None:
    async with cluster() as there:
        await there.start_agent()
        ended, other = await there.run(pod("ended", mem=10)), await there.run(pod("other", mem=2))
        await there.assigned("ended", "other")
        there.api.add(mirror(builders.pod("forger", node=NODE), ended.uid))
        await there.seen("forger")
        await kubelet_loses(there.node, deleted)
        assert there.node.held == ended.devices(MEM) | other.devices(MEM)
        await end(there, ended)
        await there.node.until(lambda: there.node.held == other.devices(MEM))
        await there.node.rounds(2)
        assert there.node.held == other.devices(MEM)


async def test_an_agent_that_offers_shares_of_another_size_keeps_the_size_while_forgotten_pods_have_some() -> None:
    async with world("fake:1xT4") as node:
        node.show_processes()
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=10))
        node.process(11, made, "5ad9" * 16)
        node.settings["share_size"] = "2GiB"
        await kubelet_loses(node, deleted, agent_too=True)
        assert node.agent is not None
        assert node.agent.state.node.shares.share_mib == 1024
        assert node.held == made.devices(MEM)


async def test_a_kubelet_that_restarts_with_its_checkpoint_has_lost_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nor has one whose pods have all ended since."""
    async with world("fake:1xT4") as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=10))
        await kubelet_loses(node, lambda _: None, agent_too=True)
        await kubelet_loses(node, lambda _: None)
        assert node.held == made.devices(MEM)
        await node.kubelet.delete(made)
        await node.until(lambda: not node.held)
        await kubelet_loses(node, deleted)
        assert node.held == set()
        assert not any("has lost its record" in each for each in caplog.messages)


async def test_without_the_feature_what_both_records_of_the_kubelet_omit_is_free() -> None:
    async with world("fake:1xT4") as node:
        node.features = without("forgotten")
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=10))
        await kubelet_loses(node, deleted)
        await node.until(lambda: not node.held)
        node.kubelet.publish()
        another = await node.kubelet.admit(pod("another", mem=4))
        assert (made.phase, another.phase) == ("Running", "Running")
        assert node.held == devices(another)
        assert not (node.kubelet.device_plugin_dir / "gpushare" / "allocations").exists()
