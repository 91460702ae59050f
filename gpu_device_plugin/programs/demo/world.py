"""A node in a folder: a kubelet double, the real agent as a process of its own, and GPUs that can be broken."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import yaml

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import Shares, parse_id
from gpu_device_plugin.core.node.ledger import Ledger
from gpu_device_plugin.core.node.node import Node
from gpu_device_plugin.core.node.offers import offers
from gpu_device_plugin.hardware.beliefs import HardwareView, State
from gpu_device_plugin.hardware.description import DescriptionError
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.programs.demo.report import Holder
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.testing.kubelet import Kubelet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from gpu_device_plugin.testing.pods import Pod

# Under which nothing that one waits for takes long. No container of the demo runs anything on a real GPU, so that
# processes that are found there belong to others and say nothing of its pods.
_QUICK = {
    "probe_interval": "200ms",
    "reconcile_interval": "200ms",
    "process_wait": "0s",
    "api": "off",
    "log_format": "json",
}
_LOOK_S = 0.02
_PATIENCE_S = 20.0
_LINES_KEPT = 400


class AgentGoneError(Exception):
    """The agent ended, and nobody had asked it to; the message is what it said last."""


class NoGpusError(Exception):
    """There is nothing to share; the message is the agent's own sentence on it."""


class Agent:
    """The real agent, started from its command line. Nothing but its log and its sockets tells what it does."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Prepare to start it with `settings`, by the names they have in a file."""
        self._flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lines: deque[dict[str, Any]] = deque(maxlen=_LINES_KEPT)

    def __repr__(self) -> str:
        return f"<Agent {'running' if self.running else 'away'}: {len(self._lines)} lines of log>"

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start a process, with an empty log."""
        self._lines.clear()
        # What is set for an agent in earnest is not meant for this one.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "gpu_device_plugin", "node", *self._flags),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
            start_new_session=True,  # Ctrl-C in a terminal is meant for the demo, which then stops the agent
        )
        log = cast("asyncio.StreamReader", self.process.stderr)
        self._reading = asyncio.create_task(self._read(log), name="the agent's log")

    async def _read(self, log: asyncio.StreamReader) -> None:
        async for line in log:
            try:
                self._lines.append(json.loads(line))
            except ValueError:
                self._lines.append({"msg": line.decode(errors="replace").rstrip()})

    def said(self, *parts: str) -> str | None:
        """Return the newest message in its log in which all these words are, None if there is none."""
        found = (str(line.get("msg", "")) for line in reversed(self._lines))
        return next((message for message in found if all(part in message for part in parts)), None)

    def unhealthy(self, uuid: str) -> str | None:
        """Return why it took a GPU out of service last, None if it never did."""
        for line in reversed(self._lines):
            if line.get("uuid") == uuid and " is unhealthy: " in str(line["msg"]):
                return str(line["msg"]).partition(" is unhealthy: ")[2]
        return None

    def require(self) -> None:
        """Raise AgentGoneError if its process ended and nobody had ended it."""
        if self.process is not None and self.process.returncode is not None:
            last = [str(line.get("traceback") or line.get("why") or line.get("msg")) for line in self._lines][-1:]
            raise AgentGoneError("\n".join(last) or "it said nothing")

    async def end(self, number: signal.Signals) -> None:
        """Send its process a signal that ends it, and wait until it has ended."""
        process, reading = self.process, self._reading
        self.process = self._reading = None
        if process is None or reading is None:
            return
        signal_child(process.pid, process.returncode, number)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await process.wait()
        except TimeoutError:
            signal_child(process.pid, process.returncode, signal.SIGKILL)
            await process.wait()
        await reading


class Invented:
    """GPUs that exist only as a description, so that something can happen to them."""

    def __init__(self, file: Path, document: Mapping[str, Any]) -> None:
        """Describe them in `file` as in `document`."""
        self.file = file
        self._document = document
        self.happens()

    def __repr__(self) -> str:
        return f"<Invented in {self.file}>"

    def happens(self, *events: Mapping[str, object]) -> None:
        """Let these events, and no others, have happened; the agent sees it at once."""
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({**self._document, "events": events}), encoding="utf-8")
        new.replace(self.file)


class World:
    """The node, and what is known of it from outside the agent: the kubelet's records and the GPUs themselves."""

    def __init__(
        self, kubelet: Kubelet, settings: Mapping[str, str], shares: Shares, invented: Invented | None
    ) -> None:
        """Put an agent with `settings` beside `kubelet`; it is not started."""
        self.kubelet = kubelet
        self.agent = Agent(settings)
        self.shares = shares
        self.invented = invented
        """None where the GPUs are real, or have a script of their own that ours would run into."""
        read = Sources(NodeSettings, flags=settings, environ={}).read()
        self.memory, self.count = (resource.name for resource in read.offered)
        self.policy = read.policy

    def __repr__(self) -> str:
        return f"<World of {len(self.shares.gpus)} GPUs, {self.kubelet!r}, {self.agent!r}>"

    @property
    def devices_listed(self) -> Mapping[str, frozenset[str]]:
        """Every device that there is, by resource."""
        gpus = self.shares.gpus
        return {
            self.memory: frozenset(name for shared in gpus for name in shared.ids(Kind.MEMORY)),
            self.count: frozenset(name for shared in gpus for name in shared.ids(Kind.COUNT)),
        }

    @property
    def node(self) -> Node:
        """The node as the kubelet's pods and its lists of devices show it."""
        held = [name for pod in self.kubelet.running for name in self.devices(pod)]
        return Node(self.shares, Ledger().seen(held), self._out_of_service())

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Every pod that runs, with its devices."""
        return tuple(Holder(pod.name, self.devices(pod)) for pod in self.kubelet.running)

    def devices(self, pod: Pod) -> frozenset[str]:
        """Return all devices of a pod, of both resources."""
        return pod.devices(self.memory) | pod.devices(self.count)

    def offered(self) -> Mapping[str, frozenset[str]]:
        """Return the devices that the kubelet believes healthy, by resource; they may be in use."""
        health = self.kubelet.health if self.kubelet.up else {}
        return {
            resource: frozenset(name for name, healthy in health.get(resource, {}).items() if healthy)
            for resource in (self.memory, self.count)
        }

    def healthy(self, resource: str) -> int:
        """Return how many devices of a resource the kubelet believes healthy."""
        return len(self.offered()[resource])

    def complete(self) -> bool:
        """Return whether the kubelet knows every device that there is, in whatever health."""
        health = self.kubelet.health if self.kubelet.up else {}
        return all(health.get(resource, {}).keys() == ids for resource, ids in self.devices_listed.items())

    def settled(self) -> bool:
        """Return whether the kubelet was told of every fence that must be there for what pods hold."""
        node = self.node
        due = {
            name: frozenset(
                device for offer in offers(node, kind) for device, healthy in offer.devices(kind) if healthy
            )
            for name, kind in ((self.memory, Kind.MEMORY), (self.count, Kind.COUNT))
        }
        return due == self.offered()

    def _out_of_service(self) -> dict[str, str]:
        # A GPU that is in use through one resource is fenced in the other, but what is in use stays healthy: one with
        # no healthy device at all is out of service.
        alive = {parse_id(name)[0] for names in self.offered().values() for name in names}
        away = "nobody answers for it" if self.kubelet.up else "the kubelet is down"
        uuids = (shared.gpu.uuid for shared in self.shares.gpus)
        return {
            uuid: (self.agent.running and self.agent.unhealthy(uuid)) or away for uuid in uuids if uuid not in alive
        }

    async def until(self, condition: Callable[[], bool], patience_s: float = _PATIENCE_S) -> bool:
        """Wait until `condition` holds; return whether it did before `patience_s` seconds were over.

        Raises:
            AgentGoneError: the agent ended.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not condition():
                    self.agent.require()
                    await asyncio.sleep(_LOOK_S)
                return True
        return False


