"""Device plugins that stay registered, whatever kubelets, sockets and directories do."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
import pytest
from grpc import aio

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import DevicePluginStub
from gpu_device_plugin.kubelet.calls import answers
from gpu_device_plugin.kubelet.registration_loop import RegistrationLoop
from gpu_device_plugin.kubelet.rounds import RegistrationEvent, RoundTimings
from gpu_device_plugin.kubelet.servicer import PluginServicer
from gpu_device_plugin.kubelet.sockets import DirectoryGoneError
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.node.rules.container_grants import Grant
from tests.kubelet.gated_kubelet import Gate, Kubelet
from tests.kubelet.scripted_plugin import ScriptedPlugin
from tests.kubelet.short_paths import short_folder
from tests.patience import eventually, patience, rounds, stretched
from tests.resources import COUNT, MEM

QUICK = RoundTimings(poll=0.05, stream_grace=0.2, retry_first=0.01, retry_most=0.1, self_check=0.1, stop=0.5)


class Answers:
    """Gives everybody everything, after a while if it is told so."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def prefer(
        self,
        _resource: Resource,
        available: Iterable[str],
        _must: Iterable[str],
        amount: int,
        *,
        waits: bool,  # noqa: ARG002
    ) -> Sequence[str]:
        await self.gate.passed()
        return list(available)[:amount]

    async def allocate(self, _resource: Resource, _device_ids: Sequence[str]) -> Grant:
        return Grant()

    async def before_start(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Let it start."""


class Deaf(PluginServicer):
    """Sometimes answers nobody but the streams it has: a server out of file descriptors is like that."""

    def __init__(self, *arguments: Any, node: Node) -> None:
        super().__init__(*arguments, observe=lambda *_: None)
        self._node = node

    async def GetDevicePluginOptions(  # noqa: N802 (gRPC's name)
        self, request: pb.Empty, context: aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]
    ) -> pb.DevicePluginOptions:
        if self._node.deaf:
            self._node.refusing.set()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many open files")
        return await super().GetDevicePluginOptions(request, context)


@dataclass
class Node:
    """A kubelet, and two resources that want to be registered with it."""

    kubelet: Kubelet
    directory: Path
    deaf: bool = False
    refusing: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Answers = field(default_factory=Answers)
    events: list[tuple[RegistrationEvent, dict[str, object]]] = field(default_factory=list)
    prepared: list[set[str]] = field(default_factory=list)
    """Our sockets that were there, at each preparation."""
    rounds: int = 0
    """How many preparations had been when a test last waited for one."""
    registration: RegistrationLoop = field(init=False)
    task: asyncio.Task[NoReturn] | None = None

    def __post_init__(self) -> None:
        self.registration = self.looping([MEM, COUNT])

    def looping(
        self, resources: Sequence[Resource], prepare: Callable[[], Awaitable[None]] | None = None
    ) -> RegistrationLoop:
        """Make a loop for these resources, which tells us all that happens."""
        # A kubelet on a busy machine is slow to listen, which is no reason to start over.
        timings = replace(QUICK, stream_grace=stretched(QUICK.stream_grace))
        return RegistrationLoop(
            self.directory, lambda: resources, self._servicer, prepare or self._prepare, self._on_event, timings=timings
        )

    def _on_event(self, event: RegistrationEvent, details: dict[str, object]) -> None:
        self.events.append((event, details))

    def _servicer(self, resource: Resource) -> PluginServicer:
        devices = pb.ListAndWatchResponse(devices=[pb.Device(ID=f"{resource.kind}-0", health="Healthy")])
        return Deaf(resource, self.answers, Observable(devices), node=self)

    async def _prepare(self) -> None:
        self.prepared.append(self.sockets)

    @property
    def sockets(self) -> set[str]:
        return {path.name for path in self.directory.glob("gpushare-*.sock")}

    @property
    def overs(self) -> list[object]:
        return [details["reason"] for event, details in self.events if event is RegistrationEvent.OVER]

    @property
    def complaints(self) -> list[str]:
        return [str(details["why"]) for event, details in self.events if event is RegistrationEvent.NOT_REGISTERED]

    def launch(self) -> None:
        self.task = asyncio.create_task(self.registration.run())

    async def met(self) -> None:
        """Wait until the kubelet that is there now has heard the lists of the sockets that are there now."""
        await eventually(lambda: not self.registration.unmet() and self._serves_both())

    def _serves_both(self) -> bool:
        heard = {stream.endpoint for stream in self.kubelet.streams if stream.open and stream.lists}
        both = self.kubelet.up and {MEM.name, COUNT.name} <= self.kubelet.amounts.keys()
        return both and len(self.sockets & heard) == 2

    async def start(self) -> None:
        self.launch()
        await self.met()
        self.rounds = len(self.prepared)

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def after_another_round(self) -> set[str]:
        """Wait for a round after the one that was last waited for; return the sockets of the present one.

        What a test has just done may have begun it already.
        """
        before = self.sockets
        await eventually(lambda: len(self.prepared) > self.rounds)
        await self.met()
        self.rounds = len(self.prepared)
        return before


@asynccontextmanager
async def node(*, kubelet: bool = True, version: tuple[int, int] = (1, 36)) -> AsyncIterator[Node]:
    with short_folder() as folder:
        double = Kubelet(folder, version=version)
        if kubelet:
            await double.start()
        else:
            double.device_plugin_dir.mkdir()
        made = Node(double, double.device_plugin_dir)
        try:
            yield made
        finally:
            await made.stop()
            await double.stop()


@asynccontextmanager
async def asking(plugin: Path) -> AsyncIterator[asyncio.Task[Any]]:
    """Make a call that takes long: GetPreferredAllocation."""
    asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["a"], allocation_size=1)
    async with aio.insecure_channel(f"unix:{plugin}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        await channel.channel_ready()
        call = DevicePluginStub(channel).GetPreferredAllocation
        task = asyncio.create_task(_answered(call(pb.PreferredAllocationRequest(container_requests=[asked]))))
        yield task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _answered(call: Awaitable[Any]) -> Any:
    return await call


# --- One round --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 20), (1, 24), (1, 28), (1, 33), (1, 36)])
async def test_both_resources_are_registered_and_listened_to(version: tuple[int, int]) -> None:
    async with node(version=version) as one:
        assert one.registration.unmet() == (
            "aliyun.com/gpu-mem is not registered with the kubelet",
            "aliyun.com/gpu-count is not registered with the kubelet",
        )
        assert await one.registration.answer_ourselves(), "nothing is wrong with a process that has not begun"
        await one.start()
        assert one.events == [
            (RegistrationEvent.REGISTERED, {"resource": MEM.name}),
            (RegistrationEvent.REGISTERED, {"resource": COUNT.name}),
        ]
        assert one.registration.registrations == {MEM.name: 1, COUNT.name: 1}
        assert await one.registration.answer_ourselves()
        assert one.registration.unmet() == ()


async def test_the_books_are_read_before_anything_is_served() -> None:
    """What is registered can be allocated; what is not cannot, so that the records are complete at that moment."""
    async with node() as one:
        await one.start()
        await one.kubelet.restart()
        await one.after_another_round()
        assert all(sockets == set() for sockets in one.prepared)


async def test_the_end_leaves_no_socket_and_no_stream() -> None:
    async with node() as one:
        await one.start()
        await one.stop()
        assert one.sockets == set()
        await eventually(lambda: not any(stream.open for stream in one.kubelet.streams))
        assert {stream.error for stream in one.kubelet.streams} == {"EOF"}


async def test_a_message_larger_than_any_of_a_kubelet_is_not_read() -> None:
    """A million IDs would take more than the agent's limit of memory has room for."""
    async with node() as one:
        await one.start()
        (plugin,) = one.directory.glob("gpushare-memory-*")
        async with aio.insecure_channel(f"unix:{plugin}") as channel:
            call = DevicePluginStub(channel).Allocate
            for ids, code in ((2000, grpc.StatusCode.OK), (25_000, grpc.StatusCode.RESOURCE_EXHAUSTED)):
                asked = pb.ContainerAllocateRequest(devices_ids=[f"GPU-{n:036}::{n:04}" for n in range(ids)])
                answering = call(pb.AllocateRequest(container_requests=[asked]))
                assert await answering.code() is code


async def test_a_call_in_flight_does_not_hold_up_the_end_for_long() -> None:
    async with node() as one:
        await one.start()
        one.answers.gate.hold()
        (plugin,) = one.directory.glob("gpushare-memory-*")
        async with asking(plugin) as stuck:
            await one.answers.gate.reached()
            await one.stop()
            assert one.sockets == set()
            with pytest.raises(aio.AioRpcError):
                await stuck


async def test_stopped_while_one_round_ends_nothing_is_left_either() -> None:
    """The end of a round waits for calls in flight; whoever stops us then does not wait for them."""
    async with node() as one:
        await one.start()
        one.registration.timings = RoundTimings(poll=0.05, stream_grace=0.1, stop=300)
        one.answers.gate.hold()
        (plugin,) = one.directory.glob("gpushare-memory-*")
        async with asking(plugin):
            await one.answers.gate.reached()
            one.kubelet.drop_streams()
            await eventually(lambda: any("is not registered" in why for why in one.registration.unmet()))
            await one.stop()
            assert one.sockets == set()
            one.answers.gate.release()


@pytest.mark.parametrize("steps", range(10))
async def test_stopped_while_it_begins_it_leaves_nothing(steps: int) -> None:
    async with node() as one:
        one.launch()
        for _ in range(steps):
            await asyncio.sleep(0)
        await one.stop()
        assert one.sockets == set()


@pytest.mark.parametrize("steps", range(12))
async def test_stopped_at_the_very_moment_at_which_a_round_ends_it_ends(steps: int) -> None:
    """A task group that fails while it is cancelled forgets the latter; at which step of it is not ours to say."""
    async with node() as one:
        one.deaf = True
        one.launch()
        await one.refusing.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        async with patience(one):
            await one.stop()
        assert one.sockets == set()


class StopsNothing:
    """A server whose stop leaves everything as it is."""

    async def stop(self, _grace: float) -> None:
        pass


async def test_a8_a_socket_left_by_grpc_is_removed_unless_somebody_else_has_put_his_there() -> None:
    async with node() as one:
        await one.start()
        ours, others = (served.socket for served in one.registration._served)
        servers = [served.server for served in one.registration._served]
        for served in one.registration._served:
            served.server = cast("aio.Server", StopsNothing())
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(one.directory / "new"))
            (one.directory / "new").replace(others)
            await one.stop()
        assert not ours.exists()
        assert others.exists()
        for server in servers:
            await server.stop(None)


