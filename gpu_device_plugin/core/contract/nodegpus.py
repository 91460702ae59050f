"""The GPUs of a node as its agent lists them for schedulers; without that list, equal parts of the node's capacity."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.keys import NODE_GPUS, PLACEMENT_LABEL, MalformedAnnotationError
from gpu_device_plugin.core.model.gpus import MOST_GPUS, NO_LINKS, Closeness, Links
from gpu_device_plugin.core.model.policy import POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.shares import Shares

NODE_GPUS_VERSION = 1
"""Version of the annotation's format. A minor release of the agent may add fields, which older readers ignore."""

AWAY = "its GPU agent has ended, or is being restarted"
"""Until the agent serves again, the kubelet would reject every new pod with GPUs, and that pod would fail for good."""

BY_CLAIMS = "its GPUs are given to ResourceClaims (DRA), not to limits of pods"
"""Why no pod that asks for shares of GPUs by its limits may be placed on a node."""

_MOST_SHARES = 1 << 20
_MOST_MIB = 1 << 40
_LEVELS = {level.name.lower(): level for level in Closeness}
_UNEXPLAINED = "it is out of service"


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU in the list of a node."""

    position: int
    """Its place in the node's list, the number in ``ALIYUN_COM_GPU_MEM_IDX``."""
    shares: int
    uuid: str = ""
    """Empty if the node does not list it, as with gpushare's own device plugin."""
    model: str = ""
    memory_mib: int | None = None
    unhealthy: str = ""
    """Why it is out of service; empty if it is in service."""
    numa: int | None = None
    reserved_mib: int | None = None
    pci: str = ""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """All shared GPUs of a node, by position."""

    gpus: tuple[ListedGpu, ...] = ()
    share_mib: int | None = None
    """None if unknown."""
    policy: str | None = None
    """The policy for its GPUs, a name in `POLICIES`; None: the scheduler's configuration decides."""
    driver: str | None = None
    away: bool = False
    """The node's agent is shutting down, or does not serve yet."""
    divided: bool = False
    """Computed from the capacity: the node's device plugin is not ours, and allocates no whole GPUs."""
    links: Links = NO_LINKS
    claims: bool = False
    """Pods get its GPUs by ResourceClaims, whose devices kube-scheduler itself allocates (DRA)."""
    problem: str = ""
    """Why no pod may be placed on the node although it reports GPUs; empty if pods may be placed."""
    models: frozenset[str] = field(init=False, repr=False, compare=False)
    """The models of all its GPUs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", frozenset([gpu.model for gpu in self.gpus]))

    @property
    def fault(self) -> str:
        """The `problem` where something is wrong: that a node serves claims is none."""
        return "" if self.problem == BY_CLAIMS else self.problem

    @property
    def sizes(self) -> Mapping[int, int]:
        """Shares of each GPU, by position."""
        return {gpu.position: gpu.shares for gpu in self.gpus}


NO_GPUS = NodeGpus()


def gpus_of_node(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    memory: int,
    count: int,
    known: MutableMapping[str, Links] | None = None,
) -> NodeGpus:
    """Return the GPUs of a node by its annotations, labels and capacity.

    Args:
        annotations: of the node; the agent's list takes precedence over the capacity.
        labels: of the node; the policy's label takes precedence over the agent's list.
        memory: shares in its capacity.
        count: GPUs in its capacity.
        known: see `read_node_gpus`.
    """
    if NODE_GPUS in annotations:
        try:
            gpus = read_node_gpus(annotations[NODE_GPUS], known)
        except MalformedAnnotationError as error:
            gpus = NodeGpus(problem=str(error))
    else:
        gpus = by_division(memory, count)
    policy = next((name for name in (labels.get(PLACEMENT_LABEL), gpus.policy) if name in POLICIES), None)
    problem = AWAY if gpus.away else BY_CLAIMS if gpus.claims else gpus.problem
    unchanged = (policy, problem) == (gpus.policy, gpus.problem)
    return gpus if unchanged else replace(gpus, policy=policy, problem=problem)


def by_division(memory: int, count: int) -> NodeGpus:
    """Return the GPUs of a node that reports only their number and their total memory.

    Gpushare's device plugin reports no more, and treats all GPUs of a node as equal.
    """
    if not 0 < count <= min(memory, MOST_GPUS):
        return NO_GPUS
    return NodeGpus(tuple(ListedGpu(position, memory // count) for position in range(count)), divided=True)


def node_gpus(
    shares: Shares,
    inventory: Inventory,
    unhealthy: Mapping[str, str],
    policy: str,
    *,
    away: bool = False,
    claims: bool = False,
) -> NodeGpus:
    """Return the GPUs of a node as its agent knows them.

    Args:
        shares: the GPUs that are shared.
        inventory: for the links between them and the driver's version.
        unhealthy: the reason for each GPU (by UUID) that is out of service.
        policy: the policy for this node's GPUs.
        away: no pod should be placed here, because the agent is shutting down or does not serve yet.
        claims: pods get the GPUs by ResourceClaims.
    """
    return NodeGpus(
        tuple(
            ListedGpu(
                position=shared.position,
                shares=len(shared.shares),
                uuid=shared.gpu.uuid,
                model=shared.gpu.product,
                memory_mib=shared.gpu.total_mib,
                unhealthy=(unhealthy[shared.gpu.uuid] or _UNEXPLAINED) if shared.gpu.uuid in unhealthy else "",
                numa=shared.gpu.numa_node,
                reserved_mib=shared.gpu.reserved_mib,
                pci=shared.gpu.pci_bus_id or "",
            )
            for shared in shares.gpus
        ),
        share_mib=shares.share_mib,
        policy=policy,
        driver=inventory.driver_version,
        away=away,
        claims=claims,
        links=shares.links(inventory.links),
    )


# --- The codec --------------------------------------------------------------------------------------------------------


def write_node_gpus(node: NodeGpus) -> str:
    """Return the value of the annotation `NODE_GPUS`, as compact JSON. Unknown values are left out."""
    fields = {
        "version": NODE_GPUS_VERSION,
        "shareMiB": node.share_mib,
        "policy": node.policy,
        "driver": node.driver,
        "gpus": [_fields(gpu) for gpu in node.gpus],
        "links": [(a, b, closeness.name.lower(), nvlinks) for a, b, closeness, nvlinks in node.links.pairs],
    }
    rare = {"away": node.away, "claims": node.claims}
    return json.dumps(fields | {key: True for key, value in rare.items() if value}, separators=(",", ":"))


def _fields(gpu: ListedGpu) -> Mapping[str, object]:
    known = {
        "uuid": gpu.uuid,
        "index": gpu.position,
        "model": gpu.model,
        "memoryMiB": gpu.memory_mib,
        "reservedMiB": gpu.reserved_mib,
        "shares": gpu.shares,
        "healthy": not gpu.unhealthy,
        "reason": gpu.unhealthy or None,
        "numa": gpu.numa,
        "pci": gpu.pci or None,
    }
    return {key: value for key, value in known.items() if value is not None}


def read_node_gpus(text: str, known: MutableMapping[str, Links] | None = None) -> NodeGpus:
    """Parse the annotation `NODE_GPUS` of a node. Unknown fields are ignored: the agent may be newer than the reader.

    Args:
        text: the annotation.
        known: a cache of the links parsed before, by their text. The links of a machine with 8 GPUs take 7 kB, and
            machines of one kind have equal links.

    Raises:
        MalformedAnnotationError: it cannot be parsed; the message names the fault.
    """
    try:
        node: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed("is not JSON") from error
    if not isinstance(node, dict):
        raise _malformed("is not a JSON object")
    if node.get("version") != NODE_GPUS_VERSION:
        raise _malformed(f"is of another version than {NODE_GPUS_VERSION}; upgrade the older of agent and scheduler")
    listed = node.get("gpus")
    if not isinstance(listed, list) or len(listed) > MOST_GPUS:
        raise _malformed(f"has no list of at most {MOST_GPUS} gpus")
    gpus = {gpu.position: gpu for gpu in map(_gpu, listed)}
    if len(gpus) != len(listed):
        raise _malformed("has two gpus with the same index")
    return NodeGpus(
        tuple([gpus[position] for position in sorted(gpus)]),
        share_mib=_whole(node, "shareMiB", 1),
        away=node.get("away") is True,
        claims=node.get("claims") is True,
        policy=_text(node, "policy") or None,
        driver=_text(node, "driver") or None,
        links=_links(node.get("links", []), text.rpartition('"links":')[2], {} if known is None else known),
    )


def _gpu(fields: Any) -> ListedGpu:
    if not isinstance(fields, dict):
        raise _malformed("has a gpu that is not a JSON object")
    healthy = fields.get("healthy", True) is True
    # Machines of one kind have the same names and slots: one text of each is enough for thousands of nodes.
    return ListedGpu(
        position=_whole(fields, "index", 0, MOST_GPUS),
        shares=_whole(fields, "shares", 1),
        uuid=_text(fields, "uuid"),
        model=sys.intern(_text(fields, "model")),
        memory_mib=_whole(fields, "memoryMiB", 0, _MOST_MIB) if "memoryMiB" in fields else None,
        unhealthy="" if healthy else _text(fields, "reason") or _UNEXPLAINED,
        numa=_whole(fields, "numa", 0) if "numa" in fields else None,
        reserved_mib=_whole(fields, "reservedMiB", 0, _MOST_MIB) if "reservedMiB" in fields else None,
        pci=sys.intern(_text(fields, "pci")),
    )


def _links(links: Any, end: str, known: MutableMapping[str, Links]) -> Links:
    """Return the links of a node; `end` is the annotation's text after its last key ``"links"``."""
    if not isinstance(links, list):
        raise _malformed("has links that are not a list")
    # An end with one brace closes only the node's object, so the key is the node's. This takes a tenth of repr's time.
    written = end if end.count("}") == 1 else repr(links)
    if written not in known:
        known[written] = Links(tuple(sorted(map(_link, links))))
    return known[written]


def _link(link: Any) -> tuple[int, int, Closeness, int]:
    match link:
        case [int(a), int(b), str(level), int(nvlinks)] if a != b:
            # An unknown level, of a newer agent, still says that the two GPUs are connected.
            return min(a, b), max(a, b), _LEVELS.get(level, Closeness.UNKNOWN), min(max(nvlinks, 0), 99)
        case _:
            raise _malformed('has a link that is not of the form [0, 1, "nvlink", 4]')


def _whole(fields: Mapping[str, Any], key: str, least: int, most: int = _MOST_SHARES) -> int:
    value = fields.get(key)
    if type(value) is not int or not least <= value <= most:
        raise _malformed(f"has no whole number from {least} to {most} for {key}")
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    # JSON can hold lone surrogates, which our answers, in UTF-8, cannot.
    return value if isinstance(value, str) and value.isprintable() else ""


def _malformed(why: str) -> MalformedAnnotationError:
    return MalformedAnnotationError(f"the node's annotation {NODE_GPUS} {why}")
