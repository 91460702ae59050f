"""Plans of moves as people and programs read them: the moves, the GPUs before and after, and the pods that stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_device_plugin.features.capacity.rules.movable import Move, PlannedNode, PlannedPod, UnmovableReason
from gpu_device_plugin.features.capacity.rules.plans import Plan
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.report.rules.columns import Layout, Line, Row, table
from gpu_device_plugin.report.rules.finding import Finding, note
from gpu_device_plugin.report.rules.printing import counted, first, ranges

Json = dict[str, Any]

_MOVES = Layout(("MOVE", "POD", "FROM", "TO"), shrink={"POD": 16, "TO": 10, "FROM": 10})
_GPUS = Layout(("NODE", "GPU", "BEFORE", "AFTER"), shrink={"AFTER": 24, "BEFORE": 24, "NODE": 8})
_BLOCKING = frozenset(UnmovableReason) - {
    UnmovableReason.ENDING,
    UnmovableReason.PLANNED,
    UnmovableReason.MOVED,
    UnmovableReason.HELD,
}


def verdict(plan: Plan, goal: str) -> str:
    """Return what is known of a plan, as a sentence; `goal` completes "N moves ...", as "make room for a/b"."""
    if plan is None:
        return f"No set of moves was found to {goal}."
    if not plan:
        return f"No move is needed to {goal}."
    number = len(plan)
    verb, _, rest = goal.partition(" ")
    moves = f"{counted(number, 'move')} {verb}{'s' if number == 1 else ''} {rest}"
    return f"{moves}." if number == 1 else f"{moves}. There may be a plan with fewer."


def makes_room(plan: Plan, pod: str) -> Finding:
    """Return the verdict on a plan that makes room for a pod, ``namespace/name``."""
    code = "none-found" if plan is None else ("none-needed", "fewest", "fewer")[min(len(plan), 2)]
    return note(f"plan-{code}", verdict(plan, "make room for {pod}"), pod=pod, n=len(plan or ()))


def stays(why: str) -> Finding:
    """Return a reason of the column of a plan's document that names why a pod is not moved."""
    return note(f"stays-{UnmovableReason(why).name.lower().replace('_', '-')}", why)


def move_lines(moves: Sequence[Move], width: int) -> list[Line]:
    """Return a table of moves, in the order in which they are made."""
    rows = []
    for number, move in enumerate(moves, 1):
        now, then = ranges(sorted(positions(move.pod))), ranges(move.shares)
        rows.append(Row((str(number), str(move.pod), f"{move.origin} GPU {now}", f"{move.node} GPU {then}")))
    return table(_MOVES, rows, width)


def positions(pod: PlannedPod) -> Mapping[int, int]:
    """Return the shares of a pod by GPU position, 0 for a whole GPU."""
    return dict(pod.pod.usage.shares) | dict.fromkeys(pod.pod.usage.whole, 0)


def changed_gpus(
    before: Iterable[PlannedNode], after: Iterable[PlannedNode]
) -> Iterator[tuple[str, int, PlannedNode, PlannedNode]]:
    """Yield the node and the position of each GPU that changes, with its node before and after."""
    now = {site.node.name: site for site in after}
    for site in sorted(before, key=lambda site: site.node.name):
        then = now[site.node.name]
        for gpu in site.node.gpus.gpus:
            if _on(site, gpu.position) != _on(then, gpu.position):
                yield site.node.name, gpu.position, site, then


def gpu_lines(before: Iterable[PlannedNode], after: Iterable[PlannedNode], width: int) -> list[Line]:
    """Return a table of the GPUs that change, with the pods on each before and after."""
    rows = [
        Row((node, str(position), _held(was, position), _held(then, position)))
        for node, position, was, then in changed_gpus(before, after)
    ]
    return table(_GPUS, rows, width) if rows else []


def _on(site: PlannedNode, position: int) -> Mapping[str, int]:
    """Return the shares of the pods on a GPU by their names, 0 for all of it."""
    return {
        f"{pod} (new)" if pod.stays is UnmovableReason.PLANNED else str(pod): shares
        for pod in site.residents
        if (shares := positions(pod).get(position)) is not None
    }


def _free(site: PlannedNode, position: int) -> int:
    """Return the free shares of a GPU."""
    room = next(room for room in site.node.rooms if room.position == position)
    return room.free if room.gives_shares else 0


def _held(site: PlannedNode, position: int) -> str:
    held = [f"{pod} ({_amount(site, shares) if shares else 'whole'})" for pod, shares in _on(site, position).items()]
    free = _free(site, position)
    return ", ".join([*held, f"{_amount(site, free)} free" if free else "nothing free"])


def _amount(site: PlannedNode, shares: int) -> str:
    share_mib = site.node.gpus.share_mib
    return str(shares) if share_mib is None else format_mib(shares * share_mib)


def staying_lines(sites: Iterable[PlannedNode]) -> list[str]:
    """Return the pods that are not moved, by reason."""
    pods = [pod for site in sites for pod in site.residents if pod.stays in _BLOCKING]
    by_reason = {why: sorted(str(pod) for pod in pods if pod.stays is why) for why in UnmovableReason}
    return [f"  {why}: {first(names)}" for why, names in by_reason.items() if names]


def plan_document(
    plans: Sequence[tuple[str, Plan]], before: Sequence[PlannedNode], after: Sequence[PlannedNode]
) -> Json:
    """Return plans as JSON has them, each with what it is for: `namespace/name` of a pod, or a number of nodes."""
    return {
        "version": 1,
        "plans": [
            {
                "for": what,
                "found": plan is not None,
                "fewestPossible": None if plan is None else min(1, len(plan)),
                "exact": plan is not None and len(plan) <= 1,
                "moves": [
                    {
                        "pod": str(move.pod),
                        "from": {"node": move.origin, "gpus": sorted(positions(move.pod))},
                        "to": {"node": move.node, "gpus": {str(at): shares for at, shares in move.shares.items()}},
                    }
                    for move in plan or ()
                ],
            }
            for what, plan in plans
        ],
        "gpus": [
            {
                "node": node,
                "gpu": position,
                "before": _on(was, position),
                "freeBefore": _free(was, position),
                "after": _on(then, position),
                "freeAfter": _free(then, position),
            }
            for node, position, was, then in changed_gpus(before, after)
        ],
        "stays": [
            {"pod": str(pod), "node": site.node.name, "why": str(pod.stays)}
            for site in before
            for pod in site.residents
            if pod.stays in _BLOCKING
        ],
    }
