"""The label is the switch: an agent that ends because it is gone takes what it wrote on the node with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.settings.sources import Sources
from tests.cluster_double.troubles import Answer, Hang
from tests.names import MEM
from tests.node.cluster_harness import NODE, Cluster, cluster, promise
from tests.node.harness import T4, pod
from tests.patience import patience

SWITCHED_ON = {"gpushare": "true"}


def label(there: Cluster, value: str | None) -> None:
    there.api.patch("nodes", NODE, {"metadata": {"labels": {"gpushare": value}}})


async def published(there: Cluster) -> None:
    await there.start_agent()
    await there.node.until(lambda: there.takes_pods() and "count" in there.labels())


async def stop(there: Cluster) -> None:
    """Stop the agent as SIGTERM does."""
    agent = there.node.agent
    assert agent is not None
    assert agent.cluster is not None
    await agent.cluster.published.announce_shutdown()
    await there.node.stop_agent()
    await agent.cluster.cleanup.run()


async def test_without_the_label_nothing_of_ours_is_left_on_the_node() -> None:
    async with cluster(node_labels={**SWITCHED_ON, "zone": "a"}) as there:
        await published(there)
        label(there, None)
        await stop(there)
        meta = there.api.get("nodes", NODE)["metadata"]
        assert {key for key in meta["labels"] if "gpu" in key} == set()
        assert meta["labels"]["zone"] == "a"
        assert "gpu-device-plugin/gpus" not in meta.get("annotations", {})


def offer(there: Cluster, shares: int) -> None:
    """Have the kubelet write into the API how much it offers."""
    there.api.patch("nodes", NODE, {"status": {"allocatable": {MEM: str(shares)}}}, subresource="status")


@asynccontextmanager
async def cleaning_up(there: Cluster, forgotten_within_s: float) -> AsyncIterator[asyncio.Task[None]]:
    """An agent that was told to end has lost its label, and looks at a node that offers 28 shares still."""
    await published(there)
    offer(there, 28)
    label(there, None)
    ours = there.cluster
    await ours.published.announce_shutdown(5)
    await there.node.stop_agent()
    before = there.api.count("get", "nodes")
    cleanup = asyncio.create_task(ours.cleanup.run(5, forgotten_within_s), name="cleanup")
    await there.node.until(lambda: there.api.count("get", "nodes") > before + 1)  # looked, and once more
    yield cleanup
    async with patience(there):
        await cleanup


async def test_a_node_that_still_offers_gpus_says_meanwhile_that_its_agent_is_away() -> None:
    """Without a word of ours a scheduler takes what is offered for another plugin's, and its pods fail."""
    async with cluster(node_labels=SWITCHED_ON) as there:
        async with cleaning_up(there, 60) as leave:
            assert (there.said_of_node()["away"], leave.done()) == (True, False)
            offer(there, 0)
        assert there.said_of_node() == {}


async def test_a_label_that_comes_back_meanwhile_keeps_everything() -> None:
    async with cluster(node_labels=SWITCHED_ON) as there:
        async with cleaning_up(there, 60):
            label(there, "true")
        assert there.said_of_node()["away"]
        assert "count" in there.labels()


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


async def test_a_pod_that_is_being_bound_when_the_agent_ends_gets_its_gpu() -> None:
    async with cluster(node_labels=SWITCHED_ON) as there:
        await published(there)
        there.cluster.published.linger_s = 60
        shutdown = asyncio.create_task(there.cluster.published.announce_shutdown(5), name="announce shutdown")
        await there.node.until(lambda: "away" in there.said_of_node())
        made = await there.run(pod("late", mem=4), promise(1, 4))
        assert there.positions(made) == {1: 4}
        shutdown.cancel()


async def test_an_agent_that_ends_invites_no_pod_again_whatever_it_learns_meanwhile() -> None:
    """Its hardware changes, its node is looked at, other settings apply, and the kubelet listens to it once more."""
    async with cluster([T4, T4], node_labels=SWITCHED_ON) as there:
        agent, ours = there.node.launch(), there.cluster
        ours.published.linger_s, ours.look_s = 0, 0.05
        await there.node.until(there.takes_pods)
        await ours.published.announce_shutdown(5)
        assert there.said_of_node()["away"]

        there.node.hardware(T4, {**T4, "error": "Unknown Error"})
        await there.node.until(lambda: not there.said_of_node()["gpus"][1]["healthy"])
        agent.reload(Sources(NODE_SETTINGS, flags={**there.node.settings, "policy": "spread"}, environ={}).read())
        await there.node.until(lambda: there.said_of_node()["policy"] == "spread")
        there.api.patch("nodes", NODE, {"metadata": {"annotations": {"gpu-device-plugin/gpus": None}}})
        await there.node.until(lambda: bool(there.said_of_node()))
        ours.published.announce_ready()
        there.node.hardware(T4, T4)
        await there.node.until(lambda: there.said_of_node()["gpus"][1]["healthy"])
        assert there.said_of_node()["away"]


async def test_an_agent_that_is_told_to_end_before_it_knows_its_gpus_never_invites_a_pod() -> None:
    async with cluster(node_labels=SWITCHED_ON) as there:
        there.api.fail(Hang(), verbs=["get"], resources=["nodes"])
        await there.start_agent()
        await there.cluster.published.announce_shutdown(5)
        there.api.heal()
        await there.node.until(lambda: bool(there.said_of_node()))
        assert there.said_of_node()["away"]


async def test_an_agent_that_cannot_say_that_it_ends_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with cluster(node_labels=SWITCHED_ON) as there:
        await published(there)
        there.api.fail(Hang(), resources=["nodes"])
        await there.cluster.published.announce_shutdown(0.05)
        assert "could not be announced on its node: no answer within 0.05 s" in caplog.text
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
        await ours.cleanup.run(0.1, 0)
        assert "our labels and annotations may still be on it: no answer within 0.1 s" in caplog.text
        there.api.heal()
        there.api.fail(Answer(403), verbs=["patch"])
        await ours.cleanup.run(5, 0)
        assert "our labels and annotations may still be on it: patch nodes node: 403" in caplog.text
        assert there.said_of_node()
