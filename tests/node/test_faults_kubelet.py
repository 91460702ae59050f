"""The faults between device plugins and kubelets that have hurt people, by their number in the fault catalogue (A).

The whole agent against the kubelet double; what concerns one part alone is tested there, under the same number.
"""

import asyncio
import shutil
import socket
from typing import Any

import grpc
import pytest

from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import DevicePluginStub
from gpu_device_plugin.model.pods import ContainerKind
from tests.kubelet import kubelet_versions as versions
from tests.kubelet.scripted_plugin import ScriptedPlugin
from tests.names import COUNT, MEM
from tests.node.harness import T4, NodeWorld, container, envs_of, gpus_of, pod, world
from tests.patience import stretched


def offered(node: NodeWorld, resource: str) -> set[str]:
    """Return the IDs that the agent calls healthy, whether or not a kubelet listens."""
    assert node.agent is not None
    found = next(each for each in node.agent.settings.value.offered if each.name == resource)
    return {device.ID for device in node.agent.advertiser.list_of(found).value.devices if device.health == "Healthy"}


async def allocate(node: NodeWorld, resource: str, *device_ids: str) -> pb.ContainerAllocateResponse:
    """Call Allocate as a kubelet does, without one."""
    kind = "memory" if resource == MEM else "count"
    (plugin,) = node.kubelet.device_plugin_dir.glob(f"gpushare-{kind}-*.sock")
    async with grpc.aio.insecure_channel(f"unix:{plugin}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: DevicePluginStub[Any, Any, Any, Any, Any] = DevicePluginStub(channel)
        asked = pb.ContainerAllocateRequest(devices_ids=device_ids)
        answer: pb.AllocateResponse = await stub.Allocate(pb.AllocateRequest(container_requests=[asked]))
        return answer.container_responses[0]


# --- A1: the kubelet restarts and forgets all plugins -----------------------------------------------------------------


async def test_a1_after_a_kubelet_restart_nothing_is_given_out_that_running_pods_have() -> None:
    """For a while the kubelet lists no pods at all: an agent that trusts that gives GPU 0 away whole."""
    async with world() as node:
        await node.start_agent()
        shared, whole = await node.kubelet.admit(pod("shared", mem=3)), await node.kubelet.admit(pod("whole", count=1))
        assert (gpus_of(shared), gpus_of(whole, COUNT)) == ({node.uuids[0]}, {node.uuids[1]})
        taken = node.held
        await node.kubelet.restart()
        await node.ready()
        await node.rounds(2)
        assert node.held == taken
        assert (node.healthy(MEM), node.healthy(COUNT)) == (14, 1), "of each resource only the GPU it has"
        with pytest.raises(grpc.aio.AioRpcError, match="GPU 0 cannot be taken whole: 3 GiB of its memory are in use"):
            await allocate(node, COUNT, node.uuids[0])
        await node.kubelet.sources_ready()
        assert {known.phase for known in node.kubelet.pods} == {"Running"}


async def test_a1_an_ordinary_init_container_is_listed_by_nobody_and_not_forgotten() -> None:
    async with world(gpus="fake:1xT4") as node:
        await node.start_agent()
        made = await node.kubelet.admit(
            pod("p", container("init", kind=ContainerKind.INIT, mem=6), container("main", mem=1))
        )
        assert len(node.held) == 6
        await node.rounds(2)
        assert node.held == made.devices(MEM)
        assert node.healthy(COUNT) == 0
        await node.kubelet.delete(made)
        await node.healthy_is(COUNT, 1)


async def test_a1_a_kubelet_that_is_down_while_the_agent_starts_is_read_all_the_same() -> None:
    async with world() as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        await node.stop_agent()
        await node.kubelet.stop()
        node.launch()
        await node.until(lambda: node.agent is not None and node.held == made.devices(MEM))
        await node.kubelet.start()
        await node.ready()
        assert node.healthy(COUNT) == 1


# --- A2: the stream breaks by itself ----------------------------------------------------------------------------------


async def test_a2_a_broken_stream_costs_a_registration_and_nothing_of_what_is_known() -> None:
    async with world() as node:
        agent = await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        node.kubelet.drop_streams()
        await node.until(lambda: agent.registration.registrations[MEM] == 2)
        await node.ready()
        assert node.held == made.devices(MEM)
        assert (node.healthy(MEM), node.healthy(COUNT)) == (28, 1)


# --- A4, A6: the directory --------------------------------------------------------------------------------------------


async def test_a4_in_a_directory_made_anew_the_agent_registers_again(caplog: pytest.LogCaptureFixture) -> None:
    """With the checkpoint in it, as an administrator who moves the kubelet's files does."""
    async with world() as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        directory = node.kubelet.device_plugin_dir
        await node.kubelet.stop()
        directory.rename(directory.with_name("old"))
        await node.until(lambda: "the device-plugin directory is missing, waiting" in caplog.messages)
        directory.mkdir()
        shutil.copy(directory.with_name("old") / node.kubelet.checkpoint.name, directory)
        await node.kubelet.start()
        await node.ready()
        assert node.held == made.devices(MEM)


async def test_a6_a_directory_that_is_a_link_is_served_like_any_other() -> None:
    async with world() as node:
        link = node.folder / "link"
        link.symlink_to(node.kubelet.device_plugin_dir)
        await node.start_agent(device_plugin_dir=str(link))
        await node.kubelet.restart(ready=True)
        await node.ready()
        assert (await node.kubelet.admit(pod("p", mem=3))).phase == "Running"


# --- A7, A8: sockets left behind, instances that overlap --------------------------------------------------------------


async def test_a7_sockets_that_a_killed_agent_left_are_cleared_away() -> None:
    async with world() as node:
        left = node.kubelet.device_plugin_dir / "gpushare-memory-1-abcdef.sock"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(left))
        await node.start_agent()
        assert not left.exists()
        assert len(node.sockets) == 2


