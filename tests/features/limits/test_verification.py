"""Every limit of the driver's is read back soon after its container has started, and after each restart."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.limits.rules import running_limits as verifying
from gpu_device_plugin.features.limits.rules.dmem_limits import NOT_YET
from gpu_device_plugin.features.limits.verification import Verification
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.hardware.messages import CgroupLimit
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.model.limits import Enforcement, LimitState, LimitStatus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from gpu_device_plugin.node.node_state import NodeState
from tests.node.contexts import context
from tests.node.recorded_api import RecordedApi
from tests.nodes import node, uuid
from tests.patience import beside, eventually

GRANTED = 4096


def container_id(number: int) -> str:
    return f"{number:064x}"


@dataclass
class Node:
    """A node whose driver and cgroups are what a test makes of them."""

    root: Path
    held: dict[str, ContainerGpus] = field(default_factory=dict)
    """By pod UID."""
    limits: dict[str, int | None] = field(default_factory=dict)
    """What the driver has for a container ID, in MiB on every GPU; None: no limit."""
    codes: dict[str, int] = field(default_factory=dict)
    """NVML's other codes, by container ID."""
    answers: bool = True
    used: int | None = None
    """What the driver says that each container uses on each GPU."""
    asked: list[Sequence[tuple[str, str]]] = field(default_factory=list)
    said_held: set[str] = field(default_factory=set)
    """UIDs of the pods for which the driver once said that it has the limit that was granted."""
    api: RecordedApi = field(default_factory=RecordedApi)

    def __post_init__(self) -> None:
        self.root.mkdir(exist_ok=True)
        self.events = self.api.pod_events
        self.node = context(
            hardware=SimpleNamespace(limits=self._read),
            cgroups=CgroupTree(self.root),
            state=NodeState(node(8, 8)),
            api=self.api,
        )
        use = SimpleNamespace(
            holders=lambda: tuple(self.held.values()),
            allowed_now=Observable({}),
            measured_by_driver=Observable({}),
            processes_read=((), {}),
            interval_s=0.0,
        )
        self.use = cast("Use", use)
        self.verification = Verification(self.node, self.use)

    def run(self, uid: str, number: int, *, mib: int | None = GRANTED, gpus: int = 1, **rest: Any) -> str:
        """Have a pod's container run, or run again, with the limit that the driver has; return its ID."""
        made = container_id(number)
        self.remove(uid)
        (self.root / f"kubepods/burstable/pod{uid}/{made}").mkdir(parents=True)
        self.limits[made] = mib
        pod = Pod(uid, "ns", f"name-{uid}", container_ids={"main": made})
        granted = {uuid(index): GRANTED for index in range(gpus)}
        self.held[uid] = replace(ContainerGpus(uid, "main", granted, enforcement=Enforcement.DRIVER, pod=pod), **rest)
        return made

    def stop(self, uid: str) -> None:
        """Have a pod's container end; it may start again."""
        self.remove(uid)
        if uid in self.held:
            self.held[uid] = replace(self.held[uid], pod=Pod(uid, "ns", f"name-{uid}"))

    def remove(self, uid: str) -> None:
        """Remove the cgroups of a pod's containers."""
        for leaf in self.root.glob(f"kubepods/burstable/pod{uid}/*"):
            leaf.rmdir()

    async def _read(self, wanted: Sequence[tuple[str, str]]) -> tuple[CgroupLimit, ...] | None:
        self.asked.append(tuple(wanted))
        await asyncio.sleep(0)
        if not self.answers:
            return None
        found = [CgroupLimit(gpu, path, *self._has(path), used_mib=self.used) for gpu, path in wanted]
        self.said_held |= {
            Path(each.path).parent.name.removeprefix("pod") for each in found if each.hard_mib == GRANTED
        }
        return tuple(found)

    def _has(self, path: str) -> tuple[int, int | None]:
        made = Path(path).name
        if made in self.codes:
            return self.codes[made], None
        limit = self.limits[made] if Path(path).is_dir() else None
        return (0, limit) if limit is not None else (6, None)

    def states(self, uid: str) -> list[LimitState]:
        """Return the published states of a pod's container, by GPU."""
        found = self.node.limit_states.value
        return [state for place, state in sorted(found.items()) if place[0] == uid]

    def held_of(self, uid: str) -> list[LimitStatus]:
        return [state.held for state in self.states(uid)]

    async def until(self, uid: str, *held: LimitStatus) -> None:
        """Wait until the states of a pod's container are these."""
        await eventually(lambda: self.held_of(uid) == list(held))


