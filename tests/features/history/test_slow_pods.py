"""What slows a pod is injected into GPUs, and found in the history that a real agent serves.

The GPUs are fake ones, and those of NVIDIA's mock of NVML where it is there: the same table is said to both.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import pytest

from gpu_device_plugin.aio.http import Page, Request
from gpu_device_plugin.features.history.contract import (
    HISTORY_PATH,
    INCIDENTS_PATH,
    IncidentKind,
    IncidentList,
    NodeHistory,
)
from gpu_device_plugin.features.history.rules.slowness import slowness
from gpu_device_plugin.features.history.sampling import History
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.report.rules.finding import Finding, Unknown
from tests.node.cluster_harness import Cluster, cluster
from tests.node.harness import pod
from tests.nvml_mock import Mock
from tests.patience import eventually

T = TypeVar("T")
GPU: dict[str, Any] = {
    "temperature": 62,
    "slowdown": 90,
    "power": 66,
    "power_limit": 70,
    "power_limit_default": 70,
    "sm_clock": 1590,
    "sm_clock_max": 1590,
    "throttle": [],
    "pcie_generation": 3,
    "pcie_generation_max": 3,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "ecc_corrected": 3,
    "ecc": 0,
    "remap": "none",
    "xid": None,
}
"""A T4 that works, as `hardware.fake.description` has it, besides its processes."""
IDS = {"train": f"{11:064}", "other": f"{12:064}"}
"""Of the containers of the pod that is judged and of its neighbour, which were given 7 and 4 of 14 GiB."""


@dataclass(frozen=True)
class Moment:
    """A GPU, and what the two pods do on it, during a step of the history."""

    gpu: Mapping[str, Any]
    held_back: int
    """The percentage of the CPU's periods in which `train` is held back by its limit."""

    @property
    def wanted(self) -> Mapping[str, tuple[int, int]]:
        """The memory in MiB and the use of the multiprocessors that the agent is to read of each pod."""
        return {
            name: (int(each["used"].removesuffix("MiB")), each["sm"])
            for name, each in zip(IDS, self.gpu["processes"], strict=True)
        }


Moments: TypeAlias = tuple[Moment, ...]
"""They follow each other, again and again."""


def at(
    train: int = 70, other: int = 0, *, train_mib: int = 4096, other_mib: int = 2048, held_back: int = 0, **told: Any
) -> Moment:
    """Return a moment in which the two pods keep the multiprocessors busy for so many percent."""
    processes = [
        {"pid": 11, "used": f"{train_mib}MiB", "sm": train},
        {"pid": 12, "used": f"{other_mib}MiB", "sm": other},
    ]
    return Moment({**GPU, "processes": processes, "sm": min(100, train + other), **told}, held_back)


def slowed(*reasons: str, clock: int = 700, **told: Any) -> Moments:
    """Return a GPU that is slowed for these reasons."""
    return (at(throttle=[*reasons], sm_clock=clock, **told),)


