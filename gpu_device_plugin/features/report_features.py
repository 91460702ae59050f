"""The list of features for what people are shown, in the order in which they tell of a pod, with what each adds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from gpu_device_plugin.features.capacity import CapacitySettings
from gpu_device_plugin.features.claims.claim_objects import ABSENT, CLAIMS, read_shown_claim, unseen
from gpu_device_plugin.features.claims.claimed_gpus import pools, waits_for_ours, with_claims
from gpu_device_plugin.features.claims.report import by_claim_instead, claims, claims_state, explanation
from gpu_device_plugin.features.conflicts.report import asks_others, others, others_here
from gpu_device_plugin.features.elastic.report import borrowing, resizes, unreadable_wishes, wishes
from gpu_device_plugin.features.history.contract import NodeHistory
from gpu_device_plugin.features.history.rules.gpu_condition import condition_here, condition_seen
from gpu_device_plugin.features.history.rules.slowness import histories_of, slowness
from gpu_device_plugin.features.idle import IdleActionSettings
from gpu_device_plugin.features.limits.report import held, limits, limits_here, limits_of_gpu, not_held_states
from gpu_device_plugin.features.mig.report import asks_for_several, held_instances, instance_facts, mig
from gpu_device_plugin.features.mps.report import supervisor, supervisors
from gpu_device_plugin.features.over_use.report import over_use_states, over_used, told_over_use
from gpu_device_plugin.features.preemption.report import ends_needed
from gpu_device_plugin.features.use.report import blind, of_pod, quiet_or_strange, use, used_by_no_pod
from gpu_device_plugin.report.followed_cluster import FollowedKind
from gpu_device_plugin.report.rules.extension import AgentFacts, Check, ReportPoints
from gpu_device_plugin.report.rules.held_instances import asked_instances
from gpu_device_plugin.settings.knobs import Knob, knobs_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from gpu_device_plugin.report.rules.extension import PodCheck

P = TypeVar("P", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class ReportParts(ReportPoints):
    """What one feature, or several, add to what terminal, doctor and page show; see also `terminal_features`."""

    of_agents: tuple[AgentFacts, ...] = ()
    """What the agent of a pod's node tells of it."""
    cluster_checks: tuple[Check, ...] = ()
    node_checks: tuple[Check, ...] = ()
    pod_checks: tuple[tuple[str, PodCheck], ...] = ()
    """Those of pods alone, by name, for a user who may not read nodes."""
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


def together(kind: type[P], features: Iterable[P]) -> P:
    """Return the parts of this kind that features add, in their order."""
    every = [*features]
    return kind(**{part.name: tuple(chain.from_iterable(map(attrgetter(part.name), every))) for part in fields(kind)})


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
        corrections=(asks_others,),
        cluster_checks=(Check("other plugins", "share size", others, "others", partly="nodes"),),
        node_checks=(Check("other plugins", "registration", others_here, "settings others"),),
    ),
    "claims": ReportParts(
        node_states=(claims_state,),
        otherwise=(by_claim_instead,),
        explanations=(explanation,),
        cluster_checks=(
            Check(
                "ResourceClaims",
                "share size",
                claims,
                "nodes claims slices device_classes memory_resource count_resource version",
                partly="nodes",
            ),
        ),
        kinds=(CLAIMS_SHOWN,),
    ),
    "mig": ReportParts(
        corrections=(lambda pod, *_: asks_for_several(pod.containers),),
        placed=(lambda pod, _, node, __: held_instances(str(pod), pod.uid, node) if asked_instances(pod) else (),),
        unoffered=(instance_facts,),
        node_checks=(
            Check("MIG", "GPUs", mig, "inventory.gpus names labels mig_in_force settings.node_name mig_present"),
        ),
    ),
    "elastic": ReportParts(
        part_states=(borrowing,),
        malformed=(unreadable_wishes,),
        placed=(lambda pod, resources, node, _: resizes(pod, resources, node),),
        cluster_checks=(
            Check("memory requests", "variables", wishes, "elastic_pods nodes memory_resource", partly="pods"),
        ),
    ),
    "over_use": ReportParts(
        part_states=(over_use_states,),
        placed=(lambda pod, *_: told_over_use(pod),),
        pod_checks=(("memory use", over_used),),
    ),
    "use": ReportParts(
        node_states=(blind,),
        gpu_states=(used_by_no_pod,),
        part_states=(quiet_or_strange,),
        placed=(lambda pod, _, node, positions: () if node is None else of_pod(pod, node, positions),),
        cluster_checks=(Check("memory use", "variables", use, "nodes ready", partly="nodes"),),
        node_checks=(Check("memory use", "clock", use, "alone.nodes alone.ready"),),
    ),
    "history": ReportParts(
        of_agents=(AgentFacts(NodeHistory, histories_of, slowness),),
        cluster_checks=(Check("GPU condition", "GPUs", condition_seen, "histories"),),
        node_checks=(Check("GPU condition", "GPUs", condition_here, "names telemetry"),),
        routes=("history/", "incidents/"),
    ),
    "limits": ReportParts(
        gpu_states=(limits_of_gpu,),
        part_states=(not_held_states,),
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
                "invented with_driver_limits dmem",
            ),
            Check("limits held", "clock", held, "alone.nodes"),
        ),
    ),
    "mps": ReportParts(
        cluster_checks=(Check("MPS", "variables, memory limits", supervisors, "nodes supervised limits_by_profile"),),
        node_checks=(Check("MPS", "cgroups, memory limits", supervisor, "settings labels mps names mps_left"),),
    ),
    "preemption": ReportParts(ending=(ends_needed,)),
    "capacity": ReportParts(routes=("plans/",), knobs=knobs_of(CapacitySettings)),
    "idle": ReportParts(knobs=knobs_of(IdleActionSettings)),
}

REPORT = together(ReportParts, REPORT_FEATURES.values())
"""What all of them add."""
