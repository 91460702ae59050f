"""Arrivals and departures by chance under the real Cluster Autoscaler, by a seed each: AUTOSCALER_EPISODES of them."""

import asyncio
import logging
import os
import random
from pathlib import Path

import pytest

from tests.autoscaler.conftest import growing
from tests.autoscaler.invariants import EMPTY, Watch, demand, fitting, rooms
from tests.autoscaler.world import UNNEEDED_S, AutoscaledCluster, live, ours

FIRST = int(os.environ.get("AUTOSCALER_SEED", "0"))
EPISODES = int(os.environ.get("AUTOSCALER_EPISODES", "3"))
STEPS = 14
MAX_NODES = 6
IDLE_S = 12 * UNNEEDED_S
KILLS_S = 2.0, 14.0
"""Between two kills of the extender."""

SIZES: tuple[tuple[dict[str, int], ...], ...] = (
    ({"mem": 5},),
    ({"mem": 5}, {"mem": 6}, {"mem": 7}),
    ({"mem": 5}, {"mem": 6}, {"count": 1}),
    ({"mem": 3}, {"mem": 5}, {"mem": 8}),
    ({"mem": 3}, {"count": 1}, {"count": 2}),
    (*({"mem": shares} for shares in range(1, 9)), {"count": 1}, {"count": 2}),
)
"""What the pods of an episode ask. Of most a GPU takes one, and what is left is too little for the next."""

_log = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(1200)


class Episode:
    """Has workloads come and go, always the same for one seed, as far as the largest group has room for them."""

    def __init__(self, cluster: AutoscaledCluster, watch: Watch, seed: int) -> None:
        self.cluster = cluster
        self.watch = watch
        self.random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.sizes = self.random.choice(SIZES)
        self.amounts: dict[str, dict[str, int]] = {}
        """What a pod of each workload asks, by its name."""
        self.alone: set[str] = set()
        """Workloads that are one pod without a controller."""
        self.born = 0
        self.kills = 0
        self._fate = random.Random(f"{seed} kills")  # noqa: S311 - of its own: how long steps take changes no step
        self._kill = asyncio.Lock()

    async def step(self) -> None:
        """Let one thing happen."""
        does = self.random.choice(
            [self._comes, self._comes, self._comes, self._scales, self._scales, self._goes, self._restarts]
        )
        await does()
        await self.cluster.loops(self.random.choice([0, 0, 1, 3, 8]))

    def _affordable(self, amounts: dict[str, int], number: int) -> bool:
        """Whether the largest group could take these too, wherever pods that cannot move are."""
        there = [demand(pod) for pod in self.cluster.pods if ours(pod) and live(pod)]
        more = [(amounts.get("mem", 0), amounts.get("count", 0))] * number
        # One node less: what runs without a controller is not moved, so the best packing may be out of reach.
        return fitting([*there, *more], [EMPTY] * (MAX_NODES - 1))

    async def _comes(self) -> None:
        self.born += 1
        name, draw = f"w{self.born}", self.random
        amounts = dict(draw.choice(self.sizes))
        alone = draw.random() < 0.2
        number = 1 if alone else draw.randint(1, 7)
        while number and not self._affordable(amounts, number):
            number -= 1
        if not number:
            return
        self.amounts[name] = amounts
        if alone:
            self.alone.add(name)
            await self.cluster.pod(name, **amounts)
        else:
            self.watch.wanted[name] = number
            await self.cluster.deployment(name, number, **amounts)

    async def _scales(self) -> None:
        if names := sorted(self.watch.wanted):
            name = self.random.choice(names)
            number = self.random.randint(0, 7)
            more = number - self.watch.wanted[name]
            if more <= 0 or self._affordable(self.amounts[name], more):
                self.watch.wanted[name] = number
                await self.cluster.scale(name, number)

    async def _goes(self) -> None:
        if names := sorted(self.amounts):
            name = self.random.choice(names)
            if name in self.alone:
                self.alone.discard(name)
                await self.cluster.delete(name)
                del self.amounts[name]
            else:
                self.watch.wanted[name] = 0
                await self.cluster.scale(name, 0)

    async def _restarts(self) -> None:
        async with self._kill:
            await self.cluster.extender.restart()
        self.kills += 1

    async def haunted(self, over: asyncio.Event) -> None:
        """Kill the extender now and then, whatever it is at."""
        while not over.is_set():
            try:
                async with asyncio.timeout(self._fate.uniform(*KILLS_S)):
                    await over.wait()
            except TimeoutError:
                await self._restarts()

    def _full(self) -> bool:
        """Whether the group is at its largest, and no node has room for what waits: what runs is not moved for it."""
        pods = [pod for pod in self.cluster.pods if ours(pod)]
        free = [rooms(name, pods) for name in self.cluster.ready_names()]
        waiting = [demand(pod) for pod in pods if live(pod) and not pod["spec"].get("nodeName")]
        return self.cluster.cloud.size == MAX_NODES and not any(fitting([each], free) for each in waiting)

    def settled(self) -> bool:
        """Whether every pod that is wanted has its place, and every node something to do."""
        number = sum(self.watch.wanted.values()) + len(self.alone)
        return (
            len(self.cluster.places()) == number
            and (not self.cluster.waiting() or self._full())
            and not self.watch.needless
            and len(self.cluster.ready_names()) == len(self.cluster.cloud.instances)
        )


@pytest.mark.parametrize("seed", range(FIRST, FIRST + EPISODES))
async def test_nobody_waits_nothing_is_bought_in_vain_and_nobody_evicted(tmp_path: Path, seed: int) -> None:
    """The way in which the autoscaler is told alternates."""
    how = "buffers" if seed % 2 else "stand-ins"
    watch = Watch(IDLE_S)
    async with growing(tmp_path, how) as cluster:
        cluster.cloud.max_nodes = MAX_NODES
        watch.more = lambda: cluster.cloud.size < MAX_NODES
        cluster.kubelets.looked.append(watch.look)
        episode, over = Episode(cluster, watch, seed), asyncio.Event()
        async with asyncio.TaskGroup() as beside:
            beside.create_task(episode.haunted(over))
            for _ in range(STEPS):
                await episode.step()
            await cluster.until(
                lambda: episode.settled() or watch.wrong, "all pods have their places and no node is idle"
            )
            over.set()
        assert not watch.wrong, f"{watch.wrong}\n{cluster}"
        made = {f"gpu-{n + 1}" for n in range(sum(number for what, number in cluster.cloud.calls if what == "more"))}
        _log.info(
            "seed %s by %s: %s; %s evicted; never used %s; %s kills",
            seed, how, cluster.cloud.calls, len(watch.evicted), sorted(made - watch.used), episode.kills,
        )  # fmt: skip
