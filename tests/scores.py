"""One node by itself, and its score."""

from collections.abc import Sequence

from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.packing import Effort
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.scoring import Scorer
from gpu_device_plugin.scheduler.rules.usage import Usage


def score(ask: GpuRequest, node: Candidate, node_policy: str, gpu_policy: str) -> int:
    """Return how well a node suits a pod, as long as it may take; 0 where the pod does not fit."""
    scorer = Scorer(ask, node_policy, gpu_policy, Effort(10**6))
    return 0 if unfit(ask, node) is not None else scorer.score(node)


def partly_used(gpus: Sequence[tuple[str | None, int, int]], *, broken: bool = False) -> Candidate:
    """Return a node of GPUs, and of MIG instances of the GPUs named first, with so many shares, so many of them used.

    The first is out of service where `broken`.
    """
    listed = tuple(
        ListedGpu(
            at,
            size,
            f"u{at}",
            "H100",
            unhealthy="hot" if broken and not at else "",
            instance=None if parent is None else ListedInstance(parent, 0, at, "", at),
        )
        for at, (parent, size, _) in enumerate(gpus)
    )
    used = tuple((at, min(size, shares)) for at, (_, size, shares) in enumerate(gpus) if shares)
    return candidate("n", NodeGpus(listed, share_mib=1024), [Usage(used)], Amounts(32_000, 131_072))
