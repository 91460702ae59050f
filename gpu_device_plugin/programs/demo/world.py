"""A node in a folder: a simulated kubelet, the real agent as a process of its own, and GPUs that can be broken.

Run as a program, this module is that agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_device_plugin import logs
from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.aio.waiting import together, wait_within
from gpu_device_plugin.commandline import ending
from gpu_device_plugin.feature_list import FeatureSpec
from gpu_device_plugin.features.node_features import NODE_FEATURES, NODE_SETTINGS
from gpu_device_plugin.features.over_use import OverUseSettings
from gpu_device_plugin.features.over_use.rules import OverUseRules
from gpu_device_plugin.features.use.node import UseReports
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.kubelet.procfs import PROC
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import SharedGpu, Shares, parse_id
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.node.rules.advertised_devices import offers
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.node import Block, Node
from gpu_device_plugin.node.rules.node_config import GONE
from gpu_device_plugin.programs.agent.node_program import NodeProgram
from gpu_device_plugin.programs.demo.demo_pods import FakeGpus, Pods
from gpu_device_plugin.settings.knobs import ENVIRONMENT_PREFIX, UsageError
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.testing.cluster.api_server import ApiServer
from gpu_device_plugin.testing.kubelet.kubelet_double import Kubelet
from gpu_device_plugin.testing.pod_specs import Pod

# Settings with short intervals, so that no scene waits long. The demo's containers run no program on a real GPU, so
# processes found there belong to other users and say nothing about the demo's pods.
_QUICK = {
    "probe_interval": "200ms",
    "reconcile_interval": "200ms",
    "process_wait": "0s",
    "usage_interval": "0s",
    "log_format": "json",
}
# Where the demo's pods have processes, because the GPUs are fake and can be told of them.
_WITH_PROCESSES = {
    "usage_interval": "200ms",
    "over_use": "evict-when-short",
    "over_use_grace": "1s",
    "over_use_slack": "256MiB",
    "borrowers": "evict",
    "return_grace": "5s",
}
_UNHEALTHY = " is unhealthy: "
"""The words between a GPU and the reason in the agent's log."""
_PATIENCE_S = 60.0
"""Only what never comes about is waited for so long."""


class DemoError(Exception):
    """The demo cannot start or continue; the message says why."""


class Agent:
    """The real agent, started as a process and observed through its log, its sockets and the API server alone."""

    def __init__(self, settings: Mapping[str, str], log: Path, proc: Path = PROC) -> None:
        """Prepare to start it with `settings`, by their names in a file, and with `log` as its log file.

        In `proc` it reads whose the processes on the GPUs are.
        """
        self._proc = proc
        self._settings = settings
        self._log = log
        self.process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start a process, with an empty log."""
        # Settings in the environment are those of a real agent, and do not apply here.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        logs.quiet_grpc(environ)
        with self._log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "gpu_device_plugin.programs.demo.world", str(self._proc), json.dumps(self._settings)),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=log,
                env=environ,
                start_new_session=True,  # Ctrl-C in a terminal is meant for the demo, which then stops the agent
            )

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield the complete lines of its log, the newest first."""
        for line in reversed(self._log.read_text(errors="replace").split("\n")[:-1]):
            try:
                yield json.loads(line)
            except ValueError:
                yield {"msg": line}

    def said(self, text: str, **fields: str) -> str | None:
        """Return the newest message in its log with this text in it and with these fields, None if there is none."""
        return next(
            (line["msg"] for line in self._lines() if text in line["msg"] and fields.items() <= line.items()), None
        )

    def unhealthy(self, uuid: str) -> str | None:
        """Return the reason for which it last took a GPU out of service, None if it never did."""
        return (self.said(_UNHEALTHY, uuid=uuid) or "").partition(_UNHEALTHY)[2] or None

    def require(self) -> None:
        """Raise DemoError if its process ended by itself; the message has its last log line."""
        if self.process is not None and self.process.returncode is not None:
            last = next(self._lines(), {"msg": "its log is empty"})
            raise DemoError(f"The agent ended: {last.get('traceback') or last.get('why') or last['msg']}")

    async def end(self, number: signal.Signals) -> None:
        """Send its process a signal that ends it, and wait until it has ended."""
        process, self.process = self.process, None
        if process is None:
            return
        signal_child(process.pid, process.returncode, number)
        if not await wait_within(_PATIENCE_S, process.wait()):
            signal_child(process.pid, process.returncode, signal.SIGKILL)
            await process.wait()


