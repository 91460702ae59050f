"""The means of limiting memory from settings and labels to containers, the node, log and Events."""

import json
from pathlib import Path

import pytest

from gpu_device_plugin.features.limits.node import Limits
from gpu_device_plugin.model.contract.nodelabels import NodeLimits, read_node_limits
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.settings.knobs import UsageError
from tests.node.cluster_harness import Cluster, cluster
from tests.node.harness import T4, envs_of, gpus_of, pod, world

BY = "GPUSHARE_MEMORY_LIMIT_BY"
NONE = "the driver has no memory limits, which come with r615"
LIMITED = T4 | {"memory_limits": True}
R615 = {"driver": "615.71.09", "cgroup": 2}


def limits_of(there: Cluster) -> NodeLimits | None:
    text = there.api.get("nodes", "node")["metadata"].get("annotations", {}).get("gpu-device-plugin/limits")
    return read_node_limits(text) if text else None


async def test_the_node_says_which_means_each_gpu_has_and_the_weakest_in_a_label() -> None:
    async with cluster([]) as there:
        there.node.hardware(LIMITED, T4, **R615)
        await there.start_agent()
        await there.node.until(lambda: there.labels().get("limits") == "advisory")
        found = limits_of(there)
        assert found is not None
        assert [(position, gpu.enforcement, gpu.why) for position, gpu in found.gpus.items()] == [
            (
                0,
                Enforcement.DRIVER,
                "the driver limits the memory of cgroups where nvidia-container-toolkit from 1.20.1 on asks it to",
            ),
            (1, Enforcement.ADVISORY, NONE),
        ]
        assert there.events("GPULimitsUnavailable") == []
        await there.node.stop_agent()
        there.node.hardware(LIMITED, LIMITED, **R615)
        await there.start_agent()
        await there.node.until(lambda: there.labels().get("limits") == "driver")


async def test_a_wanted_means_that_is_missing_refuses_shares_and_tells_why(caplog: pytest.LogCaptureFixture) -> None:
    """Whole GPUs need no limits."""
    async with cluster(limits="driver", http="127.0.0.1:0") as there:
        await there.start_agent()
        made = await there.run(pod("a", mem=3))
        why = f"the setting limits=driver asks for driver: {NONE}"
        assert made.phase == "Failed"
        assert f": enforced memory limits are required here and not available: {why}" in made.message
        assert (await there.run(pod("b", count=1))).phase == "Running"
        await there.node.until(lambda: bool(there.events("GPULimitsUnavailable")))
        (event,) = there.events("GPULimitsUnavailable")
        told = f"GPU 0, 1: {why}; containers are refused shares (limits_fallback: refuse)"
        assert (event["note"], event["type"]) == (f"Memory limits are not there: {told}.", "Warning")
        assert f"memory limits are not there: {told}" in caplog.messages
        refusals = 'gpushare_refusals_total{reason="memory_limit_not_there",resource="aliyun.com/gpu-mem"} 1.0'
        assert refusals in await there.metrics()


async def test_shares_come_from_a_gpu_that_is_not_refused() -> None:
    """Binpack would fill GPU 0."""
    async with world([], limits="driver") as node:
        node.hardware(T4, LIMITED, **R615)
        agent = await node.start_agent()
        made = await node.kubelet.admit(pod("a", mem=3))
        assert gpus_of(made) == {agent.state.node.shares.gpus[1].gpu.uuid}
        assert envs_of(made)[BY] == "driver"


