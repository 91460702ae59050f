"""Which nodes may go without harm: all of their pods have a place on the GPUs of nodes that stay."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from gpu_device_plugin.features.capacity.rules.movable import Move, PlannedPod
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import after, fit
from gpu_device_plugin.scheduler.rules.packing import Packer
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

_AT_ONCE = 32
"""Places that are tried in one step, each within a tenth of a millisecond."""
_POLICY = "binpack"
_CHANGED = "pods have arrived there, or where its pods would go, since that was decided"


@dataclass(frozen=True, slots=True)
class Leaving:
    """Which nodes may go, all of them at once, and why the others stay."""

    may_go: Mapping[str, tuple[Move, ...]] = field(default_factory=dict)
    """By name, the moves of its pods to nodes that stay."""
    stay: Mapping[str, str] = field(default_factory=dict)
    """By name, the reason, as a sentence."""
    relying: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By name of a node that stays, those that rely on room there."""

    def displaced(self, node: Candidate) -> Sequence[str]:
        """Return the nodes that may go some of whose pods have no place on a node any more, as it is now."""
        found: list[str] = []
        for name in self.relying.get(node.name, ()):
            left = node
            for move in self.may_go.get(name, ()):
                if move.node != node.name:
                    continue
                place = fit(move.pod.ask, left, _POLICY)
                if isinstance(place, FilterFailure) or not (left.left is None or left.left.cover(move.pod.amounts)):
                    found.append(name)
                    break
                left = after(left, place, move.pod.amounts)
            else:
                node = left
        return found

    def without(self, names: Iterable[str], why: str) -> Leaving:
        """Return the same but for these nodes, which stay."""
        stay = {name: why for name in names if name in self.may_go}
        may_go = {name: moves for name, moves in self.may_go.items() if name not in stay}
        return replace(self, may_go=may_go, stay={**self.stay, **stay}) if stay else self

    def after_changes(self, nodes: Mapping[str, Candidate], changed: Iterable[str]) -> Leaving:
        """Return what is left of it, given the nodes as they are now and the names of those that have changed since."""
        lost: set[str] = set()
        for name in changed:
            node = nodes.get(name)
            lost.update((name,), self.relying.get(name, ()) if node is None else self.displaced(node))
        return self.without(lost, _CHANGED)


class _Trial:
    """The nodes that stay, with the pods of those that may go."""

    def __init__(self, nodes: Mapping[str, Candidate]) -> None:
        self.nodes = dict(nodes)
        self.destinations: dict[str, list[str]] = {}
        """By name of a node that others rely on, those."""
        self._fullest = sorted(nodes, key=lambda name: (sum(nodes[name].summary.frees), name))
        self._worth_trying: dict[GpuRequest, list[str]] = {}
        """Where an equal pod may still fit: room only becomes less."""
        self._packer = cache(Packer)

    def places(
        self, leaver: str, residents: Sequence[PlannedPod]
    ) -> Generator[None, None, tuple[Move, ...] | PlannedPod]:
        """Return places for all pods of a node, taken, or the first pod that has none."""
        after_them: dict[str, Candidate] = {}
        found: list[Move] = []
        for pod in residents:
            place = yield from self.place(leaver, pod, after_them)
            if place is None:
                return pod
            found.append(place)
        self.nodes.update(after_them)
        for name in after_them:
            self.destinations.setdefault(name, []).append(leaver)
        del self.nodes[leaver]
        return tuple(found)

    def place(
        self, leaver: str, pod: PlannedPod, after_them: dict[str, Candidate]
    ) -> Generator[None, None, Move | None]:
        """Return a place for one pod of a node, and note it in `after_them`; None: there is none."""
        names = self._worth_trying.setdefault(pod.ask, self._fullest)
        packer = self._packer(pod.ask.demands)
        vain: set[str] = set()
        chosen = None
        for number, name in enumerate(names):
            if not number % _AT_ONCE:
                yield
            node = None if name == leaver else after_them.get(name) or self.nodes.get(name)
            if node is None:
                if name != leaver:
                    vain.add(name)  # it may go itself
                continue
            # The numbers of a node rule most of them out, in a hundredth of the time.
            found = fit(pod.ask, node, _POLICY) if packer.all_fit_alone(node.summary) else None
            if found is None or isinstance(found, FilterFailure):
                if name not in after_them:
                    vain.add(name)
            elif (node.left is None or node.left.cover(pod.amounts)) and (pod.nodes is None or name in pod.nodes):
                after_them[name] = after(node, found, pod.amounts)
                chosen = Move(pod, leaver, name, found.placements)
                break
        if vain:
            self._worth_trying[pod.ask] = [name for name in names if name not in vain]
        return chosen


def refuges(
    nodes: Mapping[str, Candidate],
    residents: Sequence[PlannedPod],
) -> Generator[None, None, Sequence[Move]]:
    """Return places on `nodes` for pods that have to leave theirs, for as many as there is room; in small steps."""
    trial = _Trial(nodes)
    taken: dict[str, Candidate] = {}
    found = []
    for pod in sorted(residents, key=lambda each: each.ask.size, reverse=True):
        place = yield from trial.place("", pod, taken)
        found += [] if place is None else [place]
    return found


def leaving(
    nodes: Mapping[str, Candidate],
    residents: Mapping[str, Sequence[PlannedPod]],
    tied: Mapping[str, str],
) -> Generator[None, None, Leaving]:
    """Return which nodes may go, any number of them at once, in steps of some milliseconds.

    The emptiest may go first; no two rely on the same room, and none on a node that may go itself.

    Args:
        nodes: those that pods may be placed on now, by name.
        residents: the pods on them that have to be replaced, by node; nodes without any may be left out.
        tied: nodes that must stay anyway, with the reason as a sentence.
    """
    trial = _Trial(nodes)
    may_go: dict[str, tuple[Move, ...]] = {}
    stay: dict[str, str] = {}
    for name in sorted(nodes, key=lambda name: (nodes[name].summary.used, name)):
        if name in trial.destinations:
            stay[name] = f"it has the room for the pods of node {trial.destinations[name][0]}"
            continue
        if name in tied:
            stay[name] = tied[name]
            continue
        largest = sorted(residents.get(name, ()), key=lambda each: each.ask.size, reverse=True)
        found = yield from trial.places(name, largest)
        if isinstance(found, PlannedPod):
            stay[name] = f"no GPU of another node has room for its pod {found}"
        else:
            may_go[name] = found
        yield
    return Leaving(may_go, stay, trial.destinations)