@asynccontextmanager
async def world(gpus: str) -> AsyncIterator[World]:
    """Make a node with these GPUs and a running kubelet; its agent is prepared and not started.

    Raises:
        UsageError: `gpus` names none.
        NoGpusError: there are none, or none that can be shared.
    """
    settings = Sources(NodeSettings, flags={"gpus": gpus}, environ={}).read()
    shares = Shares(settings.share_size_mib).with_inventory((await _look(gpus)).inventory)
    if not shares.gpus:
        raise NoGpusError("; ".join(f"GPU {gpu.index} is not shared: {why}" for gpu, why in shares.left_out))
    with TemporaryDirectory(prefix="gs") as folder:
        root = Path(folder)
        document = _document(gpus)
        invented = None if document is None else Invented(root / "gpus.json", document)
        try:
            kubelet = Kubelet(root)
        except ValueError as error:
            raise UsageError(f"{error}; set TMPDIR=/tmp") from error
        flags = {
            **_QUICK,
            "gpus": gpus if invented is None else str(invented.file),
            "device_plugin_dir": str(kubelet.device_plugin_dir),
            "pod_resources_socket": str(kubelet.pod_resources_socket),
        }
        made = World(kubelet, flags, shares, invented)
        async with kubelet:
            try:
                yield made
            finally:
                await made.agent.end(signal.SIGTERM)


async def _look(gpus: str) -> HardwareView:
    """Look at the GPUs once, as the agent will."""
    try:
        hardware = Hardware(gpus)
    except DescriptionError as error:
        raise UsageError(f"--gpus: {error}") from error
    looking = asyncio.create_task(hardware.run(), name="look at the GPUs")
    try:
        async for view in hardware.view.values():
            if view.state is State.WATCHING and view.inventory.gpus:
                return view
            if view.state is not State.STARTING:
                raise NoGpusError(view.sentence)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    raise AssertionError  # pragma: no cover (there is always a next view)


def _document(gpus: str) -> dict[str, Any] | None:
    """Return the description of GPUs that are invented and have no script of their own, None for all others."""
    if gpus == "nvml":
        return None
    if gpus.startswith("fake:"):
        return {"gpus": gpus.removeprefix("fake:")}
    found: dict[str, Any] = yaml.safe_load(Path(gpus).read_text(encoding="utf-8"))
    return None if found.get("events") else found
