"""Calling the kubelet over a real socket, and the messages when it does not work."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from gpu_device_plugin.kubelet.calls import (
    NotRegisteredError,
    PodResourcesUnavailableError,
    answers,
    listed_pods,
    register,
)
from tests.kubelet.gated_kubelet import Kubelet
from tests.kubelet.pod_lines import pod
from tests.kubelet.scripted_plugin import Script, ScriptedPlugin
from tests.kubelet.short_paths import short_folder
from tests.names import MEM
from tests.patience import eventually, stretched


class Listing(PodResourcesListerServicer):
    """Lists these pods, each by namespace/name with the IDs of its devices."""

    def __init__(self, *pods: tuple[str, Iterable[str]]) -> None:
        self._pods = pods

    async def List(  # noqa: N802 (gRPC's name)
        self, _request: v1.ListPodResourcesRequest, _context: object
    ) -> v1.ListPodResourcesResponse:
        pods = []
        for full_name, ids in self._pods:
            namespace, name = full_name.split("/")
            devices = [v1.ContainerDevices(resource_name=MEM, device_ids=[each]) for each in ids]
            container = v1.ContainerResources(name="c", devices=devices)
            pods.append(v1.PodResources(name=name, namespace=namespace, containers=[container]))
        return v1.ListPodResourcesResponse(pod_resources=pods)


@asynccontextmanager
async def serving(folder: Path, *pods: tuple[str, Iterable[str]]) -> AsyncIterator[Path]:
    server = aio.server()
    add_PodResourcesListerServicer_to_server(Listing(*pods), server)  # type: ignore[abstract]
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
        pods = (("default/p", "a"), ("default/p", "b"), ("kube-system/plain", ""))
        async with serving(folder, *pods) as socket:
            assert await listed_pods(socket, [MEM]) == {"default/p": {"a", "b"}, "kube-system/plain": frozenset()}


async def test_an_answer_beyond_the_usual_limit_of_4_mib_is_read() -> None:
    with short_folder() as folder:
        ids = [f"GPU-{n:036}::{n}" for n in range(80_000)]
        async with serving(folder, ("default/p", ids)) as socket:
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


OPTIONS = pb.DevicePluginOptions(get_preferred_allocation_available=True)


@pytest.mark.parametrize("version", [(1, 20), (1, 24), (1, 25), (1, 36)])
async def test_a_resource_is_registered_with_its_options_and_the_name_of_its_socket(version: tuple[int, int]) -> None:
    """Older kubelets read the options here, newer ones ask for them at the socket."""
    with short_folder() as folder:
        async with Kubelet(folder, version=version) as kubelet:
            plugin = ScriptedPlugin(kubelet.device_plugin_dir, MEM, {"a": True}, script=Script(options=OPTIONS))
            await plugin.serve()
            await register(kubelet.registration_socket, plugin.socket, MEM, OPTIONS)
            await eventually(lambda: MEM in kubelet.amounts)
            made = kubelet.registrations[0].request
            assert (made.version, made.resource_name, made.endpoint) == ("v1beta1", MEM, plugin.socket.name)
            assert made.options == OPTIONS
            await plugin.stop()


async def refused_by(kubelet: Kubelet, name: str = MEM, timeout_s: float = 10) -> str:
    with pytest.raises(NotRegisteredError) as caught:
        await register(kubelet.registration_socket, kubelet.device_plugin_dir / "p", name, OPTIONS, timeout_s)
    return str(caught.value)


async def test_a_kubelet_that_refuses_is_quoted() -> None:
    with short_folder() as folder:
        async with Kubelet(folder) as kubelet:
            said = await refused_by(kubelet, "no-domain")
            assert said.startswith(f"registering no-domain at {kubelet.registration_socket}: the kubelet refused: ")
            assert 'the ResourceName "no-domain" is invalid' in said


async def test_a5_a_missing_socket_is_told_from_a_dead_one() -> None:
    with short_folder() as folder:
        kubelet = Kubelet(folder)
        assert "the socket does not exist; the kubelet is not running, or" in await refused_by(kubelet)
        await kubelet.start()
        await kubelet.stop()
        assert kubelet.registration_socket.exists()
        assert "no process answers" in await refused_by(kubelet)


async def test_a5_a_socket_on_which_nobody_serves_is_not_waited_for_for_ever() -> None:
    """Somebody listens and never accepts."""
    with short_folder() as folder:
        kubelet = Kubelet(folder)
        kubelet.device_plugin_dir.mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(kubelet.registration_socket))
            listening.listen()
            assert "did not answer in time" in await refused_by(kubelet, timeout_s=stretched(0.3))


async def test_a5_a_kubelet_that_hangs_in_register_is_given_up() -> None:
    with short_folder() as folder:
        async with Kubelet(folder) as kubelet:
            kubelet.register_gate.hold()
            assert "the kubelet accepted the call and did not answer in time" in await refused_by(
                kubelet, timeout_s=stretched(0.3)
            )
            kubelet.register_gate.release()


async def test_a5_a_socket_that_may_not_be_opened_is_told_from_a_dead_one() -> None:
    """Root may everything, so that a process without its rights has to try."""
    with short_folder() as folder:
        async with Kubelet(folder) as kubelet:
            folder.chmod(0o755)
            kubelet.device_plugin_dir.chmod(0o755)
            kubelet.registration_socket.chmod(0)
            code = (
                "import asyncio, os, pathlib, sys\n"
                "from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb\n"
                "from gpu_device_plugin.kubelet.calls import *\n"
                "kubelet = pathlib.Path(sys.argv[1])\n"
                "if os.geteuid() == 0: os.setuid(65534)\n"
                "try: asyncio.run(register(kubelet, kubelet, 'a.com/b', pb.DevicePluginOptions()))\n"
                "except NotRegisteredError as error: print(error)"
            )
            command = [sys.executable, "-c", code, str(kubelet.registration_socket)]
            done = subprocess.run(  # noqa: ASYNC221 (nothing else runs meanwhile)
                command, capture_output=True, text=True, check=True, timeout=stretched()
            )
            assert "permission denied; on a node with SELinux the agent needs a label" in done.stdout


async def test_a_plugin_that_answers_is_told_from_one_that_does_not() -> None:
    with short_folder() as folder:
        plugin = ScriptedPlugin(folder, MEM, {})
        assert not await answers(plugin.socket)
        await plugin.serve()
        assert await answers(plugin.socket, timeout_s=stretched())
        plugin.options_gate.refuse("out of files", grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert not await answers(plugin.socket)
        plugin.options_gate.hold()
        assert not await answers(plugin.socket, timeout_s=0.1)
        plugin.options_gate.release()
        await plugin.stop()
        assert not await answers(plugin.socket)