UID, OTHER = (f"{number:032x}" for number in (1, 2))


@asynccontextmanager
async def verifying_on(root: Path) -> AsyncIterator[Node]:
    there = Node(root)
    async with beside(there.verification.run()):
        yield there


async def test_a_limit_is_held_differs_or_is_missing(tmp_path: Path) -> None:
    async with verifying_on(tmp_path) as there:
        there.run(UID, 1)
        there.run(OTHER, 2, mib=8192)
        third = f"{3:032x}"
        there.run(third, 3, mib=None)
        there.verification.changed()
        await there.until(UID, LimitStatus.HELD)
        await there.until(OTHER, LimitStatus.DIFFERS)
        await there.until(third, LimitStatus.MISSING)
        assert there.states(OTHER)[0].found_mib == 8192
        assert there.verification.counts == {
            LimitStatus.HELD: 1,
            LimitStatus.DIFFERS: 1,
            LimitStatus.MISSING: 1,
            LimitStatus.UNVERIFIED: 0,
        }
        assert [(about, reason, action) for about, reason, _, action in there.events] == [
            (OTHER, "GPULimitNotHeld", "Verify"),
            (third, "GPULimitNotHeld", "Verify"),
        ]
        assert there.events[0][2].startswith("The memory limit of container main does not hold: on GPU 0 driver limit")
        assert "driver limit 8192 MiB, granted 4096 MiB" in there.events[0][2]


async def test_every_restart_is_verified_and_told_once(tmp_path: Path) -> None:
    async with verifying_on(tmp_path) as there:
        there.run(UID, 1, mib=None)
        there.verification.changed()
        await there.until(UID, LimitStatus.MISSING)
        there.verification.verify_all()
        await eventually(lambda: len(there.asked) == 2)
        assert len(there.events) == 1
        there.stop(UID)
        there.verification.changed()
        await there.until(UID)
        there.run(UID, 2, mib=GRANTED)
        there.verification.changed()
        await there.until(UID, LimitStatus.HELD)
        assert len(there.events) == 1
        there.run(UID, 3, mib=1024)
        there.verification.changed()
        await there.until(UID, LimitStatus.DIFFERS)
        assert len(there.events) == 2


async def test_a_container_that_was_verified_is_read_again_only_with_all_others(tmp_path: Path) -> None:
    async with verifying_on(tmp_path) as there:
        there.run(UID, 1)
        there.verification.changed()
        await there.until(UID, LimitStatus.HELD)
        there.run(OTHER, 2)
        there.verification.changed()
        await there.until(OTHER, LimitStatus.HELD)
        assert [[path[-1] for _, path in wanted] for wanted in there.asked] == [["1"], ["2"]]
        there.limits[container_id(1)] = 5000
        there.verification.verify_all()
        await there.until(UID, LimitStatus.DIFFERS)
        assert [path[-1] for _, path in there.asked[-1]] == ["1", "2"]


async def test_all_limits_are_read_again_at_intervals(tmp_path: Path) -> None:
    async with verifying_on(tmp_path) as there:
        there.use.interval_s = 0.05
        there.run(UID, 1)
        there.verification.verify_all()
        await there.until(UID, LimitStatus.HELD)
        there.limits[container_id(1)] = None
        await there.until(UID, LimitStatus.MISSING)
        there.limits[container_id(1)] = GRANTED
        await there.until(UID, LimitStatus.HELD)
        there.limits[container_id(1)] = 2 * GRANTED
        await there.until(UID, LimitStatus.DIFFERS)
        assert len(there.events) == 1, "one for each start"