# --- A1: the kubelet restarts -----------------------------------------------------------------------------------------


async def test_a1_after_every_restart_of_the_kubelet_both_are_registered_again_under_fresh_names() -> None:
    async with node() as one:
        await one.start()
        names = set(one.sockets)
        for _ in range(10):
            await one.kubelet.restart(ready=True)
            await one.after_another_round()
            names |= one.sockets
        assert len(names) == 22


async def test_every_kubelet_process_that_listens_has_a_number_of_its_own() -> None:
    """And while one of the resources is listened to by nobody there is none."""
    async with node() as one:
        assert one.registration.listener is None
        await one.start()
        numbers = [one.registration.listener]
        await one.kubelet.stop()
        await eventually(lambda: one.registration.listener is None)
        await one.kubelet.start()
        await one.after_another_round()
        numbers.append(one.registration.listener)
        one.kubelet.drop_streams(COUNT.name)
        await eventually(lambda: one.registration.listener is None)
        await one.met()
        numbers.append(one.registration.listener)
        assert len({*numbers} - {None}) == 3


async def test_a1_a_kubelet_that_is_down_for_long_is_waited_for() -> None:
    async with node() as one:
        await one.start()
        await one.kubelet.stop()
        await eventually(lambda: len(one.complaints) == 1)
        assert len(one.overs) == 1
        up, without_s = one.registration.outages()[MEM.name]
        assert not up
        assert without_s > 0
        await rounds(3, QUICK.retry_most)
        assert len(one.complaints) == 1, "the same complaint is told once"
        await one.kubelet.start()
        await one.met()
        assert one.registration.outages()[MEM.name][0]


