"""The GPUs of a node without an agent of ours, by what the device plugins and labellers of their vendors say of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as pairs
from math import ceil

from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.hardware.fake.gpu_models import MODELS, UNIFIED
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.programs.simulate.entries import SHARE_MIB, known_model
from gpu_device_plugin.programs.simulate.model import counted
from gpu_device_plugin.scheduler.rules.pod_demand import amount_of

NVIDIA, _AMD = "nvidia.com/gpu", "amd.com/gpu"
"""The resources of whole GPUs, unless NVIDIA's device plugin is told to hand each out several times, or AMD's GPUs have
partitions: these are GPUs then."""
_RENAMED = "nvidia.com/gpu.shared"
"""The same where NVIDIA's plugin hands GPUs out several times with ``renameByDefault``."""
_PARTITIONS = tuple(
    f"amd.com/{each}_{memory}"
    for each, memory in pairs(("spx", "dpx", "tpx", "qpx", "cpx"), ("nps1", "nps2", "nps4", "nps8"))
)
"""The same where AMD's plugin names GPUs by how they are partitioned (``resource_naming_strategy=mixed``)."""
HAMI_MEMORY = "nvidia.com/gpumem"
"""With HAMi: MiB of each GPU that a pod asks for."""
_COUNT, _MEMORY, _PRODUCT, _REPLICAS = (f"{NVIDIA}.{each}" for each in ("count", "memory", "product", "replicas"))
_HAMI = "hami.io/node-nvidia-register"
_COUNTED = ("beta.amd.com/gpu.", "amd.com/gpu.")
"""Beginnings of the labels of AMD's node labeller, which end in a value: they have the number of GPUs with it."""
_GIB = re.compile(r"([0-9]{1,5})G", re.ASCII)
_RESERVED_MIB = 768
"""No driver of a known model reserves more."""
_SHARED, _DIVIDED = "-SHARED", "-MIG-"
"""In a product's name: each GPU is handed out several times; GPUs are MIG instances (strategy ``single``)."""
_MOST_MIB = 1 << 24
"""A label with a larger number of memory has bytes."""


@dataclass(frozen=True, slots=True)
class VendorNode:
    """The GPUs as an agent of ours would list them, and how they are handed out today."""

    gpus: NodeGpus
    """None where they cannot be known; its `problem` says why."""
    replicas: int = 1
    """How often NVIDIA's device plugin hands out each."""
    note: str = ""
    """What of the node counts otherwise than its labels say; empty: nothing does."""

    @property
    def slice_shares(self) -> int:
        """The part of a GPU's memory that a pod with one of the replicas counts for; 0: pods get GPUs whole."""
        return min((gpu.shares for gpu in self.gpus.gpus), default=0) // self.replicas if self.replicas > 1 else 0