async def test_a_driver_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    """Without an answer a state stays as it was read last; of a container that was never read it is unverified."""
    async with verifying_on(tmp_path) as there:
        there.run(UID, 1)
        there.verification.changed()
        await there.until(UID, LimitStatus.HELD)
        there.answers = False
        there.run(OTHER, 2)
        there.verification.verify_all()
        await there.until(OTHER, LimitStatus.UNVERIFIED)
        assert there.states(OTHER)[0].why == verifying.NO_ANSWER
        assert there.held_of(UID) == [LimitStatus.HELD]
        there.answers = True
        await there.until(OTHER, LimitStatus.HELD)
        there.answers = False
        there.run(UID, 3)
        there.verification.changed()
        await there.until(UID, LimitStatus.UNVERIFIED)
        assert there.events == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda there: there.remove(UID), verifying.NO_LEAF),
        (lambda there: there.root.joinpath("kubepods").rename(there.root / "other"), verifying.NO_CGROUPS),
        (lambda there: there.held.update({UID: replace(there.held[UID], pod=None)}), verifying.NO_CONTAINER),
        (lambda there: there.codes.update({container_id(1): 4}), "no permission"),
        (lambda there: there.codes.update({container_id(1): 13}), "r615"),
        (lambda there: there.held.update({UID: replace(there.held[UID], enforcement=Enforcement.MPS)}), "MPS"),
    ],
)
async def test_what_cannot_be_read_back_is_unverified_with_the_reason(
    tmp_path: Path, change: Callable[[Node], None], why: str
) -> None:
    async with verifying_on(tmp_path) as there:
        there.run(UID, 1)
        change(there)
        there.verification.changed()
        await there.until(UID, LimitStatus.UNVERIFIED)
        assert why in there.states(UID)[0].why
        assert there.events == []


async def test_a_fault_of_ours_is_logged_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with verifying_on(tmp_path) as there:
        there.run(UID, 1)
        del there.limits[container_id(1)]
        there.use.interval_s = 0.05
        there.verification.changed()
        await eventually(lambda: len(there.asked) > 2)
        there.limits[container_id(1)] = GRANTED
        await there.until(UID, LimitStatus.HELD)
    assert [each.getMessage() for each in caplog.records if each.exc_info] == [
        "memory limits cannot be read back; trying again"
    ]


async def test_the_gpus_of_a_container_are_told_together(tmp_path: Path) -> None:
    async with verifying_on(tmp_path) as there:
        there.run(UID, 1, mib=None, gpus=2)
        there.verification.changed()
        await there.until(UID, LimitStatus.MISSING, LimitStatus.MISSING)
        ((_, _, note, _),) = there.events
        assert "does not hold: on GPU 0, 1 the driver has no limit" in note
        assert len(note) < 1024


async def test_what_the_driver_counts_is_known_as_long_as_it_answers(tmp_path: Path) -> None:
    async with verifying_on(tmp_path) as there:
        there.used = 700
        there.run(UID, 1, gpus=2)
        there.verification.changed()
        await there.until(UID, LimitStatus.HELD, LimitStatus.HELD)
        assert there.use.measured_by_driver.value == {(UID, "main", uuid(gpu)): 700 for gpu in range(2)}
        there.used = None
        there.verification.verify_all()
        await eventually(lambda: there.use.measured_by_driver.value == {})
        there.used = 800
        there.verification.verify_all()
        await eventually(lambda: set(there.use.measured_by_driver.value.values()) == {800})
        there.answers = False
        there.verification.verify_all()
        await eventually(lambda: there.use.measured_by_driver.value == {})
        assert there.held_of(UID) == [LimitStatus.HELD, LimitStatus.HELD]


async def test_many_containers_are_read_in_parts(tmp_path: Path) -> None:
    """Between two questions the driver's process answers others."""
    async with verifying_on(tmp_path) as there:
        for number in range(300):
            there.run(f"{number:032x}", number)
        there.verification.changed()
        await eventually(lambda: there.verification.counts[LimitStatus.HELD] == 300)
        assert max(map(len, there.asked)) <= 128
        assert sum(map(len, there.asked)) == 300


# --- Whatever happens -------------------------------------------------------------------------------------------------

UIDS = st.sampled_from([f"{number:032x}" for number in range(3)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), UIDS, st.sampled_from([GRANTED, 2 * GRANTED, None])),
        st.tuples(st.just("stop"), UIDS, st.none()),
        st.tuples(st.just("delete"), UIDS, st.none()),
        st.tuples(st.just("the API forgets it"), UIDS, st.none()),
        st.tuples(st.just("the driver"), st.none(), st.booleans()),
        st.tuples(st.just("the mount"), st.none(), st.booleans()),
        st.tuples(st.just("again"), st.none(), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=30)
