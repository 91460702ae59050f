"""Agent, kubelet and MPS supervisor on one node: who starts when, and what survives the end of each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_device_plugin.features.mps.contract import MPS_FILES, STATE_FILE, WANTED_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.node import MPS_READY, Mps
from gpu_device_plugin.model.contract.keys import SET_LIMITS_LABEL
from gpu_device_plugin.model.contract.variables import LIMITS
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.testing.pod_specs import Pod
from tests.features.mps.mps_supervisor import Supervisor
from tests.names import COUNT
from tests.node.cluster_harness import allocation, cluster
from tests.node.harness import T4, NodeWorld, container, envs_of, pod, world

SERVER_MIB = 300
"""Memory that the context of an MPS server takes."""


@asynccontextmanager
async def mps_node(*gpus: dict[str, Any], **settings: str) -> AsyncIterator[tuple[NodeWorld, Supervisor]]:
    """Make a node on which memory is limited by MPS; neither agent nor supervisor runs yet. GPUs have 14 shares."""
    async with world(gpus or "fake:2xT4") as node:
        directory = node.folder / "mps"
        directory.mkdir()
        node.settings |= {"limits": "mps", "mps_dir": str(directory), **settings}
        supervisor = Supervisor(directory)
        try:
            yield node, supervisor
        finally:
            await supervisor.stop()


THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def agent_of(node: NodeWorld) -> NodeAgent:
    assert node.agent is not None
    return node.agent


async def seen(node: NodeWorld, uuid: str, status: MpsStatus) -> None:
    """Wait until the agent has read that the daemon of a GPU is in this state."""
    mps = agent_of(node).features.of(Mps)
    await node.until(lambda: uuid in mps.gpus and mps.gpus[uuid].status is status)


async def ended(node: NodeWorld, *pods: Pod) -> None:
    """Let pods end, and the agent find out."""
    for each in pods:
        node.kubelet.finish(each)
    for each in pods:
        await node.kubelet.delete(each)


# --- Allocate ---------------------------------------------------------------------------------------------------------


async def test_the_first_share_of_a_gpu_is_answered_when_its_daemon_is_ready() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        first = await node.kubelet.admit(pod("p", mem=3))
        assert first.only.running
        gpu = node.uuids[0]
        assert supervisor.history == [(gpu, MpsStatus.STARTING), (gpu, MpsStatus.READY)]
        assert supervisor.wanted == {gpu: 3 * 1024}
        envs = envs_of(first)
        assert envs[LIMITS] == "mps"
        assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
        assert envs["CUDA_MPS_PIPE_DIRECTORY"] == str(supervisor.directory / gpu[:8])
        assert {mount.container_path for mount in first.only.received.mounts} == {
            envs["CUDA_MPS_PIPE_DIRECTORY"],
            "/dev/shm",
        }


async def test_multiprocessors_are_limited_too_where_a_setting_says_so() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        assert THREADS not in envs_of(await node.kubelet.admit(pod("p", mem=3)))
        node.reload(mps_compute="by-share")
        assert envs_of(await node.kubelet.admit(pod("q", mem=3)))[THREADS] == "20"


async def test_a_larger_container_waits_until_the_daemon_lets_it_have_its_part() -> None:
    async with mps_node(T4) as (node, supervisor):
        supervisor.start()
        agent = await node.start_agent()
        await node.kubelet.admit(pod("s", mem=2))
        supervisor.held = True
        agent.features.of(Mps).start_s = 0.3
        refused = await node.kubelet.admit(pod("l", mem=5))
        assert "the MPS daemon of GPU 0 lets a process have only 2048 MiB, after 15 s" in refused.message
        assert supervisor.wanted == {node.uuids[0]: 2 * 1024}
        supervisor.held, agent.features.of(Mps).start_s = False, 15.0
        assert (await node.kubelet.admit(pod("m", mem=5))).only.running


async def test_a_daemon_that_does_not_become_ready_is_told_and_wanted_no_longer() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.held = True
        supervisor.start()
        agent = await node.start_agent()
        agent.features.of(Mps).start_s = 0.3
        refused = await node.kubelet.admit(pod("p", mem=3))
        assert refused.phase == "Failed"
        assert "the MPS daemon of GPU 0 is not ready (starting), after 15 s" in refused.message
        await node.until(lambda: supervisor.wanted == {})


async def test_without_a_supervisor_the_owner_of_the_pod_reads_what_to_apply() -> None:
    async with mps_node() as (node, _):
        await node.start_agent()
        refused = await node.kubelet.admit(pod("p", mem=3))
        assert "the MPS supervisor does not run on this node: apply deploy/optional/mps.yaml" in refused.message


async def test_an_administrator_who_prefers_pods_without_a_limit_gets_them_and_no_daemon_comes_later() -> None:
    """A daemon that came up under a container without MPS would shut it out of its GPU."""
    async with mps_node(limits_fallback="advisory") as (node, supervisor):
        await node.start_agent()
        advisory = await node.kubelet.admit(pod("p", mem=3))
        assert advisory.only.running
        assert envs_of(advisory)[LIMITS] == "advisory"
        assert "CUDA_MPS_PIPE_DIRECTORY" not in envs_of(advisory)
        supervisor.start()
        await node.until(lambda: not isinstance(agent_of(node).features.of(Mps).daemons.value, str))
        beside = await node.kubelet.admit(pod("q", mem=3))
        assert envs_of(beside)[LIMITS] == "advisory"
        assert supervisor.wanted == {}
        await node.confirmed()
        await ended(node, advisory, beside)
        await node.until(lambda: not node.held)
        assert envs_of(await node.kubelet.admit(pod("r", mem=3)))[LIMITS] == "mps"


async def test_the_node_that_never_heard_of_mps_reads_and_writes_nothing_of_it() -> None:
    async with world() as node:
        directory = node.folder / "mps"
        directory.mkdir()
        agent = await node.start_agent(mps_dir=str(directory))
        assert (await node.kubelet.admit(pod("p", mem=3))).only.running
        await node.rounds(1, now=True)
        assert not agent.features.of(Mps).on
        assert list(directory.iterdir()) == []


async def test_a_call_of_the_kubelet_that_ends_while_it_waits_leaves_no_daemon_behind() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.held = True
        supervisor.start()
        await node.start_agent()
        admission = asyncio.create_task(node.kubelet.admit(pod("p", mem=3)))
        await node.until(lambda: bool(supervisor.wanted))
        await node.stop_agent()
        assert (await admission).phase == "Failed"
        # grpc cuts the call off, and its coroutine ends a little after the server.
        await node.until(lambda: supervisor.wanted == {})


# --- The daemon's troubles --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [MpsStatus.FAULT, MpsStatus.FAILED])
async def test_a_daemon_that_fails_is_reported_takes_nobody_and_recovers(
    status: MpsStatus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with mps_node(T4) as (node, supervisor):
        supervisor.start()
        agent = await node.start_agent()
        client = await node.kubelet.admit(pod("p", mem=3))
        gpu = node.uuids[0]
        supervisor.broken[gpu] = MpsGpu(status, "a client was killed")
        await seen(node, gpu, status)
        await node.until(lambda: f"MPS does not serve GPU 0 ({gpu})" in caplog.text)
        assert dict(agent.gauges())[MPS_READY] == [((gpu,), False)]
        refused = await node.kubelet.admit(pod("q", mem=3))
        assert f"does not serve new clients ({status}: a client was killed)" in refused.message
        agent.features.of(Mps).stop_s = 0.1
        waiting = (await node.kubelet.restart_container(client, "main")).only
        assert f"the MPS daemon of GPU 0 is not ready ({status}: a client was killed)" in str(waiting.waiting)
        del supervisor.broken[gpu]
        await seen(node, gpu, MpsStatus.READY)
        await node.until(lambda: f"MPS serves GPU 0 ({gpu}) again" in caplog.text)
        assert dict(agent.gauges())[MPS_READY] == [((gpu,), True)]
        assert (await node.kubelet.restart_container(client, "main")).only.running
        assert (await node.kubelet.admit(pod("r", mem=3))).only.running


async def test_a_supervisor_that_is_gone_is_reported_and_its_clients_wait_for_the_next() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.start()
        agent = await node.start_agent()
        agent.features.of(Mps).grace_s, agent.features.of(Mps).stop_s = 0.0, 0.1
        client = await node.kubelet.admit(pod("p", mem=3))
        await supervisor.vanish()
        await node.until(lambda: "has not reported for more than 10 s" in str(agent.features.of(Mps).daemons.value))
        waiting = (await node.kubelet.restart_container(client, "main")).only
        assert "has not reported for more than 10 s" in str(waiting.waiting)
        assert "has not reported" in (await node.kubelet.admit(pod("q", mem=3))).message
        supervisor.start()
        await seen(node, node.uuids[0], MpsStatus.READY)
        assert (await node.kubelet.restart_container(client, "main")).only.running


# --- Whole GPUs -------------------------------------------------------------------------------------------------------


async def test_a_whole_gpu_starts_after_the_last_share_ended_and_mps_let_go_of_it() -> None:
    """The server's context is a process on the GPU: it ends when its daemon is not wanted, and then the GPU is free."""
    quiet, served = {**T4, "used": "0MiB"}, {**T4, "used": f"{SERVER_MIB}MiB"}
    async with mps_node(quiet, process_wait="1h") as (node, supervisor):
        supervisor.on_gpu = lambda _uuid, status: node.hardware(quiet if status is MpsStatus.STOPPED else served)
        supervisor.start()
        await node.start_agent()
        client = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        await node.until(lambda: agent_of(node).hardware.readings.value[node.uuids[0]].processes == 1)
        supervisor.held = True
        await ended(node, client)
        await node.until(lambda: supervisor.wanted == {})
        await node.until(lambda: supervisor.status(node.uuids[0]) is MpsStatus.STOPPING)
        await node.rounds(2, now=True)
        assert node.held, "the server still has its context"
        supervisor.held = False
        await node.until(lambda: not node.held)
        await node.healthy_is(COUNT, 1)
        assert (await node.kubelet.admit(pod("w", count=1))).only.running
        assert supervisor.wanted == {}


