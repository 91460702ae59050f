"""The label is the switch: an agent that ends because it is gone takes what it wrote on the node with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gpu_device_plugin.testing.cluster import Answer, Hang
from tests.programs.cluster_harness import NODE, Cluster, cluster

if TYPE_CHECKING:
    import pytest

SWITCHED_ON = {"gpushare": "true"}


def label(there: Cluster, value: str | None) -> None:
    there.api.patch("nodes", NODE, {"metadata": {"labels": {"gpushare": value}}})


async def published(there: Cluster) -> None:
    await there.start_agent()
    await there.node.until(lambda: bool(there.said_of_node()) and "count" in there.labels())


async def stop(there: Cluster) -> None:
    """Stop the agent as SIGTERM does."""
    agent = there.node.agent
    assert agent is not None
    await agent.going()
    await there.node.stop_agent()
    await agent.leave()


async def test_without_the_label_nothing_of_ours_is_left_on_the_node() -> None:
    async with cluster(node_labels={**SWITCHED_ON, "zone": "a"}) as there:
        await published(there)
        label(there, None)
        await stop(there)
        meta = there.api.get("nodes", NODE)["metadata"]
        assert {key for key in meta["labels"] if "gpu" in key} == set()
        assert meta["labels"]["zone"] == "a"
        assert "gpu-device-plugin/gpus" not in meta.get("annotations", {})


async def test_a_rollout_keeps_everything() -> None:
    async with cluster(node_labels=SWITCHED_ON) as there:
        await published(there)
        before = there.said_of_node(), there.labels()
        await stop(there)
        assert (there.said_of_node(), there.labels()) == ({**before[0], "away": True}, before[1])


async def test_the_next_agent_says_that_it_is_there() -> None:
    """In between schedulers send no pod: the kubelet would refuse it for want of healthy devices."""
    async with cluster(node_labels=SWITCHED_ON) as there:
        await published(there)
        before = there.said_of_node()
        await stop(there)
        await there.start_agent()
        await there.node.until(lambda: there.said_of_node() == before)


async def test_an_agent_that_cannot_say_that_it_ends_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with cluster(node_labels=SWITCHED_ON) as there:
        await published(there)
        there.api.fail(Hang(), resources=["nodes"])
        await there.cluster.going(0.05)
        assert "does not say that its agent ends: no answer within 0.05 s" in caplog.text
        there.api.heal()


async def test_an_agent_that_has_said_nothing_yet_has_nothing_to_take_back() -> None:
    async with cluster(node_labels=SWITCHED_ON) as there:
        there.api.fail(Hang(), resources=["nodes"])
        await there.start_agent()
        await there.cluster.going(5)
        there.api.heal()


async def test_a_node_that_is_shared_by_another_rule_than_the_label_keeps_everything() -> None:
    """The DaemonSet was given another node selector; its rollout is none of the label's business."""
    async with cluster() as there:
        await published(there)
        await stop(there)
        assert there.said_of_node()["gpus"]
        assert "count" in there.labels()


async def test_an_api_server_that_does_not_answer_holds_the_end_up_for_a_moment_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster(node_labels=SWITCHED_ON) as there:
        await published(there)
        label(there, None)
        there.api.fail(Hang(), resources=["nodes"])
        ours = there.cluster
        await there.node.stop_agent()
        await ours.leave(0.1)
        assert "what we wrote on it stays: no answer within 0.1 s" in caplog.text
        there.api.heal()
        there.api.fail(Answer(403), verbs=["patch"])
        await ours.leave(5)
        assert "what we wrote on it stays: patch nodes node: 403" in caplog.text
        assert there.said_of_node()


async def test_without_an_api_there_is_nothing_to_leave_behind() -> None:
    async with cluster() as there:
        await there.node.start_agent(api="off")
        async with asyncio.timeout(5):
            await stop(there)
