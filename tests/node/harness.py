"""A node in a folder: a kubelet double, fake GPUs, and the agent between them, all in one event loop."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_device_plugin.feature_list import FeatureSpec, settings_of
from gpu_device_plugin.features.node_features import NODE_FEATURES
from gpu_device_plugin.kubelet.rounds import RoundTimings
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.testing.kubelet.device_manager import Amount
from gpu_device_plugin.testing.pod_specs import ContainerSpec, Pod, PodSpec
from tests.kubelet.gated_kubelet import Kubelet
from tests.names import COUNT, MEM
from tests.patience import eventually, patience, stretched

QUICK = {"probe_interval": "50ms", "reconcile_interval": "100ms"}
"""Settings under which nothing that a test waits for takes long."""


def registering() -> RoundTimings:
    """Return the same for the registration loop; a kubelet on a busy machine is slow to listen."""
    return RoundTimings(poll=0.05, stream_grace=stretched(0.3), retry_first=0.02, retry_most=0.2)


NOTHING = Amount(0, 0)

T4 = {"model": "T4"}
"""A card for `world` and `NodeWorld.hardware`: 14 shares of 1 GiB."""


@dataclass
class NodeWorld:
    """What a test acts on and looks at."""

    kubelet: Kubelet
    settings: dict[str, str]
    folder: Path
    features: Sequence[FeatureSpec] = NODE_FEATURES
    agent: NodeAgent | None = None
    task: asyncio.Task[Any] | None = field(default=None, repr=False)

    async def start_agent(self, **changed: str) -> NodeAgent:
        """Start an agent, and wait until the kubelet listens to it."""
        self.settings |= changed
        agent = self.launch()
        await self.ready()
        return agent

    def launch(self) -> NodeAgent:
        """Start an agent and wait for nothing."""
        assert self.task is None
        self.agent = NodeAgent(
            self._read(self.settings),
            self.features,
            dev=self.dev,
            proc=self.proc,
            cgroups=self.cgroups,
        )
        self.agent.registration.timings = registering()
        self.task = asyncio.create_task(self.agent.run())
        return self.agent

    def reload(self, **changed: str) -> None:
        """Let the agent apply other settings, as when their file was changed."""
        assert self.agent is not None
        self.agent.reload(self._read({**self.settings, **changed}))

    def _read(self, settings: dict[str, str]) -> NodeSettings:
        return Sources(settings_of(self.features, NodeSettings), flags=settings, environ={}).read()

    async def ready(self) -> None:
        """Wait until the kubelet listens to both resources."""
        assert self.agent is not None
        agent = self.agent
        await self.until(lambda: bool(agent.state.node.shares.gpus) and not agent.registration.unmet())
        await self.until(lambda: self._listened_to() >= {r.name for r in agent.settings.value.offered})

    def _listened_to(self) -> set[str]:
        """The resources of which the kubelet has got a list over a stream that is open, from a socket that is there."""
        there = self.sockets
        return {each.resource for each in self.kubelet.streams if each.open and each.lists and each.endpoint in there}

    async def stop_agent(self) -> None:
        """Stop the agent as SIGTERM does."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.task = self.agent = None

    async def ended(self) -> BaseException:
        """Wait until the agent ends by itself, and return why: the first error of its groups."""
        assert self.task is not None
        error: BaseException
        async with patience(self):
            (error,) = await asyncio.gather(self.task, return_exceptions=True)
        self.task = self.agent = None
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, BaseException)
        return error

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; fail if the agent ends before."""
        await eventually(condition, running=lambda: filter(None, [self.task]))

    def hardware(self, *gpus: dict[str, Any], **rest: Any) -> None:
        """Make the fake hardware what is described; the agent's child reads the file when it changes."""
        new = self.folder / "gpus.new"
        new.write_text(json.dumps({"gpus": list(gpus), **rest}))
        new.replace(self.folder / "gpus.json")

    @property
    def dev(self) -> Path:
        """What stands for /dev."""
        return self.folder / "dev"

    @property
    def cgroups(self) -> Path:
        """What stands for /sys/fs/cgroup: nothing, as in a pod that sees only its own."""
        return self.folder / "cgroup"

    @property
    def proc(self) -> Path:
        """What stands for /proc: without a process of its own, so that the agent looks whether it sees any."""
        return self.folder / "proc"

    def show_processes(self) -> None:
        """Let the agent be in the PID namespace of its node, as with `hostPID: true`."""
        namespaces = self.proc / "self" / "ns"
        namespaces.mkdir(parents=True)
        (namespaces / "pid").symlink_to("pid:[4026531836]")

    def process(self, pid: int, made: Pod | PodSpec, container_id: str) -> None:
        """Let a process run in a container of a pod, in the cgroup in which the kubelet puts it."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pid} (python) S 1 1 1 0 -1 0 1 0 0 0 0 0 0 0 20 0 1 0 5 9 9\n")
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{made.uid}/{container_id}\n")

    @property
    def uuids(self) -> list[str]:
        """The UUIDs of the GPUs, in order."""
        assert self.agent is not None
        return [shared.gpu.uuid for shared in self.agent.state.node.shares.gpus]

    @property
    def processes(self) -> list[int | None]:
        """How many processes the agent has seen on each GPU."""
        assert self.agent is not None
        return [reading.processes for reading in self.agent.hardware.readings.value.values()]

    @property
    def held(self) -> set[str]:
        """The IDs that the agent believes taken."""
        assert self.agent is not None
        return set(self.agent.state.node.ledger.id_states)

    async def confirmed(self) -> None:
        """Wait until the agent has read in the kubelet's checkpoint what it gave."""
        assert self.agent is not None
        state = self.agent.state
        await self.until(lambda: all(hold.granted_at is None for hold in state.node.ledger.id_states.values()))

    async def rounds(self, count: int, *, now: bool = False) -> None:
        """Let the agent compare its ledger with the kubelet's records `count` times more, each from its beginning.

        `now`: without waiting for its interval.
        """
        assert self.agent is not None
        reconciler = self.agent.reconciler
        for _ in range(count + 1):  # the one that is under way began before
            done = reconciler.rounds.value
            if now:
                reconciler.registered()
            await self.until(lambda done=done: reconciler.rounds.value > done)  # type: ignore[misc]

    async def listed(self, made: Pod) -> None:
        """Wait until the kubelet process that listens to the agent has listed a pod to it."""
        assert self.agent is not None
        records = self.agent.records
        await self.until(lambda: made.uid in records.named)

    @property
    def sockets(self) -> set[str]:
        """The names of the agent's sockets."""
        return {path.name for path in self.kubelet.device_plugin_dir.glob("gpushare-*.sock")}

    def lists(self, resource: str) -> list[dict[str, str]]:
        """Return every list of a resource that the kubelet got over its newest stream: health by ID."""
        newest = [stream for stream in self.kubelet.streams if stream.resource == resource][-1]
        return [{device.ID: device.health for device in each.devices} for each in newest.lists]

    def healthy(self, resource: str) -> int:
        """Return how many IDs of a resource the kubelet sees healthy."""
        return self.kubelet.amounts.get(resource, NOTHING).allocatable

    async def healthy_is(self, resource: str, count: int) -> None:
        """Wait until the kubelet sees so many healthy IDs."""
        await self.until(lambda: self.healthy(resource) == count)