async def test_a_whole_gpu_waits_while_mps_still_runs_it() -> None:
    """Here the kubelet is offered the GPU before the daemon has ended: nobody waits for processes."""
    async with mps_node(T4, process_wait="0s") as (node, supervisor):
        supervisor.start()
        agent = await node.start_agent()
        agent.features.of(Mps).stop_s = 0.1
        client = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        await node.healthy_is(COUNT, 0)
        supervisor.held = True
        await ended(node, client)
        await node.healthy_is(COUNT, 1)
        await seen(node, node.uuids[0], MpsStatus.STOPPING)
        whole = await node.kubelet.admit(pod("w", count=1))
        assert "GPU 0 is still run by MPS (stopping)" in str(whole.only.waiting)
        supervisor.held = False
        await seen(node, node.uuids[0], MpsStatus.STOPPED)
        assert (await node.kubelet.restart_container(whole, "main")).only.running


@pytest.mark.parametrize("fallback", ["refuse", "advisory"])
async def test_a_whole_gpu_after_a_supervisor_that_was_killed_starts_as_the_administrator_chose(fallback: str) -> None:
    async with mps_node(T4, process_wait="0s", limits_fallback=fallback) as (node, supervisor):
        supervisor.start()
        agent = await node.start_agent()
        agent.features.of(Mps).stop_s = 0.1
        client = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        await node.healthy_is(COUNT, 0)
        await supervisor.vanish()
        await node.until(lambda: isinstance(agent.features.of(Mps).daemons.value, str))
        await ended(node, client)
        await node.healthy_is(COUNT, 1)
        whole = (await node.kubelet.admit(pod("w", count=1))).only
        if fallback == "advisory":
            assert whole.running
            return
        assert "may still be in the compute mode EXCLUSIVE_PROCESS" in str(whole.waiting)
        assert f"nvidia-smi -i {node.uuids[0]} -c DEFAULT` and remove {STATE_FILE}" in str(whole.waiting)
        (supervisor.directory / STATE_FILE).unlink()
        await node.until(lambda: "does not run" in str(agent.features.of(Mps).daemons.value))
        assert (await node.kubelet.restart_container(node.kubelet.pod("w"), "main")).only.running