async def test_a_label_of_the_node_overrides_the_setting_while_the_agent_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster([], node_labels={"ack.node.gpu.schedule": "share"}) as there:
        there.node.hardware(LIMITED, **R615)
        with caplog.at_level("INFO"):
            there.node.launch()
            there.cluster.look_s = 0.05
            await there.node.ready()
            await there.node.until(lambda: there.labels().get("limits") == "advisory")
            assert envs_of(await there.run(pod("a", mem=3)))[BY] == "advisory"
            there.api.patch("nodes", "node", {"metadata": {"labels": {"gpu-device-plugin/set-limits": "driver"}}})
            await there.node.until(lambda: there.labels().get("limits") == "driver")
            assert envs_of(await there.run(pod("b", mem=3)))[BY] == "driver"
            there.api.patch("nodes", "node", {"metadata": {"labels": {"gpu-device-plugin/set-limits": "hard"}}})
            await there.node.until(lambda: there.labels().get("limits") == "advisory")
        told = [message for message in caplog.messages if message.startswith("memory limits: ")]
        assert [message.split(":")[1] for message in told[-3:]] == [" advisory", " driver", " advisory"]
        ignored = [message for message in caplog.messages if "set-limits=hard is ignored" in message]
        assert len(ignored) == 1


async def test_the_limit_helper_is_told_of_soft_limits_by_the_settings_in_force() -> None:
    async with world() as node:
        agent = await node.start_agent(memory_dir=f"{node.folder}/memory")
        link = agent.features.of(Limits).link
        assert link is not None
        assert not link.soft()
        node.reload(soft_limit="share")
        assert link.soft()


async def test_an_extra_grant_reaches_the_container_with_its_pod(tmp_path: Path) -> None:
    file = tmp_path / "extra.grant"
    file.write_text(json.dumps({"envs": {"CACHE": "/{pod_uid}/{container}", "LIMIT_{ordinal}": "{limit_mib}m"}}))
    async with cluster(limits="custom", extra_grant=str(file)) as there:
        await there.start_agent()
        made = await there.run(pod("a", mem=3))
        envs = envs_of(made)
        assert (envs[BY], envs["CACHE"], envs["LIMIT_0"]) == ("custom", f"/{made.uid}/main", "3072m")


@pytest.mark.parametrize(("fallback", "phase"), [("refuse", "Failed"), ("advisory", "Running")])
async def test_an_agent_without_the_api_knows_no_pod_for_an_extra_grant(
    tmp_path: Path, fallback: str, phase: str
) -> None:
    file = tmp_path / "extra.grant"
    file.write_text(json.dumps({"envs": {"A": "b", "CACHE": "{pod_uid}"}}))
    async with world(limits="custom", extra_grant=str(file), limits_fallback=fallback) as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("a", mem=3))
        assert made.phase == phase
        if phase == "Failed":
            assert "GPU 0: the node's extra_grant needs {pod_uid}, and the pod of this container is not" in made.message
        else:
            assert (envs_of(made)[BY], "A" in envs_of(made)) == ("advisory", False)


async def test_an_extra_grant_that_cannot_be_used_ends_the_agent_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "extra.grant").write_text("env: {}")
    async with world(limits="custom", extra_grant=str(tmp_path / "extra.grant")) as node:
        with pytest.raises(UsageError, match="line 1, env: there is no such key; did you mean"):
            node.launch()


async def test_the_frameworks_that_a_pod_names_get_their_fraction(caplog: pytest.LogCaptureFixture) -> None:
    """A T4 shows 15,360 MiB less the 449 of the driver; 3,072 of 14,911 are 20.6 %."""
    async with cluster() as there:
        await there.start_agent()
        for name, named in (("a", "jax, Pytorch"), ("b", "keras"), ("c", "")):
            there.create(pod(name, mem=3), annotations={"gpu-device-plugin/frameworks": named} if named else None)
            await there.bind(name)
            made = await there.admit(there.known(pod(name, mem=3)))
            envs = envs_of(made)
            assert envs.get("XLA_CLIENT_MEM_FRACTION") == ("0.2060" if name == "a" else None)
            expected = "per_process_memory_fraction:0.2060" if name == "a" else None
            assert envs.get("PYTORCH_CUDA_ALLOC_CONF") == expected
        assert caplog.messages.count("frameworks of a pod are ignored") == 1