async def test_a8_an_old_plugin_of_the_same_name_that_ends_late_is_survived() -> None:
    """Kubelets 1.25 to 1.36 disconnect whoever is registered under the name when any stream of that name ends."""
    async with world() as node:
        old = ScriptedPlugin(node.kubelet.device_plugin_dir, MEM, {"GPU-old::0": True}, endpoint="old.sock")
        await old.start()
        agent = await node.start_agent()
        await old.stop()
        await node.until(lambda: agent.registration.registrations[MEM] == 2)
        await node.ready()
        await node.healthy_is(MEM, 28)


# --- A9 to A12: restarts of the agent, of the node, lost checkpoints --------------------------------------------------


async def test_a9_running_pods_keep_what_they_have_while_the_agent_is_away_and_after() -> None:
    """Binpack would put the second pod on the first shares of GPU 0 again."""
    async with world() as node:
        await node.start_agent()
        one = await node.kubelet.admit(pod("one", mem=3))
        await node.stop_agent()
        await node.healthy_is(MEM, 0)
        gap = await node.kubelet.admit(pod("gap", mem=1))
        assert "no healthy devices present" in gap.message
        await node.start_agent()
        assert node.held == one.devices(MEM)
        two = await node.kubelet.admit(pod("two", mem=3))
        assert gpus_of(two) == gpus_of(one)
        assert not two.devices(MEM) & one.devices(MEM)
        restarted = await node.kubelet.restart_container(one, "main")
        assert envs_of(restarted) == envs_of(one)


async def test_a10_pods_that_a_reboot_fails_before_the_agent_is_there_hold_nothing_afterwards() -> None:
    async with world(version=(1, 24)) as node:
        await node.start_agent()
        await node.kubelet.admit(pod("before", mem=3))
        await node.stop_agent()
        await node.kubelet.reboot()
        bound = asyncio.create_task(node.kubelet.admit(pod("bound", mem=3)))
        assert (await bound).reason == "UnexpectedAdmissionError"
        await node.start_agent()
        await node.kubelet.sources_ready()
        assert len(node.held) == 3, "1.24 brings a pod back with the devices it had"
        await node.listed(node.kubelet.pod("before"))
        await node.kubelet.delete(node.kubelet.pod("before"))
        await node.until(lambda: not node.held)