# --- Restarts ---------------------------------------------------------------------------------------------------------


async def test_an_agent_that_restarts_keeps_the_daemons_of_running_clients() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        client = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        gpu, happened = node.uuids[0], len(supervisor.history)
        await node.stop_agent()
        assert supervisor.wanted == {gpu: 3 * 1024}
        node.launch()
        await node.ready()
        await node.rounds(2, now=True)
        assert supervisor.wanted == {gpu: 3 * 1024}
        assert len(supervisor.history) == happened, "the daemon was never told to stop"
        assert (await node.kubelet.restart_container(client, "main")).only.running
        await ended(node, client)
        await node.until(lambda: supervisor.wanted == {})
        await node.until(lambda: supervisor.status(gpu) is MpsStatus.STOPPED)


async def test_an_agent_that_cannot_read_the_kubelets_records_changes_nothing() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        gpu = node.uuids[0]
        await node.stop_agent()
        await node.kubelet.stop()
        node.kubelet.checkpoint.write_text("damaged")
        agent = node.launch()
        await node.until(lambda: gpu in agent.features.of(Mps).gpus)
        await node.until(lambda: bool(agent.state.node.shares.gpus))
        assert supervisor.wanted == {gpu: 3 * 1024}
        assert supervisor.status(gpu) is MpsStatus.READY


