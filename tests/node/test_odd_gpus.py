"""GPUs of which the driver does not tell everything are given all the same, or named as what is wrong with the node."""

import json
from dataclasses import replace

import pytest

from gpu_device_plugin.model.contract.nodegpus import read_node_gpus
from gpu_device_plugin.settings.knobs import UsageError
from tests.names import COUNT, MEM
from tests.node.cluster_harness import cluster, promise
from tests.node.harness import T4, pod, world


async def test_a_gpu_with_the_memory_of_the_machine_is_given_whole(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with cluster("fake:1xGB10") as there:
        await there.start_agent()
        await there.node.healthy_is(COUNT, 1)
        assert there.node.healthy(MEM) == 0
        assert "GPU 0 is allocated whole: its memory is the machine's" in caplog.text
        made = await there.run(pod("whole", count=1))
        assert (made.phase, there.positions(made, resource=COUNT)) == ("Running", {0: 1})
        await there.node.healthy_is(COUNT, 1)
        (gpu,) = there.said_of_node()["gpus"]
        assert (gpu["model"], gpu["healthy"], gpu["memoryMiB"]) == ("NVIDIA GB10", True, 124610)


async def test_of_the_memory_of_the_machine_the_setting_says_how_much_is_shared() -> None:
    async with cluster("fake:1xGB10", unified_memory="64GiB") as there:
        await there.start_agent()
        await there.node.healthy_is(MEM, 64)
        assert (await there.run(pod("part", mem=8))).phase == "Running"


async def test_a_gpu_that_cannot_be_listed_is_an_error_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster([T4, {**T4, "lost": True}]) as there:
        await there.start_agent()
        assert there.node.agent is not None
        why = "the GPU that nvidia-smi counts as 1 is left out, it cannot be read: GPU is lost (15)"
        assert [each.levelname for each in caplog.records if each.getMessage() == why] == ["ERROR"]
        assert why in there.node.agent.config.value.notes
        await there.node.until(lambda: there.said_of_node().get("unread") == [why])


WSL = {"product": "NVIDIA GeForce RTX 5070", "memory": "8188MiB", "minor": None}


async def test_a_way_of_giving_gpus_that_cannot_work_on_the_node_is_refused_at_the_start() -> None:
    async with world([WSL], devices="device-specs") as node:
        node.launch()
        error = await node.ended()
        assert isinstance(error, UsageError)
        assert str(error).endswith("as on WSL2 and Tegra; use envvar or cdi")


async def test_a_way_of_giving_gpus_that_cannot_work_on_the_node_is_not_taken_over() -> None:
    async with world([WSL], devices="envvar") as node:
        agent = await node.start_agent()
        agent.reload(replace(agent.settings.value, devices=("device-specs",)))
        assert agent.config.value.undeliverable in agent.config.value.notes
        made = await node.kubelet.admit(pod("a", mem=2))
        assert (made.phase, [*made.only.received.devices]) == ("Running", [])


async def test_of_a_node_on_which_a_gpu_in_use_was_excluded_schedulers_still_read_the_list() -> None:
    async with cluster([T4, T4]) as there:
        await there.start_agent()
        made = await there.run(pod("p", mem=3), promise(1, 3))
        assert there.positions(made) == {1: 3}
        excluded = there.node.uuids[1]
        await there.node.stop_agent()
        await there.start_agent(exclude_gpus=excluded)
        await there.node.healthy_is(MEM, 14)
        await there.node.rounds(2)
        await there.node.until(lambda: [gpu["index"] for gpu in there.said_of_node().get("gone", ())] == [1])
        assert [gpu.position for gpu in read_node_gpus(json.dumps(there.said_of_node())).gpus] == [0]