@pytest.mark.parametrize("version", [(1, 25), (1, 28), (1, 36)])
async def test_a11_running_pods_survive_a_kubelet_restart(version: tuple[int, int]) -> None:
    """Kubelet 1.25 fails them unless their very IDs are healthy again when it looks at them."""
    async with world(version=version) as node:
        await node.start_agent()
        made = await node.kubelet.admit(
            pod("p", container("init", kind=ContainerKind.INIT, mem=4), container("main", mem=2))
        )
        whole = await node.kubelet.admit(pod("w", count=1))
        await node.kubelet.restart()
        await node.ready()
        await node.healthy_is(MEM, 14)
        await node.kubelet.sources_ready()
        assert [node.kubelet.pod(each).phase for each in (made, whole)] == ["Running", "Running"]
        assert node.kubelet.pod(made).devices(MEM) == made.devices(MEM)


async def test_a12_a_checkpoint_that_cannot_be_read_closes_the_node_until_it_can() -> None:
    """The kubelet writes it anew with the first list of ours."""
    async with world() as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        await node.stop_agent()
        good = node.kubelet.checkpoint.read_bytes()
        node.kubelet.checkpoint.write_bytes(good[:50])
        node.kubelet.register_gate.hold()
        node.launch()
        await node.until(lambda: node.kubelet.register_gate.waiting == 1)
        assert node.agent is not None
        assert not node.agent.state.node.ledger.certain
        assert offered(node, MEM) == made.devices(MEM), "what is in use does not change"
        assert offered(node, COUNT) == set()
        with pytest.raises(grpc.aio.AioRpcError, match="checkpoint cannot be read, so nothing proves"):
            await allocate(node, COUNT, node.uuids[1])
        node.kubelet.register_gate.release()
        await node.ready()
        await node.healthy_is(MEM, 28)
        assert node.held == made.devices(MEM)
        await node.until(lambda: node.healthy(COUNT) == 1)


# --- A13 to A16: what kubelets get wrong ------------------------------------------------------------------------------


async def test_a13_an_id_that_the_kubelet_gives_twice_is_no_error() -> None:
    """It does so on purpose for init containers, and no call says for whom it is."""
    async with world() as node:
        await node.start_agent()
        uuid = node.uuids[0]
        one = await allocate(node, MEM, f"{uuid}::0", f"{uuid}::1")
        two = await allocate(node, MEM, f"{uuid}::1", f"{uuid}::2")
        assert one == two
        assert node.held == {f"{uuid}::{n}" for n in range(3)}


async def test_a13_ids_never_leave_the_list_whatever_happens_to_the_hardware() -> None:
    """A kubelet dies of an ID that vanishes between its question and our answer."""
    async with world([T4, T4]) as node:
        await node.start_agent()
        node.hardware(T4, T4 | {"lost": True})
        await node.healthy_is(MEM, 14)
        assert [len(one) for one in node.lists(MEM)] == [28] * len(node.lists(MEM))
        assert node.kubelet.amounts[COUNT].capacity == 2
        assert (await node.kubelet.admit(pod("p", mem=14))).phase == "Running"
        assert node.kubelet.panics == []


async def test_a14_after_a_force_delete_the_fence_stays_while_processes_run() -> None:
    """The kubelet's records are empty at once; the processes end later."""
    async with world([T4 | {"processes": 2}], process_wait="1h") as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        await node.healthy_is(COUNT, 0)
        await node.kubelet.delete(made, force=True)
        await node.rounds(2)
        assert node.kubelet.allocated == {}
        assert node.healthy(COUNT) == 0
        node.hardware(T4 | {"processes": 0})
        await node.healthy_is(COUNT, 1)


async def test_a14_processes_that_never_end_do_not_keep_a_gpu_for_ever() -> None:
    async with world([T4 | {"processes": 1}], process_wait="200ms") as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        await node.healthy_is(COUNT, 0)
        await node.kubelet.delete(made, force=True)
        await node.healthy_is(COUNT, 1)


