"""Why a pod does not fit on a node: a code with parameters, and the words that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.keys import Clause
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.placing import Room
from gpu_device_plugin.scheduler.rules.candidate import Candidate, Summary


@dataclass(frozen=True)
class FilterFailure(Clause):
    """Why a pod does not fit on a node.

    Its sentence completes "on this node ...". It is the same on many nodes where possible: kube-scheduler counts equal
    reasons. It is written only once it is asked for, as thousands of nodes are compared by their reasons.
    """

    unresolvable: bool = False
    """Even if all pods of this node ended, there would be no room; kube-scheduler then looks for no victims here."""


def resolvable(code: str, text: str, /, **parameters: str | int | Clause) -> FilterFailure:
    """Return a reason that ends with other pods."""
    return FilterFailure(code, text, tuple(parameters.items()))


def unresolvable(code: str, text: str, /, **parameters: str | int | Clause) -> FilterFailure:
    """Return a reason that stays even if all pods of the node end."""
    return FilterFailure(code, text, tuple(parameters.items()), unresolvable=True)


TOGETHER = resolvable("not-together", "its GPUs have no room for all containers of the pod together")
NEVER_TOGETHER = replace(TOGETHER, unresolvable=True)
NONE_ALLOWED = unresolvable("none-allowed", "the pod's annotations allow none of its GPUs")
WHOLE_INSTANCES = unresolvable(
    "instances-whole",
    "its MIG instances are allocated whole, through the resources of their profiles, and it shares no GPU",
)
SHARES_NONE = unresolvable("shares-no-gpu", "it shares no GPU")
NO_GPU = unresolvable("instances-only", "it has MIG instances only, none of its GPUs is whole")
ONE_EACH = unresolvable("one-instance-each", "it has MIG instances only, and no container can use several of them")
NOT_ALL = unresolvable(
    "claims-may-choose-any",
    "kube-scheduler allocates its GPUs through ResourceClaims (DRA) and may choose any, and the pod's annotations do "
    "not allow all of them",
)
NO_WHOLE = unresolvable("gives-no-whole-gpu", "its device plugin does not allocate whole GPUs")
ONE_CONTAINER = unresolvable(
    "gives-one-container", "its device plugin serves only pods with one container that takes memory of one GPU"
)
_INSTANCE = Clause("an-instance", "MIG instance")
_EITHER = Clause("gpu-or-instance", "GPU or MIG instance")


def cordoned(cordon: Cordon) -> Clause:
    """Return a cordon as a clause about its GPU."""
    parameters = ("by", cordon.by), ("at", cordon.at), ("why", cordon.why)
    return Clause("cordoned-by", str(cordon).replace("{", "{{").replace("}", "}}"), parameters)


def among(why: FilterFailure, node: Candidate, rooms: Sequence[Room]) -> FilterFailure:
    """Return a reason that holds among these rooms of a node."""
    if len(rooms) == len(node.rooms):
        return why
    text = "{why}, among the GPUs that the pod's annotations allow"
    return FilterFailure("among-allowed", text, (("why", why),), why.unresolvable)


def hardware_of(numbers: Summary) -> str | Clause:
    """Return what `numbers` summarize."""
    if numbers.of_gpus is None:
        return "GPU"
    return _EITHER if numbers.gpus.sizes or numbers.gpus.failed else _INSTANCE


def too_small(wanted: int, each: int, node: Candidate, numbers: Summary) -> FilterFailure:
    """Say that too few GPUs have `each` shares, and whether GPUs out of service are the reason."""
    large = sum(size >= each for size in numbers.failed)
    if wanted > 1:
        in_service = sum(size >= each for size in numbers.sizes)
        if in_service + large >= wanted:
            code, text = "too-few-large-in-service", "fewer than {wanted} healthy GPUs have {amount}"
        else:
            code, text = "too-few-large", "fewer than {wanted} GPUs have {amount}"
        return unresolvable(code, text, wanted=wanted, amount=memory_of(each, node))
    hardware, largest = hardware_of(numbers), memory_of(numbers.sizes[0], node)
    if not large:
        text = "the largest {hardware} has only {amount}"
        return unresolvable("largest-too-small", text, hardware=hardware, amount=largest)
    return unresolvable(
        "large-out-of-service",
        "the largest healthy {hardware} has {amount}, and one of {more} is unhealthy",
        hardware=hardware,
        amount=largest,
        more=memory_of(numbers.failed[0], node),
    )


def memory_of(shares: int, node: Candidate) -> str | Clause:
    """Return shares of a node as memory, or as their number where their size is unknown."""
    if node.gpus.share_mib is None:
        return Clause("gpu-mem", "a gpu-mem of {shares}", (("shares", shares),))
    return format_mib(shares * node.gpus.share_mib)
