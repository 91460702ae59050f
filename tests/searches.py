"""What the searches that take many steps find, all steps taken at once."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from gpu_device_plugin.features.capacity.rules.movable import Fits, PlannedNode
from gpu_device_plugin.features.capacity.rules.plans import Plan, planning
from gpu_device_plugin.features.learning.rules.fair_learning import LearningResult, studying
from gpu_device_plugin.features.learning.rules.price_learning import Tables, learning
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind, WorkloadMix
from gpu_device_plugin.scheduler.rules.packing import finished


def learn(mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int]) -> Tables:
    """Return the tables for a mix of pods on these nodes."""
    return finished(learning(mix, nodes))


def studied(mix: WorkloadMix, nodes: Mapping[NodeType, int]) -> LearningResult:
    """Return the study of a mix on these nodes."""
    return finished(studying(mix, nodes))


def plan(sites: Iterable[PlannedNode], goal: Fits | int, budgets: Mapping[str, int] = MappingProxyType({})) -> Plan:
    """Return few moves that reach a goal."""
    return finished(planning(sites, goal, budgets))
