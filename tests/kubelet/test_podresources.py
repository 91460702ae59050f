"""Asking the kubelet which devices are in use, over a real socket."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc import aio

from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto import podresources_pb2_grpc as v1_grpc
from gpu_device_plugin.kubelet.podresources import PodResourcesUnavailableError, listed_pods
from gpu_device_plugin.testing.kubelet import Kubelet
from gpu_device_plugin.testing.pod_resources import PodResources
from gpu_device_plugin.testing.pods import pod
from tests.kubelet.scripted_plugin import ScriptedPlugin
from tests.kubelet.short_paths import short_folder
from tests.names import MEM
from tests.patience import eventually, stretched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Huge(PodResources):
    """A node with 80,000 device IDs in use."""

    def __init__(self) -> None:
        """Know nothing else."""

    async def List(  # noqa: N802 (gRPC's name)
        self, request: v1.ListPodResourcesRequest, _context: object
    ) -> v1.ListPodResourcesResponse:
        del request
        devices = [v1.ContainerDevices(resource_name=MEM, device_ids=[f"GPU-{n:036}::{n}"]) for n in range(80_000)]
        container = v1.ContainerResources(name="c", devices=devices)
        made = v1.PodResources(name="p", namespace="default", containers=[container])
        return v1.ListPodResourcesResponse(pod_resources=[made])


class Twice(PodResources):
    """A node with two pods of one name, and one without devices."""

    def __init__(self) -> None:
        """Know nothing else."""

    async def List(  # noqa: N802 (gRPC's name)
        self, request: v1.ListPodResourcesRequest, _context: object
    ) -> v1.ListPodResourcesResponse:
        del request
        devices = [v1.ContainerDevices(resource_name=MEM, device_ids=[name]) for name in "ab"]
        ours = [v1.ContainerResources(name="c", devices=[one]) for one in devices]
        pods = [v1.PodResources(name="p", namespace="default", containers=[one]) for one in ours]
        plain = v1.PodResources(name="plain", namespace="kube-system", containers=[v1.ContainerResources(name="c")])
        return v1.ListPodResourcesResponse(pod_resources=[*pods, plain])


@asynccontextmanager
async def serving(folder: Path, servicer: Huge | Twice) -> AsyncIterator[Path]:
    server = aio.server()
    v1_grpc.add_PodResourcesListerServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{folder}/s")
    await server.start()
    try:
        yield folder / "s"
    finally:
        await server.stop(None)


async def test_the_ids_of_running_pods_are_listed_by_resource() -> None:
    """Two pods hold 1 and 2 of three IDs; another resource's devices are not ours."""
    with short_folder() as folder:
        async with Kubelet(folder) as kubelet:
            plugin = ScriptedPlugin(kubelet.device_plugin_dir, MEM, dict.fromkeys("abc", True))
            other = ScriptedPlugin(kubelet.device_plugin_dir, "x.com/y", {"z": True})
            for one in (plugin, other):
                await one.serve()
                await one.register()
            await eventually(lambda: len(kubelet.amounts) == 2)
            await kubelet.admit(pod("one", {MEM: 1, "x.com/y": 1}))
            await kubelet.admit(pod("two", {MEM: 2}))
            found = await listed_pods(kubelet.pod_resources_socket, [MEM])
            assert {name: len(devices) for name, devices in found.items()} == {"default/one": 1, "default/two": 2}
            assert frozenset().union(*found.values()) == set("abc")
            for one in (plugin, other):
                await one.stop()


async def test_pods_without_devices_are_listed_too_and_two_of_one_name_are_one() -> None:
    """The one has ended, the other is what its StatefulSet made in its place."""
    with short_folder() as folder:
        async with serving(folder, Twice()) as socket:
            assert await listed_pods(socket, [MEM]) == {"default/p": {"a", "b"}, "kube-system/plain": frozenset()}


async def test_an_answer_beyond_the_usual_limit_of_4_mib_is_read() -> None:
    with short_folder() as folder:
        async with serving(folder, Huge()) as socket:
            assert len((await listed_pods(socket, [MEM], timeout_s=stretched()))["default/p"]) == 80_000


async def test_a_kubelet_that_is_not_there_is_no_answer() -> None:
    with (
        short_folder() as folder,
        pytest.raises(
            PodResourcesUnavailableError, match=r"missing for the devices in use: No such file or directory$"
        ),
    ):
        await listed_pods(folder / "missing", [MEM])


async def test_a_kubelet_that_hangs_is_given_up() -> None:
    with short_folder() as folder:
        async with Kubelet(folder) as kubelet:
            kubelet.pod_resources_gate.hold()
            with pytest.raises(PodResourcesUnavailableError, match="Deadline Exceeded"):
                await listed_pods(kubelet.pod_resources_socket, [MEM], timeout_s=0.1)
            kubelet.pod_resources_gate.release()


async def test_a_refusal_is_passed_on_in_the_kubelets_words() -> None:
    """The kubelet answers 100 calls a second, all clients together."""
    with short_folder() as folder:
        async with Kubelet(folder) as kubelet:
            kubelet.pod_resources_gate.refuse("rejected by rate limit", grpc.StatusCode.RESOURCE_EXHAUSTED)
            with pytest.raises(PodResourcesUnavailableError, match="rejected by rate limit"):
                await listed_pods(kubelet.pod_resources_socket, [MEM])
