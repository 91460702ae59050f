"""The GPUs of a pod's containers in the pod's annotations: promised by a scheduler, then reported by the agent.

Both write a `PodAllocation`; each reads a `Promise` for every container from it. Whole MIG instances are not promised:
their number is kube-scheduler's affair, and the choice of them the kubelet's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_device_plugin.model.contract.keys import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    DEV,
    IDX,
    INIT_ALLOCATION,
    INSTANCES,
    LONGEST,
    LONGEST_OF_CONTAINER,
    PLACES,
    POD,
    MalformedAnnotationError,
    compact,
    too_long,
)
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind, Resource

MOST_CONTAINERS = 64
"""Most containers of one pod that request our resources. Each is placed, and has its entry in `ALLOCATION`."""

_LARGEST = 1 << 20  # no node has more GPUs, no GPU more shares


# --- The codec --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """The GPUs of a pod's containers, as its annotations list them."""

    app: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Shares by the container's index and the GPU's position."""
    init: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Likewise, for init containers and sidecars."""
    single: int | None = None
    """Position of the one GPU of all containers without an entry."""

    @classmethod
    def of(cls, places: Iterable[tuple[Container, Mapping[int, int]]], positions: Iterable[int]) -> PodAllocation:
        """Return the allocation of containers with their shares by position; `positions` are all of their GPUs."""
        by_index: tuple[dict[int, Mapping[int, int]], dict[int, Mapping[int, int]]] = {}, {}
        for container, shares in places:
            by_index[container.kind is not ContainerKind.APP][container.index] = shares
        first, *others = positions
        return cls(*by_index, None if others else first)


def write_allocation(allocation: PodAllocation) -> Mapping[str, str]:
    """Return the annotations of an allocation. One that is too long is left out: every reader refuses it."""
    lists = {ALLOCATION: allocation.app, INIT_ALLOCATION: allocation.init}
    texts = {key: compact(by_index) for key, by_index in lists.items() if by_index}
    if allocation.single is not None:
        texts[IDX] = str(allocation.single)
    return {key: text for key, text in texts.items() if not too_long(key, text)}


def read_allocation(annotations: Mapping[str, str]) -> PodAllocation:
    """Parse the annotations of a pod. A GPU with zero shares is left out.

    Raises:
        MalformedAnnotationError: one of our annotations cannot be parsed.
    """
    return PodAllocation(
        _by_index(ALLOCATION, annotations),
        _by_index(INIT_ALLOCATION, annotations),
        _number(IDX, annotations[IDX]) if IDX in annotations else None,
    )


def _by_index(key: str, annotations: Mapping[str, str]) -> Mapping[int, Mapping[int, int]]:
    if key not in annotations:
        return {}
    if too_long(key, annotations[key]):
        raise MalformedAnnotationError(
            f"{key} is longer than {LONGEST[key]} characters, or than {LONGEST_OF_CONTAINER[key]} for each container"
        )
    parsed = _parsed(key, annotations[key])
    if not isinstance(parsed, dict) or not all(isinstance(gpus, dict) for gpus in parsed.values()):
        raise MalformedAnnotationError(f'{key} is not of the form {{"0": {{"1": 4}}}}')
    return {
        _number(key, index): {
            _number(key, position): number for position, shares in gpus.items() if (number := _number(key, shares))
        }
        for index, gpus in parsed.items()
    }