async def test_a_client_outlives_the_administrators_change_of_mind() -> None:
    """Its daemon stays, and no container without MPS is put beside it: it could not use the GPU."""
    async with mps_node(T4) as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        client = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        await node.stop_agent()
        await node.start_agent(limits="advisory")
        gpu = node.uuids[0]
        assert supervisor.wanted == {gpu: 3 * 1024}
        await seen(node, gpu, MpsStatus.READY)
        beside = await node.kubelet.admit(pod("q", mem=3))
        assert envs_of(beside)[LIMITS] == "mps"
        await node.confirmed()
        await ended(node, client, beside)
        await node.until(lambda: supervisor.status(gpu) is MpsStatus.STOPPED)
        await node.until(lambda: not agent_of(node).features.of(Mps).on)
        assert "CUDA_MPS_PIPE_DIRECTORY" not in envs_of(await node.kubelet.admit(pod("r", mem=3)))


async def test_containers_from_before_keep_their_gpu_without_mps_and_new_ones_get_another() -> None:
    """The administrator has just switched to MPS: binpack alone would choose the GPU that is in use."""
    async with mps_node() as (node, supervisor):
        supervisor.start()
        await node.start_agent(limits="advisory")
        before = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        await node.stop_agent()
        await node.start_agent(limits="mps")
        client = await node.kubelet.admit(pod("q", mem=3))
        assert (envs_of(before)[LIMITS], envs_of(client)[LIMITS]) == ("advisory", "mps")
        assert supervisor.wanted == {node.uuids[1]: 3 * 1024}
        assert (await node.kubelet.restart_container(before, "main")).only.running
        assert envs_of(await node.kubelet.admit(pod("r", mem=11)))[LIMITS] == "mps"
        refused = await node.kubelet.admit(pod("t", mem=3))
        assert "GPU 0 has containers that were started without MPS" in refused.message
        await node.confirmed()
        await ended(node, before)
        await node.until(lambda: not any(name.startswith(node.uuids[0]) for name in node.held))
        assert envs_of(await node.kubelet.admit(pod("s", mem=12)))[LIMITS] == "mps"


