"""A container borrows what nobody uses, and returns it when a newcomer is guaranteed it: by itself, or by eviction."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.features.elastic.borrowing import Borrowing
from gpu_device_plugin.features.elastic.contract import MEMORY_DIRECTORY, MEMORY_FILE, MemoryFile
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT, RESIZE_BOUND
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.node.extension import StartRequest
from gpu_device_plugin.node.rules.admission import Refusal
from gpu_device_plugin.testing.cluster.cluster_kinds import StatusError
from gpu_device_plugin.testing.pod_specs import Pod
from tests.memory import read_memory_file
from tests.names import MEM
from tests.node.cluster_harness import RIGHTS, Cluster, allocation, cluster, promise
from tests.node.harness import T4, container, envs_of, pod

EVICTING = {*RIGHTS, ("create", "pods/eviction")}
GIB = 1024
CAPACITY = 15 * GIB - 450
"""Of the T4 without what the driver keeps, less a bit."""


@dataclass
class Scene:
    """A node with one GPU of 14 shares."""

    it: Cluster
    pids: dict[str, int]
    used: dict[str, int]
    ages: dict[str, int] = field(default_factory=dict)
    """The order in which the kubelet takes its pods to be created."""

    @property
    def agent(self) -> NodeAgent:
        assert self.it.node.agent is not None
        return self.it.node.agent

    def use(self, **mib: int) -> None:
        """Let programs use so much of the GPU."""
        self.used |= mib
        processes = [{"pid": self.pids[name], "used": f"{amount}MiB"} for name, amount in self.used.items() if amount]
        used = {"processes": processes, "used": f"{sum(self.used.values())}MiB"}
        self.it.node.hardware({**T4, **used}, *([T4] * (len(self.it.node.uuids) - 1)))

    async def runs(self, name: str, mem: int, wishes: Mapping[str, str] | None = None, gpu: int = 0) -> Pod:
        """Have a pod admitted; it is Running if it has started."""
        self.it.create(pod(name, mem=mem), annotations=wishes)
        await self.it.bind(name, promise(gpu, mem))
        made = await self.it.admit(self.it.known(pod(name, mem=mem)))
        self.pids[name] = 100 + len(self.pids)
        self.it.node.process(self.pids[name], made, f"{self.pids[name]:064x}")
        return made

    async def borrower(self) -> Pod:
        """Have the pod `nb` borrow 8 GiB beyond its 4."""
        made = await self.runs("nb", 4, {MEMORY_LIMIT: "12"})
        self.use(nb=12 * GIB)
        await self.it.node.until(
            lambda: any(use.used_mib == 12 * GIB for use in self.agent.features.of(Use).reading.value.containers)
        )
        return made

    def file(self, made: Pod) -> MemoryFile:
        """Return what a container reads of its memory."""
        return read_memory_file((self.folder(made) / MEMORY_FILE).read_text())

    def folder(self, made: Pod) -> Path:
        (mount,) = made.container("main").received.mounts
        assert (mount.container_path, mount.read_only) == (MEMORY_DIRECTORY, True)
        return Path(mount.host_path)

    def next_reading(self) -> Callable[[], bool]:
        """Return whether the use has been read since."""
        reading = self.agent.features.of(Use).reading
        before = reading.version
        return lambda: reading.version > before

    def told(self, reason: str) -> list[tuple[str, str]]:
        return [(event["regarding"]["name"], event["note"]) for event in self.it.events(reason)]


@asynccontextmanager
async def scene(*gpus: dict[str, Any], **settings: str) -> AsyncIterator[Scene]:
    quick: dict[str, Any] = {"usage_interval": "1s", "http": "127.0.0.1:0", **settings}
    async with cluster([T4, *gpus], allowed=EVICTING, **quick) as it:
        it.node.show_processes()
        await it.start_agent(**{"memory_dir": f"{it.node.folder}/memory", **settings})
        yield Scene(it, {}, {})


def follow(its: Scene, made: Pod) -> asyncio.Task[None]:
    """Run a program that returns what it is asked for as soon as it reads that."""

    async def program() -> None:
        while True:
            memory = its.file(made)
            if memory.return_mib:
                its.use(nb=its.used["nb"] - memory.return_mib)
                return
            await asyncio.sleep(0.05)

    return asyncio.create_task(program())


PATIENT = {"borrowers": "evict", "return_grace": "5m"}
"""Who borrows may be evicted, and is not within a test."""


async def test_a_newcomer_waits_until_the_borrower_has_returned_its_memory() -> None:
    async with scene(**PATIENT) as its:
        made = await its.borrower()
        assert (
            envs_of(made).items()
            >= {
                "GPUSHARE_MEMORY_LIMIT_MIB": "12288",
                "GPUSHARE_MEMORY_GUARANTEED_MIB": "4096",
            }.items()
        )
        assert its.file(made) == MemoryFile(4096, 12288, 12288)
        assert (its.folder(made) / MEMORY_FILE).stat().st_mode & 0o777 == 0o644
        assert its.folder(made).stat().st_mode & 0o777 == 0o755
        program = follow(its, made)
        began = time.monotonic()
        new = await its.runs("new", 8)
        assert time.monotonic() - began < 5
        await program
        assert new.phase == "Running"
        assert its.used["nb"] < 8 * GIB
        place = (made.uid, "main", its.it.node.uuids[0])
        await its.it.node.until(lambda: not its.agent.features.of(Borrowing).reclaiming.value.requests)
        assert its.file(made).limit_mib == its.agent.features.of(Borrowing).allowed_now.value[place] < 8 * GIB
        assert its.file(made).return_mib == 0
        ((about, note),) = its.told("GPUMemoryAsked")
        assert about == "nb"
        assert note.startswith("container main borrows 8,192 MiB of GPU 0 beyond its guarantee, of which ")
        # Whose it is may not be known yet where the agent reads the use before the kubelet asks for the start.
        why = r"; it may be evicted in [2-5] min"
        assert re.search(f"are needed( for default/new)?{why}$", note)
        page = await its.it.metrics()
        assert 'gpushare_memory_returns_total{outcome="asked"} 1.0' in page
        assert 'gpushare_memory_returns_total{outcome="returned"} 1.0' in page
        assert "gpushare_memory_return_seconds_count 1.0" in page
        assert "GPUSHARE" not in str(new.container("main").received.mounts)


async def test_where_nobody_evicts_a_borrower_it_is_reported_and_makes_nobody_wait() -> None:
    """Also where over-use has pods evicted: a borrower within its limit uses no more than it may."""
    async with scene(over_use="evict", over_use_grace="1s") as its:
        made = await its.borrower()
        began = time.monotonic()
        new = await its.runs("new", 8)
        assert new.phase == "Running"
        assert time.monotonic() - began < 5
        await its.it.node.until(lambda: its.file(made).return_mib > 0)
        asked = its.file(made)
        assert (asked.limit_mib, asked.return_by) == (4096, "")
        ((about, note),) = its.told("GPUMemoryAsked")
        assert about == "nb"
        assert note.endswith("; it is not evicted, because the setting borrowers is report")
        assert its.told("GPUMemoryWaits") == []


async def test_a_borrower_whose_eviction_is_refused_makes_nobody_wait() -> None:
    async with scene(borrowers="evict", return_grace="1s") as its:
        its.it.api.allowed = frozenset(RIGHTS)
        await its.borrower()
        new = await its.runs("new", 8)
        assert new.phase == "Running"
        assert [about for about, _ in its.told("GPUMemoryWaits")] == ["new"]
        await its.it.node.until(lambda: bool(its.told("GPUEvictionForbidden")))


async def test_a_borrower_that_refuses_is_reported_and_the_newcomer_is_told_why_it_waits() -> None:
    async with scene(**PATIENT) as its:
        made = await its.borrower()
        shortly(its)
        new = await its.runs("new", 8)
        assert new.phase == "Pending"
        why = str(new.container("main").waiting)
        assert "waits for" in why
        assert "that default/nb borrows of GPU 0, asked to return" in why
        assert re.search("; it may be evicted in [2-5] min$", why)
        assert (await its.it.node.kubelet.restart_container(new, "main")).phase == "Pending"
        ((about, note),) = its.told("GPUMemoryWaits")  # once, although the kubelet has tried twice
        assert about == "new"
        assert note.startswith("waits for ")
        asked = its.file(made)
        assert (asked.limit_mib, bool(asked.return_by), asked.needed_by) == (4096, True, "default/new")
        # Others are answered meanwhile, and the memory of those that run is theirs.
        its.use(nb=4 * GIB)
        await its.it.node.until(lambda: not its.agent.features.of(Borrowing).reclaiming.value.requests)
        assert (await its.it.node.kubelet.restart_container(new, "main")).phase == "Running"
        assert 'gpushare_refusals_total{reason="memory_borrowed_by_others",resource="aliyun.com/gpu-mem"} 2.0' in (
            await its.it.metrics()
        )


def shortly(its: Scene, seconds: float = 1.5) -> None:
    """Let the agent answer PreStartContainer after so long instead of 25 s."""
    before_start = its.agent.features.of(Borrowing).before_start

    async def sooner(start: StartRequest) -> Refusal | None:
        return await before_start(replace(start, deadline=time.monotonic() + seconds))

    its.agent.features.of(Borrowing).before_start = sooner  # type: ignore[method-assign]


async def test_a_borrower_that_refuses_is_evicted_after_its_grace() -> None:
    async with scene(borrowers="evict", return_grace="1s") as its:
        made = await its.borrower()
        starting = asyncio.create_task(its.runs("new", 8))
        await its.it.node.until(lambda: bool(its.told("GPUMemoryNotReturned")))
        assert its.file(made).return_by
        assert "deletionTimestamp" in its.it.api.get("pods", "nb")["metadata"]
        ((about, note),) = its.told("GPUMemoryNotReturned")
        assert about == "nb"
        assert "borrows 8,192 MiB of GPU 0" in note
        its.use(nb=0)
        its.it.api.delete("pods", "nb", grace_s=0)
        await its.it.node.kubelet.delete(made)
        assert (await starting).phase == "Running"
        page = await its.it.metrics()
        assert 'gpushare_borrower_evictions_total{outcome="evicted"} 1.0' in page
        await its.it.node.rounds(3, now=True)
        folder = its.folder(made)
        await its.it.node.until(lambda: not folder.exists())


async def test_a_borrower_that_withdraws_its_limit_is_evicted_all_the_same() -> None:
    async with scene(borrowers="evict", return_grace="1s") as its:
        await its.borrower()
        its.it.api.patch("pods", "nb", {"metadata": {"annotations": {MEMORY_LIMIT: None}}})
        await its.it.node.until(
            lambda: any(not p.annotations.keys() & {MEMORY_LIMIT} for p in its.it.cluster.pods.values())
        )
        await its.it.node.stop_agent()  # the next one knows nothing but the kubelet's record
        await its.it.start_agent()
        starting = asyncio.create_task(its.runs("new", 8))
        await its.it.node.until(lambda: bool(its.told("GPUMemoryNotReturned")))
        assert "deletionTimestamp" in its.it.api.get("pods", "nb")["metadata"]
        its.use(nb=0)
        assert (await starting).phase == "Running"


async def test_where_nobody_may_borrow_the_limit_is_the_guarantee() -> None:
    async with scene(borrowers="off") as its:
        made = await its.runs("nb", 4, {MEMORY_LIMIT: "12"})
        assert envs_of(made)["GPUSHARE_MEMORY_LIMIT_MIB"] == "4096"
        assert its.file(made) == MemoryFile(4096, 4096, 4096)
        its.use(nb=12 * GIB)
        began = time.monotonic()
        assert (await its.runs("new", 8)).phase == "Running"
        assert time.monotonic() - began < 5
        assert its.agent.features.of(Borrowing).reclaiming.value.requests == {}


async def test_without_annotations_nothing_is_read_and_nobody_waits() -> None:
    async with scene() as its:
        made = await its.runs("a", 4)
        assert envs_of(made)["GPUSHARE_MEMORY_GUARANTEED_MIB"] == envs_of(made)["GPUSHARE_MEMORY_LIMIT_MIB"] == "4096"
        assert its.file(made) == MemoryFile(4096, 4096, 4096)  # of use to whoever the kubelet takes it for
        its.use(a=12 * GIB)
        assert (await its.runs("b", 8)).phase == "Running"
        assert its.agent.features.of(Borrowing).allowed_now.value == {}
        assert its.agent.features.of(Borrowing).reclaiming.version == 0


async def test_an_agent_that_starts_anew_asks_again() -> None:
    async with scene() as its:
        made = await its.borrower()
        shortly(its)
        new = await its.runs("new", 8)
        await its.it.node.stop_agent()
        await its.it.start_agent()
        await its.it.node.until(lambda: bool(its.agent.features.of(Borrowing).reclaiming.value.missing))
        assert its.file(made).return_mib
        program = follow(its, made)
        started = await its.it.node.kubelet.restart_container(new, "main")
        await program
        assert started.phase == "Running"


async def test_a_container_whose_directory_is_gone_gets_it_again_before_it_starts() -> None:
    """After a boot /run is empty."""
    async with scene() as its:
        made = await its.runs("nb", 4, {MEMORY_LIMIT: "12"})
        await its.it.node.until(lambda: bool(its.agent.features.of(Borrowing).allowed_now.value))
        (its.folder(made) / MEMORY_FILE).unlink()
        its.folder(made).rmdir()
        await its.it.node.kubelet.restart_container(made, "main")
        assert its.file(made) == MemoryFile(4096, 12288, 12288)


async def test_a_limit_that_its_owner_changes_is_in_the_file() -> None:
    async with scene() as its:
        made = await its.runs("nb", 4, {MEMORY_LIMIT: "12"})
        its.it.api.patch("pods", "nb", {"metadata": {"annotations": {MEMORY_LIMIT: "6"}}})
        await its.it.node.until(lambda: its.file(made) == MemoryFile(4096, 6144, 6144))
        its.it.api.patch("pods", "nb", {"metadata": {"annotations": {MEMORY_LIMIT: None, MEMORY_GUARANTEE: "2"}}})
        await its.it.node.until(lambda: its.file(made) == MemoryFile(4096, 2048, 2048))
        its.it.api.patch("pods", "nb", {"metadata": {"annotations": {MEMORY_GUARANTEE: None}}})
        await its.it.node.until(lambda: its.file(made) == MemoryFile(4096, 4096, 4096))


async def test_a_directory_that_cannot_be_written_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with scene(memory_dir="/proc/none") as its:
        made = await its.runs("nb", 4, {MEMORY_LIMIT: "12"})
        assert made.phase == "Running"
        assert list(made.container("main").received.mounts) == []
        assert any("gets no file" in message for message in caplog.messages)


async def test_where_the_driver_does_not_answer_nobody_waits() -> None:
    async with scene() as its:
        await its.borrower()
        its.agent.features.of(Borrowing).answer_s = 0.3
        its.it.node.hardware({**T4, "hang": True})
        assert (await its.runs("new", 8)).phase == "Running"


async def test_others_are_answered_while_a_container_waits() -> None:
    async with scene(T4, **PATIENT) as its:
        await its.borrower()
        waiting = asyncio.create_task(its.runs("new", 8))
        await its.it.node.until(lambda: bool(its.told("GPUMemoryWaits")))
        began = time.monotonic()
        assert (await its.runs("beside", 8, gpu=1)).phase == "Running"
        assert time.monotonic() - began < 3
        assert not waiting.done()
        its.use(nb=4 * GIB)
        assert (await waiting).phase == "Running"


async def delete_by_force(its: Scene, name: str) -> None:
    """Delete a pod as `kubectl delete --force` does, and wait until the kubelet has freed its devices."""
    gone = its.it.node.kubelet.pod(name)
    its.it.api.delete("pods", name, grace_s=0)
    await its.it.node.kubelet.delete(gone, force=True)
    freed = gone.devices(MEM)
    await its.it.node.until(lambda: its.it.node.kubelet.allocated.get(MEM, frozenset()).isdisjoint(freed))


async def test_a_pod_deleted_by_force_while_it_waits_does_not_start_without_its_variables() -> None:
    """The kubelet reads them after our answer, and starts the container all the same."""
    async with scene(borrowers="evict", return_grace="5m") as its:
        await its.borrower()
        waiting = asyncio.create_task(its.runs("new", 8))
        await its.it.node.until(lambda: bool(its.told("GPUMemoryWaits")))
        await delete_by_force(its, "new")
        its.use(nb=4 * GIB)
        with pytest.raises(StatusError, match="not found"):  # whoever reports its phase
            await waiting
        assert (await its.runs("after", 1)).only.received.envs
        assert [pod.name for pod in its.it.node.kubelet.running] == ["nb", "after"]


async def test_nobody_returns_memory_for_a_pod_that_is_gone() -> None:
    async with scene(borrowers="evict", return_grace="5m") as its:
        await its.borrower()
        waiting = asyncio.create_task(its.runs("new", 8))
        await its.it.node.until(lambda: bool(its.told("GPUMemoryWaits")))
        began = time.monotonic()
        await delete_by_force(its, "new")
        with pytest.raises(StatusError, match="not found"):
            await waiting
        assert time.monotonic() - began < 5
        await its.it.node.until(lambda: not its.agent.features.of(Borrowing).reclaiming.value.requests)
        assert 'gpushare_refusals_total{reason="pod_deleted",resource="aliyun.com/gpu-mem"} 1.0' in (
            await its.it.metrics()
        )


# --- Equal requests, different promises -------------------------------------------------------------------------------


async def start_both(its: Scene, *created: str) -> tuple[Pod, Pod]:
    """Have a kubelet start to which `b`, and then `a`, which may borrow, were bound; return both.

    It admits them by their age, and `created` is when the API says that they were created.
    """
    kubelet = its.it.node.kubelet
    await kubelet.stop()
    for name, at, wishes in zip("ab", created, ({MEMORY_LIMIT: "10"}, {}), strict=True):
        its.it.create(pod(name, mem=4), created=f"2026-11-29T05:00:{at}Z", annotations=wishes)
    for name in "ba":
        await its.it.bind(name, promise(0, 4))
    for name, age in its.ages.items():
        await kubelet.admit(replace(its.it.known(pod(name, mem=4)), created=age))
    await kubelet.start(ready=False)
    await its.it.node.ready()
    await kubelet.sources_ready()
    a, b = (kubelet.pod(name) for name in "ab")
    for made in (a, b):
        its.it.report(made)
        its.pids[made.name] = 100 + len(its.pids)
        its.it.node.process(its.pids[made.name], made, f"{its.pids[made.name]:064x}")
    return a, b


async def test_pods_that_were_bound_before_the_kubelet_started_get_their_own_in_the_order_of_creation() -> None:
    async with scene() as its:
        its.ages = {"a": 1, "b": 2}
        a, b = await start_both(its, "01", "02")
        limits = [envs_of(made)["GPUSHARE_MEMORY_LIMIT_MIB"] for made in (a, b)]
        assert limits == ["10240", "4096"]
        assert [its.file(made) for made in (a, b)] == [MemoryFile(4096, 10240, 10240), MemoryFile(4096, 4096, 4096)]
        assert its.told("GPULimitNotHeld") == []


async def test_a_container_with_the_variables_of_another_has_its_own_file_and_is_told_so_and_not_evicted() -> None:
    """Two pods of one second: a kubelet that starts admits them in any order."""
    settings = {"borrowers": "evict", "return_grace": "1s", "over_use": "evict", "over_use_grace": "1s"}
    async with scene(**settings) as its:
        its.ages = {"b": 1, "a": 2}
        a, b = await start_both(its, "01", "01")
        limits = [envs_of(made)["GPUSHARE_MEMORY_LIMIT_MIB"] for made in (a, b)]
        assert limits == ["10240", "10240"], "the checkpoint has shown who was first before the second one asked"
        assert [its.file(made) for made in (a, b)] == [MemoryFile(4096, 10240, 10240), MemoryFile(4096, 4096, 4096)]
        ((about, note),) = its.told("GPULimitNotHeld")
        assert about == "b"
        assert "the variables of container main of default/a (a limit of 10,240 MiB, and its own is 4,096 MiB)" in note
        await its.it.node.stop_agent()  # the next one knows nothing but the kubelet's record
        await its.it.start_agent()
        its.use(b=10 * GIB)
        new = await its.runs("new", 6)
        await its.it.node.until(lambda: its.file(b).return_mib > 0)
        for _ in range(4):
            await its.it.node.until(its.next_reading())
        assert new.phase == "Running"
        assert its.file(b).return_by == ""
        assert "deletionTimestamp" not in its.it.api.get("pods", "b")["metadata"]
        assert its.told("GPUMemoryNotReturned") == its.told("GPUMemoryOverUse") == []


async def test_who_finds_its_part_free_does_not_wait_for_what_another_waits_for() -> None:
    async with scene(**PATIENT) as its:
        made = await its.borrower()
        shortly(its)
        assert (await its.runs("large", 8)).phase == "Pending"
        small = await its.runs("small", 1)
        assert small.phase == "Running"
        its.use(small=GIB)
        # While the kubelet waits to try the large one again, and while it tries.
        assert (await its.it.node.kubelet.restart_container(small, "main")).phase == "Running"
        large = next(pod for pod in its.it.node.kubelet.pods if pod.name == "large")
        again = asyncio.create_task(its.it.node.kubelet.restart_container(large, "main"))
        await its.it.node.until(lambda: bool(its.agent.features.of(Borrowing)._starting))
        assert (await its.it.node.kubelet.restart_container(small, "main")).phase == "Running"
        assert (await again).phase == "Pending"
        assert its.file(made).needed_by == "default/large"


async def test_of_two_that_find_room_for_one_the_other_waits() -> None:
    async with scene(**PATIENT) as its:
        await its.borrower()
        both = [asyncio.create_task(its.runs(name, 2)) for name in ("one", "two")]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        await its.it.node.until(lambda: bool(its.told("GPUMemoryWaits")))
        assert [each.done() for each in both].count(True) == 1
        its.use(nb=4 * GIB)
        assert [(await each).phase for each in both] == ["Running"] * 2


async def test_an_init_container_and_parts_of_two_gpus_do_not_borrow() -> None:
    async with scene(T4) as its:
        spec = pod("a", container("init", kind=ContainerKind.INIT, mem=4), container("main", mem=2))
        its.it.create(spec, annotations={MEMORY_LIMIT: "12"})
        await its.it.bind("a", promise(0, 4))
        made = await its.it.admit(its.it.known(spec))
        assert [envs_of(made, name)["GPUSHARE_MEMORY_LIMIT_MIB"] for name in ("init", "main")] == ["4096", "12288"]
        (told,) = made.container("init").received.mounts
        assert read_memory_file((Path(told.host_path) / MEMORY_FILE).read_text()) == MemoryFile(4096, 4096, 4096)
        split = await its.it.schedule(pod("b", mem=4), allocation({0: 2, 1: 2}))
        its.it.api.patch("pods", "b", {"metadata": {"annotations": {MEMORY_LIMIT: "12"}}})
        await its.it.node.until(
            lambda: any(MEMORY_LIMIT in p.annotations for p in its.it.cluster.pods.values() if p.name == "b")
        )
        assert envs_of(await its.it.admit(split))["GPUSHARE_MEMORY_LIMIT_MIB"] == "2048"


async def test_where_use_is_not_read_nobody_waits_or_is_asked() -> None:
    async with scene(usage_interval="0s") as its:
        made = await its.runs("nb", 4, {MEMORY_LIMIT: "12"})
        its.use(nb=12 * GIB)
        began = time.monotonic()
        assert (await its.runs("new", 8)).phase == "Running"
        assert time.monotonic() - began < 4
        await its.it.node.until(lambda: its.file(made).limit_mib < 8 * GIB)
        assert its.agent.features.of(Borrowing).reclaiming.value.requests == {}


async def test_nobody_stays_asked_once_use_is_not_read_any_more() -> None:
    async with scene(return_grace="5m") as its:
        made = await its.borrower()
        shortly(its)
        await its.runs("new", 8)
        assert its.file(made).return_mib
        its.agent.features.of(Use).every(0.0)
        await its.it.node.until(lambda: not its.file(made).return_mib)
        assert its.agent.features.of(Borrowing).reclaiming.value.requests == {}


async def test_a_guarantee_that_grows_has_borrowed_memory_returned() -> None:
    async with scene() as its:
        its.it.api.add(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {RESIZE_BOUND: "9"}}}
        )
        made = await its.borrower()
        its.use(nb=10 * GIB)
        grows = await its.runs("grows", 4)
        assert grows.phase == "Running"
        assert its.told("GPUMemoryAsked") == []
        its.it.api.patch("pods", "grows", {"metadata": {"annotations": {MEMORY_GUARANTEE: "9"}}})
        await its.it.node.until(lambda: its.file(made).return_mib > 0)
        assert its.file(made).needed_by == "default/grows"
        await follow(its, made)
        await its.it.node.until(lambda: not its.agent.features.of(Borrowing).reclaiming.value.requests)