def _of_nvidia(node: NodeRecord, offered: int) -> VendorNode:
    labels = node.labels
    product = labels.get(_PRODUCT, "").replace(" ", "-")
    if _DIVIDED in product:
        return _unknown("its GPUs are divided into MIG instances; name it in words, with mig=")
    memory_mib, replicas = _memory_mib(labels), max(1, _labelled(labels, _REPLICAS))
    if not memory_mib:
        return _unknown(_without_memory(product.removesuffix(_SHARED)))
    listed = _labelled(labels, _COUNT)
    sliced = _HAMI in node.annotations or (listed and offered > listed * replicas)
    number = listed if sliced and listed else min(listed or MOST_GPUS, offered // replicas)
    if not 0 < number <= MOST_GPUS or listed > MOST_GPUS:
        return _unknown(f"its label {_COUNT} is no number of GPUs")
    note = ""
    if sliced:
        note = (
            f"its {counted(number, 'GPU')} count, not the {offered:,} slices that HAMi makes of them; pods take the "
            f"{HAMI_MEMORY} that they ask for"
        )
    elif number < listed:
        rest = listed - number
        be = "is" if rest == 1 else "are"
        note = f"{rest} of its {listed} GPUs {be} divided into MIG instances, and {be} left out"
    product = product.removesuffix(_SHARED)
    reserved_mib = next((known[2] for known in MODELS.values() if known[0].replace(" ", "-") == product), _RESERVED_MIB)
    shares = max(0, memory_mib - reserved_mib) // SHARE_MIB
    model = product.replace("-", " ")
    gpus = tuple([ListedGpu(at, shares, model=model, memory_mib=memory_mib) for at in range(number)])
    return VendorNode(NodeGpus(gpus, share_mib=SHARE_MIB), replicas, note)


def _unknown(problem: str) -> VendorNode:
    return VendorNode(NodeGpus(problem=problem))


def _without_memory(product: str) -> str:
    short = next((short for short in UNIFIED if MODELS[short][0].replace(" ", "-") == product), None)
    if short:
        return (
            f"GPU feature discovery says no memory of GPUs that use the machine's; name it in words, as in '1x {short}'"
        )
    return (
        f"no label {_MEMORY} says how much memory its GPUs have; deploy NVIDIA's GPU feature discovery, or name it in "
        "words"
    )


def _memory_mib(labels: Mapping[str, str]) -> int:
    found = _labelled(labels, _MEMORY)
    return found >> 20 if found > _MOST_MIB else found


def _labelled(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _of_amd(node: NodeRecord, offered: int) -> VendorNode:
    sizes = {int(size[1]): n for text, n in _by_value(node.labels, "vram") if (size := _GIB.fullmatch(text))}
    if not sizes:
        return _unknown(
            "no label amd.com/gpu.vram says how much memory its GPUs have; deploy AMD's node labeller, or name it in "
            "words"
        )
    if len(sizes) == 1 and not any(sizes.values()):
        sizes = dict.fromkeys(sizes, offered)
    if (listed := sum(sizes.values())) > MOST_GPUS or listed != offered:
        return _unknown(f"its labels count {listed:,} GPUs, and it offers {offered:,}; name it in words")
    products = [name.replace("_", " ") for name, _ in _by_value(node.labels, "product-name")]
    model = products[0] if len(products) == 1 else ""
    _, most = known_model(model) or ("", 0)
    gpus: list[ListedGpu] = []
    for gib, number in sorted(sizes.items(), reverse=True):
        # The label is rounded to GiB, and an agent rounds down. What is smaller than its model is a partition of it.
        shares = most if gib - 2 <= most <= gib else ((gib << 10) - _RESERVED_MIB) // SHARE_MIB
        listing = range(len(gpus), len(gpus) + number) if shares > 0 else ()
        gpus += [ListedGpu(at, shares, model=model, memory_mib=gib << 10) for at in listing]
    if not gpus:
        return _unknown("its GPUs have less memory than a share of 1 GiB")
    return VendorNode(NodeGpus(tuple(gpus), share_mib=SHARE_MIB))


def _by_value(labels: Mapping[str, str], what: str) -> list[tuple[str, int]]:
    """Return how many GPUs have each value, by the labels of AMD's labeller; 0: of the only value it is not known."""
    for prefix in _COUNTED:
        start = f"{prefix}{what}."
        if found := [(key.removeprefix(start), _labelled(labels, key)) for key in labels if key.startswith(start)]:
            return sorted(found)
    alike = labels.get(f"{_COUNTED[-1]}{what}")
    return [(alike, 0)] if alike else []


@dataclass(frozen=True, slots=True)
class Vendor:
    """How the software of a GPU vendor tells the GPUs of a node."""

    name: str
    names: tuple[str, ...]
    """Of the resources that are read, the usual one first; none: their GPUs are not known, and nodes are left out."""
    labeller: str
    domain: str
    """Of its resources."""
    labels: tuple[str, ...]
    """Labels that show GPUs of its, as beginnings of keys."""
    read: Callable[[NodeRecord, int], VendorNode]

    def offered_by(self, node: NodeRecord) -> int:
        """Return how many GPUs a node offers by the resources that are read."""
        return sum(node.capacity.get(name, 0) for name in self.names)


_NFD = "feature.node.kubernetes.io"
_FOUND = (f"{_NFD}/amd-gpu", *(f"{_NFD}/pci-{each}_1002.present" for each in ("0300", "0302", "0380", "1200")))
VENDORS = (
    Vendor("NVIDIA", (NVIDIA, _RENAMED), "GPU feature discovery", "nvidia.com/", (_COUNT, _PRODUCT), _of_nvidia),
    Vendor("AMD", (_AMD, *_PARTITIONS), "AMD's node labeller", "amd.com/", (*_COUNTED, *_FOUND), _of_amd),
    Vendor("Intel", (), "", "gpu.intel.com/", (f"intel.{_NFD}/gpu",), lambda _node, _offered: _unknown("")),
)
"""Labels by GPU feature discovery (k8s-device-plugin, docs/gpu-feature-discovery), AMD's node labeller and GPU Operator
(ROCm/k8s-device-plugin, cmd/k8s-node-labeller), Node Feature Discovery and Intel's rules for it."""
OFFERED = tuple(Resource(Kind.COUNT, name) for vendor in VENDORS for name in vendor.names)
_READ = frozenset({_MEMORY, _REPLICAS, _HAMI})
_LABELS = tuple(label for vendor in VENDORS for label in vendor.labels)


def is_read(key: str) -> bool:
    """Return whether a label or an annotation of a node is read here."""
    return key in _READ or key.startswith(_LABELS)


def offering(node: NodeRecord) -> Vendor | None:
    """Return the vendor of whose resources a node offers some; None: it offers none that is read."""
    return next((vendor for vendor in VENDORS if vendor.offered_by(node)), None)


def not_offered(node: NodeRecord) -> str:
    """Return why a node that has GPUs by its labels gives none to pods; empty: it has none."""
    for vendor in VENDORS:
        names = sorted(name for name in node.others if name.startswith(vendor.domain))
        labelled = any(
            value not in {"", "0", "false"} for key, value in node.labels.items() if key.startswith(vendor.labels)
        )
        if not vendor.names and (names or labelled):
            offered = f"offered as {', '.join(names)[:200]}" if names else f"{vendor.name}'s"
            return f"its GPUs are {offered}, and no label that is read says their memory; name it in words"
        if labelled and names:
            read = " and ".join(vendor.names[:2])
            return f"its GPUs are offered as {', '.join(names)[:200]}, and {read} are read; name it in words"
        if labelled:
            whole = vendor.names[0]
            return f"its labels name GPUs, and it has no {whole}; is {vendor.name}'s device plugin running there?"
    return ""


# --- What pods have of them -------------------------------------------------------------------------------------------


def held_by(pod: Pod) -> int:
    """Return how many GPUs a pod asks for by the resources of their vendors."""
    return sum(amount_of(pod, resource) for resource in OFFERED)


def as_kinds(kind: PodKind, pod: Pod, slice_shares: int) -> list[PodKind]:
    """Return a kind of pod with whole GPUs as what it has in fact: memory of HAMi's slices, or of replicas.

    `slice_shares` is `VendorNode.slice_shares` where it runs, or would. Replicas may be of one GPU.
    """
    if kind.shares or not kind.gpus or not held_by(pod):
        return [kind]
    memory_mib = (pod.requests or {}).get(HAMI_MEMORY, 0)
    if memory_mib:
        # A request counts for the pod, and HAMi gives each GPU as much.
        return [PodKind(ceil(memory_mib / SHARE_MIB), kind.gpus, kind.cpu_milli, kind.memory_mib, kind.selector)]
    if slice_shares:
        first = PodKind(slice_shares, 1, kind.cpu_milli, kind.memory_mib, kind.selector)
        return [first, *[PodKind(slice_shares, 1, selector=kind.selector)] * (kind.gpus - 1)]
    return [kind]


def frees_beside(sizes: Sequence[int], held: Sequence[PodKind], slice_shares: int) -> tuple[int, ...]:
    """Return the free shares of GPUs beside pods that hold some, nobody knows which: as few GPUs as possible."""
    frees = list(sizes)
    for kind in sorted(held, key=lambda kind: (bool(kind.shares), -kind.shares)):
        for _ in range(kind.gpus):
            room = [at for at, free in enumerate(frees) if (free >= kind.shares if kind.shares else free == sizes[at])]
            at = room[0] if room else frees.index(max(frees))
            frees[at] = max(0, frees[at] - kind.shares) if kind.shares else 0
            if frees[at] < slice_shares:
                frees[at] = 0
    return tuple(frees)
