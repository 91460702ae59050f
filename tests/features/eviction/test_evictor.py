"""A pod is evicted once, refused evictions are tried again with patience, and each outcome is told once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.eviction.evictor import Evictor
from gpu_device_plugin.features.eviction.rules import Candidate
from gpu_device_plugin.features.history.contract import IncidentKind
from gpu_device_plugin.features.history.rules.incidents import Trigger
from gpu_device_plugin.kubernetes.writers.evictions import Eviction, EvictionOutcome
from gpu_device_plugin.model.pods import Pod
from tests.node.contexts import context, settings
from tests.patience import eventually

POD = Pod("u", "default", "big")
GPUS = frozenset({"GPU-0"})


@dataclass
class Desk(m.Metrics):
    """An API that answers as it is told, and what it was asked and told."""

    answers: list[Eviction]
    pods: dict[str, Pod] = field(default_factory=lambda: {"u": POD})
    asked: list[str] = field(default_factory=list)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    counted: list[tuple[str, ...]] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    triggers: list[Trigger] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.settings = Observable(settings())
        self.evictor = Evictor(context(reached_cluster=self, metrics=self, settings=self.settings))
        self.evictor.first_retry_s = 10
        self.evictor.clock = lambda: self.now

    def event(
        self,
        reason: str,
        note: str,
        action: str,
        *,
        pod: Pod | None = None,
        summary: str = "",
        gpus: tuple[str, ...] = (),
    ) -> None:
        assert action == "Evict"
        incident = ""
        if summary:
            self.triggers.append(Trigger(IncidentKind.OVER_USE_EVICTION, summary, gpus, pod))
            incident = f" (incident {len(self.triggers)})"
        self.events.append(("node" if pod is None else pod.name, reason, f"{note}{incident}"))

    async def evict(self, pod: Pod, most_grace_s: int) -> Eviction:
        self.asked.append(pod.uid)
        self.bounds.append(most_grace_s)
        return self.answers.pop(0)

    def count(self, what: m.Count, *labels: str, times: int = 1) -> None:
        self.counted += [(what.name, *labels)] * times

    def order(self, pod: Pod = POD) -> None:
        self.evictor.order(pod, GPUS, "GPUMemoryEvicted", "it uses too much", m.OVER_USE_EVICTIONS)

    async def answered(self) -> None:
        asked = len(self.asked)
        self.order()
        await eventually(lambda: len(self.asked) > asked and "0 ordered" in repr(self.evictor))


def test_beside_another_plugin_nobody_is_chosen() -> None:
    desk = Desk([])
    candidate = Candidate(POD, "GPU-0")
    assert desk.evictor.next_victims([candidate]) == {"u": (POD, GPUS)}
    desk.evictor.alone = lambda: False
    assert desk.evictor.next_victims([candidate]) == {}


@asynccontextmanager
async def desk(*answers: Eviction) -> AsyncIterator[Desk]:
    made = Desk(list(answers))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(*made.evictor.tasks())
        yield made
        running.cancel()


BLOCKED = Eviction(EvictionOutcome.BLOCKED, "its PodDisruptionBudget allows no disruption now")
FORBIDDEN = Eviction(EvictionOutcome.FORBIDDEN, "apply deploy/optional/evict.yaml")
AWAY = Eviction(EvictionOutcome.FAILED, "create pods/eviction: no answer")


async def test_an_evicted_pod_is_on_its_way_until_it_has_ended() -> None:
    async with desk(Eviction(EvictionOutcome.EVICTED)) as it:
        it.order()
        it.order()
        assert it.evictor.going == {"u": GPUS}, "from the order on"
        await eventually(lambda: bool(it.events))
        assert it.events == [("big", "GPUMemoryEvicted", "evicted: it uses too much (incident 1)")]
        (trigger,) = it.triggers
        assert (trigger.kind, trigger.uuids, trigger.pod) == (IncidentKind.OVER_USE_EVICTION, ("GPU-0",), POD)
        assert it.counted == [("gpushare_over_use_evictions_total", "evicted")]
        assert it.evictor.going == {"u": GPUS}
        it.pods["u"] = replace(POD, phase="Succeeded")
        assert it.evictor.going == {}
        assert it.asked == ["u"]


ANOTHER = Pod("v", "default", "small")


@pytest.mark.parametrize(("own_s", "most_s", "until_s"), [(10**9, 60, 90), (5, 60, 35), (10**9, 0.2, 31)])
async def test_a_pod_that_does_not_end_in_time_keeps_its_gpu_busy_no_longer(
    own_s: int, most_s: float, until_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The next pod there gets its turn; the first is not evicted again, and the log names it."""
    stubborn = replace(POD, grace_s=own_s)
    candidates = [Candidate(stubborn, "GPU-0", 9), Candidate(ANOTHER, "GPU-0", 1)]
    async with desk(Eviction(EvictionOutcome.EVICTED)) as it:
        it.settings.set(settings(eviction_grace=f"{round(most_s * 1000)}ms"))
        it.pods |= {"u": stubborn, "v": ANOTHER}
        it.order(stubborn)
        await eventually(lambda: bool(it.events))
        assert it.bounds == [max(1, most_s)]
        it.now = until_s - 0.1
        assert it.evictor.next_victims(candidates) == {}
        it.now = until_s
        assert it.evictor.next_victims(candidates) == {"v": (ANOTHER, GPUS)}
        assert it.evictor.going == {}
        assert "pod default/big should have ended but still uses its GPU" in caplog.text