@asynccontextmanager
async def world(
    gpus: str | Sequence[dict[str, Any]] = "fake:2xT4",
    *,
    version: tuple[int, int] = (1, 36),
    seed: int = 0,
    **settings: str,
) -> AsyncIterator[NodeWorld]:
    """Make a node with a running kubelet; its agent is started by the test.

    GPUs that are described one by one can be changed later, see `NodeWorld.hardware`.
    """
    # pytest's own folders have names too long for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        kubelet = Kubelet(Path(folder), version=version, seed=seed)
        async with kubelet:
            made = NodeWorld(
                kubelet,
                {
                    **QUICK,
                    "nvml_timeout": f"{stretched(2000):.0f}ms",
                    "gpus": gpus if isinstance(gpus, str) else f"{folder}/gpus.json",
                    "api": "off",
                    "device_plugin_dir": str(kubelet.device_plugin_dir),
                    "pod_resources_socket": str(kubelet.pod_resources_socket),
                    **settings,
                },
                Path(folder),
            )
            made.dev.mkdir()
            if not isinstance(gpus, str):
                made.hardware(*gpus)
            try:
                yield made
            finally:
                await made.stop_agent()


def without(*names: str, features: Iterable[FeatureSpec] = NODE_FEATURES) -> tuple[FeatureSpec, ...]:
    """Return the features but these and those that need them."""
    absent, left = set(names), []
    for spec in features:
        if spec.name in absent or absent.intersection(spec.needs):
            absent.add(spec.name)
        else:
            left.append(spec)
    return tuple(left)


def pod(name: str, *containers: ContainerSpec, **limits: int) -> PodSpec:
    """Describe a pod; without containers it has one, with limits given as mem=4, count=1."""
    return PodSpec(name, containers or (container("main", kind=ContainerKind.APP, **limits),))


def container(name: str, *, kind: ContainerKind = ContainerKind.APP, **limits: int) -> ContainerSpec:
    """Describe a container with limits given as mem=4, count=1."""
    return ContainerSpec(name, {{"mem": MEM, "count": COUNT}[key]: amount for key, amount in limits.items()}, kind)


def gpus_of(made: Pod, resource: str = MEM) -> set[str]:
    """Return the UUIDs of the GPUs on which a pod has devices."""
    return {name.partition("::")[0] for c in made.containers for name in c.devices.get(resource, ())}


def envs_of(made: Pod, name: str = "main") -> dict[str, str]:
    """Return the variables that a container got from plugins."""
    return dict(made.container(name).received.envs)
