"""What is simulated: nodes, pods, the order in which they come, and what came of it."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import ceil

from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.price_learning import mean_gpu
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.settings.knobs import UsageError


@dataclass(frozen=True, slots=True)
class Recording:
    """How much GPU memory a pod used."""

    use_gib: tuple[float, ...]
    """At equal steps."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """A list of pods."""

    kinds: tuple[PodKind, ...]
    """Different ones; with recordings one for each of these."""
    pods: tuple[int, ...]
    """Of each pod in its order, the place of its kind in `kinds`."""
    names: tuple[str, ...] = ()
    """What people call each kind, likewise; empty: by what it asks for."""
    recordings: tuple[Recording, ...] = ()
    """The use of each kind, likewise; empty: not recorded."""
    step_s: float = 0.0
    """Seconds from one value of a recording to the next."""

    @classmethod
    def of(cls, pods: Iterable[tuple[str, PodKind]]) -> Workload:
        """Return the workload of pods, each with the name that people know it by."""
        names: dict[PodKind, dict[str, None]] = {}
        order: list[PodKind] = []
        for name, kind in pods:
            order.append(kind)
            names.setdefault(kind, {})[name] = None
        places = {kind: at for at, kind in enumerate(names)}
        joined = [
            next(iter(each)) + (f" and {len(each) - 1:,} more" if len(each) > 1 else "") for each in names.values()
        ]
        return cls(tuple(places), tuple([places[kind] for kind in order]), tuple(joined))

    def name(self, kind: int) -> str:
        """Return what people call one of the kinds."""
        return self.names[kind] if self.names else told(self.kinds[kind])

    def mix(self) -> Mapping[PodKind, float]:
        """Return how often each kind comes."""
        return Counter(self.kinds[pod] for pod in self.pods)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is simulated."""

    nodes: tuple[Start, ...]
    workload: Workload
    ordered: bool = False
    """The pods have an order of their own; otherwise a seed shuffles them."""
    notes: tuple[str, ...] = ()
    """A sentence for each thing that the user should know of."""
    added: Start | None = None
    """The kind of node that may be added."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What came of one run."""

    policy: str
    pods: Sequence[int]
    """Of each arrival, the place of its kind in `Workload.kinds`."""
    accepted: Sequence[bool]
    """By arrival."""
    shares: Sequence[float]
    """By arrival, what it asks of all GPUs."""
    capacity: float
    """Shares of all GPUs that were free at first."""
    cpu_s: float
    """CPU time that the policy took."""
    nodes: tuple[Start, ...] = ()
    """The nodes as they are after the last pod."""
    places: Sequence[tuple[int, Sequence[int]] | None] = ()
    """By arrival, the place of its node in `nodes` and of its GPUs there; None: it found no room."""

    @property
    def allocated(self) -> float:
        """The accepted part of the capacity; only where nobody leaves it is what is in use at the end."""
        return self._given(len(self.pods)) / self.capacity if self.capacity else 0.0

    def allocated_at(self, arrived: float) -> float:
        """Return the same when so much of the capacity had been asked for: 1.0 once, 1.3 nearly a third more."""
        came = bisect_left(list(accumulate(self.shares)), arrived * self.capacity) + 1
        return self._given(came) / self.capacity if self.capacity else 0.0

    @property
    def rejected(self) -> float:
        """The part of all shares asked for that was not given."""
        asked = sum(self.shares)
        return 1 - self._given(len(self.pods)) / asked if asked else 0.0

    def _given(self, came: int) -> float:
        return sum([shares for shares, ok in zip(self.shares[:came], self.accepted, strict=False) if ok])


def shares_of(kind: PodKind, unit: float) -> float:
    """Return what a kind of pod asks of all its GPUs together; a whole one counts as `unit` shares."""
    return kind.gpus * (kind.shares or unit)


def unit_of(nodes: Sequence[Start]) -> float:
    """Return the shares of the mean GPU; of the mean MIG instance where there are no GPUs."""
    return mean_gpu(Counter(node.shape for node in nodes))


def capacity_of(nodes: Sequence[Start]) -> float:
    """Return the shares that are free on all nodes together."""
    return float(sum(node.left.shares for node in nodes))


