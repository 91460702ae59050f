"""What must hold in a cluster that grows and shrinks, judged by what its API server shows, independently of ours."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.autoscaler.cloud import GPUS, SHARES
from tests.autoscaler.world import WAITS_S, live, ours
from tests.builders import GPU_COUNT, GPU_MEM
from tests.patience import stretched
from tests.scheduler.harness import held

Json = dict[str, Any]
Demand = tuple[int, int]
"""Shares of one GPU, or whole GPUs of one node."""
Rooms = tuple[tuple[int, ...], ...]
"""Free shares of every GPU, by node; in order, as nodes and GPUs are all alike."""

EMPTY = (SHARES,) * GPUS


def demand(pod: Json) -> Demand:
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    return int(limits.get(GPU_MEM, 0)), int(limits.get(GPU_COUNT, 0))


def rooms(node: str, pods: Iterable[Json]) -> tuple[int, ...]:
    """Return the free shares of every GPU of a node."""
    free = [SHARES] * GPUS
    for pod in pods:
        if pod["spec"].get("nodeName") == node and pod["status"]["phase"] not in {"Succeeded", "Failed"}:
            for at, number in held(pod, GPU_MEM).items():
                free[at] -= number
            for at in held(pod, GPU_COUNT):
                free[at] = 0
    return tuple(sorted(free))


@cache
def fit(demands: tuple[Demand, ...], free: Rooms) -> bool:
    """Whether there is a way to place all of them, largest first."""
    if not demands:
        return True
    (mem, number), rest = demands[0], demands[1:]
    for at, node in enumerate(free):
        for left in _taken(node, mem, number):
            if fit(rest, tuple(sorted((*free[:at], left, *free[at + 1 :])))):
                return True
    return False


def _taken(node: tuple[int, ...], mem: int, number: int) -> set[tuple[int, ...]]:
    if number:
        whole = [at for at, free in enumerate(node) if free == SHARES][:number]
        return (
            {tuple(sorted(0 if at in whole else free for at, free in enumerate(node)))}
            if len(whole) == number
            else set()
        )
    return {tuple(sorted((*node[:at], free - mem, *node[at + 1 :]))) for at, free in enumerate(node) if free >= mem}


def fitting(demands: Iterable[Demand], free: Iterable[tuple[int, ...]]) -> bool:
    """The same in any order."""
    return fit(tuple(sorted(demands, key=lambda each: (-each[1], -each[0]))), tuple(sorted(free)))


@dataclass
class Watch:
    """Looks at a cluster all the time; what it finds wrong is in `wrong`."""

    idle_s: float
    """How long a node may be there that is not needed, on a quiet machine."""
    waits_s: float = 5.0
    """How long a pod of whose kind one was evicted may wait for room, likewise."""
    more: Callable[[], bool] = lambda: False
    """Whether another node could come."""
    node_s: float = WAITS_S
    """How long a pod may wait if one could, likewise."""
    wanted: dict[str, int] = field(default_factory=dict)
    """Replicas by Deployment."""
    wrong: list[str] = field(default_factory=list)
    evicted: set[str] = field(default_factory=set)
    """UIDs of pods."""
    needless: set[str] = field(default_factory=set)
    """Nodes that could go right now."""
    used: set[str] = field(default_factory=set)
    """Nodes on which a pod has been."""
    _placed: Counter[str] = field(default_factory=Counter)
    _since: dict[str, float] = field(default_factory=dict)

    def look(self, nodes: list[Json], pods: list[Json]) -> None:
        """Judge what is there at this moment."""
        ready = [node["metadata"]["name"] for node in nodes if node["status"]["allocatable"].get(GPU_MEM)]
        here = [pod for pod in pods if ours(pod)]
        self.used |= {pod["spec"]["nodeName"] for pod in here if pod["spec"].get("nodeName")}
        self.wrong += [f"a GPU of node {name} has too much on it" for name in ready if rooms(name, here)[0] < 0]
        self.needless = {name for name in ready if needless(name, ready, here)}
        self._last("node", self.needless, self.idle_s, "is not needed, and stays")
        spare: list[str] = []
        for name in sorted(self.needless):
            spare += [name] if needless(name, ready, here, spare) else []
        self._last("group", {"of all"} if len(spare) > 1 else set(), self.idle_s, "has more than one node too many")
        waiting = {pod["metadata"]["name"] for pod in here if live(pod) and _unschedulable(pod)}
        self._last("pod", waiting if self.more() else set(), self.node_s, "waits for a node that could come")
        self.evicted |= {
            pod["metadata"]["uid"]
            for pod in here
            if any(one["type"] == "DisruptionTarget" for one in pod["status"].get("conditions", ()))
        }
        self._last("Deployment", set(self._short(here)), self.waits_s, "waits for room that an evicted pod had")

    def _short(self, pods: list[Json]) -> Iterable[str]:
        """Yield the Deployments that have fewer pods on nodes than they had, though they want them."""
        bound: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        gone: dict[str, bool] = defaultdict(bool)
        for pod in pods:
            app = pod["metadata"].get("labels", {}).get("app", "")
            if live(pod):
                bound[app] += bool(pod["spec"].get("nodeName"))
                waiting[app] += _unschedulable(pod)
            gone[app] |= pod["metadata"]["uid"] in self.evicted
        for app, wanted in self.wanted.items():
            self._placed[app] = min(max(self._placed[app], bound[app]), wanted)
            if waiting[app] and bound[app] < self._placed[app]:
                yield app

    def _last(self, kind: str, names: set[str], limit_s: float, what: str) -> None:
        now = time.monotonic()
        for key in [key for key in self._since if key.startswith(f"{kind} ") and key.partition(" ")[2] not in names]:
            del self._since[key]
        for name in names:
            waited_s = now - self._since.setdefault(f"{kind} {name}", now)
            if waited_s > limit_s and waited_s > stretched(limit_s):
                self._since[f"{kind} {name}"] = now
                self.wrong.append(f"{kind} {name} {what}: {waited_s:.0f} s")


def needless(name: str, nodes: list[str], pods: list[Json], others_gone: Collection[str] = ()) -> bool:
    """Whether all that runs on a node, and on those gone before, has room on the rest, beside what waits.

    What has no controller must stay.
    """
    gone = {name, *others_gone}
    on_it = [pod for pod in pods if pod["spec"].get("nodeName") in gone]
    if any(not pod["metadata"].get("ownerReferences") for pod in on_it):
        return False
    waiting = [pod for pod in pods if live(pod) and not pod["spec"].get("nodeName")]
    others = [rooms(other, pods) for other in nodes if other not in gone]
    return fitting([demand(pod) for pod in (*on_it, *waiting) if live(pod)], others)


def _unschedulable(pod: Json) -> bool:
    return not pod["spec"].get("nodeName") and any(
        one["type"] == "PodScheduled" and one["status"] == "False" for one in pod["status"].get("conditions", ())
    )