async def test_a14_a_pod_deleted_by_force_before_it_starts_never_runs_without_its_variables() -> None:
    """The kubelet has forgotten its devices when its container is made; an image of CUDA would see every GPU then."""
    async with world() as node:
        await node.start_agent()
        await forced_out_while_it_starts(node)
        assert node.kubelet.running == ()


async def test_a14_without_pre_start_it_runs_with_no_variables_at_all() -> None:
    """What the setting is there for."""
    async with world(pre_start="false") as node:
        await node.start_agent()
        await forced_out_while_it_starts(node)
        (running,) = node.kubelet.running
        assert envs_of(running) == {}


async def forced_out_while_it_starts(node: NodeWorld) -> None:
    """Have a pod admitted, deleted by force, forgotten by the kubelet (the agent asks who holds what), and started."""
    node.kubelet.start_gate.hold()
    admitting = asyncio.create_task(node.kubelet.admit(pod("p", mem=3)))
    await node.kubelet.start_gate.reached()
    await node.kubelet.delete(node.kubelet.pod("p"), force=True)
    await node.until(lambda: node.kubelet.allocated == {})
    node.kubelet.start_gate.release()
    await admitting


@pytest.mark.parametrize("version", [(1, 20), (1, 33), (1, 34)])
async def test_a15_a_pod_that_ended_holds_nothing_though_kubelets_before_1_34_list_it(version: tuple[int, int]) -> None:
    async with world(version=version) as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        await node.healthy_is(COUNT, 1)
        node.kubelet.finish(made)
        await node.healthy_is(COUNT, 2)
        assert node.held == set()


async def test_a16_with_every_gpu_lost_the_kubelet_is_answered_and_the_pod_told_why() -> None:
    """An error to GetPreferredAllocation would fail the pod with a sentence that says nothing."""
    async with world([T4, T4]) as node:
        await node.start_agent()
        node.hardware(T4 | {"error": "no answer"}, T4 | {"lost": True})
        await node.healthy_is(MEM, 0)
        with pytest.raises(grpc.aio.AioRpcError, match=r"GPU 0 is unhealthy: .*no answer"):
            await allocate(node, MEM, f"{node.uuids[0]}::0")


async def test_a16_a_driver_that_hangs_does_not_hold_up_the_kubelet() -> None:
    async with world([T4, T4], nvml_timeout=f"{stretched(100):.0f}ms") as node:
        await node.start_agent()
        node.hardware(T4, T4, events=[{"at": 0, "hang": True}])
        assert node.agent is not None
        hardware = node.agent.hardware
        await node.until(lambda: hardware.view.value.state is State.HUNG)
        assert (await node.kubelet.admit(pod("p", mem=3))).phase == "Running"
        node.hardware(T4, T4)
        await node.until(lambda: hardware.view.value.state is State.WATCHING)


# --- A17: pods that are refused again and again -----------------------------------------------------------------------


async def test_a17_after_a_run_of_refusals_the_node_shows_less_than_what_was_asked() -> None:
    """5 and 5 are free and 8 is asked: from the third refusal on 7 are shown, 5 on one GPU and 2 on the other."""
    async with world(policy="spread", refusal_limit="3") as node:
        agent = await node.start_agent()
        first = [await node.kubelet.admit(pod(name, mem=9)) for name in "ab"]
        await node.healthy_is(MEM, 28)
        for name in "cde":
            made = await node.kubelet.admit(pod(name, mem=8))
            assert "the emptiest healthy GPU has 5 GiB free" in made.message
        await node.healthy_is(MEM, 18 + 7)
        assert "Available: 7" in (await node.kubelet.admit(pod("f", mem=8))).message
        assert (await node.kubelet.admit(pod("g", mem=5))).phase == "Running"
        agent.advertiser.limit(0)
        await node.healthy_is(MEM, 28)
        await node.kubelet.delete(first[0])
        await node.kubelet.delete(first[1])
        await node.healthy_is(MEM, 28)