async def test_a1_kubelets_that_restart_faster_than_we_can_follow_end_with_both_registered() -> None:
    async with node() as one:
        one.launch()
        for _ in range(8):
            await one.kubelet.restart(ready=True)
            await asyncio.sleep(0.02)  # it may get as far as it likes; at each run another way
        await one.met()


async def test_a1_a_kubelet_socket_made_anew_is_enough() -> None:
    """Our own socket may have been spared, as by a kubelet that was started with another directory in between."""
    async with node() as one:
        await one.start()
        double, path = one.kubelet, one.kubelet.registration_socket
        path.rename(path.with_suffix(".away"))
        shutil.copyfile(path.with_suffix(".away").parent / "kubelet_internal_checkpoint", path)
        await eventually(lambda: one.overs == ["the kubelet was restarted"])
        path.with_suffix(".away").replace(path)
        await one.met()
        assert double.up


# --- A2: the stream breaks by itself ----------------------------------------------------------------------------------


async def test_a2_a_broken_stream_is_mended_by_registering_again_because_the_kubelet_never_dials_again() -> None:
    """The stream of one resource is enough."""
    async with node() as one:
        await one.start()
        one.kubelet.drop_streams(COUNT.name)
        await eventually(lambda: bool(one.registration.unmet()))
        assert one.registration.unmet() == ("the kubelet does not listen to aliyun.com/gpu-count",)
        await one.after_another_round()
        assert one.overs == ["the kubelet stopped listening to aliyun.com/gpu-count"]


