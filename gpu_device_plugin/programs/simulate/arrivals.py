"""The order in which pods come, and how long they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.programs.simulate.model import Arrivals, capacity_of, shares_of, unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.programs.simulate.model import Start, Workload
    from gpu_device_plugin.programs.simulate.rooms import Floats

MOST_ARRIVALS = 1_000_000
"""A simulation of more would take hours."""


class EndlessError(ValueError):
    """The pods would never ask for as much as is wanted; the message says why."""


def as_listed(workload: Workload) -> Arrivals:
    """Return the pods in the order of their list."""
    return Arrivals(workload.pods)


def until(workload: Workload, nodes: Sequence[Start], seed: int, over: float = 1.3) -> Arrivals:
    """Return arrivals that ask for `over` times the GPUs of the nodes: the list shuffled, then pods of it at random.

    This is the experiment of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023), in which nobody leaves.

    Raises:
        EndlessError: the pods ask for too little.
    """
    rng = np.random.default_rng(seed)
    listed, demand = np.array(workload.pods), _demand(workload, nodes)
    wanted = over * capacity_of(nodes)
    _check(demand[listed], wanted)
    found = rng.permutation(listed)
    came = demand[found].sum()
    while came < wanted:
        more = rng.choice(listed, len(listed))
        found, came = np.concatenate([found, more]), came + demand[more].sum()
    last = int(np.searchsorted(demand[found].cumsum(), wanted)) + 1
    return Arrivals(found[:last].tolist())


def departing(workload: Workload, nodes: Sequence[Start], seed: int, load: float, lifetimes: float = 5.0) -> Arrivals:
    """Return arrivals of pods that leave again: the list in ever new orders, evenly spaced, from empty nodes on.

    Args:
        workload: the pods.
        nodes: the nodes.
        seed: of orders and lifetimes.
        load: what the running pods ask for on average, as a part of the GPUs of the nodes.
        lifetimes: for how long pods come, in mean lifetimes; a lifetime is exponentially distributed.

    Raises:
        EndlessError: the pods ask for too little.
    """
    rng = np.random.default_rng(seed)
    listed, demand = np.array(workload.pods), _demand(workload, nodes)
    wanted = load * capacity_of(nodes)
    _check(demand[listed], wanted * lifetimes)
    rate = wanted / demand[listed].mean()
    number = int(rate * lifetimes)
    orders = [rng.permutation(listed) for _ in range(number // len(listed) + 1)]
    pods = np.concatenate(orders)[:number]
    return Arrivals(pods.tolist(), (np.arange(number) / rate).tolist(), rng.exponential(1.0, number).tolist())


def _demand(workload: Workload, nodes: Sequence[Start]) -> Floats:
    unit = unit_of(nodes)
    return np.array([shares_of(kind, unit) for kind in workload.kinds])


def _check(demand: Floats, wanted: float) -> None:
    asked = float(demand.sum())
    if not asked:
        raise EndlessError("no pod asks for a GPU; add pods that do")
    if len(demand) * wanted / asked > MOST_ARRIVALS:
        raise EndlessError(
            f"it would take more than {MOST_ARRIVALS:,} of these pods to ask for as much as the nodes have; "
            "give fewer nodes, or larger pods"
        )
