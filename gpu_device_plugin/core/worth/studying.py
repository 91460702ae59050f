"""Learn from the pods that come so that no namespace can spoil what is learned for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.worth.learning import finished, learning, mean_gpu
from gpu_device_plugin.core.worth.mix import joined
from gpu_device_plugin.core.worth.trial import trying

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping

    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.mix import Mix, PodKind
    from gpu_device_plugin.core.worth.shapes import Shape
    from gpu_device_plugin.core.worth.trial import Trial

LITTLE = 0.02
"""The part of the demand that every namespace may have, whatever it holds. A part of 0.04 has spoilt nothing yet."""
_MOST_TRIALS = 4
"""Of so many namespaces, those with the largest parts, it is tried what the others lose by them."""


@dataclass(frozen=True, slots=True)
class Study:
    """What was learned, and whether it is of use."""

    pods: int
    """So many came."""
    mix: Mapping[PodKind, float]
    """Each kind with the part by which it counts."""
    tables: Tables
    trial: Trial
    """Of the pods of all namespaces, or of all but one: the one that `fit` did worst in."""
    distrusted: tuple[str, ...]
    """Namespaces that count little, because what their pods teach would make the others lose GPUs."""

    @property
    def usable(self) -> Tables | None:
        """The tables; None where `binpack` would have placed the pods better."""
        return None if self.trial.failed else self.tables


def studied(mix: Mix, nodes: Mapping[Shape, int]) -> Study:
    """Return the study of a mix on these nodes; see `studying`."""
    return finished(studying(mix, nodes))


def studying(mix: Mix, nodes: Mapping[Shape, int]) -> Generator[None, None, Study]:
    """Learn, and try what was learned, in steps of a millisecond or two.

    A namespace has at most the part of the demand that it has of the GPU memory in use. One that holds much may have
    pods that do not fit together with those of others, so it is tried what the others lose by it.

    Args:
        mix: the pods that came.
        nodes: how many nodes there are of each shape.
    """
    unit = mean_gpu(nodes)
    weights = mix.by_namespace()
    demand = {
        namespace: sum(weight * kind.gpus * (kind.shares or unit) for kind, weight in kinds.items())
        for namespace, kinds in weights.items()
    }
    yield
    study, spoilers = yield from _once(mix, weights, demand, (), nodes)
    if spoilers:
        study, _ = yield from _once(mix, weights, demand, spoilers, nodes)
    return study


def _once(
    mix: Mix,
    weights: Mapping[str, Mapping[PodKind, float]],
    demand: Mapping[str, float],
    distrusted: tuple[str, ...],
    nodes: Mapping[Shape, int],
) -> Generator[None, None, tuple[Study, tuple[str, ...]]]:
    """Return a study, and the namespaces by whose pods the others lose."""
    scales = scales_of(demand, mix.held, distrusted)
    scaled = {
        namespace: {kind: weight * scales[namespace] for kind, weight in kinds.items()}
        for namespace, kinds in weights.items()
    }
    yield
    parts = joined(scaled.values())
    yield
    tables = yield from learning(parts, nodes)
    worst = yield from trying(tables, parts, nodes)
    spoilers = []
    for namespace in _suspects({name: asked * scales[name] for name, asked in demand.items()}):
        others = joined(kinds for name, kinds in scaled.items() if name != namespace)
        yield
        trial = yield from trying(tables, others, nodes)
        worst = min(worst, trial, key=lambda each: each.fit - each.binpack)
        spoilers += [namespace] * trial.failed
    return Study(mix.came, parts, tables, worst, distrusted), tuple(sorted(spoilers))


def _suspects(demand: Mapping[str, float]) -> list[str]:
    """Return the namespaces with the largest parts of the demand, of those that have neither little nor most of it."""
    total = sum(demand.values())
    large = [name for name, asked in demand.items() if 1.01 * LITTLE * total < asked <= total / 2]
    return sorted(large, key=lambda name: (-demand[name], name))[:_MOST_TRIALS]


def scales_of(
    demand: Mapping[str, float], held: Mapping[str, float], distrusted: Collection[str] = ()
) -> dict[str, float]:
    """Return by how much the pods of each namespace count less than they came.

    Args:
        demand: what the pods of each namespace ask for; only ratios matter.
        held: the GPU memory that each namespace has in use; empty: unknown.
        distrusted: namespaces that get no more than `LITTLE`.
    """
    of_all = sum(held.get(name, 0.0) for name in demand if name not in distrusted)
    most = {
        name: LITTLE if name in distrusted else max(LITTLE, held.get(name, 0.0) / of_all if of_all else 1.0)
        for name in demand
    }
    # Those that exceed their parts most get just these, of a total that shrinks with what the others may not have.
    rest, room = sum(demand.values()), 1.0
    capped: list[str] = []
    for name in sorted(demand, key=lambda name: (-demand[name] / most[name], name)):
        if demand[name] <= most[name] * rest / room * (1 + 1e-9):
            break
        rest, room = rest - demand[name], room - most[name]
        capped.append(name)
    return {name: most[name] * rest / room / demand[name] if name in capped else 1.0 for name in demand}
