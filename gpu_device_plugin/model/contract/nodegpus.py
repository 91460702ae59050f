"""The GPUs of a node as its agent lists them for schedulers."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.keys import NODE_GPUS, MalformedAnnotationError, compact, text_in
from gpu_device_plugin.model.gpus import MOST_GPUS, MOST_POSITIONS, MOST_SHARES, NO_LINKS, Closeness, Inventory, Links
from gpu_device_plugin.model.mig import resource_name
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import SHARES, SharedGpu, Shares

NODE_GPUS_VERSION = 1
"""Version of the annotation's format. A minor release of the agent may add fields, which older readers ignore."""

AWAY = "its GPU agent has ended, or is being restarted"
"""Until the agent serves again, the kubelet would reject every new pod with GPUs, and that pod would fail for good."""

BY_CLAIMS = "its GPUs are allocated through ResourceClaims (DRA), not through limits of pods"
"""Why no pod that asks for shares of GPUs by its limits may be placed on a node."""

NOT_READ_YET = Cordon("the node's agent", why="it has not read yet that the GPU is uncordoned")
"""Of a GPU without a cordon of which its agent still gives nothing: it would refuse a pod that is promised it."""

_NOTHING: frozenset[Any] = frozenset()
_MOST_MIB = 1 << 40
_MOST_GROUPS = 4
_MOST_UNREAD, _LONGEST_SENTENCE = 16, 400
"""The most sentences on what is not read, and characters of each."""
_LEVELS = {level.name.lower(): level for level in Closeness}
_UNEXPLAINED = "it is unhealthy"
_OTHERWISE = "a container holds it under the previous setting mig of this node"


