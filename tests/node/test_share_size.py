"""A share is the same amount of memory for as long as a container holds one, whatever the settings say meanwhile."""

import pytest

from tests.names import MEM
from tests.node.harness import NodeWorld, pod, world

ONE_T4 = "fake:1xT4"
"""14 shares of 1 GiB, or 7 of 2 GiB."""


async def restart(node: NodeWorld, share_size: str) -> None:
    await node.stop_agent()
    await node.start_agent(share_size=share_size)


@pytest.mark.parametrize(("before", "after"), [("2GiB", "1GiB"), ("1GiB", "2GiB")])
async def test_another_size_waits_while_a_container_holds_shares(
    before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In shares of another size the same memory could be given out twice."""
    whole = {"2GiB": 7, "1GiB": 14}[before]
    async with world(gpus=ONE_T4) as node:
        await node.start_agent(share_size=before)
        made = await node.kubelet.admit(pod("p", mem=5))
        await restart(node, after)
        await node.healthy_is(MEM, whole)
        assert node.held == made.devices(MEM)
        assert "these changes need a restart of the agent" in caplog.text
        refused = await node.kubelet.admit(pod("q", mem=whole - 4))
        assert refused.phase == "Failed"
        await restart(node, after)
        await node.healthy_is(MEM, whole)
        await node.kubelet.delete(made)
        await node.until(lambda: not node.held)
        await restart(node, after)
        await node.healthy_is(MEM, {"2GiB": 7, "1GiB": 14}[after])


async def test_a_pod_that_an_older_kubelet_still_has_in_its_checkpoint_holds_no_shares_any_more() -> None:
    """Up to 1.31 the pod admitted last stays there; the agent that saw it end says so to the next one."""
    async with world(gpus=ONE_T4, version=(1, 31)) as node:
        await node.start_agent(share_size="2GiB")
        made = await node.kubelet.admit(pod("p", mem=5))
        await node.listed(made)
        await restart(node, "1GiB")
        await node.healthy_is(MEM, 7)
        await node.listed(made)
        await node.kubelet.delete(made)
        await node.until(lambda: not node.held)
        note = node.kubelet.device_plugin_dir / "gpushare" / "ended-pods"
        await node.until(lambda: note.exists() and made.uid in note.read_text())
        await restart(node, "1GiB")
        await node.healthy_is(MEM, 14)
        await node.kubelet.admit(pod("next", mem=1))
        await node.until(lambda: made.uid not in note.read_text())


async def test_a_checkpoint_that_cannot_be_read_does_not_prove_that_nobody_holds_shares() -> None:
    async with world(gpus=ONE_T4) as node:
        await node.start_agent(share_size="2GiB")
        await node.stop_agent()
        node.kubelet.checkpoint.write_text("damaged")
        await node.start_agent(share_size="1GiB")
        await node.healthy_is(MEM, 7)
