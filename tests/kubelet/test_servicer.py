"""One resource as a device plugin, asked over a real socket as a kubelet asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc import aio

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2_grpc
from gpu_device_plugin.kubelet.servicer import PluginServicer, RefusalError, device_list
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.node.rules.advertised_devices import Offer
from gpu_device_plugin.node.rules.container_grants import Grant
from tests.kubelet.short_paths import short_folder
from tests.nodes import node
from tests.patience import eventually
from tests.resources import COUNT, MEM


@dataclass
class Scripted:
    """Answers that were decided beforehand."""

    given: Grant = field(default_factory=Grant)
    refusal: str = ""
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    async def prefer(
        self, resource: Resource, available: Iterable[str], must: Iterable[str], amount: int, *, waits: bool
    ) -> Sequence[str]:
        self.asked.append((resource, list(available), list(must), amount, waits))
        return [*must, *available][:amount]

    async def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Grant:
        self.asked.append((resource, device_ids))
        if self.refusal:
            raise RefusalError(self.refusal)
        return self.given

    async def before_start(self, resource: Resource, device_ids: Sequence[str]) -> None:
        self.asked.append((resource, device_ids))
        if self.refusal:
            raise RefusalError(self.refusal)


@dataclass
class Served:
    """A servicer on a socket, and somebody who calls it."""

    servicer: PluginServicer
    answers: Scripted
    lists: Observable[pb.ListAndWatchResponse]
    stub: deviceplugin_pb2_grpc.DevicePluginStub[Any, Any, Any, Any, Any]
    observed: list[tuple[str, str]]

    async def streams_are(self, count: int) -> None:
        await eventually(lambda: self.servicer.streams.open == count)

    async def observed_are(self, *rpcs: str) -> None:
        """What is measured may come a moment after the answer."""
        await eventually(lambda: self.observed == [(MEM.name, rpc) for rpc in rpcs])


def healths(answer: pb.ListAndWatchResponse) -> dict[str, str]:
    return {device.ID: device.health for device in answer.devices}


def listing(**healthy: bool) -> pb.ListAndWatchResponse:
    return pb.ListAndWatchResponse(
        devices=[pb.Device(ID=name, health="Healthy" if well else "Unhealthy") for name, well in healthy.items()]
    )


@asynccontextmanager
async def served(*, pre_start: bool = False) -> AsyncIterator[Served]:
    with short_folder() as folder:
        answers, lists, observed = Scripted(), Observable(listing(a=True)), list[tuple[str, str]]()
        servicer = PluginServicer(
            MEM,
            answers,
            lists,
            pre_start=pre_start,
            observe=lambda resource, rpc, seconds: observed.append((resource.name, rpc)) if seconds > 0 else None,
        )
        server = aio.server()
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(servicer, server)
        server.add_insecure_port(f"unix:{folder}/s")
        await server.start()
        try:
            async with aio.insecure_channel(f"unix:{folder}/s", [("grpc.use_local_subchannel_pool", 1)]) as channel:
                yield Served(servicer, answers, lists, deviceplugin_pb2_grpc.DevicePluginStub(channel), observed)
        finally:
            servicer.streams.close()
            await server.stop(1)


# --- The list of devices ----------------------------------------------------------------------------------------------


def test_every_id_is_listed_with_its_health_and_without_topology() -> None:
    """With topology a kubelet whose topology manager has a policy takes devices without asking."""
    one, two = node(2, 2).shares.gpus
    found = device_list(MEM, (Offer(one, frozenset({1})), Offer(two, unhealthy=True)))
    assert healths(found) == {
        "GPU-0::0": "Healthy",
        "GPU-0::1": "Unhealthy",
        "GPU-1::0": "Unhealthy",
        "GPU-1::1": "Unhealthy",
    }
    assert not any(device.HasField("topology") for device in found.devices)
    assert healths(device_list(COUNT, (Offer(one), Offer(two, frozenset({0}))))) == {
        "GPU-0": "Healthy",
        "GPU-1": "Unhealthy",
    }


async def test_a20_every_stream_gets_every_change_whoever_else_listens() -> None:
    """Where streams share a queue, an old stream takes a change away from the new one."""
    async with served() as plugin:
        streams = [plugin.stub.ListAndWatch(pb.Empty()) for _ in range(3)]
        for stream in streams:
            await stream.read()
        assert plugin.servicer.streams.open == 3
        plugin.lists.set(listing(a=False))
        assert [healths(await stream.read()) for stream in streams] == [{"a": "Unhealthy"}] * 3


async def test_an_unchanged_list_that_is_sent_again_is_sent() -> None:
    """It makes the kubelet write its checkpoint."""
    async with served() as plugin:
        stream = plugin.stub.ListAndWatch(pb.Empty())
        first = await stream.read()
        plugin.lists.set(plugin.lists.value)
        assert await stream.read() == first


async def test_closing_ends_every_stream() -> None:
    async with served() as plugin:
        streams = [plugin.stub.ListAndWatch(pb.Empty()) for _ in range(2)]
        for stream in streams:
            await stream.read()
        plugin.servicer.streams.close()
        assert [await stream.read() for stream in streams] == [aio.EOF, aio.EOF]
        await plugin.streams_are(0)
        assert [await stream.code() for stream in streams] == [grpc.StatusCode.OK] * 2


async def test_a2_a_stream_that_the_kubelet_ends_is_counted_out_and_told() -> None:
    async with served() as plugin:
        told = list[int]()
        plugin.servicer.streams.changed = told.append
        one, two = (plugin.stub.ListAndWatch(pb.Empty()) for _ in range(2))
        await one.read()
        await two.read()
        one.cancel()
        await plugin.streams_are(1)
        two.cancel()
        await plugin.streams_are(0)
        assert told == [1, 2, 1, 0]


# --- Calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre_start", [False, True])
async def test_the_options_are_the_same_asked_for_or_sent_along(pre_start: bool) -> None:  # noqa: FBT001 (a parameter)
    async with served(pre_start=pre_start) as plugin:
        options = await plugin.stub.GetDevicePluginOptions(pb.Empty())
        assert options == plugin.servicer.options
        assert options == pb.DevicePluginOptions(pre_start_required=pre_start, get_preferred_allocation_available=True)


async def test_preferences_are_asked_for_container_by_container_and_only_the_first_waits_for_the_api() -> None:
    """A second for each of 30 containers would keep the kubelet's sync loop from all pods of the node."""
    async with served() as plugin:
        asked = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=["a", "b", "c"], must_include_deviceIDs=["b"], allocation_size=2
        )
        answer = await plugin.stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[asked] * 3))
        assert [list(one.deviceIDs) for one in answer.container_responses] == [["b", "a"]] * 3
        assert plugin.answers.asked == [(MEM, ["a", "b", "c"], ["b"], 2, waits) for waits in (True, False, False)]
        await plugin.observed_are("GetPreferredAllocation")


