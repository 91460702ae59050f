"""GPUs that containers hold through resources which this agent does not offer, and other ends of a node's life."""

from __future__ import annotations

from tests.names import COUNT, MEM
from tests.programs.node.harness import pod, world


async def test_a_gpu_taken_whole_is_not_shared_by_an_agent_that_comes_back_with_memory_alone() -> None:
    async with world("fake:2xT4") as node:
        await node.start_agent()
        whole = await node.kubelet.admit(pod("whole", count=1))
        await node.stop_agent()
        await node.start_agent(resources="memory")
        await node.healthy_is(MEM, 14)
        made = await node.kubelet.admit(pod("large", mem=14))
        assert made.phase == "Running"
        taken = {name for c in whole.containers for name in c.devices[COUNT]}
        assert taken.isdisjoint(name.partition("::")[0] for c in made.containers for name in c.devices[MEM])
        await node.kubelet.delete(whole)
        await node.healthy_is(MEM, 28)


async def test_shares_in_use_keep_their_gpu_from_an_agent_that_comes_back_with_whole_gpus_alone() -> None:
    async with world("fake:2xT4") as node:
        await node.start_agent()
        shared = await node.kubelet.admit(pod("shared", mem=1))
        await node.stop_agent()
        await node.start_agent(resources="count")
        await node.healthy_is(COUNT, 1)
        await node.kubelet.delete(shared)
        await node.healthy_is(COUNT, 2)


async def test_what_was_given_out_under_another_domain_is_not_given_out_again() -> None:
    async with world("fake:1xT4") as node:
        await node.start_agent()
        old = await node.kubelet.admit(pod("old", mem=14))
        await node.stop_agent()
        agent = await node.start_agent(domain="example.com")
        await node.healthy_is("example.com/gpu-mem", 0)
        assert agent.state.node.ledger.foreign == {agent.state.node.shares.gpus[0].gpu.uuid: MEM}
        await node.kubelet.delete(old)
        await node.healthy_is("example.com/gpu-mem", 14)


async def test_readiness_tells_what_was_lost_after_the_start() -> None:
    async with world("fake:1xT4") as node:
        agent = await node.start_agent()
        assert await agent.serving_switch.ready() == ()
        agent.toggle_pause()
        await node.healthy_is(MEM, 0)
        assert await agent.serving_switch.ready() == ("paused: the agent does not use the GPUs",)
        agent.toggle_pause()
        await node.healthy_is(MEM, 14)
        assert await agent.serving_switch.ready() == ()


async def test_a_size_that_no_gpu_can_ever_give_ends_in_less_being_shown() -> None:
    """20 GiB fit on no T4. After three refusals 19 of the 28 shares are shown, so that further pods wait."""
    async with world("fake:2xT4", refusal_limit="3") as node:
        await node.start_agent()
        for name in "abc":
            assert (await node.kubelet.admit(pod(name, mem=20))).phase == "Failed"
        await node.healthy_is(MEM, 19)
        assert (await node.kubelet.admit(pod("fits", mem=14))).phase == "Running"


async def test_turning_the_bound_off_takes_effect_at_once() -> None:
    async with world("fake:2xT4", refusal_limit="3") as node:
        agent = await node.start_agent()
        for name in "abc":
            await node.kubelet.admit(pod(name, mem=20))
        await node.healthy_is(MEM, 19)
        agent.advertiser.limit(0)
        await node.healthy_is(MEM, 28)
