"""The list of features for what people read, in the order in which they tell of a pod, with what each adds to whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_device_plugin.features.capacity import CapacitySettings
from gpu_device_plugin.features.capacity.commands import PLAN
from gpu_device_plugin.features.claims.claim_objects import (
    ABSENT,
    CLAIMS,
    every_claim,
    extended_resources,
    our_slices,
    read_shown_claim,
    unseen,
)
from gpu_device_plugin.features.claims.claimed_gpus import pools, waits_for_ours, with_claims
from gpu_device_plugin.features.claims.report import ClaimsReport, claims
from gpu_device_plugin.features.conflicts.report import ConflictsReport, others, others_here
from gpu_device_plugin.features.cordon.commands import CORDON, UNCORDON
from gpu_device_plugin.features.elastic.commands import RESIZE
from gpu_device_plugin.features.elastic.report import ElasticReport, wishes
from gpu_device_plugin.features.history.commands import HISTORY, INCIDENT, histories
from gpu_device_plugin.features.history.contract import NodeHistory
from gpu_device_plugin.features.history.rules.gpu_condition import condition_here, condition_seen
from gpu_device_plugin.features.history.rules.slowness import histories_of, slowness
from gpu_device_plugin.features.idle.commands import WAKE
from gpu_device_plugin.features.idle.settings import IdleActionSettings
from gpu_device_plugin.features.learning.prices import PRICES
from gpu_device_plugin.features.limits.report import LimitsReport, held, limits, limits_here
from gpu_device_plugin.features.mig.report import MigReport, mig
from gpu_device_plugin.features.mps.report import supervisor, supervisors
from gpu_device_plugin.features.over_use.report import OverUseReport, over_used
from gpu_device_plugin.features.preemption.report import PreemptionReport
from gpu_device_plugin.features.use.report import UseReport, use
from gpu_device_plugin.kubernetes.kubectl import Access
from gpu_device_plugin.report.commands import Command, Option
from gpu_device_plugin.report.followed_cluster import FollowedKind
from gpu_device_plugin.report.rules.extension import AgentFacts, Check
from gpu_device_plugin.settings.knobs import Knob, knobs_of

if TYPE_CHECKING:
    import msgspec

    from gpu_device_plugin.report.rules.extension import PodCheck, ReportFeature

    Read = Callable[[Access, Sequence[msgspec.Raw], str], Awaitable[Any]]
    """Reads more of a cluster, given the pods with the labels of agents, and the agents' namespace."""


class ReportParts(NamedTuple):
    """What one feature, or several, add to `kubectl inspect gpushare`, to the doctor and to the page."""

    facts: tuple[ReportFeature, ...] = ()
    """About pods and nodes."""
    of_agents: tuple[AgentFacts, ...] = ()
    """What the agent of a pod's node tells of it."""
    commands: tuple[Command, ...] = ()
    options: tuple[Option, ...] = ()
    """Of commands of others."""
    cluster_checks: tuple[Check, ...] = ()
    node_checks: tuple[Check, ...] = ()
    pod_checks: tuple[tuple[str, PodCheck], ...] = ()
    """Those of pods alone, by name, for a user who may not read nodes."""
    reads: tuple[tuple[str, Read], ...] = ()
    """What the checks need besides nodes and pods, by its name in the symptoms of a cluster."""
    routes: tuple[str, ...] = ()
    """Of the page, below ``/api/v1/``."""
    kinds: tuple[FollowedKind, ...] = ()
    """At most one, that nodes may need."""
    knobs: tuple[Knob, ...] = ()
    """The settings of the extender, which stand in its ConfigMap beside its policy."""

    @property
    def kind(self) -> FollowedKind | None:
        """The kind that nodes may need."""
        return next(iter(self.kinds), None)


def together(features: Iterable[ReportParts]) -> ReportParts:
    """Return what features add, in their order."""
    return ReportParts(*map(tuple, map(chain.from_iterable, zip(*features, strict=True))))


CLAIMS_SHOWN = FollowedKind(
    kind=CLAIMS,
    called="a ResourceClaim",
    absent=ABSENT,
    unseen=unseen,
    read=read_shown_claim,
    needed=lambda gpus: gpus.claims,
    nodes=pools,
    waits=waits_for_ours,
    shown=with_claims,
)

REPORT_FEATURES: dict[str, ReportParts] = {
    "conflicts": ReportParts(
        facts=(ConflictsReport(),),
        cluster_checks=(Check("other plugins", "share size", others, "others", partly="nodes"),),
        node_checks=(Check("other plugins", "registration", others_here, "settings others"),),
    ),
    "claims": ReportParts(
        facts=(ClaimsReport(),),
        cluster_checks=(
            Check(
                "ResourceClaims",
                "share size",
                claims,
                "nodes claims slices device_classes memory_resource count_resource version",
                partly="nodes",
            ),
        ),
        reads=(("claims", every_claim), ("slices", our_slices), ("device_classes", extended_resources)),
        kinds=(CLAIMS_SHOWN,),
    ),
    "mig": ReportParts(
        facts=(MigReport(),),
        node_checks=(
            Check("MIG", "GPUs", mig, "inventory.gpus names labels mig_in_force settings.node_name mig_present"),
        ),
    ),
    "elastic": ReportParts(
        facts=(ElasticReport(),),
        commands=(RESIZE,),
        cluster_checks=(
            Check("memory wishes", "variables", wishes, "elastic_pods nodes memory_resource", partly="pods"),
        ),
    ),
    "over_use": ReportParts(facts=(OverUseReport(),), pod_checks=(("memory use", over_used),)),
    "use": ReportParts(
        facts=(UseReport(),),
        cluster_checks=(Check("memory use", "variables", use, "nodes ready", partly="nodes"),),
        node_checks=(Check("memory use", "clock", use, "alone.nodes alone.ready"),),
    ),
    "history": ReportParts(
        of_agents=(AgentFacts(NodeHistory, histories_of, slowness),),
        commands=(INCIDENT,),
        options=(HISTORY,),
        cluster_checks=(Check("GPU condition", "GPUs", condition_seen, "histories"),),
        node_checks=(Check("GPU condition", "GPUs", condition_here, "names telemetry"),),
        reads=(("histories", histories),),
        routes=("history/", "incidents/"),
    ),
    "limits": ReportParts(
        facts=(LimitsReport(),),
        cluster_checks=(
            Check("memory limits", "variables", limits, "nodes limits_by_profile"),
            Check("limits held", "memory limits", held, "nodes", partly="nodes"),
        ),
        node_checks=(
            Check(
                "memory limits",
                "cgroups",
                limits_here,
                "settings labels inventory given mig_in_force mps_lack toolkit driver_problem extra_grant_problem "
                "invented with_driver_limits",
            ),
            Check("limits held", "clock", held, "alone.nodes"),
        ),
    ),
    "mps": ReportParts(
        cluster_checks=(Check("MPS", "variables, memory limits", supervisors, "nodes supervised limits_by_profile"),),
        node_checks=(Check("MPS", "cgroups, memory limits", supervisor, "settings labels mps names mps_left"),),
    ),
    "preemption": ReportParts(facts=(PreemptionReport(),)),
    "capacity": ReportParts(commands=(PLAN,), routes=("plans/",), knobs=knobs_of(CapacitySettings)),
    "cordon": ReportParts(commands=(CORDON, UNCORDON)),
    "idle": ReportParts(commands=(WAKE,), knobs=knobs_of(IdleActionSettings)),
    "learning": ReportParts(commands=(PRICES,)),
}

REPORT = together(REPORT_FEATURES.values())
"""What all of them add."""