async def test_a2_a_stream_is_missing_only_when_the_last_one_is_gone() -> None:
    """Whoever else listens; the kubelet of a restart may do so twice for a moment."""
    async with node() as one:
        await one.start()
        (plugin,) = one.directory.glob("gpushare-memory-*")
        async with grpc.aio.insecure_channel(f"unix:{plugin}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: DevicePluginStub[Any, Any, Any, Any, Any] = DevicePluginStub(channel)
            stream = stub.ListAndWatch(pb.Empty())
            await stream.read()
            without = one.registration.outages()[MEM.name]
            one.kubelet.drop_streams(MEM.name)
            await eventually(lambda: not any(each.open for each in one.kubelet.streams if each.resource == MEM.name))
            assert one.registration.outages()[MEM.name] == without
            assert one.registration.unmet() == ()


async def test_a2_a_removed_socket_is_made_anew() -> None:
    async with node() as one:
        await one.start()
        for path in one.directory.glob("gpushare-memory-*"):
            path.unlink()
        before = await one.after_another_round()
        assert not before & one.sockets
        assert one.overs == ["the socket of aliyun.com/gpu-mem was removed"]


# --- A4: the directory ------------------------------------------------------------------------------------------------


async def test_a4_a_directory_that_goes_away_is_waited_for() -> None:
    async with node() as one:
        await one.start()
        away = one.directory.with_name("away")
        one.directory.rename(away)
        waits: tuple[RegistrationEvent, dict[str, object]] = (
            RegistrationEvent.NO_DIRECTORY,
            {"directory": str(one.directory)},
        )
        await eventually(lambda: waits in one.events)
        await rounds(3, QUICK.poll)
        assert one.events.count(waits) == 1, "it is told once"
        assert await one.registration.answer_ourselves(), "a restart would not bring it back"
        assert one.registration.unmet()[0] == f"the device-plugin directory {one.directory} is missing"
        away.rename(one.directory)
        await one.met()


async def test_a4_a_directory_made_anew_is_served_though_the_old_one_was_being_watched() -> None:
    async with node() as one:
        await one.start()
        await one.kubelet.stop()
        while one.directory.exists():
            # The loop may remove its sockets at the same moment.
            shutil.rmtree(one.directory, ignore_errors=True)
        await one.kubelet.start()
        await one.met()


async def test_a4_a_directory_that_vanishes_before_we_listen_costs_one_round() -> None:
    async with node() as one:
        lost = iter([True])

        async def lose() -> None:
            if next(lost, False):
                one.directory.rename(one.directory.with_name("away"))

        one.registration = one.looping([MEM, COUNT], lose)
        one.launch()
        await eventually(lambda: bool(one.overs))
        assert str(one.overs[0]).startswith(f"listening on {one.directory}/gpushare-memory-")
        one.directory.with_name("away").rename(one.directory)
        await one.met()


async def test_a4_a_container_that_still_sees_a_deleted_directory_has_to_be_restarted() -> None:
    """The way through an open descriptor is what a bind mount is to a container: it leads to what is no more."""
    with short_folder() as folder:
        (folder / "plugins").mkdir()
        descriptor = os.open(folder / "plugins", os.O_RDONLY)
        (folder / "plugins").rmdir()
        double = Kubelet(folder)
        one = Node(double, folder.__class__(f"/proc/self/fd/{descriptor}"))
        one.launch()
        assert one.task is not None
        with pytest.raises(DirectoryGoneError, match="sees only the old one"):
            await one.task
        os.close(descriptor)


# --- A5: a kubelet.sock that leads nowhere ----------------------------------------------------------------------------


async def test_a5_a_dead_kubelet_socket_is_tried_again_and_again_until_somebody_serves() -> None:
    async with node(kubelet=False) as one:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(one.kubelet.registration_socket))
        one.launch()
        await eventually(lambda: bool(one.complaints))
        assert "no process answers" in one.complaints[0]
        await one.kubelet.start()
        await one.met()


