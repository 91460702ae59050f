"""Where a pod's containers have their GPUs, as it stands on the pod: promised by a scheduler, then told by the agent.

Both write an `Allocation`; each reads from it a `Promise` for every container.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.keys import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    DEV,
    IDX,
    INIT_ALLOCATION,
    POD,
    MalformedAnnotationError,
)
from gpu_device_plugin.core.model.pods import ContainerKind
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.model.pods import Container, Pod
    from gpu_device_plugin.core.model.resources import Resource

MOST_TEXT = 1 << 16
"""Characters of an annotation of ours on a pod; a longer one is refused before it is parsed. The longest that we write
ourselves is shorter: `MOST_CONTAINERS` containers with all of a node's GPUs each."""
MOST_CONTAINERS = 64
"""Of one pod that name our resources. Each is placed, and has its place in `ALLOCATION`."""

_LARGEST = 1 << 20  # no node has more GPUs, no GPU more shares
_PLACES = frozenset({IDX, ALLOCATION, INIT_ALLOCATION})


# --- The codec --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the annotations of a pod say of the place of its containers."""

    app: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Shares by the container's index and the GPU's position."""
    init: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Likewise, of init containers and sidecars."""
    single: int | None = None
    """The one GPU of containers that have no entry."""

    @classmethod
    def of(cls, places: Iterable[tuple[Container, Mapping[int, int]]], positions: Iterable[int]) -> Allocation:
        """Return that of containers with shares of these GPUs, by position; `positions` are all, one or several."""
        by_index: tuple[dict[int, Mapping[int, int]], dict[int, Mapping[int, int]]] = {}, {}
        for container, shares in places:
            by_index[container.kind is not ContainerKind.APP][container.index] = shares
        first, *others = positions
        return cls(*by_index, None if others else first)


def write_allocation(allocation: Allocation) -> Mapping[str, str]:
    """Return the annotations that say it. A text longer than `MOST_TEXT` is left out: nobody would read it."""
    lists = {ALLOCATION: allocation.app, INIT_ALLOCATION: allocation.init}
    texts = {key: json.dumps(by_index, separators=(",", ":")) for key, by_index in lists.items() if by_index}
    if allocation.single is not None:
        texts[IDX] = str(allocation.single)
    return {key: text for key, text in texts.items() if len(text) <= MOST_TEXT}


def read_allocation(annotations: Mapping[str, str]) -> Allocation:
    """Read the annotations of a pod. A GPU with none of the shares is not among them.

    Raises:
        MalformedAnnotationError: an annotation of ours is there and makes no sense.
    """
    return Allocation(
        _by_index(ALLOCATION, annotations),
        _by_index(INIT_ALLOCATION, annotations),
        _number(IDX, annotations[IDX]) if IDX in annotations else None,
    )


def _by_index(key: str, annotations: Mapping[str, str]) -> Mapping[int, Mapping[int, int]]:
    if key not in annotations:
        return {}
    if len(annotations[key]) > MOST_TEXT:
        raise MalformedAnnotationError(f"{key} is longer than {MOST_TEXT} characters")
    try:
        parsed: Any = json.loads(annotations[key])
    except (ValueError, RecursionError) as error:
        raise MalformedAnnotationError(f"{key} is not JSON") from error
    if not isinstance(parsed, dict) or not all(isinstance(gpus, dict) for gpus in parsed.values()):
        raise MalformedAnnotationError(f'{key} is not of the form {{"0": {{"1": 4}}}}')
    return {
        _number(key, index): {
            _number(key, position): number for position, shares in gpus.items() if (number := _number(key, shares))
        }
        for index, gpus in parsed.items()
    }


def _number(key: str, value: object) -> int:
    if type(value) is int and 0 <= value <= _LARGEST:
        return value
    text = value if isinstance(value, str) else ""
    if not (len(text) <= 9 and text.isascii() and text.isdigit() and int(text) <= _LARGEST):
        raise MalformedAnnotationError(f"{key} holds something that is not a whole number from 0 to {_LARGEST}")
    return int(text)


# --- What it means for a container ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promise:
    """What a scheduler promised one container of one resource: (GPU position, shares) by position."""

    shares: tuple[tuple[int, int], ...]

    def split(self, amount: int) -> int:
        """Return over how many GPUs it spreads `amount` shares in equal parts; 1 if it does not."""
        number = len(self.shares)
        return number if number and all(count * number == amount for _, count in self.shares) else 1