@given(steps=STEPS, pauses=st.lists(st.integers(0, 6), min_size=12, max_size=12))
async def test_a_limit_is_called_held_only_where_the_driver_said_so(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, Any, Any]], pauses: Sequence[int]
) -> None:
    """And when all answer again, every state is the present one; each start of a container has one Event at most."""
    root = tmp_path_factory.mktemp("node") / "cgroup"
    async with verifying_on(root) as there:
        for number, ((what, uid, value), pause) in enumerate(zip(steps, pauses, strict=False)):
            match what:
                case "run":
                    _mount(root, there=True)
                    there.run(uid, number, mib=value)
                case "stop":
                    there.stop(uid)
                case "delete":
                    there.held.pop(uid, None)
                case "the API forgets it" if uid in there.held:
                    there.held[uid] = replace(there.held[uid], pod=None)
                case "the driver":
                    there.answers = value
                case "the mount":
                    _mount(root, there=value)
                case _:
                    there.verification.verify_all()
            there.verification.changed()
            for _ in range(pause):
                await asyncio.sleep(0)
            held = {
                place[0] for place, state in there.node.limit_states.value.items() if state.held is LimitStatus.HELD
            }
            assert held <= there.said_held
        there.answers = True
        _mount(root, there=True)
        there.verification.verify_all()
        expected = {uid: _expected(there, holder) for uid, holder in there.held.items()}
        await eventually(lambda: {uid: there.held_of(uid) for uid in there.held} == expected)
        # A pod that was deleted last may still be among them until the round that it has woken.
        await eventually(lambda: {place[0] for place in there.node.limit_states.value} <= there.held.keys())
        assert len(there.events) <= sum(what == "run" for what, _, _ in steps)


def _mount(root: Path, *, there: bool) -> None:
    """Make the node's cgroups visible to the agent, or hide them."""
    shown, hidden = root / "kubepods", root / "hidden"
    for source, target in ((hidden, shown),) if there else ((shown, hidden),):
        if source.exists():
            source.rename(target)


def _expected(there: Node, holder: ContainerGpus) -> list[LimitStatus]:
    if holder.pod is None:
        return [LimitStatus.UNVERIFIED]
    if not holder.container_id:
        return []
    limit = there.limits[holder.container_id]
    return [LimitStatus.MISSING if limit is None else LimitStatus.HELD if limit == GRANTED else LimitStatus.DIFFERS]


async def test_a_limit_of_the_kernels_is_waited_for_held_and_escaped(tmp_path: Path) -> None:
    """The helper sets it some moments after the start, and that is no fault of anybody's."""
    async with verifying_on(tmp_path) as there:
        pending = [NOT_YET]
        there.verification._pending = lambda *_: "".join(pending)
        made = there.run(UID, 1, mib=None, enforcement=Enforcement.DMEM)
        there.used = 700
        there.verification.changed()
        await there.until(UID, LimitStatus.UNVERIFIED)
        assert (there.states(UID)[0].why, there.events) == (NOT_YET, [])
        pending.clear()
        there.limits[made] = GRANTED
        await there.until(UID, LimitStatus.HELD)  # it is read again soon
        assert there.states(UID)[0].enforcement is Enforcement.DMEM
        process = GpuProcess(7, 1000)
        there.use.processes_read = [GpuReading(uuid(0), (process,), 1000)], {7: CgroupOwner(UID, made)}
        there.verification.verify_all()
        await there.until(UID, LimitStatus.UNVERIFIED)
        assert "300 MiB have escaped the limit" in there.states(UID)[0].why
        there.limits[made] = None
        there.verification.verify_all()
        await there.until(UID, LimitStatus.MISSING)
        assert "the kernel has no limit for this container's cgroup" in there.events[0][2]
        there.stop(UID)
        there.held[UID] = replace(there.held[UID], pod=None)
        there.verification.changed()
        await there.until(UID, LimitStatus.UNVERIFIED)
        assert there.states(UID)[0] == LimitState(Enforcement.DMEM, why=verifying.NO_CONTAINER)
