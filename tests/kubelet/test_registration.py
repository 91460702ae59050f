"""Registering with a kubelet, and what is said when it does not work."""

from __future__ import annotations

import socket
import subprocess
import sys

import grpc
import pytest

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet.registration import NotRegisteredError, answers, register
from gpu_device_plugin.testing.kubelet import Kubelet
from tests.kubelet.scripted_plugin import Script, ScriptedPlugin
from tests.kubelet.short_paths import short_folder
from tests.names import MEM
from tests.patience import eventually, stretched

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
            (made,) = kubelet.registrations
            assert (made.version, made.resource, made.endpoint) == ("v1beta1", MEM, plugin.socket.name)
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
                "from gpu_device_plugin.kubelet.registration import *\n"
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
