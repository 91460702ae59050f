"""The agent's life: whatever ends, restarts or goes away, in whatever order, it serves again and forgets nothing."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from gpu_device_plugin import files
from gpu_device_plugin.features.history.sampling import History
from gpu_device_plugin.features.node_features import NODE_FEATURES, NODE_SETTINGS
from gpu_device_plugin.features.use.node import UseReports
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.hardware.monitor import HardwareContextLost
from gpu_device_plugin.kubelet.servicer import PluginServicer
from gpu_device_plugin.kubelet.sockets import DirectoryError, DirectoryGoneError
from gpu_device_plugin.model.contract.cordons import Cordon, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS, MEMORY_GUARANTEE, RESIZE_BOUND
from gpu_device_plugin.model.contract.node_use import SERVED, read_node_use
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.model.shares import SHARES
from gpu_device_plugin.programs.agent.node_program import RESTART_AFTER, NodeProgram
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources
from tests.features.mps.mps_supervisor import Supervisor
from tests.kubelet.locks import held
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, cluster
from tests.node.harness import T4, NodeWorld, container, gpus_of, pod, world
from tests.patience import patience, until
from tests.ports import free_port

RUN = (sys.executable, "-m", "gpu_device_plugin", "node")


# --- Any order of events ----------------------------------------------------------------------------------------------


# The same few in every run; test_properties.py looks for others.


async def test_after_a_reboot_of_the_node_pods_come_back_on_the_devices_they_had() -> None:
    async with world() as node:
        await node.start_agent()
        made = [await node.kubelet.admit(pod("p", mem=3)), await node.kubelet.admit(pod("w", count=1))]
        await node.stop_agent()
        await node.kubelet.reboot()
        await node.start_agent()
        assert node.held == made[0].devices(MEM) | made[1].devices(COUNT)
        await node.kubelet.sources_ready()
        assert [node.kubelet.pod(one).phase for one in made] == ["Running", "Running"]
        assert [node.kubelet.pod(one).only.devices for one in made] == [one.only.devices for one in made]


async def test_without_pod_resources_what_was_given_stays_given() -> None:
    async with world() as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        await node.stop_agent()
        node.kubelet.pod_resources_gate.refuse("rejected by rate limit")
        await node.start_agent()
        assert node.held == made.devices(MEM)
        await node.kubelet.delete(made)
        await node.rounds(3)
        assert node.held == made.devices(MEM), "an end that nobody can prove is none"
        node.kubelet.pod_resources_gate.release()
        await node.healthy_is(COUNT, 2)


async def test_pods_that_run_under_a_former_name_of_a_resource_keep_their_gpus() -> None:
    """The resource was renamed between two starts; GPU 0 stays closed to everybody until its pod has ended."""
    async with world() as node:
        await node.start_agent()
        made = await node.kubelet.admit(pod("p", mem=3))
        await node.stop_agent()
        node.settings["domain"] = "example.com"
        node.launch()
        await node.until(lambda: node.healthy("example.com/gpu-mem") == 14)
        await node.until(lambda: node.healthy("example.com/gpu-count") == 1)
        await node.kubelet.delete(made)
        await node.until(lambda: node.healthy("example.com/gpu-mem") == 28)


# --- Hardware that comes late, goes, and comes back -------------------------------------------------------------------


async def test_without_gpus_nothing_is_registered_until_there_are_some() -> None:
    async with world([]) as node:
        agent = node.launch()
        await node.until(lambda: agent.hardware.view.value.state is State.WATCHING)
        assert node.kubelet.registrations == []
        assert await agent.server.alive() == ()
        assert "lists no GPU" in (await agent.server.ready())[0]
        await agent.hardware.pause()  # whoever resumes looks afresh, at once
        node.hardware(T4)
        agent.hardware.resume()
        await node.ready()
        assert node.healthy(MEM) == 14


async def test_paused_the_gpus_are_let_go_of_and_resumed_they_serve_again() -> None:
    async with world() as node:
        agent = await node.start_agent()
        agent.toggle_pause()
        await node.healthy_is(MEM, 0)
        await node.until(lambda: agent.hardware.view.value.state is State.PAUSED)
        assert await agent.server.ready() == ("paused: the agent does not use the GPUs",)
        agent.toggle_pause()
        await node.healthy_is(MEM, 28)


async def test_gpus_that_cannot_be_shared_are_left_out_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with world([T4, T4 | {"mig": True}, {"memory": "700MiB"}]) as node:
        with caplog.at_level("INFO"):
            agent = await node.start_agent(exclude_gpus="3")
        assert node.healthy(COUNT) == 1
        uuid = agent.config.value.facts.inventory.gpus[1].uuid
        assert (
            f"the GPU {uuid} (nvidia-smi counts it as 1) is not shared: in MIG mode and without instances, which "
            "nvidia-smi mig or mig-parted creates"
        ) in caplog.messages
        # The number that it has for people, as in MIG mode none is counted.
        assert "GPU 1 is not shared: 700 MiB, less than one share of 1 GiB" in caplog.messages


async def test_a19_a_share_size_that_makes_too_many_ids_is_refused_with_one_that_fits() -> None:
    async with world("fake:8xH200", share_size="1MiB") as node:
        node.launch()
        error = await node.ended()
        assert isinstance(error, UsageError)
        assert "splits the GPUs of this node into 1145248 shares" in str(error)
        assert "set the share size to" in str(error)


async def test_an_xid_is_told_and_takes_the_gpu_out_of_service_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world([T4, T4], probe_interval="1h", blind_after="2h") as node:
        await node.start_agent()
        node.hardware(T4, T4, events=[{"at": 0, "gpu": 1, "xid": 48}])
        await node.healthy_is(MEM, 14)
        assert any(message.startswith("GPU 1: XID 48") for message in caplog.messages)
        assert any(message.startswith("GPU 1 is ") for message in caplog.messages)


async def test_an_agent_that_lost_its_access_to_the_gpus_ends_and_condemns_none() -> None:
    """After `systemctl daemon-reload` only a new container has it again (F6)."""
    async with world([T4]) as node:
        agent = await node.start_agent()
        node.hardware(T4, events=[{"at": 0, "failure": "context-lost"}])
        assert isinstance(await node.ended(), HardwareContextLost)
        assert node.sockets == set()
        assert agent.state.node.blocks == {}


# --- One instance -----------------------------------------------------------------------------------------------------


async def test_a_directory_taken_over_by_another_instance_ends_this_one() -> None:
    """The directory was made anew, and the other was quicker."""
    async with world() as node:
        await node.start_agent()
        directory = node.kubelet.device_plugin_dir
        await node.kubelet.stop()
        directory.rename(directory.with_name("old"))
        staged = directory.with_name("staged")
        staged.mkdir()
        with held(staged):
            staged.rename(directory)
            assert "serves this node already" in str(await node.ended())


# --- Probes and metrics -----------------------------------------------------------------------------------------------


async def page(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_probes_and_metrics_show_what_the_agent_does() -> None:
    port = free_port()
    async with world([T4, T4], http=f"127.0.0.1:{port}") as node:
        agent = node.launch()
        await node.ready()
        await node.kubelet.admit(pod("p", mem=3))
        await node.kubelet.admit(pod("w", count=1))
        assert (await node.kubelet.admit(pod("x", mem=20))).phase == "Failed"
        await node.healthy_is(MEM, 14)
        assert (await page(port, "/healthz"))[0] == 200
        assert (await page(port, "/readyz"))[0] == 200
        status, text = await page(port, "/metrics")
        assert status == 200
        lines = text.splitlines()
        assert 'gpushare_allocations_total{resource="aliyun.com/gpu-mem"} 1.0' in lines
        assert 'gpushare_kubelet_registrations_total{outcome="registered",resource="aliyun.com/gpu-mem"} 1.0' in lines
        assert [offer.unhealthy for offer in agent.advertiser.offers[SHARES]] == [False, False]
        for name, values in {"": (14, 14), "_allocated": (3, 14), "_fenced": (0, 14)}.items():
            shown = [
                f'gpushare_gpu_shares{name}{{gpu="{uuid}"}} {value}.0'
                for uuid, value in zip(node.uuids, values, strict=True)
            ]
            assert set(shown) <= set(lines)
        assert {resource: up for resource, (up, _) in agent.metrics_state().streams.items()} == {
            MEM: True,
            COUNT: True,
        }
        await node.until(lambda: len(agent.features.of(UseReports).now().parts) == 2)
        status, text = await page(port, "/use")
        assert status == 200
        assert (0, 3072) in [(part.gpu, part.granted_mib) for part in read_node_use(text, SERVED).parts]
        node.kubelet.drop_streams(MEM)
        await node.until(lambda: bool(agent.registration.unmet()))
        status, text = await page(port, "/readyz")
        assert status == 503
        assert "aliyun.com/gpu-mem" in text
        await node.ready()


async def test_metrics_show_the_condition_of_the_gpus_in_the_groups_of_the_setting() -> None:
    async with world([{**T4, "temperature": 91, "throttle": ["heat"]}, T4], condition="thermal,clocks") as node:
        agent = node.launch()
        await node.until(lambda: len(agent.features.of(History).telemetry.value) == 2)
        values = {gauge.name: dict(values) for gauge, values in agent.gauges()}
        first, second = node.uuids
        assert values["gpushare_gpu_temperature_celsius"] == {(first,): 91, (second,): 35}
        throttled = values["gpushare_gpu_throttled"]
        assert [labels for labels, held in throttled.items() if held] == [(first, "heat")]
        assert values["gpushare_gpu_power_watts"] == {}


async def test_the_condition_of_the_gpus_is_not_read_where_it_is_off() -> None:
    async with world([T4], condition="off") as node:
        agent = node.launch()
        await node.ready()
        await agent.features.of(History).telemetry.after(0)
        assert agent.features.of(History).telemetry.value == {}


async def test_metrics_are_there_where_whole_gpus_alone_are_offered() -> None:
    async with world([T4], resources="count") as node:
        agent = node.launch()
        await node.until(lambda: not agent.registration.unmet())
        values = {gauge.name: list(values) for gauge, values in agent.gauges()}
        (uuid,) = node.uuids
        for name, value in (("gpushare_gpu_shares", 14), ("gpushare_gpu_shares_fenced", 0)):
            assert values[name] == [((uuid,), value)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"share_size": "100GiB"}, "15 GiB, less than one share of 100 GiB (2 GPUs)"),
        ({"exclude_gpus": "0,1"}, "excluded by the configuration (2 GPUs)"),
    ],
)
async def test_an_agent_that_shares_no_gpu_says_why_it_is_not_ready(
    caplog: pytest.LogCaptureFixture, settings: dict[str, str], reason: str
) -> None:
    port = free_port()
    async with world(http=f"127.0.0.1:{port}") as node:
        node.settings |= settings
        node.launch()
        await node.until(lambda: any(message.startswith("no GPU is shared: ") for message in caplog.messages))
        assert await page(port, "/readyz") == (
            503,
            f"no GPU is shared: {reason}; --share-size, --exclude-gpus and --mig decide this\n",
        )
        assert (await page(port, "/healthz"))[0] == 200


async def test_an_agent_that_is_ready_says_what_else_is_to_be_known(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    async with world([T4, T4], http=f"127.0.0.1:{port}", exclude_gpus="1,9") as node:
        with caplog.at_level("INFO"):
            await node.start_agent()
        status, text = await page(port, "/readyz")
        ok, unknown, limits = text.splitlines()
        assert (status, ok) == (200, "ok")
        assert limits == "memory limits: advisory: the driver has no memory limits, which come with r615"
        assert unknown.startswith("--exclude-gpus names 9, but this node has no such GPU; ")
        node.hardware(T4 | {"error": "no answer"}, T4)
        await node.healthy_is(MEM, 0)
        assert [caplog.messages.count(line) for line in (limits, unknown)] == [1, 1]


async def test_an_agent_whose_sockets_do_not_answer_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = threading.Event()
    answer = PluginServicer.GetDevicePluginOptions

    async def options(self: PluginServicer, request: Any, context: Any) -> Any:
        if deaf.is_set():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many open files")
        return await answer(self, request, context)

    monkeypatch.setattr(PluginServicer, "GetDevicePluginOptions", options)
    async with world() as node:
        agent = await node.start_agent()
        assert await agent.server.alive() == ()
        deaf.set()
        assert await agent.server.alive() == ("the agent's sockets do not answer",)
        deaf.clear()
        assert await agent.server.alive() == ()


async def test_an_agent_that_waits_for_the_kubelets_directory_is_alive_and_not_ready() -> None:
    """A probe that restarts it would do so for ever: a new process has to wait as well."""
    async with world() as node:
        agent = await node.start_agent()
        directory = node.kubelet.device_plugin_dir
        directory.rename(directory.with_name("away"))
        missing = f"the device-plugin directory {directory} is missing"
        await node.until(lambda: missing in agent.registration.unmet())
        assert await agent.server.alive() == ()
        assert missing in await agent.server.ready()
        directory.with_name("away").rename(directory)
        await node.ready()
        assert await agent.server.alive() == ()


async def test_no_disk_keeps_the_kubelet_waiting_for_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the agent keeps for the next one is written, and synced, beside the loop that answers the kubelet."""
    on_loop: list[str] = []
    sync, replace_below = os.fsync, files.replace_below

    def synced(descriptor: int) -> None:
        if threading.current_thread() is threading.main_thread():
            on_loop.append(f"fsync of {Path(f'/proc/self/fd/{descriptor}').readlink()}")
        sync(descriptor)

    def replaced(root: Path, name: str, content: bytes, **rest: Any) -> None:
        if threading.current_thread() is threading.main_thread() and name.endswith(("allocations", "guarantees")):
            on_loop.append(name)
        replace_below(root, name, content, **rest)

    mps = tmp_path / "mps"
    mps.mkdir()
    async with cluster("fake:2xT4", limits="mps", limits_fallback="advisory", mps_dir=str(mps)) as there:
        supervisor = Supervisor(mps)
        supervisor.start()
        there.api.add(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {RESIZE_BOUND: "9"}}}
        )
        there.node.launch()
        there.cluster.look_s = 0.05  # before the first look: the next would be a minute later
        await there.node.ready()
        await there.node.until(lambda: there.cluster.followed.reflector.synced)
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(files, "replace_below", replaced)
        await there.run(pod("a", mem=4))
        there.api.patch("pods", "a", {"metadata": {"annotations": {MEMORY_GUARANTEE: "6"}}})
        uuid = there.node.uuids[1]
        cordons = write_cordons({uuid: Cordon("alice")})
        there.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: cordons}}})
        folder = there.node.kubelet.device_plugin_dir / "gpushare"
        kept = {name: folder / name for name in ("guarantees", "allocations", "cordons")}
        await there.node.until(lambda: all(path.exists() and path.read_text().strip() for path in kept.values()))
        assert uuid in kept["cordons"].read_text()
        await there.node.rounds(2)
        await supervisor.stop()
    assert on_loop == []


