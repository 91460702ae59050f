"""What an extender that starts now would learn from the pods of the cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import NodeReader, PodReader
from gpu_device_plugin.cluster.objects.other_pods import OtherPodReader
from gpu_device_plugin.core.cluster.candidate import candidate, gpus_of_node
from gpu_device_plugin.core.cluster.pod_demand import Ask, ask
from gpu_device_plugin.core.report.text.prices import Lesson, lesson
from gpu_device_plugin.core.value.fair_learning import studied
from gpu_device_plugin.core.value.marginal_value import shape_of
from gpu_device_plugin.core.value.price_learning import Dominance
from gpu_device_plugin.core.value.workload_mix import PodKind, WorkloadMix, kinds_of
from gpu_device_plugin.model.contract.keys import READ_ON_NODES, READ_ON_PODS
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.view.objects import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import msgspec

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.other_pods import OtherPod
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource


def lesson_of(
    raw_nodes: Iterable[msgspec.Raw], raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]
) -> Lesson:
    """Return the lesson of a cluster; an object that cannot be read teaches nothing."""
    names = {resource.kind: resource.name for resource in resources}
    node_reader = NodeReader(names.values(), READ_ON_NODES.__contains__)
    nodes: dict[str, Candidate] = {}
    for node in readable(raw_nodes, node_reader.read):
        memory, count = (node.capacity.get(names[kind], 0) for kind in (Kind.MEMORY, Kind.COUNT))
        gpus = gpus_of_node(node.annotations, node.labels, memory, count)
        if gpus.gpus:
            nodes[node.name] = candidate(node.name, gpus, (), node.cpu_and_memory)
    node_types = [shape_of(node) for node in nodes.values()]
    counts = Counter(node_types)
    measure = Dominance.of(counts)
    mix = WorkloadMix()
    held: dict[str, float] = {}
    for created, namespace, kinds in sorted(_came(raw_pods, nodes, resources), key=lambda each: each[0]):
        mix.add(kinds, created, namespace)
        for kind in kinds:
            held[namespace] = held.get(namespace, 0.0) + measure.kind(kind)
    mix.hold(held, 0.0)
    return lesson(studied(mix, counts), counts)


def _came(
    raw_pods: Iterable[msgspec.Raw], nodes: dict[str, Candidate], resources: Sequence[Resource]
) -> Iterable[tuple[float, str, Sequence[PodKind]]]:
    """Yield when each bound pod was created, its namespace and its kinds: it has GPUs, or is on a node with some."""
    reader = PodReader([resource.name for resource in resources], READ_ON_PODS.__contains__, sums=True)
    others = OtherPodReader()

    def read(raw: msgspec.Raw) -> tuple[Pod, OtherPod | None]:
        pod, _ = reader.read(raw)
        return pod, None if pod.containers else others.read(raw)

    for pod, other in readable(raw_pods, read):
        if other is not None:
            if not other.ended and not other.bound_to_node and other.node_name in nodes:
                amounts = other.amounts
                yield epoch_s(other.created) or 0.0, "", [PodKind(0, 0, amounts.cpu_milli, amounts.memory_mib)]
        elif pod.node_name and not pod.ended and not pod.deleting:
            asked = ask(pod, resources)
            if isinstance(asked, Ask) and asked.parts:
                kinds = kinds_of(asked, pod.amounts.cpu_milli, pod.amounts.memory_mib)
                yield epoch_s(pod.created) or 0.0, pod.namespace, kinds
