"""Nodes and demands with few words, for what judges thousands of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.nodegpus import BY_CLAIMS, ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.gpus import NO_LINKS, Links
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.pod_demand import Part
from gpu_device_plugin.scheduler.rules.usage import Usage

ROOM = Amounts(32_000, 131_072)


def node(
    name: str,
    used: Mapping[int, int] | None = None,
    *,
    sizes: Sequence[int] = (16, 16),
    models: Sequence[str] = (),
    requested: Amounts = NO_AMOUNTS,
    whole: Sequence[int] = (),
    links: Links = NO_LINKS,
    claims: bool = False,
    divided: bool = False,
    cordons: Mapping[int, Cordon] | None = None,
    instances: Collection[int] = (),
) -> Candidate:
    """Return a node of 32 CPUs with shares in use by position, and GPUs in whole use; or one that serves claims.

    Those at `instances` are MIG instances of one GPU.
    """
    listed = zip(sizes, models or ["T4"] * len(sizes), strict=True)
    gpus = NodeGpus(
        tuple(
            ListedGpu(
                at,
                size,
                f"{name}-{at}",
                model,
                cordon=(cordons or {}).get(at),
                instance=ListedInstance("GPU-M", 0, at, "", at) if at in instances else None,
            )
            for at, (size, model) in enumerate(listed)
        ),
        share_mib=1024,
        divided=divided,
        links=links,
        claims=claims,
        problem=BY_CLAIMS if claims else "",
    )
    return candidate(name, gpus, [Usage(tuple((used or {}).items()), tuple(whole))], ROOM, [requested])


def view(nodes: Iterable[Candidate] = ()) -> View:
    made = View(lambda: None)
    for each in nodes:
        made.put(each.name, each)
    return made


def memory(*shares: int, gpus: int = 1) -> tuple[Part, ...]:
    return tuple(Part(Demand(Kind.MEMORY, amount, gpus)) for amount in shares)


def whole(gpus: int = 1) -> tuple[Part, ...]:
    return (Part(Demand(Kind.COUNT, gpus)),)