# --- The real command line --------------------------------------------------------------------------------------------


@dataclass
class Process:
    """An agent that runs as people run it."""

    process: asyncio.subprocess.Process
    lines: list[dict[str, Any]] = field(default_factory=list)

    async def read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))

    def said(self, message: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["msg"] == message), None)

    async def ends(self) -> int:
        async with patience(self):
            return await self.process.wait()


@asynccontextmanager
async def running(node: NodeWorld, *before: str, **changed: str) -> AsyncIterator[Process]:
    """Start an agent as a process of its own, and wait until it is registered."""
    settings = node.settings | {"log_level": "info"} | changed
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    started = len(node.kubelet.registrations)
    process = await asyncio.create_subprocess_exec(*before, *RUN, *flags, stderr=asyncio.subprocess.PIPE)
    made = Process(process)
    reading = asyncio.create_task(made.read())
    try:
        await node.until(lambda: len(node.kubelet.registrations) >= started + 2)
        await node.until(lambda: node.healthy(MEM) > 0)
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def test_sigterm_ends_streams_and_leaves_no_socket() -> None:
    async with world() as node, running(node) as agent:
        assert len(node.sockets) == 2
        made = await node.kubelet.admit(pod("p", mem=3))
        agent.process.terminate()
        assert await agent.ends() == 0
        assert node.sockets == set()
        await node.until(lambda: not any(stream.open for stream in node.kubelet.streams))
        assert {stream.error for stream in node.kubelet.streams} == {"EOF"}
        assert node.kubelet.pod(made).phase == "Running"
        assert agent.said("stopping")


