"""The GPUs of a node without an agent of ours, by what NVIDIA's device plugin and GPU feature discovery say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.hardware.fake.gpu_models import MODELS, UNIFIED
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.programs.simulate.entries import SHARE_MIB
from gpu_device_plugin.programs.simulate.model import counted
from gpu_device_plugin.scheduler.rules.pod_demand import amount_of

WHOLE = Resource(Kind.COUNT, "nvidia.com/gpu")
"""The resource of NVIDIA's device plugin: whole GPUs, unless it is told to hand each out several times."""
RENAMED = Resource(Kind.COUNT, "nvidia.com/gpu.shared")
"""The same where the plugin hands GPUs out several times with ``renameByDefault``."""
OFFERED = (WHOLE, RENAMED)
HAMI_MEMORY = "nvidia.com/gpumem"
"""With HAMi: MiB of each GPU that a pod asks for."""
_COUNT, _MEMORY, _PRODUCT, _REPLICAS = (f"{WHOLE.name}.{each}" for each in ("count", "memory", "product", "replicas"))
_HAMI = "hami.io/node-nvidia-register"
READ = frozenset({_COUNT, _MEMORY, _PRODUCT, _REPLICAS, _HAMI})
"""Labels of GPU feature discovery (k8s-device-plugin, docs/gpu-feature-discovery), and an annotation of HAMi's."""
_RESERVED_MIB = 768
"""No driver of a known model reserves more."""
_SHARED, _DIVIDED = "-SHARED", "-MIG-"
"""In a product's name: each GPU is handed out several times; GPUs are MIG instances (strategy ``single``)."""
_MOST_MIB = 1 << 24
"""A label with a larger number of memory has bytes."""


@dataclass(frozen=True, slots=True)
class NvidiaNode:
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


def offered_by(node: NodeRecord) -> int:
    """Return how many of NVIDIA's resource a node has."""
    return sum(node.capacity.get(resource.name, 0) for resource in OFFERED)


def not_offered(node: NodeRecord) -> str:
    """Return why a node that has GPUs by its labels gives none to pods; empty: it has none."""
    if not (_labelled(node.labels, _COUNT) or node.labels.get(_PRODUCT)):
        return ""
    names = sorted(name for name in node.others if name.startswith("nvidia.com/"))
    if names:
        return (
            f"its GPUs are offered as {', '.join(names)[:200]}, and {WHOLE.name} and {RENAMED.name} are read; name it "
            "in words"
        )
    return f"its labels name GPUs, and it has no {WHOLE.name}; is NVIDIA's device plugin running there?"


def nvidia_node(node: NodeRecord) -> NvidiaNode:
    """Return the GPUs of a node that has some of NVIDIA's resource."""
    labels, offered = node.labels, offered_by(node)
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
    return NvidiaNode(NodeGpus(gpus, share_mib=SHARE_MIB), replicas, note)


def _unknown(problem: str) -> NvidiaNode:
    return NvidiaNode(NodeGpus(problem=problem))


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


# --- What pods have of them -------------------------------------------------------------------------------------------


def held_by(pod: Pod) -> int:
    """Return how many of NVIDIA's resource a pod asks for."""
    return sum(amount_of(pod, resource) for resource in OFFERED)


def as_kinds(kind: PodKind, pod: Pod, slice_shares: int) -> list[PodKind]:
    """Return a kind of pod with whole GPUs as what it has in fact: memory of HAMi's slices, or of replicas.

    `slice_shares` is `NvidiaNode.slice_shares` where it runs, or would. Replicas may be of one GPU.
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
