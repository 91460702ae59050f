"""What the kubelet double can do beyond the contract: other versions, lags, faults and restarts, all on demand."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import (
    CDIDevice,
    ContainerAllocateResponse,
    DevicePluginOptions,
    DeviceSpec,
    Mount,
)
from gpu_device_plugin.testing.kubelet.device_manager import Amount, KubeletPanic
from gpu_device_plugin.testing.pod_specs import Pod
from tests.kubelet.gated_kubelet import Kubelet
from tests.kubelet.kubelet_checks import effective_requests
from tests.kubelet.kubelet_under_test import listed
from tests.kubelet.pod_lines import pod
from tests.kubelet.scripted_plugin import Script, ScriptedPlugin
from tests.names import COUNT, MEM
from tests.patience import eventually

EIGHT = {f"GPU-{gpu}::{share}": True for gpu in range(2) for share in range(4)}
PREFERS = DevicePluginOptions(get_preferred_allocation_available=True)
NO_HEALTHY = f"no healthy devices present; cannot allocate unhealthy devices {MEM}, which is unexpected"


@dataclass
class World:
    kubelet: Kubelet
    plugins: list[ScriptedPlugin] = field(default_factory=list)

    def plugin(
        self,
        devices: Mapping[str, bool] = EIGHT,
        *,
        resource: str = MEM,
        **script: Any,
    ) -> ScriptedPlugin:
        plugin = ScriptedPlugin(
            self.kubelet.device_plugin_dir,
            resource,
            devices,
            script=Script(**script),
            endpoint=f"{len(self.plugins)}.sock",
        )
        self.plugins.append(plugin)
        return plugin

    async def start(self, *plugins: ScriptedPlugin) -> None:
        for plugin in plugins:
            await plugin.start()
            await self.lists(plugin)

    async def stop(self) -> None:
        for plugin in self.plugins:
            await plugin.stop()

    async def lists(self, plugin: ScriptedPlugin) -> None:
        listed = {device: "Healthy" if well else "Unhealthy" for device, well in plugin.healthy.items()}
        await eventually(
            lambda: any(
                stream.endpoint == plugin.endpoint
                and stream.lists
                and {device.ID: device.health for device in stream.lists[-1].devices} == listed
                for stream in self.kubelet.streams
            )
        )

    async def listed(self) -> dict[str, dict[str, set[str]]]:
        return {
            name: {
                container: {device for _, ids in devices for device in ids} for container, devices in containers.items()
            }
            for name, containers in (await listed(self.kubelet)).items()
        }


@asynccontextmanager
async def a_world(**settings: Any) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="kubelet"))
        world = World(await stack.enter_async_context(Kubelet(Path(root), **settings)))
        stack.push_async_callback(world.stop)
        yield world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as world:
        yield world


# The same and different


async def test_the_same_seed_makes_the_same_choices_whatever_is_asked_in_between_and_another_seed_others() -> None:
    assert await _choices(seed=7) == await _choices(seed=7, questions=3) != await _choices(seed=8)


async def _choices(seed: int, questions: int = 0) -> list[tuple[str, ...]]:
    async with a_world(seed=seed) as world:
        plugin = world.plugin()
        await world.start(plugin)
        for wanted in (2, 3, 1):
            await world.kubelet.admit(pod("a", {MEM: wanted}))
            for _ in range(questions):
                await world.listed()
        return plugin.allocations


def test_a_root_that_is_too_long_for_sockets_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="a unix socket's path has at most 107 bytes; give the kubelet a shorter root"):
        Kubelet(Path("/tmp") / ("x" * 90))


def test_the_peak_of_a_pod_is_its_largest_init_container_or_all_apps_together() -> None:
    """Init 5 beside sidecar 0, then sidecar 1 beside apps 2 + 3: 6 at the end."""
    spec = pod("a", {MEM: 2}, {MEM: 3}, init=[{MEM: 5}], sidecars=[{MEM: 1}])
    assert effective_requests(spec) == {MEM: 6}


# Versions


async def test_before_1_25_register_answers_at_once_and_its_options_count() -> None:
    async with a_world(version=(1, 24)) as world:
        plugin = world.plugin(options=PREFERS)
        await world.start(plugin)
        plugin.script.options = DevicePluginOptions()
        await world.kubelet.admit(pod("a", {MEM: 1}))
        assert (plugin.options_asked, len(plugin.preferences)) == (0, 1)


async def test_before_1_25_a_plugin_does_not_hear_that_dialling_it_failed() -> None:
    async with a_world(version=(1, 24), dial_timeout_s=0.05) as world:
        await world.plugin().register()
        (registration,) = world.kubelet.registrations
        await eventually(lambda: registration.error)
        assert registration.error == "failed to dial device plugin: context deadline exceeded"


@pytest.mark.parametrize(
    ("version", "survives"), [((1, 24), True), ((1, 25), False), ((1, 36), False), ((1, 37), True)]
)
async def test_an_old_stream_takes_the_new_plugin_along_in_kubelets_1_25_to_1_36(
    version: tuple[int, int], *, survives: bool
) -> None:
    async with a_world(version=version) as world:
        old, new = world.plugin(), world.plugin()
        await world.start(old, new)
        await old.stop()
        first, second = world.kubelet.streams
        await eventually(lambda: not first.open and second.open is survives)
        assert world.kubelet.amounts[MEM] == Amount(8, 8 if survives else 0)


@pytest.mark.parametrize(
    ("version", "phase"), [((1, 24), "Running"), ((1, 25), "Failed"), ((1, 27), "Failed"), ((1, 28), "Running")]
)
async def test_a_running_pod_comes_back_without_its_plugin_except_in_kubelets_1_25_to_1_27(
    version: tuple[int, int], phase: str
) -> None:
    async with a_world(version=version) as world:
        await world.start(world.plugin())
        running = await world.kubelet.admit(pod("a", {MEM: 1}))
        await world.kubelet.restart()
        await world.kubelet.sources_ready()
        assert world.kubelet.pod(running).phase == phase
        assert world.kubelet.pod(running).process_running is (phase == "Running")


async def test_before_1_28_a_sidecar_is_an_init_container() -> None:
    async with a_world(version=(1, 27)) as world:
        await world.start(world.plugin())
        both = await world.kubelet.admit(pod("a", {MEM: 2}, sidecars=[{MEM: 2}]))
        assert both.container("s0").devices == both.container("c0").devices
        assert not both.container("s0").running


@pytest.mark.parametrize(("version", "names"), [((1, 28), []), ((1, 29), ["nvidia.com/gpu=GPU-0"])])
async def test_cdi_devices_are_dropped_before_1_29(version: tuple[int, int], names: list[str]) -> None:
    answer = ContainerAllocateResponse(cdi_devices=[CDIDevice(name="nvidia.com/gpu=GPU-0")])
    async with a_world(version=version) as world:
        await world.start(world.plugin(allocate=lambda _: answer))
        received = (await world.kubelet.admit(pod("a", {MEM: 1}))).only.received
        assert [device.name for device in received.cdi_devices] == names


@pytest.mark.parametrize(("version", "prefix"), [((1, 25), "Pod Allocate failed"), ((1, 26), "Pod was rejected: Al")])
async def test_the_message_of_a_refused_pod_was_reworded_in_1_26(version: tuple[int, int], prefix: str) -> None:
    async with a_world(version=version) as world:
        await world.start(world.plugin())
        assert (await world.kubelet.admit(pod("a", {MEM: 9}))).message.startswith(prefix)


async def test_a_pod_that_ended_in_1_31_is_listed_with_its_devices_if_it_was_admitted_last() -> None:
    async with a_world(version=(1, 31)) as world:
        await world.start(world.plugin())
        world.kubelet.finish(await world.kubelet.admit(pod("a", {MEM: 1})))
        assert len((await world.listed())["a"]["c0"]) == 1
        await world.kubelet.admit(pod("b", {}))
        assert not (await world.listed())["a"]["c0"]


@pytest.mark.parametrize(("version", "names"), [((1, 33), {"a"}), ((1, 34), set[str]())])
async def test_ended_pods_are_listed_without_devices_before_1_34(version: tuple[int, int], names: set[str]) -> None:
    async with a_world(version=version) as world:
        await world.start(world.plugin())
        world.kubelet.finish(await world.kubelet.admit(pod("a", {MEM: 1})))
        listed = await world.listed()
        assert set(listed) == names
        assert not any(devices for containers in listed.values() for devices in containers.values())


# What the node shows


async def test_the_node_status_lags_until_it_is_published(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    assert world.kubelet.node_status == {}
    assert world.kubelet.publish() == {MEM: Amount(8, 8)}
    plugin.list(EIGHT | {"GPU-0::0": False})
    await world.lists(plugin)
    assert world.kubelet.node_status == {MEM: Amount(8, 8)}
    assert world.kubelet.amounts == {MEM: Amount(8, 7)}
    assert world.kubelet.publish() == {MEM: Amount(8, 7)}


async def test_a_kubelet_without_a_checkpoint_zeroes_every_resource_of_the_node_and_none_fits(world: World) -> None:
    await world.start(world.plugin())
    world.kubelet.publish()
    await world.kubelet.stop()
    world.kubelet.checkpoint.unlink()
    await world.kubelet.start()
    assert world.kubelet.node_status == {MEM: Amount(0, 0)}
    refused = await world.kubelet.admit(pod("a", {MEM: 2}))
    assert refused.reason == f"OutOf{MEM}"
    assert refused.message == (
        f"Pod was rejected: Node didn't have enough resource: {MEM}, requested: 2, used: 0, capacity: 0"
    )


# Pods


async def test_a_pod_from_before_the_plugin_gets_its_devices_when_its_container_restarts(world: World) -> None:
    early = await world.kubelet.admit(pod("a", {MEM: 2}))
    assert early.devices(MEM) == frozenset()
    plugin = world.plugin()
    await world.start(plugin)
    late = await world.kubelet.restart_container(early, "c0")
    assert late.devices(MEM) == set(plugin.allocations[0])
    assert late.only.restarts == 1


async def test_a_restarted_container_gets_the_old_answer_without_an_allocate(world: World) -> None:
    plugin = world.plugin(options=DevicePluginOptions(pre_start_required=True))
    await world.start(plugin)
    running = await world.kubelet.admit(pod("a", {MEM: 2}))
    again = await world.kubelet.restart_container(running, "c0")
    assert again.only.received == running.only.received
    assert (len(plugin.allocations), len(plugin.starts)) == (1, 2)


async def test_a_container_whose_pre_start_failed_starts_at_the_next_try(world: World) -> None:
    plugin = world.plugin(options=DevicePluginOptions(pre_start_required=True))
    await world.start(plugin)
    plugin.start_gate.refuse("not yet", times=1)
    waiting = await world.kubelet.admit(pod("a", {MEM: 1}, {MEM: 1}))
    assert (waiting.phase, [container.running for container in waiting.containers]) == ("Pending", [False, False])
    running = await world.kubelet.restart_container(waiting, "c0")
    assert (running.phase, [container.running for container in running.containers]) == ("Running", [True, True])


async def test_a_pod_refused_after_its_allocate_holds_its_devices_until_they_are_collected(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    refused = await world.kubelet.admit(pod("a", {MEM: 8}), rejected=("OutOfcpu", "no cpu"))
    assert (refused.phase, refused.reason, refused.message) == ("Failed", "OutOfcpu", "Pod was rejected: no cpu")
    assert world.kubelet.allocated == {MEM: set(EIGHT)}
    await world.listed()
    assert world.kubelet.allocated == {}


async def test_a_part_of_a_refused_pod_stays_booked_until_it_is_collected(world: World) -> None:
    """The first container has its two when the second is refused; the next pod's admission frees them."""
    plugin = world.plugin()
    await world.start(plugin)
    await world.kubelet.admit(pod("a", {MEM: 2}, {MEM: 7}))
    assert {resource: len(ids) for resource, ids in world.kubelet.allocated.items()} == {MEM: 2}
    assert (await world.kubelet.admit(pod("b", {MEM: 8}))).phase == "Running"


