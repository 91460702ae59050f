"""Which pods of a node would have to end for another one to fit."""

from __future__ import annotations

from collections.abc import Collection

from gpu_device_plugin.features.preemption.rules import VictimSearch, spared
from gpu_device_plugin.report.rules.node_view import Ends, NodeView
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer


def ends_needed(ask: GpuRequest, node: NodeView) -> Ends:
    """Return few pods of `node` that would have to end for `ask` to fit; `none` if even all of them are not enough.

    Preferred are fewer, then those with less memory, then those being deleted, then less important ones.
    """
    memory = {pod: pod.usage.size(node.candidate.gpus.sizes) for pod in node.pods}

    def fits(ended: Collection[GpuConsumer]) -> bool:
        return unfit(ask, node.candidate.occupied(pod.usage for pod in node.pods if pod not in ended)) is None

    def cost(pods: Collection[GpuConsumer]) -> tuple[object, ...]:
        return (
            len(pods),
            sum(map(memory.__getitem__, pods)),
            sum(not pod.terminating for pod in pods),
            sorted((pod.priority for pod in pods), reverse=True),
            sorted(map(str, pods)),
        )

    if not fits(node.pods):
        return Ends((), none=True)
    if fits(()):
        return Ends(())
    search = VictimSearch(ask, node.candidate, node.pods, cost=cost)
    best = next(filter(fits, search.sets()), frozenset(node.pods))
    best = spared(best, sorted(best, key=lambda pod: cost((pod,)), reverse=True), fits)
    return Ends(tuple(sorted(best, key=str)), sum(map(memory.__getitem__, best)))