@dataclass(frozen=True, slots=True)
class ListedInstance:
    """The place of a MIG instance in the list of a node."""

    parent: str
    """The UUID of its GPU."""
    gpu: int
    """NVML's index of its GPU, and `number` that of the instance on it: for people."""
    number: int
    profile: str
    gi: int
    """ID of its GPU instance."""
    resource: str = ""
    """The full name of the resource that hands it out whole; empty: it is shared by memory."""

    @property
    def label(self) -> str:
        """Its number as nvidia-smi counts, for example ``0:3``."""
        return f"{self.gpu}:{self.number}"


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU, or MIG instance, in the list of a node."""

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
    instance: ListedInstance | None = None
    """None: it is a whole GPU."""
    cordon: Cordon | None = None
    """Why no new pod gets it; what runs there still counts. None: it is not put aside."""
    groups: tuple[int, ...] = ()
    """The node's groups to which, and to root, the device nodes that containers get with it are open, and to nobody
    else."""

    @property
    def card(self) -> str:
        """The UUID of the GPU that it is, or is an instance of."""
        return self.uuid if self.instance is None else self.instance.parent

    @property
    def closed(self) -> str:
        """Why it takes no new pods, as a clause about it; empty: it takes them."""
        if self.cordon is None:
            return f"unhealthy: {self.unhealthy}" if self.unhealthy else ""
        return f"unhealthy: {self.unhealthy}; {self.cordon}" if self.unhealthy else str(self.cordon)


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """All shared GPUs of a node, by position."""

    gpus: tuple[ListedGpu, ...] = ()
    """Those whose memory is shared, MIG instances among them. Only these can be placed on."""
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
    instances: tuple[ListedGpu, ...] = ()
    """MIG instances that are handed out whole, each by the resource of its profile, whose number kube-scheduler
    counts."""
    gone: tuple[ListedGpu, ...] = ()
    """MIG instances that exist no more and that no container holds, and GPUs that nobody is given: their positions stay
    taken."""
    unread: tuple[str, ...] = ()
    """A sentence on each GPU or MIG instance that the node's driver counts and its agent could not list."""
    cordons_fault: str = ""
    """Why the cordons of the node cannot be read, so that none holds; empty: they can."""
    models: frozenset[str] = field(init=False, repr=False, compare=False)
    """The models of all its GPUs."""
    cards: Mapping[int, int] = field(init=False, repr=False, compare=False)
    """By position of each MIG instance that is shared: the lowest position of those of its GPU."""
    parents: frozenset[str] = field(init=False, repr=False, compare=False)
    """UUIDs of the GPUs in MIG mode of which instances are shared."""
    elsewhere: frozenset[int] = field(init=False, repr=False, compare=False)
    """Positions that the node knows and on which nothing can be placed: those of `instances` and `gone`."""
    cordoned: tuple[ListedGpu, ...] = field(init=False, repr=False, compare=False)
    """Those of `gpus` that are put aside."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", frozenset([gpu.model for gpu in self.gpus]))
        lowest: dict[str, int] = {}
        cards = {
            gpu.position: lowest.setdefault(gpu.instance.parent, gpu.position)
            for gpu in self.gpus
            if gpu.instance is not None
        }
        object.__setattr__(self, "cards", cards)
        object.__setattr__(self, "parents", frozenset(lowest) if lowest else _NOTHING)
        apart = [gpu.position for gpu in (*self.instances, *self.gone)]
        object.__setattr__(self, "elsewhere", frozenset(apart) if apart else _NOTHING)
        object.__setattr__(self, "cordoned", tuple([gpu for gpu in self.gpus if gpu.cordon is not None]))

    @property
    def fault(self) -> str:
        """All that is wrong with the node: a `problem`, and GPUs that are not read. That it serves claims is none."""
        return "; ".join(filter(None, (self.unusable, *self.unread)))

    @property
    def unusable(self) -> str:
        """The `problem` where something is wrong."""
        return "" if self.claims and not self.away else self.problem

    @property
    def all(self) -> tuple[ListedGpu, ...]:
        """Everything that exists, by position."""
        return (
            tuple(sorted((*self.gpus, *self.instances), key=lambda gpu: gpu.position)) if self.instances else self.gpus
        )

    @property
    def sizes(self) -> Mapping[int, int]:
        """Shares of each GPU, by position."""
        return {gpu.position: gpu.shares for gpu in self.gpus}


NO_GPUS = NodeGpus()


def node_gpus(
    shares: Shares,
    inventory: Inventory,
    unhealthy: Mapping[str, str],
    policy: str,
    *,
    away: bool = False,
    claims: bool = False,
    mig_domain: str = "",
    held_shares: Collection[str] = (),
    held_whole: Collection[str] = (),
    cordoned: Collection[str] = (),
    groups: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> NodeGpus:
    """Return the GPUs of a node as its agent knows them; see `NodeGpus` for `policy`, `away` and `claims`.

    `unhealthy` has by UUID the reason for each GPU that is out of service. Containers have shares of the GPUs and MIG
    instances with the UUIDs `held_shares`, and those of `held_whole` whole; the agent gives nothing of `cordoned`.
    `groups` are those of `ListedGpu`, by UUID.
    """
    gpus: list[ListedGpu] = []
    instances: list[ListedGpu] = []
    gone: list[ListedGpu] = []
    for shared in shares.gpus:
        uuid, whole = shared.gpu.uuid, shared.gpu.instance is None
        offered = shared.offered or (shared.listed if whole else ())
        profile = next((profile for kind, profile in offered if kind is Kind.INSTANCE), "")
        why = unhealthy.get(uuid)
        if whole and offered:
            gpus.append(_listed(shared, why))
        elif SHARES in offered and shared.shares:
            gpus.append(_listed(shared, _OTHERWISE if why is None and uuid in held_whole else why))
        elif uuid in held_shares and shared.shares:  # the way of giving instances was changed, or it exists no more
            gpus.append(_listed(shared, _OTHERWISE if why is None else why))
        elif profile or (uuid in held_whole and not whole):
            profile = profile or next((profile for _, profile in shared.listed if profile), "")
            instances.append(_listed(shared, why, f"{mig_domain}/{resource_name(profile)}"))
        else:
            gone.append(_listed(shared, why))

    def marked(listed: list[ListedGpu]) -> tuple[ListedGpu, ...]:
        listed = [replace(gpu, groups=groups[gpu.uuid]) if gpu.uuid in groups else gpu for gpu in listed]
        return tuple([replace(gpu, cordon=NOT_READ_YET) if gpu.uuid in cordoned else gpu for gpu in listed])

    return NodeGpus(
        marked(gpus),
        instances=marked(instances),
        gone=tuple(gone),
        share_mib=shares.share_mib,
        policy=policy,
        driver=inventory.driver_version,
        away=away,
        claims=claims,
        links=shares.links(inventory.links),
        unread=inventory.unread,
    )


def _listed(shared: SharedGpu, unhealthy: str | None, resource: str = "") -> ListedGpu:
    gpu, place = shared.gpu, shared.gpu.instance
    return ListedGpu(
        position=shared.position,
        shares=len(shared.shares),
        uuid=gpu.uuid,
        model=gpu.product,
        memory_mib=gpu.total_mib,
        unhealthy="" if unhealthy is None else unhealthy or _UNEXPLAINED,
        numa=gpu.numa_node,
        reserved_mib=gpu.reserved_mib,
        pci=gpu.pci_bus_id or "",
        instance=None
        if place is None
        else ListedInstance(place.parent, max(gpu.index, 0), max(place.number, 0), place.profile, place.gi, resource),
    )


# --- The codec --------------------------------------------------------------------------------------------------------


def write_node_gpus(node: NodeGpus) -> str:
    """Return the value of the annotation `NODE_GPUS`, as compact JSON. Unknown values are left out."""
    fields: dict[str, object] = {
        "version": NODE_GPUS_VERSION,
        "shareMiB": node.share_mib,
        "policy": node.policy,
        "driver": node.driver,
        "gpus": [_fields(gpu) for gpu in node.gpus],
    }
    # Apart from the GPUs that are shared: a scheduler of a release that knows no MIG places nothing on them.
    apart = {
        "instances": [_fields(gpu) for gpu in node.instances],
        "gone": [_fields(gpu) for gpu in node.gone[:MOST_POSITIONS]],
    }
    # Before the links, the text of which is the same on machines of one kind: readers cache by it.
    fields |= {key: value for key, value in apart.items() if value}
    if node.unread:
        fields["unread"] = [sentence[:_LONGEST_SENTENCE] for sentence in node.unread[:_MOST_UNREAD]]
    fields["links"] = [(a, b, closeness.name.lower(), nvlinks) for a, b, closeness, nvlinks in node.links.pairs]
    rare = {"away": node.away, "claims": node.claims}
    return compact(fields | {key: True for key, value in rare.items() if value})


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
        "cordoned": True if gpu.cordon is not None else None,
        "groups": gpu.groups or None,
        # The fields of an instance have the names of its keys.
        "mig": gpu.instance and {key: value for key, value in asdict(gpu.instance).items() if value != ""},
    }
    return {key: value for key, value in known.items() if value is not None}


def read_node_gpus(text: str, known: MutableMapping[str, Links] | None = None) -> NodeGpus:
    """Parse the annotation `NODE_GPUS` of a node. Unknown fields are ignored: the agent may be newer than the reader.

    `known` is a cache of the links parsed before, by their text. The links of a machine with 8 GPUs take 7 kB, and
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
    shared = _gpus(node, "gpus", MOST_GPUS)
    instances = _gpus(node, "instances", MOST_GPUS, least=0) if "instances" in node else ()
    gone = _gpus(node, "gone", MOST_POSITIONS, least=0) if "gone" in node else ()
    positions = [gpu.position for gpu in (*shared, *instances, *gone)]
    if len(set(positions)) != len(positions):
        raise _malformed("has two gpus with the same index")
    return NodeGpus(
        shared,
        instances=instances,
        gone=gone,
        share_mib=_whole(node, "shareMiB", 1),
        away=node.get("away") is True,
        claims=node.get("claims") is True,
        policy=text_in(node, "policy") or None,
        driver=text_in(node, "driver") or None,
        unread=_sentences(node.get("unread")),
        links=_links(node.get("links", []), text.rpartition('"links":')[2], {} if known is None else known),
    )