async def test_a_terminating_pod_holds_its_devices_until_it_is_deleted(world: World) -> None:
    await world.start(world.plugin())
    running = await world.kubelet.admit(pod("a", {MEM: 8}))
    world.kubelet.terminate(running)
    assert await world.listed() == {"a": {"c0": set(EIGHT)}}
    gone = await world.kubelet.delete(running)
    assert await world.listed() == {}
    assert not gone.process_running


async def test_a_forced_delete_frees_the_devices_while_the_process_runs(world: World) -> None:
    await world.start(world.plugin())
    running = await world.kubelet.admit(pod("a", {MEM: 8}))
    await world.kubelet.delete(running, force=True)
    assert await world.listed() == {}
    assert (await world.kubelet.admit(pod("b", {MEM: 8}))).phase == "Running"
    assert [one.name for one in world.kubelet.running] == ["b", "a"]
    world.kubelet.process_ended(running)
    assert [one.name for one in world.kubelet.running] == ["b"]


@pytest.mark.parametrize(("listed", "envs"), [(False, {"GPU": "1"}), (True, {})])
async def test_a_pod_deleted_by_force_while_it_starts_runs_with_what_the_books_still_say(
    world: World,
    listed: bool,  # noqa: FBT001 (a parameter)
    envs: dict[str, str],
) -> None:
    """A List in between frees its devices, and their variables with them."""
    plugin = world.plugin(allocate=lambda _: ContainerAllocateResponse(envs={"GPU": "1"}))
    await world.start(plugin)
    world.kubelet.start_gate.hold()
    admitting = asyncio.create_task(world.kubelet.admit(pod("a", {MEM: 1})))
    await world.kubelet.start_gate.reached()
    await world.kubelet.delete(world.kubelet.pod("a"), force=True)
    if listed:
        await world.listed()
    world.kubelet.start_gate.release()
    gone = await admitting
    assert [one.name for one in world.kubelet.running] == ["a"]
    assert gone.only.received.envs == envs
    world.kubelet.process_ended(gone)
    assert world.kubelet.running == ()