async def test_a_killed_agent_is_followed_by_one_that_knows_everything() -> None:
    """SIGKILL leaves sockets, a lock file that nobody holds, and an NVML child that ends by itself."""
    async with world() as node:
        async with running(node) as agent:
            made = await node.kubelet.admit(
                pod("p", container("init", kind=ContainerKind.INIT, mem=4), container("a", mem=1))
            )
            left = node.sockets
            agent.process.kill()
            assert await agent.ends() == -signal.SIGKILL
            assert node.sockets == left
        await node.start_agent()
        assert not node.sockets & left
        assert node.held == made.devices(MEM)
        assert node.healthy(COUNT) == 1


async def test_a8_a_second_instance_is_refused_names_the_first_and_changes_nothing() -> None:
    async with world() as node:
        await node.start_agent()
        sockets = node.sockets
        second = await asyncio.create_subprocess_exec(
            *RUN, *(f"--{name.replace('_', '-')}={value}" for name, value in node.settings.items()), stderr=-1
        )
        _, error = await second.communicate()
        assert second.returncode == 2
        (line,) = error.decode().splitlines()
        assert line.startswith(f"gpu-device-plugin: process {os.getpid()} on {socket.gethostname()} serves this node")
        assert node.sockets == sockets
        assert (await node.kubelet.admit(pod("p", mem=3))).phase == "Running"