def _gpus(node: Mapping[str, Any], key: str, most: int, least: int = 1) -> tuple[ListedGpu, ...]:
    listed = node.get(key)
    if not isinstance(listed, list) or len(listed) > most:
        raise _malformed(f"has no list of at most {most} {key}")
    return tuple(sorted([_gpu(fields, least) for fields in listed], key=lambda gpu: gpu.position))


def _gpu(fields: Any, least: int) -> ListedGpu:
    if not isinstance(fields, dict):
        raise _malformed("has a gpu that is not a JSON object")
    healthy = fields.get("healthy", True) is True
    # Machines of one kind have the same names and slots: one text of each is enough for thousands of nodes.
    return ListedGpu(
        position=_whole(fields, "index", 0, MOST_GPUS + MOST_POSITIONS),
        shares=_whole(fields, "shares", least),
        uuid=text_in(fields, "uuid"),
        model=sys.intern(text_in(fields, "model")),
        memory_mib=_whole(fields, "memoryMiB", 0, _MOST_MIB) if "memoryMiB" in fields else None,
        unhealthy="" if healthy else text_in(fields, "reason") or _UNEXPLAINED,
        numa=_whole(fields, "numa", 0) if "numa" in fields else None,
        reserved_mib=_whole(fields, "reservedMiB", 0, _MOST_MIB) if "reservedMiB" in fields else None,
        pci=sys.intern(text_in(fields, "pci")),
        instance=_instance(fields["mig"]) if "mig" in fields else None,
        cordon=NOT_READ_YET if fields.get("cordoned") is True else None,
        groups=_group_ids(fields["groups"]) if "groups" in fields else (),
    )


def _group_ids(listed: Any) -> tuple[int, ...]:
    """Return the numbers of groups in a list; those that are none, or too many, are left out."""
    numbers = listed[:_MOST_GROUPS] if isinstance(listed, list) else ()
    return tuple([each for each in numbers if type(each) is int and 0 <= each < 1 << 32])


def _sentences(listed: Any) -> tuple[str, ...]:
    """Return the sentences in a list; those that are none, or too many, are left out."""
    texts = listed[:_MOST_UNREAD] if isinstance(listed, list) else ()
    return tuple(text[:_LONGEST_SENTENCE] for text in texts if isinstance(text, str) and text and text.isprintable())


def _instance(fields: Any) -> ListedInstance:
    if not isinstance(fields, dict):
        raise _malformed("has a mig that is not a JSON object")
    return ListedInstance(
        parent=text_in(fields, "parent"),
        gpu=_whole(fields, "gpu", 0),
        number=_whole(fields, "number", 0),
        profile=sys.intern(text_in(fields, "profile")),
        gi=_whole(fields, "gi", 0),
        resource=sys.intern(text_in(fields, "resource")),
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


def _whole(fields: Mapping[str, Any], key: str, least: int, most: int = MOST_SHARES) -> int:
    value = fields.get(key)
    if type(value) is not int or not least <= value <= most:
        raise _malformed(f"has no whole number from {least} to {most} for {key}")
    return value


def _malformed(why: str) -> MalformedAnnotationError:
    return MalformedAnnotationError(f"the node's annotation {NODE_GPUS} {why}")