@dataclass(eq=False)
class World:
    """The node, as seen from outside the agent: the kubelet's records, the pods in the API and the GPUs themselves."""

    kubelet: Kubelet
    pods: Pods
    agent: Agent
    fake: FakeGpus
    settings: NodeSettings
    shares: Shares
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The MiB that the processes of pods use, by name of the pod and UUID of the GPU; see `use`."""
    _faults: tuple[Mapping[str, object], ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.pods.on_end = lambda pod: self.use({pod.name: 0})
        self.scripted = self.fake.scripted
        self.resources = self.settings.offered
        self.memory, self.count = (resource.name for resource in self.settings.offered)
        self.policy = self.settings.policy
        exceeds = self.settings.of(OverUseSettings)
        self.over_use = OverUseRules(exceeds.over_use_slack_mib, exceeds.over_use_grace_s)

    @property
    def devices_listed(self) -> Mapping[str, frozenset[str]]:
        """All devices of the GPUs, by resource."""
        return {
            resource.name: frozenset(name for shared in self.shares.gpus for name in shared.ids(resource.listing))
            for resource in self.resources
        }

    @property
    def node(self) -> Node:
        """The node as the kubelet's pods and its lists of devices show it."""
        held = frozenset().union(*self.held().values())
        return Node(self.shares, Ledger().seen(held), self._blocks())

    def held(self) -> dict[str, frozenset[str]]:
        """Return the devices of every pod that runs, by its name."""
        return {pod.name: self.devices(pod) for pod in self.kubelet.running}

    def use(self, amounts: Mapping[str, int]) -> None:
        """Have a process of each of these pods use so many MiB of each of its GPUs; 0: it has none any more.

        Other pods go on as before. Without effect on GPUs that are not `scripted`.
        """
        wanted = {name: mib for (name, _), mib in self.used.items()} | dict(amounts)
        # A process on an instance of MIG that exists no more cannot be described.
        using = [
            (pod, shared, wanted[pod.name])
            for pod in self.kubelet.running
            for shared in (self.gpus_of(pod) if wanted.get(pod.name) else ())
            if not shared.gone
        ]
        if self.scripted:
            self.used = {(pod.name, shared.gpu.uuid): mib for pod, shared, mib in using}
            self.fake.publish(self._faults, using)

    def strike(self, *faults: Mapping[str, object]) -> None:
        """Make these the only faults of the GPUs, which are `scripted`; without any all are well again."""
        self._faults = faults
        self.use({})

    def gpus_of(self, *pods: Pod) -> list[SharedGpu]:
        """Return the GPUs on which pods have devices."""
        uuids = {parse_id(name)[0] for pod in pods for name in self.devices(pod)}
        return [shared for shared in self.shares.gpus if shared.gpu.uuid in uuids]

    async def divide(self, instances: str) -> None:
        """Divide GPU 0, which is fake and in MIG mode, into other instances."""
        used = {name: mib for (name, _), mib in self.used.items()}
        self.use(dict.fromkeys(used, 0))  # no driver takes an instance away from a process
        self.strike({"at": "0s", "gpu": 0, "mig": instances})
        view = await _look(self.fake.source)
        self.shares = self.shares.with_inventory(view.inventory, mig=MigMode(self.settings.mig))
        self.use(used)

    def granted_mib(self, pod: Pod) -> int:
        """Return the memory that a pod was given of each of its GPUs, all of a whole GPU."""
        numbers: Counter[str] = Counter()
        for uuid, number in map(parse_id, self.devices(pod)):
            shared = self.shares.by_uuid(uuid)
            if number is None and shared is not None:
                return shared.gpu.capacity_mib
            numbers[uuid] += 1
        return max(numbers.values(), default=0) * self.shares.share_mib

    def devices(self, pod: Pod) -> frozenset[str]:
        """Return all devices of a pod, of both resources."""
        return pod.devices(self.memory) | pod.devices(self.count)

    def offered(self, *, sick: bool = False) -> Mapping[str, frozenset[str]]:
        """Return the devices that the kubelet believes healthy, by resource; they may be in use. `sick`: others too."""
        known = self.kubelet.health if self.kubelet.up else {}
        return {
            resource.name: frozenset(name for name, healthy in known.get(resource.name, {}).items() if healthy or sick)
            for resource in self.resources
        }

    def healthy(self, resource: str) -> int:
        """Return how many devices of a resource the kubelet believes healthy."""
        return len(self.offered()[resource])

    def complete(self) -> bool:
        """Return whether the kubelet knows all devices, healthy or not."""
        return self.offered(sick=True) == self.devices_listed

    def settled(self) -> bool:
        """Return whether the kubelet knows every fence that the pods' devices require."""
        node = self.node
        due = {
            resource.name: frozenset(
                device
                for offer in offers(node, resource.listing)
                for device, healthy in offer.devices(resource.listing)
                if healthy
            )
            for resource in self.resources
        }
        return due == self.offered()

    @property
    def unknown(self) -> frozenset[str]:
        """The UUIDs of the GPUs of which this kubelet, since it started, was told nothing."""
        told = {parse_id(name)[0] for devices in self.offered(sick=True).values() for name in devices}
        return frozenset(shared.gpu.uuid for shared in self.shares.gpus if shared.gpu.uuid not in told)

    def _blocks(self) -> dict[str, Block]:
        # A GPU in use through one resource is fenced in the other, but its devices in use stay healthy: so a GPU
        # without any healthy device is out of service.
        alive = {parse_id(name)[0] for names in self.offered().values() for name in names}
        silent = "no agent reports its health" if self.kubelet.up else "the kubelet is down"
        return {
            shared.gpu.uuid: Block(
                GONE if shared.gone else (self.agent.running and self.agent.unhealthy(shared.gpu.uuid)) or silent
            )
            for shared in self.shares.gpus
            if shared.gpu.uuid not in alive
        }

    async def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until `condition` holds, at most `_PATIENCE_S` seconds; return whether it does.

        Raises:
            DemoError: the agent ended.
        """

        async def holds() -> None:
            while not condition():
                self.agent.require()
                await asyncio.sleep(0.02)

        return await wait_within(_PATIENCE_S, holds())


@asynccontextmanager
async def world(api: ApiServer, node: str, gpus: str, *, metrics: bool = False, **more: str) -> AsyncIterator[World]:
    """Make a node with GPUs, as in the agent's settings, and a running kubelet; its agent is prepared and not started.

    The API server is stopped before the agent ends. With `metrics` the agent serves HTTP, to those who ask through the
    API server; `more` are further settings of it.

    Raises:
        UsageError: `gpus` names no GPUs.
        DemoError: there are no GPUs, or none that can be shared.
    """
    settings = Sources(NODE_SETTINGS, flags={"gpus": gpus, **_WITH_PROCESSES, **more}, environ={}).read()
    view = await _look(gpus)
    inventory = view.inventory.with_unified(settings.unified_memory_mib)
    shares = Shares(settings.share_size_mib).with_inventory(inventory, mig=MigMode(settings.mig))
    if not shares.any_listed:
        why = "; ".join(f"{shares.name_of(gpu)} is not shared: {why}" for gpu, why in shares.left_out) or view.sentence
        raise DemoError(f"No GPUs to share: {why}")
    with TemporaryDirectory(prefix="gs") as folder:
        root = Path(folder)
        try:
            kubelet = Kubelet(root, node=node)
        except ValueError as error:
            raise UsageError(f"{error}; set TMPDIR=/tmp") from error
        fake = FakeGpus(root, gpus)
        async with kubelet:
            pods = Pods(api, kubelet)
            flags = {
                **_QUICK,
                **(_WITH_PROCESSES if fake.scripted else {}),
                **({"http": pods.add_agent()} if metrics else {}),
                "api": api.url,
                "node_name": node,
                "gpus": fake.source,
                "device_plugin_dir": str(kubelet.device_plugin_dir),
                "pod_resources_socket": str(kubelet.pod_resources_socket),
                "memory_dir": str(root / "memory"),
                **more,
            }
            made = World(kubelet, pods, Agent(flags, root / "agent.log", fake.proc), fake, settings, shares)
            kubelet_work = asyncio.create_task(together(pods.end_deleted(), pods.publish_node()), name="kubelet")
            try:
                yield made
            finally:
                # Without the API server the agent ends at once: it waits for no pod that a scheduler may still bind.
                await api.stop()
                await made.agent.end(signal.SIGTERM)
                kubelet_work.cancel()
                with suppress(asyncio.CancelledError):
                    await kubelet_work


async def _look(gpus: str) -> HardwareView:
    try:
        hardware = Hardware(gpus)
    except DescriptionError as error:
        raise UsageError(f"--gpus: {error}") from error
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(hardware.run(), name="look at the GPUs")
        _, view = await hardware.view.after(0)
        looking.cancel()
    return view


# --- In the agent's process -------------------------------------------------------------------------------------------


def _run(proc: Path, flags: Mapping[str, str]) -> int:
    """Run the agent as `gpu-device-plugin node` does, but with the fake processes in `proc`: none is in /proc.

    It writes who uses what on its node as often as that changes: a cluster would be asked too much.
    """
    # The settings in the environment are those of an agent in earnest.
    sources = Sources(NODE_SETTINGS, flags, environ={})
    texts = sources.texts()
    settings = sources.read(texts=texts)
    logs.configure(settings.log_level, settings.log_format, sys.stderr, colour=False)

    def agent(settings: NodeSettings, features: Iterable[FeatureSpec]) -> NodeAgent:
        made = NodeAgent(settings, features, proc=proc)
        made.features.of(UseReports).soon_s = made.features.of(UseReports).seldom_s = 0.2
        return made

    return NodeProgram(sources, texts, settings, NODE_FEATURES, agent=agent).main()


if __name__ == "__main__":
    sys.exit(ending(sys.argv[0], partial(_run, Path(sys.argv[1]), json.loads(sys.argv[2]))))
