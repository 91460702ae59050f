"""Describe each GPU and MIG instance of a node as a device of ResourceSlices, in their order."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_device_plugin.features.claims import contract as dra
from gpu_device_plugin.model.gpus import NVIDIA, Closeness, Links
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import OF_GPUS, Kind
from gpu_device_plugin.model.shares import SHARES, SharedGpu
from gpu_device_plugin.node.rules.node import Node

_LONGEST_TEXT = 64
"""Characters of an attribute, and of the value of a taint."""
_SUFFIXES = ("Mi", "Gi", "Ti")


@dataclass(frozen=True, slots=True)
class SliceInputs:
    """What the devices of a node say beside its GPUs and their health."""

    order: tuple[str, ...]
    """UUIDs of the GPUs in the order of their devices: the scheduler takes the first device that fits."""
    driver_version: str | None = None
    enforcements: Mapping[str, Enforcement] = field(default_factory=dict)
    """What keeps containers within their parts, by UUID."""
    evict: bool = False
    """Pods shall leave GPUs that are out of service."""
    kinds: frozenset[Kind] = frozenset(OF_GPUS)
    """Parts of GPUs are offered, or whole GPUs, or both."""
    held_formerly: frozenset[str] = frozenset()
    """UUIDs of those that claims hold by a device that is offered no more, so that the scheduler counts nothing."""


def offered_as(shared: SharedGpu, kinds: Collection[Kind]) -> frozenset[Kind]:
    """Return how a GPU, or a MIG instance, is offered: in parts, whole, or both.

    `kinds` are those that the node offers. An instance that is shared by memory can be had whole too, as a GPU can; how
    instances are given at all is a matter of `Shares.mig`. What is gone, or given to nobody, is no device.
    """
    found = {kind for kind, _ in shared.offered if kind is Kind.INSTANCE or kind in kinds}
    if shared.gpu.instance is not None and SHARES in shared.offered and Kind.COUNT in kinds:
        found.add(Kind.INSTANCE)
    return frozenset(found if shared.shares else found - {Kind.MEMORY})


def devices(node: Node, facts: SliceInputs) -> list[dict[str, Any]]:
    """Return the devices of a node in the given order, then those by which they are looked at.

    Claims with parts of a GPU and claims that have it alone take the same capacity of one device. With a device for
    each, and a counter between them, kube-scheduler's work for a pod grows with the cube of the number of nodes (1.36).
    Monitors take nothing, also where everything is taken.
    """
    offer = _Offer(node, facts)
    given = [gpu for gpu in offer.gpus if offered_as(gpu, facts.kinds)]
    return [*map(offer.device, given), *map(offer.monitor, offer.gpus)]


def plain_devices(node: Node, facts: SliceInputs) -> list[dict[str, Any]]:
    """Return what is given whole, for an API server that knows neither parts nor taints.

    MIG instances are among it where they are given whole only: it could not know of the parts of the others. GPUs out
    of service or put aside are left out, as no taint could keep pods away from them.
    """
    offer = _Offer(node, facts)
    whole = [gpu for gpu in offer.gpus if Kind.COUNT in offered_as(gpu, facts.kinds)]
    whole += [gpu for gpu in offer.gpus if any(kind is Kind.INSTANCE for kind, _ in gpu.offered)]
    healthy = [device for device in map(offer.plain, whole) if not device.get("taints")]
    return [*healthy, *map(offer.monitor, offer.gpus)]


def nvlink_groups(links: Links) -> dict[int, int]:
    """Return by position the number of the group of GPUs that NVLinks connect: the lowest position in it."""
    near: dict[int, set[int]] = defaultdict(set)
    for a, b, closeness, _ in links.pairs:
        if closeness is Closeness.NVLINK:
            near[a].add(b)
            near[b].add(a)
    groups: dict[int, int] = {}
    for start in sorted(near):
        reached = {start}
        while more := set().union(*(near[one] for one in reached)) - reached:
            reached |= more
        for position in reached:
            groups.setdefault(position, start)
    return groups


def quantity(mib: int) -> str:
    """Return an amount of memory as the API server writes it: with the largest binary suffix that leaves no fraction.

    This goes up to Ti, which no GPU exceeds a thousandfold.
    """
    index = 0
    while mib and mib % 1024 == 0 and index + 1 < len(_SUFFIXES):
        mib, index = mib // 1024, index + 1
    return f"{mib}{_SUFFIXES[index]}"


def semver(version: str) -> str | None:
    """Return a driver's version as a semantic one, ``570.86.03`` as ``570.86.3``; None if it is none."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}", version, re.ASCII):
        return None
    numbers = [str(int(part)) for part in version.split(".")]
    return ".".join([*numbers, "0", "0"][:3])


