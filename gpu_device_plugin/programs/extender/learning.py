"""Learn from the pods that come what the room of nodes is worth, while the scheduler's calls go on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from gpu_device_plugin.core.cluster.asking import Ask, ask
from gpu_device_plugin.core.worth.appraising import Appraiser
from gpu_device_plugin.core.worth.candidates import ranks_on
from gpu_device_plugin.core.worth.learning import learning
from gpu_device_plugin.core.worth.mix import Mix, PodKind, created_s, kinds_of
from gpu_device_plugin.core.worth.when import due

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.other_pods import OtherPod
    from gpu_device_plugin.core.model.amounts import Amounts
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.policy import Ranks
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.shapes import Shape

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Nodes(Protocol):
    """The nodes that are scored by the tables."""

    def shapes(self) -> Mapping[Shape, int]:
        """Return how many nodes with GPUs there are of each shape."""

    @property
    def outdated(self) -> bool:
        """Whether there is a node of a shape that the tables do not know."""

    def learned(self, tables: Tables) -> Generator[None, None, None]:
        """Score by these tables from the end of these steps on."""


class Learner:
    """Keeps the mix of pods, and the tables learned from it. Nothing is persisted: a restart learns anew."""

    def __init__(
        self, nodes: Nodes, resources: Iterable[Resource], clock: Callable[[], float], *, look_s: float = 1.0
    ) -> None:
        """Start without a pod.

        Args:
            nodes: get the tables.
            resources: the managed resources.
            clock: monotonic seconds.
            look_s: how often to look whether there is more to learn.
        """
        self._nodes = nodes
        self._resources = tuple(resources)
        self._clock = clock
        self._look_s = look_s
        self._mix = Mix()
        self._appraiser: Appraiser | None = None
        self._learned_from = 0
        self._learned_at = 0.0

    def __repr__(self) -> str:
        return f"<Learner: {self._mix.came} pods of {len(self._mix)} kinds, learned from {self._learned_from}>"

    def came(self, pod: Pod) -> None:
        """Count a pod with GPUs, once."""
        asked = ask(pod, self._resources)
        if isinstance(asked, Ask):
            kinds = kinds_of(asked, pod.amounts.cpu_milli, pod.amounts.memory_mib)
            self._mix.add(kinds, created_s(pod.created))

    def other_came(self, pod: OtherPod) -> None:
        """Count a pod without GPUs that was bound to a node with GPUs, once."""
        self._mix.add([PodKind(0, 0, pod.amounts.cpu_milli, pod.amounts.memory_mib)], created_s(pod.created))

    def ranks(self, node: Candidate, amounts: Amounts) -> Ranks | None:
        """Return what the policy `fit` prefers on a node for a pod that requests these amounts; None: unknown yet."""
        return None if self._appraiser is None else ranks_on(self._appraiser, node, amounts)

    async def run(self) -> NoReturn:
        """Learn whenever it is due. Ends only by cancellation."""
        while True:
            await asyncio.sleep(self._look_s)
            age_s = self._clock() - self._learned_at
            if due(self._mix.came, self._learned_from, age_s, outdated=self._nodes.outdated):
                await self.learn()

    async def learn(self) -> None:
        """Learn now; the scheduler's calls are answered meanwhile."""
        came, shapes = self._mix.came, self._nodes.shapes()
        tables = await _last(learning(self._mix.parts(), shapes))
        await _last(self._nodes.learned(tables))
        self._appraiser = Appraiser(tables)
        said = _log.debug if self._learned_from else _log.info
        said("learned what room is worth", extra={"pods": came, "kinds": len(self._mix), "shapes": len(shapes)})
        self._learned_from, self._learned_at = came, self._clock()


async def _last(steps: Generator[None, None, T]) -> T:
    """Return the result of steps; others run between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)