FULL_MIB = 7100
TRAFFIC = f"{10**10}MiB"
"""A second, in which the counters of a fake GPU grow by the real clock, of which little passes between two steps."""
CAUSES: Mapping[str, tuple[str, Moments]] = {
    "heat": ("slowed-by-heat", slowed("heat", temperature=91)),
    "heat, by the hardware": ("slowed-by-heat", slowed("hardware-heat", "hardware", temperature=93)),
    "a very low clock at the power limit": ("slowed-by-power-cap", slowed("power-cap", power=70)),
    "a lowered power limit": ("slowed-by-power-cap", slowed("power-cap", clock=1300, power=60, power_limit=60)),
    "the power brake": ("slowed-by-power-brake", slowed("power-brake", "hardware")),
    "hardware slowdown": ("slowed-by-hardware", slowed("hardware")),
    "sync boost": ("slowed-by-sync", slowed("sync")),
    "a low clock": ("clocks-low", (at(95, sm_clock=700),)),
    "a busy neighbour": ("neighbours-busy", (at(30, 68),)),
    "too little CPU": ("starved-of-cpu", (at(9, held_back=80),)),
    "too little memory": (
        "memory-thrash",
        (*[at(20, train_mib=FULL_MIB)] * 3, at(20, train_mib=FULL_MIB - 600)),
    ),
    "memory that others fill": ("memory-full", (at(other_mib=11 << 10),)),
    "a narrow link": ("pcie-link-slow", (at(95, pcie_width=4, pcie_received=TRAFFIC),)),
    "a slow link": ("pcie-link-slow", (at(95, pcie_generation=1, pcie_received=TRAFFIC),)),
    "uncorrected errors": ("gpu-degraded", (at(ecc=2),)),
    "many corrected errors": ("gpu-degraded", (at(ecc_corrected=40_000),)),
    "a row that waits to be replaced": ("gpu-degraded", (at(remap="pending"),)),
    "a row that cannot be replaced": ("gpu-degraded", (at(remap="failed"),)),
    "an XID of the memory": ("gpu-degraded", (at(ecc=1, xid=48),)),
}
"""What slows the pod, with the verdict that it alone gets."""
FAKES_ONLY: Mapping[str, tuple[str, Moments]] = {
    "PCIe traffic": ("pcie-saturated", (at(40, pcie_received=TRAFFIC),)),
}
"""What the mock cannot say: it has no counters of bytes over PCIe."""
HEALTHY: Mapping[str, Moments] = {
    "training": (at(),),
    "training that fills the GPU": (at(99),),
    "training at the usual power limit": slowed("power-cap", clock=1300, power=70),
    "training with all its memory allocated": (at(98, train_mib=FULL_MIB),),
    "training on a warm GPU": (at(95, temperature=86),),
    "training on a GPU with few corrected errors": (at(90, ecc_corrected=12),),
    "idle": (at(0),),
    "idle on a GPU that saves power": (at(0, sm_clock=300, pcie_generation=1, throttle=["power-cap"]),),
    "idle beside a busy neighbour": (at(0, 99, throttle=["power-cap"]),),
    "inference in bursts": (at(0), at(55), at(0), at(70), at(0), at(0), at(8)),
    "a blip of heat": (*[at()] * 6, *slowed("heat")),
    "a neighbour that needs little": (at(80, 12),),
    "two that leave the GPU room": (at(30, 35),),
    "a CPU limit that a busy pod seldom meets": (at(60, held_back=10),),
}
"""Nothing slows the pod."""


