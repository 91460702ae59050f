"""The wire contract on pods and nodes: the only home of the annotation and label names.

The pod annotations are those of Alibaba's gpushare, so that its extender can drive this plugin and its tools can read
what this plugin writes; `ALLOCATION` is the one that its successor ACK writes and that gpushare's inspect reads.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.model.pods import ContainerKind
from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.pods import Container, Pod
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.model.shares import Shares

IDX = "ALIYUN_COM_GPU_MEM_IDX"
"""Position of the GPU in the node's list, when there is only one."""
POD = "ALIYUN_COM_GPU_MEM_POD"
"""Shares of the whole pod."""
DEV = "ALIYUN_COM_GPU_MEM_DEV"
"""Shares of the GPU."""
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
"""``"false"`` as the scheduler writes it, ``"true"`` once the kubelet has given the devices out."""
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""When the scheduler promised, in nanoseconds since the epoch."""
ALLOCATION = "scheduler.framework.gpushare.allocation"
"""JSON ``{"<container index>": {"<GPU position>": <shares>}}``: where each container's devices are. Tells more than
`IDX` can, and is believed before it. A GPU given whole has all of its shares."""
INIT_ALLOCATION = "gpu-device-plugin/init-allocation"
"""The same for init containers and sidecars, by their index among ``initContainers``; `ALLOCATION` has none of them."""

STATIC_POD = "kubernetes.io/config.mirror"
"""On the API's copy of a static pod: the UID by which the kubelet itself knows the pod. The kubelet writes it."""

POD_ANNOTATIONS = frozenset({IDX, POD, DEV, ASSIGNED, ASSUME_TIME, ALLOCATION, INIT_ALLOCATION})

NODE_GPUS = "gpu-device-plugin/gpus"
"""On the node: every GPU with what a scheduler needs to know of it, as JSON."""
NODE_GPUS_VERSION = 1
NODE_LABELS = "gpu-device-plugin/"
"""Prefix of the labels that the agent writes on its node."""

GPU_POLICY = "gpu-device-plugin/gpu-policy"
"""On a pod: which GPU of a node it prefers, a name in `POLICIES`."""
NODE_POLICY = "gpu-device-plugin/node-policy"
"""On a pod: which node it prefers, a name in `POLICIES`."""
USE_MODEL = "gpu-device-plugin/use-model"
"""On a pod: only GPUs of these models, with commas between them."""
AVOID_MODEL = "gpu-device-plugin/avoid-model"
USE_UUID = "gpu-device-plugin/use-uuid"
"""On a pod: only these GPUs, with commas between them."""
AVOID_UUID = "gpu-device-plugin/avoid-uuid"

WISHES = frozenset({GPU_POLICY, NODE_POLICY, USE_MODEL, AVOID_MODEL, USE_UUID, AVOID_UUID})
"""What the owner of a pod may write on it."""

SPLIT_LABEL = "aliyun.com/gpu-count"
"""Pod label of Alibaba's ACK: over how many GPUs the gpu-mem of the pod is split, in equal parts."""
PLACEMENT_LABEL = "ack.node.gpu.placement"
"""Node label of ACK: the policy by which GPUs of this node are chosen."""

CONFIG_LABEL = "gpu-device-plugin/config"
"""Node label, a person's: the profile of settings that the agent of this node has."""
DEFAULT_PROFILE = "default"
"""What the label may say where the node has no other settings than all have."""

CGPU_DISABLE_LABEL = "cgpu.disable.isolation"
"""Node label of gpushare; ``"true"`` asks for ``CGPU_DISABLE=true`` in every container."""

MOST_TEXT = 1 << 16
"""Characters of an annotation of ours on a pod; a longer one is refused before it is parsed. The longest that we write
ourselves is shorter: `MOST_CONTAINERS` containers with all of a node's GPUs each."""
MOST_CONTAINERS = 64
"""Of one pod that name our resources. Each is placed, and has its place in `ALLOCATION`."""

_LARGEST = 1 << 20  # no node has more GPUs, no GPU more shares
_PLACES = frozenset({IDX, ALLOCATION, INIT_ALLOCATION})


class MalformedAnnotationError(ValueError):
    """A promise that cannot be read; the message names annotation and fault, not the value's owner."""


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
    annotations = pod.annotations
    if annotations.keys().isdisjoint(_PLACES):
        return {}
    said = _said(annotations)
    found: dict[tuple[str, Kind], Promise] = {}
    for container in pod.containers:
        for resource in resources:
            amount = container.limits.get(resource.name, 0)
            if amount < 1:
                continue
            promised = _for_container(container, resource.kind, amount, said)
            if promised is not None:
                found[container.name, resource.kind] = promised
    return found