async def test_a_pod_deleted_by_force_while_pre_start_waits_starts_without_what_its_devices_bring(world: World) -> None:
    """The real one reads that after the answer (GetDeviceRunContainerOptions; seen on 1.36.3)."""
    plugin = world.plugin(
        options=DevicePluginOptions(pre_start_required=True),
        allocate=lambda _: ContainerAllocateResponse(envs={"GPU": "1"}),
    )
    await world.start(plugin)
    plugin.start_gate.hold()
    admitting = asyncio.create_task(world.kubelet.admit(pod("a", {MEM: 1})))
    await plugin.start_gate.reached()
    await world.kubelet.delete(world.kubelet.pod("a"), force=True)
    await world.listed()
    plugin.start_gate.release()
    gone = await admitting
    assert (gone.only.started, dict(gone.only.received.envs)) == (True, {})


async def test_a_delete_waits_for_an_allocate_that_hangs(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    first = await world.kubelet.admit(pod("a", {MEM: 1}))
    plugin.allocate_gate.hold()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.kubelet.admit(pod("b", {MEM: 1})))
        await plugin.allocate_gate.reached()
        deleting = tasks.create_task(world.kubelet.delete(first))
        await asyncio.sleep(0)
        assert not deleting.done()
        plugin.allocate_gate.release()
    assert [one.name for one in world.kubelet.pods] == ["b"]


