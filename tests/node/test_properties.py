"""Whatever happens on a node, in whatever order, nothing is given twice: the whole agent, a kubelet, and chance."""

import shutil
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.testing.pod_specs import ContainerSpec, Pod, PodSpec
from tests.happenings import CHANCE, Happenings, Life, live, lives
from tests.kubelet import kubelet_versions as versions
from tests.names import COUNT, MEM
from tests.node.harness import NodeWorld, container, world

GPUS = [{"uuid": f"GPU-{n}", "memory": f"{size}GiB"} for n, size in enumerate((4, 3))]
"""4 and 3 shares: so little that everybody gets in everybody's way."""


@dataclass
class Node:
    """A node over time. Every method is something that happens to it."""

    world: NodeWorld
    failed: set[int] = field(default_factory=set)
    left: list[Pod] = field(default_factory=list)
    """Deleted by force while a process ran that still runs, under the eyes of the agent that is there now."""
    made: int = 0
    pids: dict[str, int] = field(default_factory=dict)
    """The process of each pod, by UID."""

    @property
    def alive(self) -> list[Pod]:
        return [pod for pod in self.world.kubelet.pods if not pod.terminal]

    async def bind(self, *specs: tuple[ContainerSpec, ...]) -> None:
        """Bind pods so quickly one after the other that fences may come too late."""
        for spec in specs:
            self.made += 1
            await self.world.kubelet.admit(PodSpec(f"p{self.made}", spec))
        await self.settle()

    async def end(self, which: int, how: str) -> None:
        if not self.alive:
            return
        pod = self.alive[which % len(self.alive)]
        if how == "finish":
            self.world.kubelet.finish(pod)
            return
        gone = await self.world.kubelet.delete(pod, force=how == "force")
        if gone.process_running:
            self.left.append(gone)
            await self.quiet()
        await self.settle()

    async def end_process(self, which: int) -> None:
        if self.left:
            self.world.kubelet.process_ended(self.left.pop(which % len(self.left)))
            await self.settle()

    async def restart_kubelet(self, how: str, *meanwhile: tuple[ContainerSpec, ...]) -> None:
        """Its sources of pods are ready at once, or only after a while in which pods can be bound all the same.

        In that while the agent may be restarted too, and the checkpoint be damaged under it.
        """
        await self.world.kubelet.restart()
        if how != "quickly":
            if how in {"agent too", "damaged"}:
                await self.stop_agent()
                if how == "damaged":
                    self.world.kubelet.checkpoint.write_text("damaged")
                await self.world.start_agent()
            await self.world.ready()
            await self.bind(meanwhile[0])
            await self.world.rounds(1)  # in which PodResources lists nobody
            await self.bind(*meanwhile[1:])
        await self.world.kubelet.sources_ready()
        await self.settle()

    async def reboot(self) -> None:
        """The agent comes back last, as it does where it has no priority."""
        await self.world.stop_agent()
        self.left.clear()
        await self.world.kubelet.reboot(ready=True)
        await self.settle()
        await self.world.start_agent()

    async def restart_agent(self, *meanwhile: tuple[ContainerSpec, ...]) -> None:
        await self.stop_agent()
        await self.bind(*meanwhile)
        await self.world.start_agent()
        await self.settle()

    async def stop_agent(self) -> None:
        """What was deleted by force before, the next agent knows nothing of: a limit. So it ends here."""
        await self.world.stop_agent()
        while self.left:
            await self.end_process(0)

    async def flip(self, gpu: int) -> None:
        """Let a GPU fail, or recover."""
        self.failed ^= {gpu}
        await self.settle()

    async def drop_streams(self) -> None:
        self.world.kubelet.drop_streams()

    async def remove_sockets(self) -> None:
        for name in self.world.sockets:
            (self.world.kubelet.device_plugin_dir / name).unlink(missing_ok=True)

    async def settle(self) -> None:
        """Show the processes of the pods that run now, and wait until the agent has looked."""
        self.show_processes()
        running = [gpus_in(pod) for pod in self.world.kubelet.running]
        described: list[dict[str, Any]] = [
            gpu
            | {"processes": sum(gpu["uuid"] in each for each in running)}
            | ({"error": "no answer"} if n in self.failed else {})
            for n, gpu in enumerate(GPUS)
        ]
        self.world.hardware(*described)
        if (agent := self.world.agent) is not None:
            shown = {one["uuid"]: one["processes"] for one in described if "error" not in one}
            broken = {GPUS[n]["uuid"] for n in self.failed}
            readings = agent.hardware.readings
            await self.world.until(
                lambda: shown.items() <= {uuid: each.processes for uuid, each in readings.value.items()}.items()
            )
            await self.world.until(lambda: set(agent.state.node.blocks) == broken)

    def show_processes(self) -> None:
        """Let each pod that runs have a process, as its sandbox is one."""
        proc = self.world.proc
        if not (proc / "self").exists():
            self.world.show_processes()
        running = {pod.uid: pod for pod in self.world.kubelet.running}
        for uid, pod in running.items():
            self.world.process(self.pids.setdefault(uid, len(self.pids) + 1), pod, "5ad9" * 16)
        for uid in self.pids.keys() - running.keys():
            shutil.rmtree(self.world.proc / str(self.pids[uid]), ignore_errors=True)

    async def quiet(self) -> None:
        """Our ledger is what the kubelet has, but for what ended too soon after its grant, or is kept for a process.

        Where the kubelet keeps the pod that it admitted last, the agent ignores the entry of that pod only if one of
        its looks at the kubelet's records came before the pod's end. Both are right.
        """
        await self.world.ready()
        self.show_processes()
        kubelet = self.world.kubelet

        def is_settled() -> bool:
            all_ids = set().union(*kubelet.allocated.values())
            needed = self._of_pods() if kubelet.minor in versions.KEEPS_POD_ADMITTED_LAST else all_ids
            return needed <= self._confirmed() <= all_ids

        await self.world.until(is_settled)

    def _of_pods(self) -> set[str]:
        return {name for pod in self.alive for name in pod.devices(MEM) | pod.devices(COUNT)}

    def _confirmed(self) -> set[str]:
        assert self.world.agent is not None
        ledger = self.world.agent.state.node.ledger
        confirmed = {
            name for name, state in ledger.id_states.items() if state.granted_at is None and state.freed_at is None
        }
        return confirmed - ledger.forgotten

    def check(self) -> None:
        assert self.world.kubelet.panics == []
        given_out = [name for pod in self.alive for name in pod.devices(MEM) | pod.devices(COUNT)]
        assert len(given_out) == len(self._of_pods()), "an ID in two pods"
        for pod in self.alive:
            side_by_side = [each for each in pod.containers if each.spec.kind is not ContainerKind.INIT]
            kept = [name for each in side_by_side for ids in each.devices.values() for name in ids]
            assert len(kept) == len(set(kept)), "an ID in two containers that run side by side"
            for each in pod.containers:
                gpus = {name.partition("::")[0] for name in each.devices.get(MEM, ())}
                assert len(gpus) <= 1, "a container across GPUs"
        there = [each for pod in self.alive for each in pod.containers]
        there += [each for pod in self.left for each in pod.containers if each.running]
        shared = {name.partition("::")[0] for each in there for name in each.devices.get(MEM, ())}
        whole = {name for each in there for name in each.devices.get(COUNT, ())}
        assert not shared & whole, "a GPU both shared and whole"


