"""Whatever happens on a node, in whatever order, nothing is given twice: the whole agent, a kubelet, and chance."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu_device_plugin.testing.pods import Kind, Pod, PodSpec
from tests.programs.harness import COUNT, MEM, container, world

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gpu_device_plugin.testing.pods import ContainerSpec
    from tests.programs.harness import World

T = TypeVar("T")

GPUS = [{"uuid": f"GPU-{n}", "memory": f"{size}GiB"} for n, size in enumerate((4, 4, 2))]
"""4, 4 and 2 shares: so little that everybody gets in everybody's way."""

DEMANDS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.builds(lambda n: {"mem": n}, st.integers(1, 5)),
    st.builds(lambda n: {"count": n}, st.integers(1, 2)),
    st.just({}),
)
BEFORE = st.lists(st.tuples(st.sampled_from([Kind.INIT, Kind.SIDECAR]), DEMANDS), max_size=2)
APPS = st.lists(DEMANDS, min_size=1, max_size=2)


@st.composite
def containers(draw: st.DrawFn) -> tuple[ContainerSpec, ...]:
    """Draw what a pod consists of; no container asks for both resources."""
    drawn = [*draw(BEFORE), *((Kind.APP, wanted) for wanted in draw(APPS))]
    return tuple(container(f"c{n}", kind=kind, **wanted) for n, (kind, wanted) in enumerate(drawn))


PODS = containers()
WHICH = st.integers(0, 1000)
GPU = st.integers(0, len(GPUS) - 1)