def taint_value(reason: str) -> str:
    """Return why a GPU is out of service as the value of a taint: the XID, if one is the reason."""
    xid = re.search(r"\bXID ([0-9]{1,9})\b", reason, re.ASCII)
    return f"xid-{xid[1]}" if xid else "out-of-service"


class _Offer:
    """The GPUs and MIG instances of a node that are given to anybody, in their order, described as devices."""

    def __init__(self, node: Node, facts: SliceInputs) -> None:
        self._node, self._facts = node, facts
        self._groups = nvlink_groups(node.links)
        self._one_driver = len({gpu.gpu.driver for gpu in node.shares.gpus}) == 1
        place = {uuid: number for number, uuid in enumerate(facts.order)}
        given = (gpu for gpu in node.shares.gpus if gpu.offered)
        self.gpus = sorted(given, key=lambda gpu: (place.get(gpu.gpu.uuid, len(place)), gpu.position))

    def device(self, shared: SharedGpu) -> dict[str, Any]:
        """Return the device of a GPU or instance, of which claims take parts, or all.

        One that is only given whole is of the same form, so that the parts taken of it before still count: it rounds
        what anybody asks for up to all of it.
        """
        kinds, uuid, taints = offered_as(shared, self._facts.kinds), shared.gpu.uuid, self._taints(shared)
        undivided = bool(self._node.block(uuid).parts)
        if Kind.MEMORY not in kinds or (undivided and len(kinds) > 1):
            step = total = shared.gpu.total_mib
            attributes = self._whole(shared)
        else:
            step, total = self._node.shares.share_mib, self._node.shares.share_mib * len(shared.shares)
            enforcement = self._facts.enforcements.get(uuid, Enforcement.ADVISORY)
            attributes = self._attributes(shared, dra.SHARED) | {dra.LIMITS: {"string": enforcement.value}}
            if len(kinds) > 1:
                attributes[dra.AS_WHOLE] = self._whole(shared)[dra.TYPE]
            elif undivided:
                taints.append(_taint("limits-missing", "NoSchedule"))
        memory = {
            "min": quantity(step),
            "max": quantity(total),
            # A step that no amount can make is refused.
            **({"step": quantity(step)} if total > step else {}),
        }
        return {
            "name": dra.device_name(uuid),
            "allowMultipleAllocations": True,
            "attributes": attributes,
            "capacity": {
                # A claim that names no memory asks for all of it, as it would without this policy.
                dra.MEMORY: _capacity(quantity(total), quantity(total), memory),
                dra.COMPUTE: _capacity("100", "0", {"min": "0", "max": "100", "step": "1"}),
            },
            **({"taints": taints} if taints else {}),
        }

    def plain(self, shared: SharedGpu) -> dict[str, Any]:
        taints = self._taints(shared)
        return {
            "name": dra.device_name(shared.gpu.uuid),
            "attributes": self._whole(shared),
            "capacity": {dra.MEMORY: {"value": quantity(shared.gpu.total_mib)}},
            **({"taints": taints} if taints else {}),
        }

    def _whole(self, shared: SharedGpu) -> dict[str, Any]:
        """Return the attributes of a GPU or instance that is given whole."""
        if shared.gpu.instance is None:
            return self._attributes(shared, dra.WHOLE)
        return self._attributes(shared, dra.MIG) | {dra.LIMITS: {"string": Enforcement.PARTITION.value}}

    def monitor(self, shared: SharedGpu) -> dict[str, Any]:
        """Return the device by which a GPU, or an instance, is looked at.

        Of a GPU in MIG mode that are its instances: to a program without privileges the driver tells nothing of the use
        of such a GPU as a whole.
        """
        return {
            "name": dra.monitor_name(shared.gpu.uuid),
            "attributes": self._attributes(shared, dra.MONITOR),
        }

    def _attributes(self, shared: SharedGpu, kind: str) -> dict[str, Any]:
        gpu, instance = shared.gpu, shared.gpu.instance
        # Of several drivers, the node tells the version of NVIDIA's.
        version = semver(self._facts.driver_version or "") if self._one_driver or gpu.driver == NVIDIA else None
        known: dict[str, tuple[str, Any]] = {
            dra.TYPE: ("string", kind),
            dra.UUID: ("string", gpu.uuid[:_LONGEST_TEXT]),
            dra.PRODUCT: ("string", gpu.product[:_LONGEST_TEXT]),
            dra.ARCHITECTURE: ("string", gpu.architecture and gpu.architecture[:_LONGEST_TEXT]),
            dra.KERNEL_DRIVER: ("string", gpu.driver),
            dra.DRIVER_VERSION: ("version", version),
            dra.COMPUTE_UNITS: ("int", gpu.compute_units),
            dra.INDEX: ("int", shared.position),
            dra.NUMA_NODE: ("int", gpu.numa_node),
            dra.NVLINK_GROUP: ("int", self._groups.get(shared.position)),
            dra.PCI_BUS_ID: ("string", gpu.pci_bus_id and gpu.pci_bus_id.lower()),
            dra.PARENT_UUID: ("string", instance and instance.parent[:_LONGEST_TEXT]),
            dra.PROFILE: ("string", instance and instance.profile[:_LONGEST_TEXT]),
            dra.GPU_INSTANCE: ("int", instance and instance.gi),
        }
        return {name: {kind: value} for name, (kind, value) in known.items() if value is not None}

    def _taints(self, shared: SharedGpu) -> list[dict[str, Any]]:
        uuid, block = shared.gpu.uuid, self._node.block(shared.gpu.uuid)
        if block.everyone:
            return [_taint(taint_value(block.everyone), "NoExecute" if self._facts.evict else "NoSchedule")]
        if block.new_pods:
            return [{"key": dra.CORDON_TAINT, "effect": "NoSchedule"}]
        held = uuid in self._node.ledger.held_by_other_resource or uuid in self._facts.held_formerly
        return [_taint("held-otherwise", "NoSchedule")] if held else []


