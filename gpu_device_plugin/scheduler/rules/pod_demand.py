"""A pod's GPU demand, split into parts that are placed independently of each other.

The kubelet reuses the devices of an ordinary init container for the containers after it, before it takes any others,
so those containers end up on the same GPU. They form one part. Its size is the most that its containers hold at any
moment, for the life of the pod: the kubelet frees the devices of an init container only with its pod. (Kubernetes 1.36,
pkg/kubelet/cm/devicemanager/manager.go, Allocate and devicesToAllocate.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector, read_preferences
from gpu_device_plugin.model.contract.keys import SPLIT_LABEL, Clause, MalformedAnnotationError
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS
from gpu_device_plugin.model.gpus import MOST_GPUS, MOST_SHARES
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, Pod
from gpu_device_plugin.model.resources import Kind, Resource

_MOST_PARTS = 16
"""The packer searches for room for all parts at once. Hardly any node has more than 16 GPUs."""


@dataclass(frozen=True, slots=True)
class Part:
    """Containers that share the same GPUs. Parts of different pods are equal if their demands are."""

    demand: Demand
    members: tuple[tuple[Container, int], ...] = field(default=(), compare=False)
    """Each container with its limit."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPU demand and the wishes of a pod; pods that a scheduler may treat alike have equal ones."""

    parts: tuple[Part, ...] = ()
    selector: GpuSelector = NO_PREFERENCES

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Those of its parts."""
        return tuple([part.demand for part in self.parts])

    @property
    def size(self) -> tuple[int, int]:
        """Its whole GPUs, and the most shares that it asks of one GPU: of several pods the largest is placed first."""
        whole = sum(part.demand.amount for part in self.parts if part.demand.kind is Kind.COUNT)
        each = [part.demand.amount // part.demand.gpus for part in self.parts if part.demand.kind is Kind.MEMORY]
        return whole, max(each, default=0)


@dataclass(frozen=True, slots=True)
class Impossible:
    """A demand that no node can ever meet; why is for the pod's owner."""

    why: Clause

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return self.why.sentence


def ask(pod: Pod, resources: Iterable[Resource]) -> GpuRequest | Impossible:
    """Return a pod's demand for `resources`; it has no parts if the pod has no limit of any."""
    resources = tuple(resources)
    try:
        _check_containers(pod, resources)
        parts = parts_of(pod, resources)
        if not parts:
            return GpuRequest()
        _check_size(parts)
        return GpuRequest(_split(parts, pod.labels.get(SPLIT_LABEL, "1")), read_preferences(pod.annotations))
    except (_ImpossibleError, MalformedAnnotationError) as error:
        return Impossible(*error.args)


class _ImpossibleError(ValueError):
    """No node can ever meet the demand."""

    def __init__(self, code: str, text: str, **parameters: str | int | Clause) -> None:
        super().__init__(Clause(code, text, tuple(parameters.items())))


def _check_containers(pod: Pod, resources: Sequence[Resource]) -> None:
    if len(pod.containers) > MOST_CONTAINERS:
        names: str | Clause = resources[0].name
        for each in resources[1:]:
            names = Clause("one-or-other", "{one} or {other}", (("one", names), ("other", each.name)))
        text = "more than {most} of its containers have a limit of {names}; use fewer"
        raise _ImpossibleError("too-many-containers", text, most=MOST_CONTAINERS, names=names)
    for container in pod.containers:
        both = [resource.name for resource in resources if container.limits.get(resource.name, 0) > 0]
        if len(both) > 1:
            text = "container {container} requests {one} and {other}, which are the same hardware; request one of them"
            raise _ImpossibleError("same-hardware", text, container=repr(container.name), one=both[0], other=both[1])


def _check_size(parts: Sequence[Part]) -> None:
    most = {kind: max((part.demand.amount for part in parts if part.demand.kind is kind), default=0) for kind in Kind}
    if most[Kind.MEMORY] > MOST_SHARES:  # a quantity of memory, such as 10Gi
        text = "gpu-mem counts shares of GPU memory (1 GiB each unless configured otherwise): write 10, not 10Gi"
        raise _ImpossibleError("write-no-quantity", text)
    if most[Kind.COUNT] > MOST_GPUS:
        text = "it requests {n} whole GPUs, and no node can have more than {most}"
        raise _ImpossibleError("too-many-whole", text, n=most[Kind.COUNT], most=MOST_GPUS)
    if len(parts) > _MOST_PARTS:
        text = "more than {most} of its containers request GPUs; request them in fewer"
        raise _ImpossibleError("too-many-parts", text, most=_MOST_PARTS)


def parts_of(pod: Pod, resources: Iterable[Resource]) -> tuple[Part, ...]:
    """Return the parts of a pod by its containers alone; labels and annotations are not read."""
    return tuple(
        Part(Demand(resource.kind, amount), tuple(members))
        for resource in resources
        for amount, members in _parts(pod, resource)
    )


def amount_of(pod: Pod, resource: Resource) -> int:
    """Return the sum of the parts of a pod that ask for a resource."""
    return sum(amount for amount, _ in _parts(pod, resource))


def _split(parts: tuple[Part, ...], text: str) -> tuple[Part, ...]:
    """Return the parts, with the one that asks for memory spread evenly over the GPUs whose number `text` is."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        text = "the pod label {label} is not a number of GPUs; write 2, for example"
        raise _ImpossibleError("split-no-number", text, label=SPLIT_LABEL)
    if (gpus := int(text)) > MOST_GPUS:
        text = "the pod label {label} asks for {n} GPUs, and no node can have more than {most}"
        raise _ImpossibleError("split-too-many", text, label=SPLIT_LABEL, n=gpus, most=MOST_GPUS)
    memory = [part for part in parts if part.demand.kind is Kind.MEMORY]
    if gpus == 1 or not memory:
        return parts
    if len(memory) > 1 or len(memory[0].members) > 1:
        text = (
            "the pod label {label} splits the GPU memory of one container, and several containers of this pod "
            "request some; have only one request it, or remove the label"
        )
        raise _ImpossibleError("split-of-several", text, label=SPLIT_LABEL)
    amount = memory[0].demand.amount
    if amount % gpus:
        text = (
            "the pod label {label} asks for {n} GPUs, and a gpu-mem of {amount} cannot be split evenly over them; "
            "ask for a multiple"
        )
        raise _ImpossibleError("split-uneven", text, label=SPLIT_LABEL, n=gpus, amount=amount)
    split = Part(Demand(Kind.MEMORY, amount, gpus), memory[0].members)
    return tuple(split if part is memory[0] else part for part in parts)


def _parts(pod: Pod, resource: Resource) -> Iterable[tuple[int, Sequence[tuple[Container, int]]]]:
    """Yield each part's size and containers, in the order in which the kubelet allocates for them."""
    members: list[tuple[Container, int]] = []
    kept = handed_on = 0
    for container in pod.containers:
        amount = container.limits.get(resource.name, 0)
        if amount < 1:
            continue
        members.append((container, amount))
        kept, handed_on = container.allocated(kept, handed_on, amount)
        if not handed_on:
            yield kept, members
            members, kept = [], 0
    if members:
        yield kept + handed_on, members
