"""The metrics that there are, with their labels."""

from gpu_device_plugin import metrics
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics
from tests.nodes import node
from tests.reports import idle_metrics

TARGET = frozenset({"node", "pod", "container", "namespace", "job", "instance"})
"""What every series gets beside its own labels, by the operator or by the configuration without it."""

_OTHERS = {
    "up": set[str](),
    # kube-state-metrics, docs/metrics/workload
    "kube_pod_owner": {"namespace", "pod", "uid", "owner_kind", "owner_name", "owner_is_controller"},
    "kube_pod_labels": {"namespace", "pod", "uid", "label_team"},
    "kube_pod_container_status_last_terminated_reason": {"namespace", "pod", "container", "reason", "uid"},
    "kube_replicaset_owner": {"namespace", "replicaset", "owner_kind", "owner_name", "owner_is_controller"},
}


def labels_by_metric() -> dict[str, set[str]]:
    """Return every metric of both programs and of kube-state-metrics, as Prometheus shows it."""
    read_off = [gauge for state in (idle_metrics(node(8)), ExtenderMetrics()) for gauge, _ in state.gauges()]
    series = (*metrics.OF_AGENTS, *metrics.OF_EXTENDERS)
    durations = [each for each in series if isinstance(each, metrics.Duration)]
    return {
        **{gauge.name + "_total" * gauge.grows: set(gauge.labels) for gauge in read_off},
        **{count.name: set(count.labels) for count in series if count not in durations},
        **{f"{duration.name}_bucket": {*duration.labels, "le"} for duration in durations},
        "gpushare_build_info": {"version"},
        **_OTHERS,
    }