def _parsed(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedAnnotationError(f"{key} is not JSON") from error


def _number(key: str, value: object) -> int:
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    text = value if isinstance(value, str) else ""
    if not (len(text) <= 9 and text.isascii() and text.isdigit() and int(text) <= _LARGEST):
        raise MalformedAnnotationError(f"{key} holds a value that is not a whole number from 0 to {_LARGEST}")
    return int(text)


# --- The promises to containers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promise:
    """A scheduler's promise of one resource to one container: (GPU position, shares) by position."""

    shares: tuple[tuple[int, int], ...]

    def split(self, amount: int) -> int:
        """Return the number of GPUs over which it spreads `amount` shares in equal parts; 1 if it does not."""
        number = len(self.shares)
        return number if number and all(count * number == amount for _, count in self.shares) else 1


def promises(pod: Pod, resources: Iterable[Resource]) -> Mapping[tuple[str, Kind], Promise]:
    """Parse the promises on a pod, by container name and kind of resource.

    An annotation counts only for the pod's own request: a promise of another size is malformed. Ordinary init
    containers have no index of their own in `ALLOCATION`; they get the GPUs of the pod's other containers.

    Raises:
        MalformedAnnotationError: one of our annotations cannot be parsed, or contradicts the request.
    """
    if pod.annotations.keys().isdisjoint(PLACES):
        return {}
    allocation = read_allocation(pod.annotations)
    app = allocation.app
    # The GPU of an init container without an entry. Schedulers that know only `ALLOCATION` mean the GPU of the first
    # container with shares.
    handed_on = next((min(app[index]) for index in sorted(app) if app[index]), allocation.single)
    found = {
        (container.name, resource.kind): _promise(container, resource.kind, amount, allocation, handed_on)
        for container in pod.containers
        for resource in resources
        if (amount := container.limits.get(resource.name, 0)) > 0
    }
    return {key: promise for key, promise in found.items() if promise is not None}


def readable_promises(pod: Pod, resources: Iterable[Resource]) -> Mapping[tuple[str, Kind], Promise]:
    """As `promises`, but empty if an annotation is malformed."""
    try:
        return promises(pod, resources)
    except MalformedAnnotationError:
        return {}


def _promise(
    container: Container, kind: Kind, amount: int, allocation: PodAllocation, handed_on: int | None
) -> Promise | None:
    app = container.kind is ContainerKind.APP
    key, by_index = (ALLOCATION, allocation.app) if app else (INIT_ALLOCATION, allocation.init)
    shares = by_index.get(container.index)
    if shares is None:
        position = handed_on if not app and kind is Kind.MEMORY else allocation.single
        if position is None or (kind is Kind.COUNT and amount > 1):
            return None
        return Promise(((position, amount),))
    size = sum(shares.values()) if kind is Kind.MEMORY else len(shares)
    if size != amount:
        raise MalformedAnnotationError(
            f"{key} assigns {size} of gpu-{'mem' if kind is Kind.MEMORY else 'count'} to container "
            f"{container.name!r}, which requests {amount}"
        )
    return Promise(tuple(sorted(shares.items())))


# --- The agent's annotations ------------------------------------------------------------------------------------------


def assignment(
    pod: Pod,
    actual: Mapping[tuple[str, Kind], Mapping[int, int]],
    resources: Iterable[Resource],
    sizes: Sequence[int],
    now_ns: int,
) -> Mapping[str, str]:
    """Return the annotations to write once the kubelet has allocated a pod's devices; empty if all are there already.

    A pod without a promise gets all of them, so that schedulers and people know its GPUs.

    On other pods `ASSIGNED` becomes true, and a promise of GPUs other than the allocated ones is corrected (the kubelet
    calls without naming the pod, and equal pods can be swapped). An `IDX` without `ALLOCATION` stays, and `ALLOCATION`
    is added: gpushare's extender reserves memory on the GPU of the `IDX` that it wrote, and when the pod ends it frees
    memory on the GPU of the present `IDX`. It never reads `ALLOCATION`; the programs that do read it before `IDX`.
    `INIT_ALLOCATION` is written if an init container or a sidecar has other GPUs than the other annotations imply.

    `actual` are the allocated shares by position, for every container name and kind of the pod; a whole GPU counts with
    all of its shares. `sizes` are the shares of each GPU by position, `now_ns` nanoseconds since the epoch.
    """
    used = {kind: {position for (_, k), gpus in actual.items() if k is kind for position in gpus} for kind in Kind}
    # Gpushare knows only gpu-mem, so its keys describe the gpu-mem of a pod with both resources.
    positions = used[Kind.MEMORY] or used[Kind.COUNT]
    if not positions:
        return {}
    before, held = pod.annotations, {name: dict(sorted(gpus.items())) for (name, _), gpus in sorted(actual.items())}
    places = [(container, held[container.name]) for container in pod.containers if container.name in held]
    written = write_allocation(PodAllocation.of(places, positions))
    complete = {
        **written,
        POD: str(_held_at_once(pod, actual)),
        DEV: str(max(sizes[position] for position in positions)),
        ASSIGNED: "true",
        ASSUME_TIME: before.get(ASSUME_TIME, str(now_ns)),
    }
    promised = readable_promises(pod, resources)
    keys = {ASSIGNED}
    if ASSIGNED not in before or before.keys().isdisjoint({IDX, *written}):
        keys = complete.keys() - {INIT_ALLOCATION}
    elif not _kept(promised, pod, actual):
        alone = ALLOCATION not in before and bool(promised)
        if IDX in before and not alone:
            keys.add(IDX)
        # One number cannot describe containers of one pod on different GPUs.
        if alone or ALLOCATION in before or len(positions) > 1:
            keys.add(ALLOCATION)
    after = replace(pod, annotations={**before, **{key: complete[key] for key in keys & complete.keys()}})
    if INIT_ALLOCATION in complete and not _kept(readable_promises(after, resources), after, actual):
        keys.add(INIT_ALLOCATION)
    return {key: value for key, value in complete.items() if key in keys and before.get(key) != value}


def _held_at_once(pod: Pod, actual: Mapping[tuple[str, Kind], Mapping[int, int]]) -> int:
    """Return the most shares that a pod's containers hold at any moment, as Kubernetes adds them up."""
    held: Counter[str] = Counter()
    for (name, _), gpus in actual.items():
        held[name] += sum(gpus.values())
    kept = reusable = 0
    for container in pod.containers:
        kept, reusable = container.allocated(kept, reusable, held[container.name])
    return kept + reusable


def _kept(
    promised: Mapping[tuple[str, Kind], Promise], pod: Pod, actual: Mapping[tuple[str, Kind], Mapping[int, int]]
) -> bool:
    """Return whether every container of a pod has its promised GPUs; of a whole GPU the number of shares is ignored."""
    names = {container.name for container in pod.containers}
    for (name, kind), gpus in actual.items():
        shares = dict(promised[name, kind].shares) if (name, kind) in promised else {}
        if name in names and (shares.keys() != gpus.keys() or (kind is Kind.MEMORY and shares != gpus)):
            return False
    return True


_INSTANCE = re.compile(r"MIG-[0-9A-Za-z/-]{1,92}", re.ASCII)
"""A UUID of NVML, of older drivers too: ``MIG-GPU-<UUID>/<GPU instance>/<compute instance>``."""


def write_instances(instances: Mapping[str, Collection[str]]) -> str:
    """Return the annotation `INSTANCES` for the UUIDs of each container's instances, by its name.

    Containers without instances are left out. A text that no reader would accept, because it is too long, becomes
    ``{}``.
    """
    text = compact({name: sorted(uuids) for name, uuids in sorted(instances.items()) if uuids})
    return "{}" if too_long(INSTANCES, text) else text


def read_instances(text: str) -> Mapping[str, tuple[str, ...]]:
    """Parse the annotation `INSTANCES` of a pod: the UUIDs of each container's instances, by its name.

    Raises:
        MalformedAnnotationError: the value is too long, or not what `write_instances` writes.
    """
    if too_long(INSTANCES, text):
        raise MalformedAnnotationError(f"{INSTANCES} is longer than {LONGEST[INSTANCES]} characters")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedAnnotationError(f"{INSTANCES} is not JSON") from error
    if not isinstance(parsed, dict) or not all(
        isinstance(uuids, list) and all(isinstance(uuid, str) and _INSTANCE.fullmatch(uuid) for uuid in uuids)
        for uuids in parsed.values()
    ):
        raise MalformedAnnotationError(f'{INSTANCES} is not of the form {{"container": ["MIG-..."]}}')
    return {name: tuple(uuids) for name, uuids in parsed.items()}