async def test_a_call_that_no_kubelet_makes_ends_before_a_container_is_looked_for() -> None:
    many, few = ["a"] * 10_001, ["a"] * 10_000
    async with served() as plugin:
        prefer, allocate, start = (
            plugin.stub.GetPreferredAllocation,
            plugin.stub.Allocate,
            plugin.stub.PreStartContainer,
        )
        wanted, granted = pb.ContainerPreferredAllocationRequest, pb.ContainerAllocateRequest
        for call in (
            prefer(pb.PreferredAllocationRequest(container_requests=[wanted(available_deviceIDs=many)])),
            prefer(pb.PreferredAllocationRequest(container_requests=[wanted(must_include_deviceIDs=many)])),
            prefer(pb.PreferredAllocationRequest(container_requests=[wanted()] * 65)),
            allocate(pb.AllocateRequest(container_requests=[granted(devices_ids=many)])),
            allocate(pb.AllocateRequest(container_requests=[granted()] * 65)),
            start(pb.PreStartContainerRequest(devices_ids=many)),
        ):
            with pytest.raises(aio.AioRpcError, match="larger than one of a kubelet") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert plugin.answers.asked == []
        await prefer(pb.PreferredAllocationRequest(container_requests=[wanted(available_deviceIDs=few)] * 2))
        await allocate(pb.AllocateRequest(container_requests=[granted(devices_ids=few)] * 64))
        await start(pb.PreStartContainerRequest(devices_ids=few))
        assert len(plugin.answers.asked) == 2 + 64 + 1


async def test_a_grant_becomes_variables_device_nodes_and_cdi_names() -> None:
    async with served() as plugin:
        plugin.answers.given = Grant({"A": "1"}, ("/dev/nvidia0",), ("nvidia.com/gpu=GPU-0",))
        asked = pb.ContainerAllocateRequest(devices_ids=["a"])
        (given,) = (await plugin.stub.Allocate(pb.AllocateRequest(container_requests=[asked]))).container_responses
        assert dict(given.envs) == {"A": "1"}
        (device,) = given.devices
        assert (device.host_path, device.container_path, device.permissions) == ("/dev/nvidia0", "/dev/nvidia0", "rw")
        assert [one.name for one in given.cdi_devices] == ["nvidia.com/gpu=GPU-0"]
        assert plugin.answers.asked == [(MEM, ("a",))]
        await plugin.observed_are("Allocate")


async def test_c3_a_refusal_is_an_error_with_its_sentence_and_never_a_success() -> None:
    async with served() as plugin:
        plugin.answers.refusal = "GPU memory: 8 GiB requested, the emptiest healthy GPU has 5 GiB free"
        with pytest.raises(aio.AioRpcError) as caught:
            await plugin.stub.Allocate(pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest()]))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == plugin.answers.refusal
        await plugin.observed_are("Allocate")


async def test_a_container_may_start_or_waits_with_a_reason() -> None:
    async with served() as plugin:
        request = pb.PreStartContainerRequest(devices_ids=["a", "b"])
        assert await plugin.stub.PreStartContainer(request) == pb.PreStartContainerResponse()
        plugin.answers.refusal = "GPU 0 is out of service"
        with pytest.raises(aio.AioRpcError) as caught:
            await plugin.stub.PreStartContainer(request)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert caught.value.details() == "GPU 0 is out of service"
        assert plugin.answers.asked == [(MEM, ("a", "b"))] * 2
        await plugin.observed_are("PreStartContainer", "PreStartContainer")