def promises(pod: Pod, resources: Iterable[Resource]) -> Mapping[tuple[str, Kind], Promise]:
    """Read the promises on a pod, by container name and kind of resource.

    An annotation counts only for what the pod itself asks: a promise of another size is malformed. Ordinary init
    containers have no index of their own in `ALLOCATION`; they get the GPUs of the pod's other containers.

    Raises:
        MalformedAnnotationError: an annotation of ours is there and makes no sense.
    """
    if pod.annotations.keys().isdisjoint(_PLACES):
        return {}
    allocation = read_allocation(pod.annotations)
    app = allocation.app
    # Where an init container's shares are that has no entry. Who knows only `ALLOCATION` means: with the first that
    # asks for some.
    handed_on = next((min(app[index]) for index in sorted(app) if app[index]), allocation.single)
    found = {
        (container.name, resource.kind): _promise(container, resource.kind, amount, allocation, handed_on)
        for container in pod.containers
        for resource in resources
        if (amount := container.limits.get(resource.name, 0)) > 0
    }
    return {key: promise for key, promise in found.items() if promise is not None}


def readable_promises(pod: Pod, resources: Iterable[Resource]) -> Mapping[tuple[str, Kind], Promise]:
    """As `promises`; none where they are malformed."""
    try:
        return promises(pod, resources)
    except MalformedAnnotationError:
        return {}


def _promise(
    container: Container, kind: Kind, amount: int, allocation: Allocation, handed_on: int | None
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
            f"{key} promises {size} of gpu-{'mem' if kind is Kind.MEMORY else 'count'} to container "
            f"{container.name!r}, which asks {amount}"
        )
    return Promise(tuple(sorted(shares.items())))


# --- What the agent writes of it --------------------------------------------------------------------------------------


def assignment(
    pod: Pod,
    actual: Mapping[tuple[str, Kind], Mapping[int, int]],
    resources: Iterable[Resource],
    sizes: Sequence[int],
    now_ns: int,
) -> Mapping[str, str]:
    """Return the annotations to write once the kubelet has given a pod its devices; empty if they stand already.

    On a pod that a scheduler promised nothing, all of them, so that schedulers and people know where it is.

    On others `ASSIGNED` becomes true, and where the devices are on other GPUs than promised (the kubelet asks without
    naming the pod, and equal pods can be swapped), the promise is corrected to what is. An `IDX` that stands alone is
    not changed for that, but told better by `ALLOCATION`: gpushare's extender keeps memory booked where `IDX` was when
    it wrote it, and frees, when the pod ends, where `IDX` is then. It never reads `ALLOCATION`; whoever does, reads it
    first. `INIT_ALLOCATION` is written where an init container or a sidecar is elsewhere than the others let expect.

    Args:
        pod: the pod with its annotations.
        actual: (position, shares) that each container really has, by container name and kind; all of them. A whole GPU
            counts with all of its shares.
        resources: the resources that we advertise.
        sizes: the shares of each GPU, by position.
        now_ns: nanoseconds since the epoch.
    """
    used = {kind: {position for (_, k), gpus in actual.items() if k is kind for position in gpus} for kind in Kind}
    # Gpushare knows gpu-mem only, so that of a pod with both resources its key tells of gpu-mem.
    positions = used[Kind.MEMORY] or used[Kind.COUNT]
    if not positions:
        return {}
    before, held = pod.annotations, {name: dict(sorted(gpus.items())) for (name, _), gpus in sorted(actual.items())}
    places = [(container, held[container.name]) for container in pod.containers if container.name in held]
    written = write_allocation(Allocation.of(places, positions))
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
        # Containers of one pod on different GPUs are more than one number can tell.
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
    most = kept = 0
    for container in pod.containers:
        now = kept + held[container.name]
        most = max(most, now)
        if container.kind is not ContainerKind.INIT:
            kept = now
    return most


def _kept(
    promised: Mapping[tuple[str, Kind], Promise], pod: Pod, actual: Mapping[tuple[str, Kind], Mapping[int, int]]
) -> bool:
    """Return whether every container of a pod is where it was promised to be; a whole GPU is one whatever its size."""
    names = {container.name for container in pod.containers}
    for (name, kind), gpus in actual.items():
        shares = dict(promised[name, kind].shares) if (name, kind) in promised else {}
        if name in names and (shares.keys() != gpus.keys() or (kind is Kind.MEMORY and shares != gpus)):
            return False
    return True