async def test_a_pod_that_its_owner_deletes_keeps_its_gpu_busy_no_longer_either() -> None:
    deleted = replace(POD, deleting=True, grace_s=20)
    candidates = [Candidate(deleted, "GPU-0", 9), Candidate(ANOTHER, "GPU-0", 1)]
    async with desk() as it:
        it.pods |= {"u": deleted, "v": ANOTHER}
        assert it.evictor.next_victims(candidates) == {}
        it.now = 49
        assert it.evictor.next_victims(candidates) == {}
        it.now = 50
        assert it.evictor.next_victims(candidates) == {"v": (ANOTHER, GPUS)}
        del it.pods["u"]
        assert it.evictor.overdue == frozenset()


async def test_a_pod_that_is_gone_is_nobodys_business() -> None:
    async with desk(Eviction(EvictionOutcome.GONE)) as it:
        await it.answered()
        assert (it.events, it.evictor.going, it.evictor.put_off) == ([], {}, frozenset())
        assert it.counted == [("gpushare_over_use_evictions_total", "gone")]


@pytest.mark.parametrize(
    ("refusal", "event"),
    [
        (
            BLOCKED,
            (
                "big",
                "GPUEvictionBlocked",
                f"should be evicted: it uses too much; {BLOCKED.why}, so this is retried",
            ),
        ),
        (
            FORBIDDEN,
            (
                "node",
                "GPUEvictionForbidden",
                "The agent of this node cannot evict pod default/big: apply deploy/optional/evict.yaml",
            ),
        ),
        (AWAY, None),
    ],
)
async def test_a_refused_eviction_waits_and_is_told_once(
    refusal: Eviction, event: tuple[str, str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk(refusal, refusal, Eviction(EvictionOutcome.EVICTED)) as it:
        for _ in range(2):
            await it.answered()
            assert it.evictor.put_off == {"u"}
            assert it.evictor.going == {}
            it.now += 20
            assert it.evictor.put_off == frozenset()
        assert it.events == ([event] if event else [])
        assert len(caplog.messages) == 1
        await it.answered()
        assert [reason for _, reason, _ in it.events][-1] == "GPUMemoryEvicted"
        assert "0 refused" in repr(it.evictor)
        assert [label for _, label in it.counted] == [refusal.outcome, refusal.outcome, "evicted"]


async def test_another_refusal_is_told_too() -> None:
    async with desk(AWAY, BLOCKED, FORBIDDEN) as it:
        for _ in range(3):
            await it.answered()
        assert [reason for _, reason, _ in it.events] == ["GPUEvictionBlocked", "GPUEvictionForbidden"]


async def test_the_servers_patience_is_respected_and_the_wait_grows() -> None:
    async with desk(replace(BLOCKED, retry_after_s=60), BLOCKED, BLOCKED) as it:
        await it.answered()
        it.now += 59
        assert it.evictor.put_off == {"u"}
        it.now += 1
        assert it.evictor.put_off == frozenset()
        for _ in range(2):
            await it.answered()
        it.now += 19  # the third wait is of 20 to 40 seconds
        assert it.evictor.put_off == {"u"}


async def test_a_refused_pod_that_is_gone_is_forgotten() -> None:
    async with desk(BLOCKED) as it:
        await it.answered()
        it.pods.clear()
        assert it.evictor.put_off == frozenset()
        assert "0 refused" in repr(it.evictor)
