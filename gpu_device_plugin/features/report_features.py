"""The list of features for what people read, in the order in which they tell of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.features.claims.report import ClaimsReport
from gpu_device_plugin.features.conflicts.report import ConflictsReport
from gpu_device_plugin.features.elastic.report import ElasticReport
from gpu_device_plugin.features.mig.report import MigReport
from gpu_device_plugin.features.over_use.report import OverUseReport
from gpu_device_plugin.features.preemption.report import PreemptionReport
from gpu_device_plugin.features.use.report import UseReport

if TYPE_CHECKING:
    from gpu_device_plugin.report.rules.extension import ReportFeature

REPORT_FEATURES: tuple[ReportFeature, ...] = (
    ConflictsReport(),
    ClaimsReport(),
    MigReport(),
    ElasticReport(),
    OverUseReport(),
    UseReport(),
    PreemptionReport(),
)
