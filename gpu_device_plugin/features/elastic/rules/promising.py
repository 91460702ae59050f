"""Decide what a running pod is promised beyond its requests, or why it is not more, and where one that borrows goes.

Amounts are shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_device_plugin.features.elastic.contract import Allowance, PodGuarantees, Size
from gpu_device_plugin.features.elastic.rules.reservations import GpuRoom, GrowthRequest, grow
from gpu_device_plugin.model.contract.keys import MEMORY_PROMISED
from gpu_device_plugin.model.contract.reservations import NO_ANSWER, Answer, answer_to
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit, allowed, likeness
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.usage import growable

_UNLISTED = GpuRoom("", 0, 0, None, "its node does not list its GPU at the moment")


class Outcome(StrEnum):
    """What becomes of a wish."""

    GROWN = "grown"
    LOWERED = "lowered"
    REFUSED = "refused"
    KEPT = "kept"
    """The wish is fulfilled, or waits for the node's agent."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The promise that a pod should have."""

    outcome: Outcome
    answer: Answer
    by_bound: bool = False
    """The namespace refuses, whatever room the node has."""


def decides(pod: Pod) -> bool:
    """Return whether an extender decides on the guarantees of a pod: one has bound it, and it runs or is to run."""
    return bool(pod.node_name) and MEMORY_PROMISED in pod.annotations and not (pod.ended or pod.deleting)


def wants_more(pod: Pod, resources: Iterable[Resource]) -> bool:
    """Return whether a pod wishes for more than anybody counts for it."""
    return any(size.more > 0 for size in sizes(pod, resources))


def resize(
    pod: Pod, resources: Iterable[Resource], node: Candidate | None, allowance: Allowance, *, quiet: bool = True
) -> Decision:
    """Return the promise for a pod on which an extender decides.

    A promise is lowered once the node's agent has given up what is beyond it: until then the promise counts. One
    decision either lowers or raises; the other containers follow with the next.

    Args:
        pod: the pod with its annotations.
        resources: ours.
        node: the pod's node with the room beside all that counts on it; None: it is not known.
        allowance: that of the pod's namespace, with all that counts for its pods.
        quiet: the pod's annotations have not changed for so long that the agent cannot be acting on earlier ones.
    """
    says = PodGuarantees.of(pod)
    found = sizes(pod, resources)
    promised = {size.container: size.promised for size in found}
    if says.wish.malformed:
        return Decision(Outcome.REFUSED, _answer(pod, found, promised, [says.wish.malformed]))
    lower = [size for size in found if size.target < size.promised]
    # The node's agent has settled for the present wish, or for less: it finds no room of its own.
    settled = quiet and says.held.answers(pod.annotations)
    lowered = {size.container: size.target for size in lower if settled and size.held <= size.target}
    if lowered:
        return Decision(Outcome.LOWERED, _answer(pod, found, promised | lowered))
    rooms = _rooms(node)
    requests = [
        GrowthRequest((pod.uid, size.container), pod.namespace, rooms.get(size.gpu, _UNLISTED), size.target, size.more)
        for size in found
        if size.more > 0
    ]
    growth = grow(requests, {pod.namespace: allowance}, "{gpu} has {free} that is not assigned to anyone")
    raised = {size.container: size.target for size in found if (pod.uid, size.container) in growth.granted}
    why = [*says.wish.in_vain(promised), *growth.refused.values()]
    if not raised and not why and lower:
        return Decision(Outcome.KEPT, says.promised or NO_ANSWER)
    outcome = Outcome.GROWN if raised else Outcome.REFUSED if why else Outcome.KEPT
    return Decision(outcome, _answer(pod, found, promised | raised, why), growth.by_bound)


def sizes(pod: Pod, resources: Iterable[Resource]) -> Sequence[Size]:
    """Return the size of each container that can be resized."""
    says = PodGuarantees.of(pod)
    return [says.size(name, gpu, request) for name, (request, gpu) in growable(pod, resources).items()]


def _answer(pod: Pod, sizes: Sequence[Size], promised: Mapping[str, int], why: Sequence[str] = ()) -> Answer:
    beyond = {size.container: promised[size.container] for size in sizes if promised[size.container] > size.request}
    return answer_to(pod.annotations, beyond, "; ".join(dict.fromkeys(why)))


def _rooms(node: Candidate | None) -> Mapping[int, GpuRoom]:
    rooms: dict[int, GpuRoom] = {}
    if node is None:
        return rooms
    for room in node.rooms:
        name = f"GPU {room.position} of {node.name}"
        closed = "" if room.healthy else f"{name} is unhealthy or cordoned"
        if room.card is not None:
            closed = f"{name} is a MIG instance, on which no guarantee grows"
        rooms[room.position] = GpuRoom(name, room.total, room.free, node.gpus.share_mib, closed)
    return rooms


# --- Which of equal GPUs a pod that may borrow gets -------------------------------------------------------------------


def with_room_to_borrow(found: Fit, ask: GpuRequest, node: Candidate, used_mib: Mapping[int, int]) -> Fit:
    """Return the same place, on that of the equal GPUs on which the least memory is in use.

    For a pod that may use more than it is guaranteed. `used_mib` is the memory in use by position; a GPU of which it is
    not known is neither left nor taken. A pod of several parts stays where it is: these may have to fit together.
    """
    if len(found.placements) != 1 or found.placements[0].demand.kind is not Kind.MEMORY:
        return found
    demand, (at, *others) = found.placements[0].demand, found.placements[0].positions
    listed = {gpu.position: gpu for gpu in node.gpus.gpus}
    kinds = {
        room.position: (likeness(room), gpu.model, gpu.memory_mib, gpu.reserved_mib)
        for room in allowed(ask, node)
        if room.position in used_mib and (gpu := listed[room.position]).instance is None
    }
    if others or at not in kinds:
        return found
    equal = [position for position, kind in kinds.items() if kind == kinds[at]]
    best = min(equal, key=lambda position: (used_mib[position], position != at, position))
    return Fit((Placement(demand, ((best, demand.amount),)),))