@dataclass(frozen=True, slots=True)
class _Said:
    """What the annotations of a pod say: shares by container index and GPU position, and the one position."""

    app: Mapping[int, Mapping[int, int]]
    init: Mapping[int, Mapping[int, int]]
    single: int | None
    handed_on: int | None
    """Where an init container's shares are of which nothing is said. Who knows only `ALLOCATION` means: with the first
    that asks for some."""


def _said(annotations: Mapping[str, str]) -> _Said:
    app = _allocation(ALLOCATION, annotations)
    single = _number(IDX, annotations[IDX], _LARGEST) if IDX in annotations else None
    handed_on = next((min(app[index]) for index in sorted(app) if app[index]), single)
    return _Said(app, _allocation(INIT_ALLOCATION, annotations), single, handed_on)


def _for_container(container: Container, kind: Kind, amount: int, said: _Said) -> Promise | None:
    app = container.kind is ContainerKind.APP
    key, own = (ALLOCATION, said.app.get(container.index)) if app else (INIT_ALLOCATION, said.init.get(container.index))
    if own is None:
        where = said.handed_on if not app and kind is Kind.MEMORY else said.single
        if where is None or (kind is Kind.COUNT and amount > 1):
            return None
        return Promise(((where, amount),))
    size = sum(own.values()) if kind is Kind.MEMORY else len(own)
    if size != amount:
        raise MalformedAnnotationError(
            f"{key} promises {size} of gpu-{'mem' if kind is Kind.MEMORY else 'count'} to container "
            f"{container.name!r}, which asks {amount}"
        )
    return Promise(tuple(sorted(own.items())))


def _allocation(key: str, annotations: Mapping[str, str]) -> Mapping[int, Mapping[int, int]]:
    """Return shares by container index and GPU position; a GPU with none of them is not among them."""
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
        _number(key, index, _LARGEST): {
            _number(key, position, _LARGEST): number
            for position, shares in gpus.items()
            if (number := _number(key, shares, _LARGEST))
        }
        for index, gpus in parsed.items()
    }


def _number(key: str, value: object, most: int) -> int:
    if type(value) is int and 0 <= value <= most:
        return value
    text = value if isinstance(value, str) else ""
    if not (len(text) <= 9 and text.isascii() and text.isdigit() and int(text) <= most):
        raise MalformedAnnotationError(f"{key} holds something that is not a whole number from 0 to {most}")
    return int(text)


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
    new: dict[str, str] = {ASSIGNED: "true"}
    places = _by_container(pod, actual)
    if ASSIGNED not in pod.annotations or pod.annotations.keys().isdisjoint({IDX, *places}):
        new[POD] = str(_held_at_once(pod, actual))
        new[DEV] = str(max(sizes[position] for position in positions))
        new[ASSUME_TIME] = pod.annotations.get(ASSUME_TIME, str(now_ns))
        if len(positions) == 1:
            new[IDX] = str(next(iter(positions)))
        if ALLOCATION in places:
            new[ALLOCATION] = places[ALLOCATION]
    elif not _told(pod, actual, resources, pod.annotations):
        alone = ALLOCATION not in pod.annotations and _readable(pod, resources)
        if IDX in pod.annotations and len(positions) == 1 and not alone:
            new[IDX] = str(next(iter(positions)))
        # Containers of one pod on different GPUs are more than one number can tell.
        if ALLOCATION in places and (alone or ALLOCATION in pod.annotations or len(positions) > 1):
            new[ALLOCATION] = places[ALLOCATION]
    if INIT_ALLOCATION in places and not _told(pod, actual, resources, {**pod.annotations, **new}):
        new[INIT_ALLOCATION] = places[INIT_ALLOCATION]
    return {key: value for key, value in new.items() if pod.annotations.get(key) != value}


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


def _by_container(pod: Pod, actual: Mapping[tuple[str, Kind], Mapping[int, int]]) -> Mapping[str, str]:
    """Return what `ALLOCATION` and `INIT_ALLOCATION` have to say, those of them that have something to say.

    Nobody would read a text longer than `MOST_TEXT`; it is not written.
    """
    lists: dict[str, dict[str, dict[str, int]]] = {}
    held = {name: gpus for (name, _), gpus in sorted(actual.items())}
    for container in pod.containers:
        key = ALLOCATION if container.kind is ContainerKind.APP else INIT_ALLOCATION
        if container.name in held:
            places = {str(at): shares for at, shares in sorted(held[container.name].items())}
            lists.setdefault(key, {})[str(container.index)] = places
    texts = ((key, json.dumps(places, separators=(",", ":"))) for key, places in lists.items())
    return {key: text for key, text in texts if len(text) <= MOST_TEXT}


