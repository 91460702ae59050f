"""The list of features for what people read, in the order in which they tell of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.features.capacity.settings import CapacitySettings
from gpu_device_plugin.features.claims.report import ClaimsReport
from gpu_device_plugin.features.conflicts.report import ConflictsReport
from gpu_device_plugin.features.elastic.report import ElasticReport
from gpu_device_plugin.features.idle.settings import IdleActionSettings
from gpu_device_plugin.features.limits.report import LimitsReport
from gpu_device_plugin.features.mig.report import MigReport
from gpu_device_plugin.features.over_use.report import OverUseReport
from gpu_device_plugin.features.preemption.report import PreemptionReport
from gpu_device_plugin.features.use.report import UseReport
from gpu_device_plugin.settings.knobs import knobs_of

if TYPE_CHECKING:
    from gpu_device_plugin.report.rules.extension import ReportFeature

REPORT_FEATURES: tuple[ReportFeature, ...] = (
    ConflictsReport(),
    ClaimsReport(),
    MigReport(),
    ElasticReport(),
    OverUseReport(),
    UseReport(),
    LimitsReport(),
    PreemptionReport(),
)

EXTENDER_KNOBS = (*knobs_of(CapacitySettings), *knobs_of(IdleActionSettings))
"""The settings of the extender's features, which stand in the ConfigMap beside its policy."""
