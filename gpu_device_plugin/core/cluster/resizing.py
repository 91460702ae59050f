"""Decide what a running pod is promised beyond its requests, or say why it is not more. Amounts are shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.usage import growable
from gpu_device_plugin.core.contract.elastic import answer_to, read_wish, readable_answer, readable_wish
from gpu_device_plugin.core.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_PROMISED,
    MalformedAnnotationError,
)
from gpu_device_plugin.core.model.memory import format_mib

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.contract.elastic import Allowance, Answer
    from gpu_device_plugin.core.model.placing import Room
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource


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


@dataclass(frozen=True, slots=True)
class Size:
    """The guarantee of a container that can be resized: requested, wished for, promised and held."""

    container: str
    gpu: int
    """The position of its GPU."""
    request: int
    wish: int | None
    """What its owner wants it to be guaranteed; None: its request."""
    promised: int
    held: int
    """What it is guaranteed."""

    @property
    def target(self) -> int:
        """The guarantee that it comes to if nothing is in the way."""
        return max(self.request, self.wish or 0)

    @property
    def more(self) -> int:
        """The shares that nobody counts for it yet."""
        return self.target - self.promised


def decides(pod: Pod) -> bool:
    """Return whether an extender decides on the guarantees of a pod: one has bound it, and it runs or is to run."""
    return bool(pod.node_name) and MEMORY_PROMISED in pod.annotations and not (pod.ended or pod.deleting)


def wants_more(pod: Pod, resources: Iterable[Resource]) -> bool:
    """Return whether a pod wishes for more than anybody counts for it."""
    return any(size.target > size.promised and size.more > 0 for size in sizes(pod, resources))


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
    found = sizes(pod, resources)
    promised = {size.container: size.promised for size in found}
    try:
        wish = read_wish(pod.annotations, MEMORY_GUARANTEE)
    except MalformedAnnotationError as error:
        return Decision(Outcome.REFUSED, _answer(pod, found, promised, [str(error)]))
    lower = [size for size in found if size.target < size.promised]
    lowered = {size.container: size.target for size in lower if _settled(pod, size, quiet=quiet)}
    if lowered:
        return Decision(Outcome.LOWERED, _answer(pod, found, promised | lowered))
    why = wish.in_vain(promised)
    raised: dict[str, int] = {}
    growth, by_bound = _Growth(node, allowance), False
    for size in found:
        if size.target > size.promised:
            if no_room := growth.no_room(size):
                why.append(no_room)
            elif not_allowed := growth.not_allowed(size):
                why.append(not_allowed)
                by_bound = True
            else:
                growth.take(size)
                raised[size.container] = size.target
    if not raised and not why and lower:
        return Decision(Outcome.KEPT, readable_answer(pod.annotations, MEMORY_PROMISED))
    outcome = Outcome.GROWN if raised else Outcome.REFUSED if why else Outcome.KEPT
    return Decision(outcome, _answer(pod, found, promised | raised, why), by_bound)


def sizes(pod: Pod, resources: Iterable[Resource]) -> Sequence[Size]:
    """Return the size of each container that can be resized."""
    wish = readable_wish(pod.annotations, MEMORY_GUARANTEE)
    promised, held = (readable_answer(pod.annotations, key).guarantees for key in (MEMORY_PROMISED, MEMORY_HELD))
    return [
        Size(name, gpu, request, wish.of(name), max(request, promised.get(name, 0)), max(request, held.get(name, 0)))
        for name, (request, gpu) in growable(pod, resources).items()
    ]


def _settled(pod: Pod, size: Size, *, quiet: bool) -> bool:
    """Return whether the node's agent has settled for the present wish, or for less: it finds no room of its own."""
    answered = readable_answer(pod.annotations, MEMORY_HELD).answers(pod.annotations)
    return quiet and answered and size.held <= size.target


def _answer(pod: Pod, sizes: Sequence[Size], promised: Mapping[str, int], why: Sequence[str] = ()) -> Answer:
    beyond = {size.container: promised[size.container] for size in sizes if promised[size.container] > size.request}
    return answer_to(pod.annotations, beyond, "; ".join(dict.fromkeys(why)))


@dataclass(slots=True)
class _Growth:
    """What the containers of one pod take beyond what is counted for them."""

    node: Candidate | None
    allowance: Allowance
    taken: dict[int, int] = field(default_factory=dict)
    """Shares by the position of the GPU."""

    def no_room(self, size: Size) -> str:
        """Return why the GPU has no room for a container to grow; empty if it has."""
        rooms = () if self.node is None else self.node.rooms
        room = next((room for room in rooms if room.position == size.gpu), None)
        if self.node is None or room is None:
            return "its node does not list its GPU at present"
        if why := _unsuitable(room, size):
            return f"GPU {room.position} of {self.node.name} {why.format(_amount(room.total, self.node))}"
        free = room.free - self.taken.get(size.gpu, 0)
        if size.more <= max(0, free):
            return ""
        return (
            f"GPU {room.position} of {self.node.name} has {_amount(max(0, free), self.node)} that is promised to nobody"
        )

    def not_allowed(self, size: Size) -> str:
        """Return why the namespace does not let a container grow; empty if it does."""
        return self.allowance.refusal(sum(self.taken.values()) + size.more) if size.more > 0 else ""

    def take(self, size: Size) -> None:
        self.taken[size.gpu] = self.taken.get(size.gpu, 0) + max(0, size.more)


def _unsuitable(room: Room, size: Size) -> str:
    """Return why a container cannot be guaranteed more of a GPU, however free; ``{}`` stands for the GPU's size."""
    if room.card is not None:
        return "is a MIG instance, on which no guarantee grows"
    if not room.healthy:
        return "is out of service or cordoned"
    return "has {} in all" if size.target > room.total else ""


def _amount(shares: int, node: Candidate) -> str:
    if node.gpus.share_mib is not None:
        return format_mib(shares * node.gpus.share_mib)
    return f"{shares} unit{'' if shares == 1 else 's'}"
