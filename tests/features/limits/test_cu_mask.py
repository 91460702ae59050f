"""The compute units that containers on AMD GPUs are asked to keep to, where the administrator wants that."""

from gpu_device_plugin.features.limits.rules.compute_mask import VARIABLE
from tests.node.harness import T4, envs_of, pod, world


async def test_containers_are_told_their_compute_units_where_a_setting_says_so() -> None:
    async with world([{"model": "RX7900XTX"}]) as node:
        await node.start_agent()
        assert VARIABLE not in envs_of(await node.kubelet.admit(pod("p", mem=6)))
        node.reload(cu_mask="by-share")
        first, second = [envs_of(await node.kubelet.admit(pod(name, mem=6)))[VARIABLE] for name in "qr"]
        assert first.startswith("0:")
        assert first != second


async def test_other_gpus_and_whole_ones_have_no_mask() -> None:
    async with world([T4, {"model": "RX7900XTX"}], cu_mask="by-share", policy="binpack") as node:
        await node.start_agent()
        assert VARIABLE not in envs_of(await node.kubelet.admit(pod("p", mem=12)))
        assert VARIABLE not in envs_of(await node.kubelet.admit(pod("w", count=1)))