async def test_a_list_that_frees_a_pod_during_an_allocate_lets_a_device_be_given_twice(world: World) -> None:
    """The kubelet counts anew what is allocated, and forgets the device that is just on its way to a container."""
    plugin = world.plugin(options=PREFERS, prefer=lambda asked: sorted(asked.available)[: asked.size])
    await world.start(plugin)
    ending = await world.kubelet.admit(pod("a", {MEM: 1}))
    world.kubelet.terminate(ending)
    plugin.script.prefer = lambda _: ["GPU-1::3"]
    plugin.allocate_gate.hold()
    admitting = asyncio.create_task(world.kubelet.admit(pod("b", {MEM: 1})))
    await plugin.allocate_gate.reached()
    world.kubelet.finish(ending)
    await world.listed()
    plugin.allocate_gate.release()
    await admitting
    await world.kubelet.admit(pod("c", {MEM: 1}))
    assert plugin.allocations[1:] == [("GPU-1::3",), ("GPU-1::3",)]


async def test_all_answers_of_a_container_are_merged_and_a_conflict_is_decided_anew_at_each_start(
    world: World,
) -> None:
    def answer(who: str) -> ContainerAllocateResponse:
        return ContainerAllocateResponse(
            envs={"WHO": who, f"FROM_{who}": "1"},
            mounts=[Mount(container_path=f"/{who}", host_path="/tmp", read_only=True)],
            devices=[DeviceSpec(container_path="/dev/shared", host_path=f"/dev/{who}", permissions="rw")],
            cdi_devices=[CDIDevice(name="a/b=c")],
        )

    await world.start(
        world.plugin(allocate=lambda _: answer("mem")),
        world.plugin({"GPU-0": True}, resource=COUNT, allocate=lambda _: answer("count")),
    )
    both = await world.kubelet.admit(pod("a", {MEM: 1, COUNT: 1}))
    winners = set()
    for _ in range(32):
        received = (await world.kubelet.restart_container(both, "c0")).only.received
        assert received.envs.keys() == {"WHO", "FROM_mem", "FROM_count"}
        assert {mount.container_path for mount in received.mounts} == {"/mem", "/count"}
        assert [device.name for device in received.cdi_devices] == ["a/b=c"]
        (node,) = received.devices
        assert node.host_path == f"/dev/{received.envs['WHO']}"
        winners.add(received.envs["WHO"])
    assert winners == {"mem", "count"}