class NodeMachine(RuleBasedStateMachine):
    """A node over time. Runs in a thread of its own; everything it acts on lives in `loop`."""

    loop: ClassVar[asyncio.AbstractEventLoop]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    # --- The node -----------------------------------------------------------------------------------------------------

    @initialize(version=st.sampled_from([(1, 20), (1, 24), (1, 28), (1, 33), (1, 36)]), seed=st.integers(0, 2**16))
    def begin(self, version: tuple[int, int], seed: int) -> None:
        self.stack = AsyncExitStack()
        self.failed: set[int] = set()
        self.left: list[Pod] = []
        """Deleted by force, with a process that runs, and seen by the agent that is there now."""
        self.made = 0
        self.do(self._begin(version, seed))

    async def _begin(self, version: tuple[int, int], seed: int) -> None:
        made = world(GPUS, version=version, seed=seed, process_wait="1h", policy=("binpack", "spread")[seed % 2])
        self.node: World = await self.stack.enter_async_context(made)
        self.kubelet = self.node.kubelet
        await self.node.start_agent()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.do(self.stack.aclose())

    @property
    def alive(self) -> list[Pod]:
        return [pod for pod in self.kubelet.pods if not pod.terminal]

    async def _describe_hardware(self) -> None:
        """Show the processes of the pods that run now, and wait until the agent has looked."""
        running = [gpus_in(pod) for pod in self.kubelet.running]
        described: list[dict[str, Any]] = [
            gpu
            | {"processes": sum(gpu["uuid"] in each for each in running)}
            | ({"error": "no answer"} if n in self.failed else {})
            for n, gpu in enumerate(GPUS)
        ]
        self.node.hardware(*described)
        if (agent := self.node.agent) is not None:
            shown = {one["uuid"]: one["processes"] for one in described if "error" not in one}
            view = agent.hardware.view
            await self.node.until(lambda: shown.items() <= view.value.processes.items())
            broken = {GPUS[n]["uuid"] for n in self.failed}
            await self.node.until(lambda: set(agent.book.node.unhealthy) == broken)

    # --- What happens -------------------------------------------------------------------------------------------------

    @rule(spec=PODS)
    def bind_a_pod(self, spec: tuple[ContainerSpec, ...]) -> None:
        self.made += 1
        self.do(self._bind(PodSpec(f"p{self.made}", spec)))

    async def _bind(self, spec: PodSpec) -> None:
        await self.kubelet.admit(spec)
        await self._describe_hardware()

    # Who is alive depends on how quick the machine is today, so that no precondition may ask for it.

    @rule(which=WHICH, how=st.sampled_from(["finish", "delete", "force"]))
    def end_a_pod(self, which: int, how: str) -> None:
        if self.alive:
            self.do(self._end(self.alive[which % len(self.alive)], how))

    async def _end(self, pod: Pod, how: str) -> None:
        if how == "finish":
            self.kubelet.finish(pod)
        else:
            gone = await self.kubelet.delete(pod, force=how == "force")
            if gone.process_running:
                self.left.append(gone)
        await self._describe_hardware()

    @rule(which=WHICH)
    def end_a_process(self, which: int) -> None:
        if self.left:
            self.do(self._end_process(self.left.pop(which % len(self.left))))

    async def _end_process(self, pod: Pod) -> None:
        self.kubelet.process_ended(pod)
        await self._describe_hardware()

    @rule(late=st.booleans())
    def restart_the_kubelet(self, late: bool) -> None:  # noqa: FBT001 (drawn by name)
        self.do(self._restart_kubelet(late=late))

    async def _restart_kubelet(self, *, late: bool) -> None:
        await self.kubelet.restart()
        if self.node.agent is not None and late:
            await self.node.ready()
        await self.kubelet.sources_ready()
        await self._describe_hardware()

    @rule()
    def reboot(self) -> None:
        self.do(self._reboot())

    async def _reboot(self) -> None:
        """The agent's pod comes back last, as it does where it has no priority."""
        await self.node.stop_agent()
        self.left.clear()
        await self.kubelet.reboot(ready=True)
        await self._describe_hardware()
        await self.node.start_agent()

    @precondition(lambda self: self.node.agent is not None)
    @rule()
    def stop_the_agent(self) -> None:
        self.do(self.node.stop_agent())

    @rule(damaged=st.booleans())
    def start_the_agent(self, damaged: bool) -> None:  # noqa: FBT001 (drawn by name)
        """Restarts it if it runs. What was deleted by force before, the next agent knows nothing of: a limit."""
        self.do(self._start_agent(damaged=damaged))

    async def _start_agent(self, *, damaged: bool) -> None:
        await self.node.stop_agent()
        for pod in self.left:
            self.kubelet.process_ended(pod)
        self.left.clear()
        await self._describe_hardware()
        if damaged:
            self.kubelet.checkpoint.write_text("damaged")
        await self.node.start_agent()
        await self._describe_hardware()

    @rule(gpu=GPU)
    def a_gpu_fails_or_recovers(self, gpu: int) -> None:
        self.failed ^= {gpu}
        self.do(self._describe_hardware())

    @rule()
    def streams_break(self) -> None:
        self.do(self._at_once(self.kubelet.drop_streams))

    @rule()
    def sockets_are_removed(self) -> None:
        self.do(self._at_once(self._remove_sockets))

    def _remove_sockets(self) -> None:
        for name in self.node.sockets:
            (self.kubelet.device_plugin_dir / name).unlink(missing_ok=True)

    async def _at_once(self, act: Any) -> None:
        act()

    @precondition(lambda self: self.node.agent is not None)
    @rule()
    def it_becomes_quiet(self) -> None:
        """Our books equal the kubelet's, but for what ended too soon after it was given, or is kept for a process."""
        self.do(self._quiet())

    async def _quiet(self) -> None:
        await self.node.ready()
        await self.node.until(lambda: self._confirmed() == set().union(*self.kubelet.allocated.values()), 5)

    def _confirmed(self) -> set[str]:
        assert self.node.agent is not None
        holds = self.node.agent.book.node.ledger.holds.items()
        return {name for name, hold in holds if hold.granted_at is None and hold.freed_at is None}

    # --- What holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if hasattr(self, "node"):
            self.do(self._check())

    async def _check(self) -> None:
        assert self.kubelet.panics == []
        given = [name for pod in self.alive for name in pod.devices(MEM) | pod.devices(COUNT)]
        assert len(given) == len(set(given)), "between pods"
        for pod in self.alive:
            kept = [
                name
                for each in pod.containers
                if each.spec.kind is not Kind.INIT
                for ids in each.devices.values()
                for name in ids
            ]
            assert len(kept) == len(set(kept)), "between containers that run beside each other"
            for each in pod.containers:
                gpus = {name.partition("::")[0] for name in each.devices.get(MEM, ())}
                assert len(gpus) <= 1, "no container across GPUs"
        there = [*self.alive, *self.left]
        shared = {name.partition("::")[0] for pod in there for name in pod.devices(MEM)}
        whole = {name for pod in there for name in pod.devices(COUNT)}
        assert not shared & whole, "no GPU both shared and whole"


def gpus_in(pod: Pod) -> set[str]:
    """Return the UUIDs of the GPUs on which containers of a pod run."""
    return {
        name.partition("::")[0]
        for each in pod.containers
        if each.running
        for ids in each.devices.values()
        for name in ids
    }


async def test_whatever_happens_nothing_is_given_twice() -> None:
    class Machine(NodeMachine):
        loop = asyncio.get_running_loop()

    chosen = settings(
        max_examples=8,
        stateful_step_count=25,
        deadline=None,
        database=None,
        # To make a failure smaller takes minutes here, and a node with real sockets is not the same twice.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    await asyncio.to_thread(run_state_machine_as_test, Machine, settings=chosen)
