"""What features plug into the report."""

from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.report.rules.extension import ReportFeature, foreign_annotations
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from tests.views import node_view


def test_annotations_of_other_systems_are_found_by_the_features() -> None:
    assert foreign_annotations(REPORT.facts)(["mine", "gpu-memory"]) == ("gpu-memory",)
    assert foreign_annotations(())(["gpu-memory"]) == ()


def test_a_feature_that_says_nothing_does_not_know_who_would_have_to_end() -> None:
    assert ReportFeature().ending(GpuRequest(()), node_view("a", (8,))) is None