def told(kind: PodKind) -> str:
    """Return what a pod asks for, in the words of the command line."""
    use, avoid = kind.selector.use_models, kind.selector.avoid_models
    cpu, memory = kind.cpu_milli, kind.memory_mib
    words = (
        f"mem={kind.shares * kind.gpus}" * bool(kind.shares and kind.gpus),
        f"split={kind.gpus}" * bool(kind.shares and kind.gpus > 1),
        f"count={kind.gpus}" * bool(kind.gpus and not kind.shares),
        f"model={'|'.join(use)}" * bool(use),
        f"no {'|'.join(avoid)}" * bool(avoid),
        f"cpu={cpu}m" if cpu % 1000 else f"cpu={cpu // 1000}" * bool(cpu),
        f"memory={memory}Mi" if memory % 1024 else f"memory={memory // 1024}Gi" * bool(memory),
    )
    return " ".join(filter(None, words)) or "nothing"


def counted(number: int, what: str) -> str:
    """Return a number of things in English: ``1 node``, ``2 nodes``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# --- Classes of pods by the size of their demand, so that no policy looks good by turning large ones away ------------

_TENTHS = 10


def class_of(kind: PodKind, unit: float) -> str:
    """Return the class of a kind: ``no GPU``, ``0.3 GPU`` (rounded up to tenths of a mean GPU), ``1 GPU``, ``8 GPUs``.

    `unit` is the shares of the mean GPU.
    """
    if not kind.gpus:
        return "no GPU"
    if not kind.shares:
        return "1 GPU" if kind.gpus == 1 else f"{kind.gpus} GPUs"
    part = f"{ceil(min(1.0, kind.shares / unit) * _TENTHS) / _TENTHS:.1f} GPU"
    return part if kind.gpus == 1 else f"{kind.gpus} x {part}"


def order(name: str) -> tuple[float, str]:
    """Return the place of a class in a table: by the size of the demand."""
    words = name.split()
    if words[0] == "no":
        return 0.0, name
    times = float(words[0]) * (float(words[2]) if len(words) > 2 else 1.0)
    return times, name


# --- The order in which pods come, and how long they stay -------------------------------------------------------------

MOST_ARRIVALS = 1_000_000
"""A simulation of more would take hours."""


def until(workload: Workload, nodes: Sequence[Start], seed: int, over: float = 1.3) -> list[int]:
    """Return pods that ask for `over` times the GPUs of the nodes: the list shuffled, then pods of it at random.

    This is the experiment of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023), in which nobody leaves.

    Raises:
        UsageError: the pods ask for too little.
    """
    listed, demand, wanted = workload.pods, demand_of(workload, nodes), over * capacity_of(nodes)
    _check([demand[pod] for pod in listed], wanted)
    rng = random.Random(seed)  # noqa: S311 - the same order every time
    found = rng.sample(listed, len(listed))
    while sum([demand[pod] for pod in found]) < wanted:
        found += rng.choices(listed, k=len(listed))
    return found[: bisect_left(list(accumulate([demand[pod] for pod in found])), wanted) + 1]


_LIFETIMES = 5
"""For so many mean lifetimes pods come that leave again."""


def departing(workload: Workload, nodes: Sequence[Start], seed: int, load: float) -> tuple[list[int], list[int]]:
    """Return pods that leave again, the list in ever new orders, and how long each stays (as `stays` of `run`).

    `load` is what the running pods ask for on average, as a part of the GPUs of the nodes. Pods come evenly spaced, and
    a lifetime is exponentially distributed.

    Raises:
        UsageError: the pods ask for too little.
    """
    demand = demand_of(workload, nodes)
    listed, wanted = [demand[pod] for pod in workload.pods], load * capacity_of(nodes)
    _check(listed, wanted * _LIFETIMES)
    rng = random.Random(seed)  # noqa: S311 - the same order every time
    each = wanted * len(listed) / sum(listed)  # pods that come in a mean lifetime
    number = int(each * _LIFETIMES)
    orders = [rng.sample(workload.pods, len(listed)) for _ in range(number // len(listed) + 1)]
    pods = [*chain.from_iterable(orders)][:number]
    return pods, [1 + int(each * rng.expovariate(1.0)) for _ in pods]


def demand_of(workload: Workload, nodes: Sequence[Start]) -> list[float]:
    """Return what each kind asks of all its GPUs together; a whole one counts as the mean GPU of the nodes."""
    unit = unit_of(nodes)
    return [shares_of(kind, unit) for kind in workload.kinds]


def _check(demand: Sequence[float], wanted: float) -> None:
    asked = sum(demand)
    if not asked:
        raise UsageError("--pods: no pod asks for a GPU; add pods that do")
    if len(demand) * wanted / asked > MOST_ARRIVALS:
        raise UsageError(
            f"--pods: it would take more than {MOST_ARRIVALS:,} of these pods to ask for as much as the nodes have; "
            "give fewer nodes, or larger pods"
        )