# --- A18 to A22: the wire, and what it costs --------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 20), (1, 24), (1, 28), (1, 33), (1, 36)])
async def test_a18_every_kubelet_from_1_20_on_is_served(version: tuple[int, int]) -> None:
    """They differ in what they write as the authority, in when they dial, in whom they ask for options."""
    async with world(version=version, pre_start="true", devices="envvar,cdi") as node:
        await node.start_agent()
        spec = pod("p", container("init", kind=ContainerKind.INIT, mem=2), container("a", mem=3), container("b", mem=4))
        made = await node.kubelet.admit(spec)
        assert made.phase == "Running"
        assert gpus_of(made) == {node.uuids[0]}
        cdi = [device.name for device in made.container("a").received.cdi_devices]
        assert cdi == ([f"nvidia.com/gpu={node.uuids[0]}"] if version >= (1, 29) else [])
        await node.kubelet.restart(ready=True)
        await node.ready()
        if node.kubelet.minor in versions.KEEPS_POD_ADMITTED_LAST:
            await node.listed(made)
        await node.kubelet.delete(node.kubelet.pod("p"))
        await node.until(lambda: not node.held)


async def test_a19_the_list_of_the_largest_node_is_far_below_what_a_kubelet_reads() -> None:
    """8 x H200 at 1 GiB are 1,112 IDs; the limit is 4 MiB."""
    async with world(gpus="fake:8xH200") as node:
        await node.start_agent()
        stream = next(stream for stream in node.kubelet.streams if stream.resource == MEM)
        assert node.healthy(MEM) == 8 * 139
        assert stream.lists[0].ByteSize() < 70_000


async def test_a20_a_gpu_that_fails_is_one_update_and_not_one_for_every_share() -> None:
    async with world([T4, T4]) as node:
        await node.start_agent()
        before = [len(node.lists(resource)) for resource in (MEM, COUNT)]
        node.hardware(T4, T4 | {"error": "no answer"})
        await node.healthy_is(COUNT, 1)
        await node.healthy_is(MEM, 14)
        await node.rounds(2)
        assert [len(node.lists(resource)) for resource in (MEM, COUNT)] == [1 + count for count in before]
        node.hardware(T4, T4)
        await node.healthy_is(MEM, 28)
        await node.healthy_is(COUNT, 2)
        assert [len(node.lists(resource)) for resource in (MEM, COUNT)] == [2 + count for count in before]


async def test_a20_an_allocation_is_one_update_of_the_other_resource_and_none_of_its_own() -> None:
    async with world(reconcile_interval="1h") as node:
        agent = await node.start_agent()
        await node.rounds(1, now=True)
        resends = 0

        def resend() -> None:
            nonlocal resends
            resends += 1
            agent.advertiser.resend()

        # A look at the records between an allocation and its List, which a registration may still ask for, has the list
        # sent once more, and rightly.
        agent.reconciler.resend = resend
        before = [len(node.lists(resource)) for resource in (MEM, COUNT)]
        await node.kubelet.admit(pod("p", container("a", mem=3), container("b", mem=5)))
        await node.healthy_is(COUNT, 1)
        await node.rounds(2, now=True)
        sent = [len(node.lists(resource)) - count for resource, count in zip((MEM, COUNT), before, strict=True)]
        assert sent[1] == 1
        assert 0 <= sent[0] <= resends
        assert len({frozenset(each.items()) for each in node.lists(MEM)[before[0] - 1 :]}) == 1


async def test_a22_pods_that_come_and_go_leave_nothing_behind() -> None:
    """What they cost in memory is measured by the benchmark."""
    async with world() as node:
        agent = await node.start_agent()
        for n in range(10):
            made = [await node.kubelet.admit(pod(f"{n}a", mem=9)), await node.kubelet.admit(pod(f"{n}b", mem=9))]
            assert {one.phase for one in made} == {"Running"}
            await node.confirmed()
            for one in made:
                await node.kubelet.delete(one)
        await node.until(lambda: not node.held)
        ledger = agent.state.node.ledger
        uses = [ledger.use(uuid) for uuid in node.uuids]
        assert not any(use.shares or use.whole for use in uses)