class Desk:
    """A node whose agent reads the GPUs that a test describes, at the test's own time."""

    def __init__(self, there: Cluster, describe: Callable[[Mapping[str, Any]], None]) -> None:
        """Begin with a GPU on which both pods work."""
        self.there = there
        self.describe = describe
        self.now = time.monotonic()
        self.periods = self.throttled = 0
        self.moment: Moment | None = None
        describe(at().gpu)

    @property
    def agent(self) -> NodeAgent:
        """The agent, which runs."""
        assert self.there.node.agent is not None
        return self.there.node.agent

    async def start(self) -> None:
        """Start the agent and the two pods."""
        there = self.there
        there.node.settings |= {"usage_interval": "1h", "http": "127.0.0.1:0", "exclude_gpus": "1,2,3,4,5,6,7"}
        there.node.launch().features.of(History).clock = lambda: self.now
        await there.node.ready()
        for pid, (name, shares) in ((11, ("train", 7)), (12, ("other", 4))):
            made = await there.run(pod(name, mem=shares))
            there.node.process(pid, made, IDS[name])
            running = {"name": "main", "state": {"running": {}}, "containerID": f"containerd://{IDS[name]}"}
            there.api.patch("pods", name, {"status": {"containerStatuses": [running]}}, subresource="status")
            if name == "train":
                self.leaf = there.node.cgroups / "kubepods" / f"pod{made.uid}" / IDS[name]
                self.leaf.mkdir(parents=True)
        await there.node.until(
            lambda: {each.container_id for each in self.agent.features.of(Use).holders()} == {*IDS.values()}
        )

    async def live(self, moment: Moment) -> None:
        """Let a step of the history be so."""
        if moment != self.moment:
            self.describe(moment.gpu)
            await eventually(lambda: self._reads(moment.wanted), f"the agent reads {moment.wanted}")
            self.moment = moment
        self.now += 15
        self.periods, self.throttled = self.periods + 150, self.throttled + 150 * moment.held_back // 100
        (self.leaf / "cpu.stat").write_text(f"nr_periods {self.periods}\nnr_throttled {self.throttled}\n")
        reading = self.agent.features.of(Use).reading
        reading.set(replace(reading.value, at=self.now))
        await self.agent.features.of(History).sample()

    async def _reads(self, wanted: Mapping[str, tuple[int, int]]) -> bool:
        """Have the agent read the use; return whether it is this."""
        reading = self.agent.features.of(Use).reading
        before = reading.value
        self.agent.features.of(Use).read_now()
        await self.there.node.until(lambda: reading.value is not before)
        used = [(use.pod, (use.used_mib, use.sm_percent)) for use in reading.value.containers]
        return {of.name: figures for of, figures in used if of is not None} == wanted

    async def verdict(self, moments: Moments) -> list[Finding]:
        """Let the node live for three minutes, two hours after the last time, and return what `why` says of `train`."""
        self.now += 7200
        for moment in islice(cycle(moments), 14):
            await self.live(moment)
        history = await self.told(HISTORY_PATH, "gpus/0", NodeHistory)
        return [*slowness([history], "default", "train", time.time())]

    async def told(self, path: str, rest: str, kind: type[T]) -> T:
        """Return what the agent answers below a path."""
        (route,) = (each for feature in self.agent.features for each in feature.routes() if each.path == path)
        page = await route.answer(Request(path + rest, rest))
        assert isinstance(page, Page)
        return msgspec.json.decode(page.body, type=kind)

    async def verdicts(self, moments: Iterable[tuple[str, Moments]]) -> dict[str, list[str]]:
        """Return the codes of what is known of the pod, by name."""
        return {
            name: [each.code for each in await self.verdict(each) if not isinstance(each, Unknown)]
            for name, each in moments
        }


@asynccontextmanager
async def fakes() -> AsyncIterator[Desk]:
    """Make a desk with a fake GPU."""
    async with cluster([{"model": "T4"}]) as there:

        def describe(gpu: Mapping[str, Any]) -> None:
            told = {key: value for key, value in gpu.items() if key != "xid"}
            events = [{"at": 0, "gpu": 0, "xid": gpu["xid"]}] if gpu["xid"] else []
            there.node.hardware({"model": "T4", **told}, events=events)

        yield Desk(there, describe)


@asynccontextmanager
async def mocked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    """Make a desk with the first GPU of NVIDIA's mock, which the driver's process loads as the real library."""
    mock = Mock(folder, monkeypatch)
    mock.lists_processes(folder)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(mock.library))
    async with cluster("nvml") as there:
        yield Desk(there, mock.describe)


@pytest.mark.parametrize("source", ["fakes", "NVIDIA's mock"])
async def test_each_cause_has_its_verdict_and_healthy_pods_have_none(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fakes() if source == "fakes" else mocked(tmp_path, monkeypatch) as desk:
        await desk.start()
        assert await desk.verdicts(HEALTHY.items()) == {name: ["nothing-slows-it"] for name in HEALTHY}
        causes = {**CAUSES, **FAKES_ONLY} if source == "fakes" else CAUSES
        found = await desk.verdicts((name, moments) for name, (_, moments) in causes.items())
        assert found == {name: [code] for name, (code, _) in causes.items()}

        async def recorded() -> bool:
            listed = await desk.told(INCIDENTS_PATH, "", IncidentList)
            return IncidentKind.XID in {each.kind for each in listed.incidents}

        await eventually(recorded, "the flight recorder has the XID")


def test_there_are_twelve_of_both() -> None:
    assert len({code for code, _ in CAUSES.values()}) >= 12
    assert len(HEALTHY) >= 12
