"""The agent between a kubelet and GPUs: what pods get, and what they are told."""

import pytest

from tests.names import COUNT, MEM
from tests.node.harness import T4, envs_of, gpus_of, pod, world


async def test_a_pod_gets_shares_of_one_gpu_and_is_told_its_limit() -> None:
    async with world() as node:
        agent = await node.start_agent()
        made = await node.kubelet.admit(pod("a", mem=3))
        uuid = agent.state.node.shares.gpus[0].gpu.uuid
        assert made.phase == "Running"
        assert gpus_of(made) == {uuid}
        assert envs_of(made) == {
            "NVIDIA_VISIBLE_DEVICES": uuid,
            "GPUSHARE_MEMORY_LIMIT_MIB": "3072",
            "GPUSHARE_MEMORY_GUARANTEED_MIB": "3072",
            "GPUSHARE_MEMORY_LIMIT_BY": "advisory",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "14",
        }


@pytest.mark.parametrize(("cgroup", "limit", "request_mib"), [(2, "3072", "0"), (1, None, None)])
async def test_the_toolkit_is_asked_for_a_limit_where_the_node_can_hold_it(
    caplog: pytest.LogCaptureFixture, cgroup: int, limit: str | None, request_mib: str | None
) -> None:
    async with world([]) as node:
        node.hardware(T4 | {"memory_limits": True}, driver="615.71.09", cgroup=cgroup)
        with caplog.at_level("INFO"):
            await node.start_agent()
        envs = envs_of(await node.kubelet.admit(pod("a", mem=3)))
        assert (envs.get("NVIDIA_GPU_MEMORY_REQUEST"), envs.get("NVIDIA_GPU_MEMORY_LIMIT")) == (request_mib, limit)
        assert envs["GPUSHARE_MEMORY_LIMIT_MIB"] == "3072"
    (told,) = [message for message in caplog.messages if message.startswith("memory limits: ")]
    assert told.startswith(
        "memory limits: driver: the driver limits"
        if limit
        else "memory limits: advisory: the node's cgroup version is 1"
    )


async def test_a_pod_for_which_no_gpu_has_room_is_told_so_in_a_sentence() -> None:
    """Two pods of 9 leave 5 on each GPU; 8 fit on neither, though 10 are free in all."""
    async with world(policy="spread") as node:
        await node.start_agent()
        for name in "ab":
            await node.kubelet.admit(pod(name, mem=9))
        made = await node.kubelet.admit(pod("c", mem=8))
        assert made.phase == "Failed"
        assert "GPU memory: 8 GiB requested, the emptiest healthy GPU has 5 GiB free" in made.message


async def test_whole_and_shared_use_exclude_each_other_and_undo_themselves() -> None:
    async with world() as node:
        await node.start_agent()
        shared = await node.kubelet.admit(pod("shared", mem=4))
        await node.healthy_is(COUNT, 1)
        whole = await node.kubelet.admit(pod("whole", count=1))
        assert gpus_of(whole, COUNT).isdisjoint(gpus_of(shared))
        await node.healthy_is(MEM, 14)
        await node.kubelet.delete(shared)
        await node.kubelet.delete(whole)
        await node.healthy_is(MEM, 28)
        await node.healthy_is(COUNT, 2)