async def test_a5_a_kubelet_socket_that_appears_is_tried_at_once() -> None:
    """Not at the end of the wait, which may be long by then."""
    async with node() as one:
        path = one.kubelet.registration_socket
        path.rename(path.with_suffix(".away"))
        one.registration.timings = RoundTimings(poll=0.05, retry_first=300, retry_most=300)
        one.launch()
        await eventually(lambda: bool(one.complaints))
        path.with_suffix(".away").rename(path)
        await one.met()


async def test_a5_a_kubelet_that_refuses_for_a_while_is_asked_again() -> None:
    async with node() as one:
        one.kubelet.register_gate.refuse("not yet", times=3)
        await one.start()
        assert len(one.complaints) == 1
        assert "the kubelet refused: not yet" in one.complaints[0]


async def test_a5_a_resource_that_is_refused_does_not_have_the_other_registered_over_and_over() -> None:
    async with node() as one:
        bad = Resource(Kind.COUNT, "no-domain")
        one.registration = one.looping([MEM, bad])
        one.launch()
        await eventually(lambda: len(one.kubelet.registrations) >= 5)
        assert [made.request.resource_name for made in one.kubelet.registrations].count(MEM.name) == 1
        assert one.registration.unmet() == ("no-domain is not registered with the kubelet",)


async def test_a5_a_kubelet_that_hangs_in_register_is_waited_for() -> None:
    async with node() as one:
        one.kubelet.register_gate.hold()
        one.launch()
        await eventually(lambda: one.kubelet.register_gate.waiting == 1)
        one.kubelet.register_gate.release()
        await one.met()


# --- A7, A8: sockets of others ----------------------------------------------------------------------------------------