# Restarts


async def test_pod_resources_is_empty_until_the_sources_are_ready(world: World) -> None:
    await world.start(world.plugin())
    running = await world.kubelet.admit(pod("a", {MEM: 3}))
    await world.kubelet.restart()
    assert await world.listed() == {}
    assert {len(ids) for ids in world.kubelet.allocated.values()} == {3}
    await world.kubelet.sources_ready()
    assert await world.listed() == {"a": {"c0": running.devices(MEM)}}


async def test_a_pod_deleted_while_the_kubelet_was_down_is_freed_when_the_sources_are_ready(world: World) -> None:
    await world.start(world.plugin())
    running = await world.kubelet.admit(pod("a", {MEM: 3}))
    await world.kubelet.stop()
    await world.kubelet.delete(running)
    await world.kubelet.start(ready=False)
    await world.listed()
    assert world.kubelet.allocated == {MEM: running.devices(MEM)}
    await world.kubelet.sources_ready()
    await world.listed()
    assert world.kubelet.allocated == {}


async def test_a_pod_bound_while_the_kubelet_is_down_waits_for_it(world: World) -> None:
    await world.kubelet.stop()
    assert (await world.kubelet.admit(pod("a", {MEM: 1}))).phase == "Pending"
    await world.kubelet.start(ready=False)
    await world.start(world.plugin())
    await world.kubelet.sources_ready()
    assert world.kubelet.pod("a").phase == "Running"


async def test_pods_come_back_in_the_order_of_their_creation_not_of_their_admission(world: World) -> None:
    """Only the older of two pods, which was bound later, fits after the kubelet was down."""
    await world.kubelet.stop()
    await world.kubelet.admit(pod("young", {MEM: 5}, created=20))
    await world.kubelet.admit(pod("old", {MEM: 5}, created=10))
    await world.kubelet.start(ready=False)
    await world.start(world.plugin())
    await world.kubelet.sources_ready()
    assert [(one.name, one.phase) for one in world.kubelet.pods] == [("old", "Running"), ("young", "Failed")]


async def test_after_a_reboot_pods_that_come_before_their_plugin_fail_for_good(world: World) -> None:
    await world.start(world.plugin())
    running = await world.kubelet.admit(pod("a", {MEM: 1}))
    await world.kubelet.reboot(ready=True)
    assert world.kubelet.pod(running).message == f"Pod was rejected: Allocate failed due to {NO_HEALTHY}"
    assert world.kubelet.running == ()