async def test_an_administrator_who_asks_for_mps_while_the_agent_runs_hears_no_complaint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with mps_node() as (node, supervisor):
        await node.start_agent(limits="advisory")
        supervisor.start()
        await node.until((supervisor.directory / STATE_FILE).exists)
        node.reload(limits="mps")
        assert envs_of(await node.kubelet.admit(pod("p", mem=3)))[LIMITS] == "mps"
        assert "memory limits are not there" not in caplog.text


async def test_what_could_not_be_taken_back_is_taken_back_later() -> None:
    """MPS is not asked for any more, and its last client ended while the file could not be written."""
    async with mps_node() as (node, supervisor):
        supervisor.start()
        agent = await node.start_agent()
        client = await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        node.reload(limits="advisory")
        file = supervisor.directory / WANTED_FILE
        text = file.read_text()
        file.unlink()
        file.mkdir()
        (supervisor.directory / STATE_FILE).unlink(missing_ok=True)
        await supervisor.stop()
        await ended(node, client)
        await node.until(lambda: not agent.features.of(Mps).ready)
        file.rmdir()
        file.write_text(text)
        await node.until(lambda: supervisor.wanted == {})


async def test_an_init_container_and_its_successor_are_clients_of_the_same_daemon() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        both = await node.kubelet.admit(
            pod("p", container("init", kind=ContainerKind.INIT, mem=4), container("main", mem=2))
        )
        assert both.container("main").running
        assert supervisor.wanted == {node.uuids[0]: 4 * 1024}
        assert supervisor.history.count((node.uuids[0], MpsStatus.STARTING)) == 1


async def test_what_is_wanted_is_written_again_when_it_can_be_written() -> None:
    async with mps_node() as (node, supervisor):
        supervisor.start()
        (supervisor.directory / WANTED_FILE).mkdir()
        agent = await node.start_agent()
        agent.features.of(Mps).start_s = 3600.0  # nobody waits for a daemon of which the supervisor does not hear
        agent.features.of(Mps).grace_s = 0.0
        refused = await node.kubelet.admit(pod("p", mem=3))
        assert "is not ready (stopped): the agent cannot write " in refused.message
        assert "wanted.json (Is a directory): mount its directory writable, as deploy/patches/mps-agent.yaml does" in (
            refused.message
        )
        (supervisor.directory / WANTED_FILE).rmdir()
        assert (await node.kubelet.admit(pod("q", mem=3))).only.running


@pytest.mark.parametrize("limits", ["mps", "advisory", "auto"])
@pytest.mark.parametrize("left", ["nothing", "garbage"])
async def test_an_agent_that_lost_its_file_while_it_was_away_wants_the_daemons_of_running_clients(
    limits: str, left: str
) -> None:
    """The kubelet's records tell of them; a supervisor that starts anew would otherwise find nobody to serve."""
    async with mps_node(T4) as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        await node.stop_agent()
        await supervisor.stop()
        (supervisor.directory / STATE_FILE).unlink()
        file = supervisor.directory / WANTED_FILE
        file.unlink()
        if left == "garbage":
            file.write_text("{")
        await node.start_agent(limits=limits)
        await node.until(lambda: file.exists() and supervisor.wanted == {node.uuids[0]: 3 * 1024})


async def test_a_file_that_somebody_removed_or_replaced_is_written_anew() -> None:
    async with mps_node(T4) as (node, supervisor):
        supervisor.start()
        await node.start_agent()
        await node.kubelet.admit(pod("p", mem=3))
        await node.confirmed()
        file, wanted = supervisor.directory / WANTED_FILE, {node.uuids[0]: 3 * 1024}
        await supervisor.stop()
        file.unlink()
        await node.until(lambda: supervisor.wanted == wanted)
        other = supervisor.directory / "other"
        other.write_text(MPS_FILES.write_wanted({"GPU-x": 1}))
        other.replace(file)
        await node.until(lambda: supervisor.wanted == wanted)