def _capacity(value: str, default: str, valid: dict[str, str]) -> dict[str, Any]:
    return {"value": value, "requestPolicy": {"default": default, "validRange": valid}}


def _taint(value: str, effect: str) -> dict[str, Any]:
    return {"key": dra.UNHEALTHY_TAINT, "value": value[:_LONGEST_TEXT], "effect": effect}


# --- Their order ------------------------------------------------------------------------------------------------------

REORDER_S = 10.0
"""Least seconds between two changes of the order: each is a write to the API server, for every scheduler to read."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order in force."""

    uuids: tuple[str, ...] = ()
    since: float = float("-inf")
    """When it was last changed for the sake of the policy, in monotonic seconds."""
    due: float | None = None
    """When it has to be looked at again, in monotonic seconds; None: when the node changes."""


def wanted_order(node: Node, policy: str) -> tuple[str, ...]:
    """Return the UUIDs of a node's GPUs and MIG instances in the order that the policy wants.

    With `spread` the emptiest comes first, with the other policies the fullest that still has room. Of equal instances
    those of the emptiest or the fullest GPU come first, and of instances that are only given whole the smallest ones:
    a claim that does not say which one takes no more than it needs. GPUs that can give nothing come last.
    """
    sign = -1 if policy == "spread" else 1
    free = {shared.position: _free(node, shared) for shared in node.shares.gpus}
    of_card: Counter[str] = Counter()
    for shared in node.shares.gpus:
        of_card[shared.gpu.card] += free[shared.position]

    def rank(shared: SharedGpu) -> tuple[bool, int, int, int]:
        own = free[shared.position]
        size = own if _whole_only(shared) else sign * own
        return own == 0, size, sign * of_card[shared.gpu.card], shared.position

    return tuple(shared.gpu.uuid for shared in sorted(node.shares.gpus, key=rank))


def _free(node: Node, shared: SharedGpu) -> int:
    """Return the free shares of a GPU; of an instance that is only given whole its MiB, if it is free."""
    room = node.room(shared)
    if _whole_only(shared):
        return shared.gpu.total_mib if room.unused else 0
    return room.free if room.gives_shares else 0


def _whole_only(shared: SharedGpu) -> bool:
    return bool(shared.offered) and all(kind is Kind.INSTANCE for kind, _ in shared.offered)


def reordered(order: Order, node: Node, policy: str, now: float) -> Order:
    """Return the order to publish `now` (monotonic seconds), where `order` is in force."""
    wanted = wanted_order(node, policy)
    if set(wanted) != set(order.uuids):
        return Order(wanted, now)
    if wanted == order.uuids:
        return Order(order.uuids, order.since)
    if now - order.since >= REORDER_S:
        return Order(wanted, now)
    return Order(order.uuids, order.since, order.since + REORDER_S)
