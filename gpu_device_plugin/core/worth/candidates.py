"""A node of the cluster as worth is computed: its shape, its room, and the GPU on which a pod costs least."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.amounts import Amounts
from gpu_device_plugin.core.model.placing import TOGETHER
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.worth.appraising import CLOSED, Left
from gpu_device_plugin.core.worth.shapes import Shape, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu
    from gpu_device_plugin.core.model.placing import Demand, Rank, Ranks, Room
    from gpu_device_plugin.core.worth.appraising import Appraiser

UNKNOWN = Amounts(1 << 18, 1 << 22)
"""The CPU and memory of a node that does not name them: 262 CPUs and 4 TiB, so that only its GPUs decide."""


def shape_of(node: Candidate) -> Shape:
    """Return the shape of a node; one that serves claims has no GPUs for limits of pods."""
    allocatable = node.allocatable or UNKNOWN
    gpus = () if node.gpus.claims else node.gpus.gpus
    return Shape(
        tuple([gpu.shares for gpu in gpus]),
        tuple([gpu.model for gpu in gpus]),
        rounded(allocatable.cpu_milli),
        rounded(allocatable.memory_mib),
        _cards(gpus, node.gpus.cards) if gpus and node.gpus.cards else (),
    )


def _cards(gpus: Sequence[ListedGpu], cards: Mapping[int, int]) -> tuple[int | None, ...]:
    """Return `Shape.cards`, given what instances of one GPU have in common, by position."""
    first: dict[int, int] = {}
    return tuple(
        [first.setdefault(cards[gpu.position], at) if gpu.position in cards else None for at, gpu in enumerate(gpus)]
    )


def left_on(node: Candidate) -> Left:
    """Return the room of a node. A GPU in whole use has no free share, and one out of service is closed."""
    left = node.left or UNKNOWN
    rooms = () if node.gpus.claims else node.rooms
    return Left(tuple([_free(room) for room in rooms]), left.cpu_milli, left.memory_mib)


def _free(room: Room) -> int:
    if not room.healthy:
        return CLOSED
    return 0 if room.whole else room.free


def ranks_on(appraiser: Appraiser, node: Candidate, amounts: Amounts) -> Ranks | None:
    """Return what the policy `fit` prefers on a node for a pod that requests these amounts; None: nothing is learned.

    A GPU ranks by the worth that the node loses with it, so that the least loss comes first.
    """
    shape, left = shape_of(node), left_on(node)
    if shape not in appraiser.tables.wanted:
        return None
    cpu = left.cpu_milli - amounts.cpu_milli
    places = {room.position: at for at, room in enumerate(node.rooms)}

    def of(demand: Demand) -> Rank:
        def rank(room: Room) -> float:
            if room.position == TOGETHER:
                return room.free  # of equal instances that on the fullest GPU, as `Appraiser.choose` says
            at = places[room.position]
            # Parts of the pod that are placed already have left the other rooms as they are: nearly so.
            frees = (*left.frees[:at], _free(room), *left.frees[at + 1 :])
            shares = room.total if demand.kind is Kind.COUNT else demand.amount // demand.gpus
            return -appraiser.change(shape, frees, cpu, at, shares)

        return rank

    return of
