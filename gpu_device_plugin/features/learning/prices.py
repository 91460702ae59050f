"""What an extender that starts now would learn from the pods of the cluster, for people: prices, and wanted GPUs."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.commandline import OK, width
from gpu_device_plugin.features.learning.rules.fair_learning import FEWEST, LITTLE, LearningResult, studying
from gpu_device_plugin.features.learning.rules.marginal_value import shape_of
from gpu_device_plugin.features.learning.rules.price_learning import HOSTS, Dominance, Tables, cells
from gpu_device_plugin.features.learning.rules.workload_mix import GpuKind, NodeType, PodKind, WorkloadMix, kinds_of
from gpu_device_plugin.kubernetes.kubectl import Access
from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import NodeReader, PodReader
from gpu_device_plugin.model.contract.keys import READ_ON_NODES, READ_ON_PODS
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.report.commands import AS_JSON, Command, Output, every_node_and_pod
from gpu_device_plugin.report.rules.columns import Layout, Line, Row, table
from gpu_device_plugin.report.rules.printing import counted, first, printable
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate, gpus_of_node
from gpu_device_plugin.scheduler.rules.packing import finished
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod

if TYPE_CHECKING:
    import msgspec


DISCLAIMER = (
    "These prices come from the pods that are bound now. The running extender may also have learned from pods that "
    "have ended since; recent hours count most."
)
_MOST_SIZES = 20
"""The most frequent sizes of one GPU that are shown."""


def price_document(study: LearningResult, nodes: Mapping[NodeType, int]) -> dict[str, Any]:
    """Return what a study found, for programs, on nodes of which there are so many of each shape.

    A price is a part of the GPU; `comes` is the part of all pods with GPUs that have this size, where whole GPUs count
    by their number; and `strands` are shares that stay free beside such a pod, whatever the pods of the other sizes do.
    What a share of a GPU is worth is `wanted`, where the mean is 1: more pods may have it. Where the prices are not
    `inForce`, the policy `fit` is `binpack`.
    """
    tables, mix = study.tables, study.mix
    demand = {kind: part * kind.gpus * (kind.shares or tables.unit) for kind, part in mix.items()}
    several = sum(amount for kind, amount in demand.items() if kind.gpus > 1)
    total = sum(demand.values())
    by_model = sorted(tables.packed, key=lambda gpu: (gpu.model, gpu.size, gpu.instance))
    return {
        "version": 1,
        "pods": study.pods,
        "kinds": len(mix),
        "learned": study.pods >= FEWEST,
        "inForce": study.pods >= FEWEST and study.usable is not None,
        "trial": {"fit": round(study.trial.fit, 4), "binpack": round(study.trial.binpack, 4)},
        "distrusted": list(study.distrusted),
        "cpuMilliPerShare": round(tables.cpu_per_share, 3),
        "memoryMiBPerShare": round(tables.memory_per_share, 3),
        "ofSeveralGpus": round(several / total, 4) if total else 0.0,
        "gpus": [_priced(gpu, mix, nodes, tables) for gpu in by_model],
    }


def _priced(gpu: GpuKind, mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int], tables: Tables) -> Any:
    size, model = gpu.size, gpu.model
    comes: dict[int, float] = {}
    for kind, part in mix.items():
        if kind.gpus and gpu.serves(kind) and kind.selector.allow_model(model):
            taken = kind.shares or size
            comes[taken] = comes.get(taken, 0.0) + part * kind.gpus
    everything = sum(part * kind.gpus for kind, part in mix.items())
    reached = _sums(comes, size)
    often = sorted(sorted(comes, key=lambda taken: (-comes[taken], taken))[:_MOST_SIZES])
    prices = [
        {
            "shares": taken,
            "comes": round(comes[taken] / everything, 4),
            "price": 1.0
            if taken == size
            else round(tables.prices[size, gpu.instance].get(-(-taken * cells(size) // size), 0.0), 4),
            # What the best filling by shares alone leaves free is stranded.
            "strands": size - taken - ((reached & ((2 << (size - taken)) - 1)).bit_length() - 1),
        }
        for taken in often
    ]
    having = {node_type: number * node_type.gpus.count(gpu) for node_type, number in nodes.items()}
    number = sum(having.values())
    wanted = sum(tables.wanted[node_type] * there for node_type, there in having.items()) / number
    return {"model": model, "shares": size, "number": number, "wanted": round(wanted, 4), "pods": prices}


def _sums(sizes: Iterable[int], most: int) -> int:
    """Return the sums up to `most` of any number of pods of these sizes, as the bits of a number."""
    reached = 1
    for size in sizes:
        step = size
        while step <= most:
            # Once, then up to twice, up to four times and so on.
            reached |= reached << step
            step *= 2
        reached &= (2 << most) - 1
    return reached


def price_lines(document: Mapping[str, Any], study: LearningResult, width: int) -> list[Line]:
    """Return prices as a table, and sentences on their study below it, for a terminal of `width` columns."""
    if (pods := study.pods) < FEWEST:
        few = f"only {counted(pods, 'pod')} seen; fit needs {FEWEST}, and acts as binpack until then."
        return [Line(few)]
    rows = [
        Row(
            (
                f"{gpu['model'] or 'a GPU'} x {gpu['number']}" if not at else "",
                str(gpu["shares"]) if not at else "",
                f"{gpu['wanted']:.2f}" if not at else "",
                "whole" if price["shares"] == gpu["shares"] else str(price["shares"]),
                f"{100 * price['comes']:.1f}",
                f"{price['price']:.2f}",
                str(price["strands"]) if price["strands"] else "",
            )
        )
        for gpu in document["gpus"]
        for at, price in enumerate(gpu["pods"])
    ]
    layout = Layout(
        ("GPU", "SHARES", "WANTED", "POD", "COMES(%)", "PRICE", "STRANDS"),
        frozenset({"SHARES", "WANTED", "POD", "COMES(%)", "PRICE", "STRANDS"}),
        {"GPU": 12},
    )
    return [*table(layout, rows, width), Line(""), *map(Line, _sentences(document, study))]


def _sentences(document: Mapping[str, Any], study: LearningResult) -> list[str]:
    dearest = [
        (price["price"] - price["shares"] / gpu["shares"], gpu, price)
        for gpu in document["gpus"]
        for price in gpu["pods"]
        if price["strands"]
    ]
    told = []
    if dearest:
        _, gpu, price = max(dearest, key=lambda each: (each[0], -each[2]["shares"]))
        told.append(
            f"A pod of {price['shares']} of the {gpu['shares']} shares of {printable(gpu['model']) or 'a GPU'} strands "
            f"{price['strands']}, and is priced as {price['price']:.2f} of the GPU."
        )
    told.append(
        f"{counted(study.pods, 'pod')} of {counted(len(study.mix), 'kind')} seen. For each share they request "
        f"{study.tables.cpu_per_share / 1000:.2f} CPUs and {study.tables.memory_per_share / 1024:.2f} GiB of memory."
    )
    if of_several := document["ofSeveralGpus"]:
        told.append(
            f"{of_several:.0%} of the requests are for several GPUs at once: an unused GPU is kept for them with up "
            f"to {HOSTS * of_several:.2f} of its worth."
        )
    trial = study.trial
    told.append(
        f"Such pods got {trial.fit:.1%} of the GPUs of a few empty nodes by these prices, and {trial.binpack:.1%} by "
        f"binpack{', so that the policy fit is binpack' if trial.failed else ''}."
    )
    if study.few_run:
        told.append(
            f"The namespaces of these pods have {study.running:.1%} of the cluster in use, too little to decide "
            "whose pods count: the policy fit is binpack."
        )
    if study.distrusted:
        told.append(
            f"Pods of {first(list(map(printable, study.distrusted)))} count as no more than {LITTLE:.0%} of the "
            "requests: learning from them would cost the pods of other namespaces GPUs."
        )
    return [*told, DISCLAIMER]


def lesson_of(
    raw_nodes: Iterable[msgspec.Raw], raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]
) -> tuple[dict[str, Any], LearningResult]:
    """Return the prices of a cluster, and their study; an object that cannot be read teaches nothing."""
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
    study = finished(studying(mix, counts))
    return price_document(study, counts), study


def _came(
    raw_pods: Iterable[msgspec.Raw], nodes: dict[str, Candidate], resources: Sequence[Resource]
) -> Iterable[tuple[float, str, Sequence[PodKind]]]:
    """Yield when each bound pod was created, its namespace and its kinds: it has GPUs, or is on a node with some."""
    reader = PodReader([resource.name for resource in resources], READ_ON_PODS.__contains__, sums=True)

    def read(raw: msgspec.Raw) -> tuple[Pod, OtherPod | None]:
        pod, _ = reader.read(raw)
        return pod, None if pod.containers else reader.read_other(raw)

    for pod, other in readable(raw_pods, read):
        if other is not None:
            if not other.ended and not other.bound_to_node and other.node_name in nodes:
                yield epoch_s(other.created) or 0.0, "", kinds_of(GpuRequest(), other.amounts)
        elif pod.node_name and not pod.ended and not pod.deleting:
            asked = ask(pod, resources)
            if isinstance(asked, GpuRequest) and asked.parts:
                yield epoch_s(pod.created) or 0.0, pod.namespace, kinds_of(asked, pod.amounts)


async def prices(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Return the prices that the pods of the cluster teach, with the exit code; raises as `every_node_and_pod`."""
    document, study = lesson_of(*await every_node_and_pod(access, "prices are learned from all of them"), resources)
    if arguments.output == "json":
        return json.dumps(document, indent=2).splitlines(), OK
    return price_lines(document, study, width()), OK


PRICES = Command("prices", "show the prices that fit uses", prices, (AS_JSON,))