async def test_sighup_reads_the_configuration_again_and_survives_a_wrong_one() -> None:
    async with world() as node:
        config = node.folder / "node.yaml"
        config.write_text("policy: binpack\n")
        async with running(node, config=str(config)) as agent:
            config.write_text("policy: spread\n")
            agent.process.send_signal(signal.SIGHUP)
            await node.until(lambda: agent.said("the configuration was read again") is not None)
            read = agent.said("the configuration was read again")
            assert read is not None
            assert read["applied"] == ["policy"]
            made = [await node.kubelet.admit(pod(name, mem=3)) for name in "ab"]
            assert gpus_of(made[0]) != gpus_of(made[1])
            config.write_text("policy: sideways\n")
            agent.process.send_signal(signal.SIGHUP)
            await node.until(lambda: agent.said("the configuration stays as it was") is not None)
            complaint = agent.said("the configuration stays as it was")
            assert complaint is not None
            assert "sideways" in complaint["why"]
            agent.process.send_signal(signal.SIGUSR1)
            await node.healthy_is(MEM, 0)
            agent.process.send_signal(signal.SIGUSR1)
            await node.healthy_is(MEM, 28)


async def test_a3_without_inotify_everything_is_noticed_by_looking() -> None:
    """A node whose inotify instances are used up; here a user namespace that has none."""
    without = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh")
    check = await asyncio.create_subprocess_exec(*without, "true", stderr=asyncio.subprocess.DEVNULL)
    if await check.wait():
        pytest.skip("user namespaces are not allowed here")
    async with world() as node, running(node, *without) as agent:
        registered = len(node.kubelet.registrations)
        await node.kubelet.restart(ready=True)
        await node.until(lambda: len(node.kubelet.registrations) >= registered + 2)
        await node.healthy_is(MEM, 28)
        agent.process.terminate()
        assert await agent.ends() == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gpus": "fake:8xH200", "share_size": "1MiB"}, "a kubelet handles about 4000; set the share size to"),
        ({"device_plugin_dir": "/does/not/exist"}, "is not a directory; it has to be the kubelet's"),
        ({"gpus": "/does/not/exist.yaml"}, "/does/not/exist.yaml: cannot be read"),
        ({"domain": "kubernetes.io"}, "kubernetes.io"),
        ({"memory_resource": "gpu-count"}, "both resources would be called aliyun.com/gpu-count"),
        ({"api": "/does/not/exist.conf", "node_name": "n"}, "/does/not/exist.conf"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_what_cannot_work_is_one_line_andexit_code_2(changed: dict[str, str], said: str) -> None:
    """A19 among them: a share size that makes more IDs than any kubelet reads names one that fits."""
    async with world() as node:
        settings = node.settings | {"log_level": "error"} | changed
        command = [*RUN, *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items())]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        async with patience(process):
            _, error = await process.communicate()
        assert process.returncode == 2, error.decode()
        (line,) = error.decode().splitlines()
        assert line.startswith("gpu-device-plugin: ")
        assert said in line
        assert node.sockets == set()