async def test_a8_an_old_instance_whose_stream_ends_late_takes_the_new_one_with_it_and_that_is_mended() -> None:
    """Kubelets 1.25 to 1.36 disconnect by name: the end of the old stream makes the new plugin's devices unhealthy."""
    async with node() as one:
        old = ScriptedPlugin(one.directory, MEM.name, {"old": True}, endpoint="old.sock")
        await old.start()
        await one.start()
        await old.stop()
        await one.after_another_round()
        assert one.kubelet.amounts[MEM.name].allocatable == 1


# --- A21: a server that accepts nothing any more ----------------------------------------------------------------------


async def test_a21_a_server_that_does_not_answer_is_replaced() -> None:
    async with node() as one:
        await one.start()
        one.deaf = True
        await eventually(lambda: "the socket of aliyun.com/gpu-mem does not answer" in one.overs)
        assert one.registration.unmet()[0] == "aliyun.com/gpu-mem is not registered with the kubelet"
        one.deaf = False
        await one.met()


async def test_a21_a_server_that_does_not_answer_is_never_registered() -> None:
    async with node() as one:
        one.deaf = True
        one.launch()
        await eventually(lambda: len(one.overs) >= 2)
        assert one.kubelet.registrations == []
        assert not await one.registration.answer_ourselves()
        one.deaf = False
        await one.met()
        assert all([await answers(one.directory / name) for name in one.sockets])


async def test_a21_between_two_rounds_a_server_that_did_not_answer_counts_as_one_that_does_not() -> None:
    """Else the probe would find the process alive for the seconds between rounds, over and over."""
    async with node() as one:
        one.registration.timings = RoundTimings(poll=0.05, retry_first=300, retry_most=300)
        one.deaf = True
        one.launch()
        await eventually(lambda: bool(one.overs) and not one.sockets)
        assert not await one.registration.answer_ourselves()


# --- Resources that come later ----------------------------------------------------------------------------------------

MIG = Resource(Kind.INSTANCE, "nvidia.com/mig-1g.10gb", "1g.10gb")


async def test_a_resource_that_comes_later_is_registered_and_the_others_are_left_alone() -> None:
    """After a restart of the kubelet all of them are registered again."""
    async with node() as one:
        resources = [MEM]
        one.registration = one.looping(resources)
        one.launch()
        await eventually(lambda: not one.registration.unmet())
        before = one.sockets
        resources += [COUNT, MIG]
        one.registration.serve_more()
        await eventually(lambda: len(one.registration.registrations) == 3 and not one.registration.unmet())
        assert one.registration.registrations == {MEM.name: 1, COUNT.name: 1, MIG.name: 1}
        assert before < one.sockets
        assert any(name.startswith("gpushare-instance-1g.10gb-") for name in one.sockets)
        await eventually(lambda: {MEM.name, COUNT.name, MIG.name} <= one.kubelet.amounts.keys())
        assert one.overs == []
        await one.kubelet.restart()
        await eventually(lambda: one.registration.registrations == {MEM.name: 2, COUNT.name: 2, MIG.name: 2})
        await eventually(lambda: not one.registration.unmet() and MIG.name in one.kubelet.amounts)


async def test_a_resource_that_comes_while_no_kubelet_is_there_is_registered_with_the_others() -> None:
    async with node(kubelet=False) as one:
        resources = [MEM]
        one.registration = one.looping(resources)
        one.launch()
        await eventually(lambda: bool(one.complaints))
        resources.append(MIG)
        one.registration.serve_more()
        await one.kubelet.start()
        await eventually(lambda: one.registration.registrations == {MEM.name: 1, MIG.name: 1})
        await eventually(lambda: not one.registration.unmet())


async def test_a_resource_that_was_known_is_not_served_twice() -> None:
    async with node() as one:
        await one.start()
        before = one.sockets
        one.registration.serve_more()
        await asyncio.gather(*(one.registration.answer_ourselves() for _ in range(3)))
        assert (one.sockets, one.registration.registrations) == (before, {MEM.name: 1, COUNT.name: 1})