async def test_after_a_reboot_the_old_answer_is_replayed_where_the_plugin_came_first(world: World) -> None:
    await world.start(world.plugin())
    before = await world.kubelet.admit(pod("a", {MEM: 2}))
    await world.plugins[0].stop()
    await world.kubelet.reboot()
    again = world.plugin()
    await world.start(again)
    await world.kubelet.sources_ready()
    after = world.kubelet.pod(before)
    assert (after.phase, after.only.received) == ("Running", before.only.received)
    assert again.allocations == []


async def test_a_pod_comes_back_only_while_its_devices_are_healthy(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    before = await world.kubelet.admit(pod("a", {MEM: 2}))
    await plugin.stop()
    await world.kubelet.reboot()
    (ill, *_) = before.devices(MEM)
    await world.start(world.plugin(EIGHT | {ill: False}))
    await world.kubelet.sources_ready()
    assert world.kubelet.pod(before).message == (
        f"Pod was rejected: Allocate failed due to previously allocated devices are no longer healthy; "
        f"cannot allocate unhealthy devices {MEM}, which is unexpected"
    )


async def test_a_kubelet_that_ends_during_an_allocate_leaves_the_pod_for_the_next_one(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    plugin.allocate_gate.hold()
    admitting = asyncio.create_task(world.kubelet.admit(pod("a", {MEM: 1})))
    await plugin.allocate_gate.reached()
    await world.kubelet.restart()
    assert (await admitting).phase == "Pending"
    assert world.kubelet.allocated == {}
    again = world.plugin()
    await world.start(again)
    await world.kubelet.sources_ready()
    assert (world.kubelet.pod("a").phase, len(again.allocations)) == ("Running", 1)


async def test_a_withdrawn_device_panics_the_kubelet_and_the_node_recovers_by_a_restart(world: World) -> None:
    plugin = world.plugin({"a": True})
    await world.start(plugin)
    plugin.allocate_gate.hold()
    admitting = asyncio.create_task(world.kubelet.admit(pod("a", {MEM: 1})))
    await plugin.allocate_gate.reached()
    plugin.list({"b": True})
    await world.lists(plugin)
    plugin.allocate_gate.release()
    with pytest.raises(KubeletPanic, match=f"{MEM} listed a no more when the Allocate for it was answered"):
        await admitting
    assert len(world.kubelet.panics) == 1
    assert not world.kubelet.up
    assert world.kubelet.registration_socket.is_socket()
    await world.kubelet.start()
    assert world.kubelet.pod("a").phase == "Failed"


async def test_a_kubelet_can_be_stopped_twice_and_started_only_once(world: World) -> None:
    await world.kubelet.stop()
    await world.kubelet.stop()
    await world.kubelet.start()
    with pytest.raises(RuntimeError, match="this kubelet is up already"):
        await world.kubelet.start()


# Faults


async def test_a_dropped_stream_is_not_dialled_again(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    world.kubelet.drop_streams(MEM)
    await eventually(lambda: world.kubelet.amounts[MEM] == Amount(8, 0))
    assert [stream.open for stream in world.kubelet.streams] == [False]
    await plugin.register()
    await eventually(lambda: world.kubelet.amounts[MEM] == Amount(8, 8))


async def test_a_plugin_directory_that_is_gone_fails_pods_and_comes_back_with_the_next_kubelet(world: World) -> None:
    plugin = world.plugin()
    await world.start(plugin)
    shutil.rmtree(world.kubelet.device_plugin_dir)
    refused = await world.kubelet.admit(pod("a", {MEM: 1}))
    assert refused.message.startswith(
        'Pod was rejected: Allocate failed due to failed to write checkpoint file "kubelet_internal_checkpoint": '
    )
    await plugin.stop()
    await world.kubelet.restart(ready=True)
    await world.start(world.plugin())


async def test_a_pod_of_one_uid_is_bound_once(world: World) -> None:
    one: Pod = await world.kubelet.admit(pod("a", {}, uid="1"))
    with pytest.raises(ValueError, match="pod 1 exists already"):
        await world.kubelet.admit(pod("b", {}, uid=one.uid))