async def test_a_container_beside_clients_is_one_too_while_the_supervisors_file_is_gone() -> None:
    """Without MPS it could not use the GPU, and no later container would get MPS beside it."""
    async with mps_node(T4, limits_fallback="advisory") as (node, supervisor):
        supervisor.start()
        agent = await node.start_agent()
        client = await node.kubelet.admit(pod("p", mem=3))
        await supervisor.stop()
        (supervisor.directory / STATE_FILE).unlink()
        await node.until(lambda: "does not run" in str(agent.features.of(Mps).daemons.value))
        beside = envs_of(await node.kubelet.admit(pod("q", mem=2)))
        assert beside["CUDA_MPS_PIPE_DIRECTORY"] == envs_of(client)["CUDA_MPS_PIPE_DIRECTORY"]
        assert beside[LIMITS] == "mps"


@pytest.mark.parametrize("status", [MpsStatus.READY, MpsStatus.FAILED, MpsStatus.STOPPING])
async def test_where_nobody_asks_for_mps_what_somebody_left_of_it_keeps_no_container_from_starting(
    status: MpsStatus,
) -> None:
    """A supervisor that was killed and removed left its files, and `limits_fallback` is `refuse`, as by default."""
    async with mps_node(T4, limits="auto", process_wait="0s") as (node, supervisor):
        await node.start_agent()
        gpu = node.uuids[0]
        await node.stop_agent()
        left = {gpu: MpsGpu(status, "", "/run/gpushare/mps/a")}
        (supervisor.directory / STATE_FILE).write_text(MPS_FILES.write_state(left, 1.0))
        (supervisor.directory / WANTED_FILE).write_text(MPS_FILES.write_wanted({gpu: 1024}))
        await node.start_agent()
        shares = await node.kubelet.admit(pod("p", mem=3))
        assert shares.only.running
        assert envs_of(shares)[LIMITS] == "advisory"
        await node.confirmed()
        await node.healthy_is(COUNT, 0)
        await ended(node, shares)
        await node.healthy_is(COUNT, 1)
        assert (await node.kubelet.admit(pod("w", count=1))).only.running


# --- With the Kubernetes API ------------------------------------------------------------------------------------------


async def test_a_nodes_label_asks_for_mps_and_its_daemons_troubles_are_events_on_the_node() -> None:
    async with cluster(node_labels={SET_LIMITS_LABEL: "mps"}) as there:
        node = there.node
        directory = node.folder / "mps"
        directory.mkdir()
        supervisor = Supervisor(directory)
        supervisor.start()
        await there.start_agent(mps_dir=str(directory))
        await node.until(lambda: agent_of(node).features.of(Mps).on)
        client = await there.run(pod("p", mem=3))
        assert envs_of(client)[LIMITS] == "mps"
        gpu = node.uuids[0]
        supervisor.broken[gpu] = MpsGpu(MpsStatus.FAULT, "a client crashed")
        await node.until(lambda: bool(there.events("MPSNotReady")))
        (event,) = there.events("MPSNotReady")
        assert event["note"] == f"MPS does not serve GPU 0 ({gpu}): fault: a client crashed."
        assert event["regarding"]["kind"] == "Node"
        supervisor.broken.clear()
        await node.until(lambda: bool(there.events("MPSReady")))
        await supervisor.stop()


@pytest.mark.parametrize("fallback", ["refuse", "advisory"])
async def test_a_container_with_parts_of_several_gpus_is_no_client(fallback: str) -> None:
    """A scheduler promised it two parts, and a container has one directory of sockets."""
    async with cluster(limits="mps", limits_fallback=fallback) as there:
        directory = there.node.folder / "mps"
        directory.mkdir()
        supervisor = Supervisor(directory)
        supervisor.start()
        await there.start_agent(mps_dir=str(directory))
        await there.node.until(lambda: not isinstance(agent_of(there.node).features.of(Mps).daemons.value, str))
        made = await there.run(pod("p", mem=4), allocation({0: 2, 1: 2}))
        if fallback == "advisory":
            assert envs_of(made)[LIMITS] == "advisory"
        else:
            assert "shares of GPU 0, GPU 1 requested, and under MPS a container has one daemon" in made.message
        assert supervisor.wanted == {}
        await supervisor.stop()