def _told(
    pod: Pod,
    actual: Mapping[tuple[str, Kind], Mapping[int, int]],
    resources: Iterable[Resource],
    annotations: Mapping[str, str],
) -> bool:
    """Return whether `annotations` would tell where all of a pod's containers are."""
    try:
        told = promises(replace(pod, annotations=annotations), resources)
    except MalformedAnnotationError:
        return False
    names = {container.name for container in pod.containers}
    return all(key in told and _kept(told[key], key[1], gpus) for key, gpus in actual.items() if key[0] in names)


def _readable(pod: Pod, resources: Iterable[Resource]) -> bool:
    try:
        return bool(promises(pod, resources))
    except MalformedAnnotationError:
        return False


def _kept(promise: Promise, kind: Kind, gpus: Mapping[int, int]) -> bool:
    if kind is Kind.COUNT:
        return {position for position, _ in promise.shares} == gpus.keys()
    return promise.shares == tuple(sorted(gpus.items()))


def node_gpus(shares: Shares, inventory: Inventory, unhealthy: Mapping[str, str], policy: str) -> str:
    """Return the value of `NODE_GPUS`: what a scheduler needs to know of this node's GPUs, as compact JSON.

    Args:
        shares: the GPUs that are shared.
        inventory: for the links between them and the driver's version.
        unhealthy: for each GPU (by UUID) that is out of service the reason.
        policy: which GPU this node prefers.
    """
    position = {shared.gpu.uuid: shared.position for shared in shares.gpus}
    return json.dumps(
        {
            "version": NODE_GPUS_VERSION,
            "shareMiB": shares.share_mib,
            "policy": policy,
            "driver": inventory.driver_version,
            "gpus": [
                {
                    "uuid": shared.gpu.uuid,
                    "index": shared.position,
                    "model": shared.gpu.product,
                    "memoryMiB": shared.gpu.total_mib,
                    "reservedMiB": shared.gpu.reserved_mib,
                    "shares": len(shared.shares),
                    "healthy": shared.gpu.uuid not in unhealthy,
                    **({"reason": unhealthy[shared.gpu.uuid]} if shared.gpu.uuid in unhealthy else {}),
                    **({"numa": shared.gpu.numa_node} if shared.gpu.numa_node is not None else {}),
                    **({"pci": shared.gpu.pci_bus_id} if shared.gpu.pci_bus_id is not None else {}),
                }
                for shared in shares.gpus
            ],
            "links": sorted(
                (min(ends), max(ends), link.closeness.name.lower(), link.nvlinks)
                for link in inventory.links
                if min(ends := (position.get(link.a, -1), position.get(link.b, -1))) >= 0
            ),
        },
        separators=(",", ":"),
    )


def going_away(text: str) -> str:
    """Return the value of `NODE_GPUS` of an agent that is about to end, or does not serve yet: no pod is to come."""
    return json.dumps({**json.loads(text), "away": True}, separators=(",", ":"))


def node_labels(shares: Shares, inventory: Inventory, policy: str) -> Mapping[str, str]:
    """Return the labels that let pods choose nodes by their GPUs. Values are made fit for a label.

    A node with several models gets the name of each as a label of its own, so that none hides another.
    """
    models = sorted({shared.gpu.product for shared in shares.gpus})
    labels = {
        f"{NODE_LABELS}count": str(len(shares.gpus)),
        f"{NODE_LABELS}share-mib": str(shares.share_mib),
        f"{NODE_LABELS}policy": policy,
    }
    if inventory.driver_version:
        labels[f"{NODE_LABELS}driver"] = label_value(inventory.driver_version)
    if shares.gpus:
        labels[f"{NODE_LABELS}product"] = label_value(models[0]) if len(models) == 1 else "mixed"
        labels[f"{NODE_LABELS}memory-mib"] = str(min(shared.gpu.total_mib for shared in shares.gpus))
    labels.update(
        {
            f"{NODE_LABELS}product.{label_value(model)}"[: len(NODE_LABELS) + 63].rstrip("-_."): "true"
            for model in models
            if label_value(model)
        }
    )
    return labels


def label_value(text: str) -> str:
    """Return `text` as a label value may look: at most 63 of ``[A-Za-z0-9._-]``, alphanumeric at both ends."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in text)
    return kept[:63].strip("-_.")