def gpus_in(pod: Pod) -> set[str]:
    """Return the UUIDs of the GPUs on which containers of a pod run."""
    running = [each for each in pod.containers if each.running]
    return {name.partition("::")[0] for each in running for ids in each.devices.values() for name in ids}


# --- What may happen --------------------------------------------------------------------------------------------------

DEMANDS = st.sampled_from([{"mem": n} for n in (1, 1, 1, 2, 2, 3, 4)] + [{"count": n} for n in (1, 1, 1, 2)] + [{}])


@st.composite
def containers(draw: st.DrawFn) -> tuple[ContainerSpec, ...]:
    """Draw what a pod consists of; no container asks for both resources."""
    before = draw(
        st.sampled_from(
            [(), (), (ContainerKind.INIT,), (ContainerKind.SIDECAR,), (ContainerKind.INIT, ContainerKind.SIDECAR)]
        )
    )
    kinds = (
        *before,
        *draw(st.sampled_from([(ContainerKind.APP,), (ContainerKind.APP,), (ContainerKind.APP, ContainerKind.APP)])),
    )
    return tuple(container(f"c{n}", kind=kind, **draw(DEMANDS)) for n, kind in enumerate(kinds))


PODS = containers()
HAPPENINGS: Happenings = {
    "bind": (12, st.lists(PODS, min_size=1, max_size=3)),
    "end": (8, st.tuples(st.integers(0, 100), st.sampled_from(["finish", "delete", "force"]))),
    "end_process": (2, st.tuples(st.integers(0, 100))),
    "restart_kubelet": (3, st.tuples(st.sampled_from(["quickly", "late", "agent too", "damaged"]), PODS, PODS, PODS)),
    "reboot": (1, st.just(())),
    "restart_agent": (1, st.lists(PODS, max_size=1)),
    "flip": (1, st.tuples(st.integers(0, len(GPUS) - 1))),
    "drop_streams": (1, st.just(())),
    "remove_sockets": (1, st.just(())),
    "quiet": (1, st.just(())),
}


@CHANCE
@given(
    life=lives(HAPPENINGS, 25),
    version=st.sampled_from([(1, 20), (1, 24), (1, 28), (1, 33), (1, 36)]),
    policy=st.sampled_from(["binpack", "spread"]),
    seed=st.integers(0, 1000),
)
async def test_whatever_happens_nothing_is_given_twice(
    life: Life, version: tuple[int, int], policy: str, seed: int
) -> None:
    async with world(GPUS, version=version, seed=seed, policy=policy, process_wait="1h") as made:
        await made.start_agent()
        node = Node(made)
        await live(node, life)
        await node.quiet()