async def test_an_address_in_use_is_misuse_and_a_line_that_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with world() as node:
            flags = [f"--{name.replace('_', '-')}={value}" for name, value in node.settings.items()]
            flags.append(f"--http=127.0.0.1:{port}")
            done = await asyncio.create_subprocess_exec(*RUN, *flags, stderr=asyncio.subprocess.PIPE)
            _, error = await done.communicate()
    assert done.returncode == 2
    assert error.decode().splitlines()[-1] == (
        f"gpu-device-plugin: http: cannot listen on 127.0.0.1:{port}: another program listens there already, or this "
        "one for another purpose; choose another port"
    )
    assert "Traceback" not in error.decode()


def test_an_agent_without_gpus_obeys_signals_like_any_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It reads its configuration again, pauses, resumes, and ends."""
    (tmp_path / "gpus.json").write_text('{"gpus": []}')
    config = tmp_path / "node.yaml"
    config.touch()
    flags = {"gpus": f"{tmp_path}/gpus.json", "device_plugin_dir": str(tmp_path), "api": "off", "config": str(config)}

    def send() -> None:
        until(lambda: signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL)
        for policy, answer in zip(("sideways", "spread"), said, strict=False):
            config.write_text(f"policy: {policy}\n")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda a=answer: a in caplog.messages)  # type: ignore[misc]
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: any(message.startswith("paused: GPUs can be reset now") for message in caplog.messages))
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)

    said = ["the configuration stays as it was", "the configuration was read again", "stopping"]
    sender = threading.Thread(target=send, daemon=True)
    sources = Sources(NODE_SETTINGS, flags=flags, environ={})
    sender.start()
    with caplog.at_level("INFO"):
        assert NodeProgram(sources, sources.texts(), sources.read(), NODE_FEATURES).main() == 0
    sender.join()
    assert list(dict.fromkeys(message for message in caplog.messages if message in said)) == said


# --- Exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [HardwareContextLost("gone"), DirectoryGoneError("gone"), DirectoryError("gone")])
def test_how_an_agent_ends_decides_whether_it_is_worth_starting_anew(error: Exception) -> None:
    assert isinstance(error, RESTART_AFTER)
    assert not isinstance(UsageError("wrong"), (OSError, *RESTART_AFTER))
