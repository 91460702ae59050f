"""The metrics that there are, with their labels; and those of which a PromQL expression speaks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics
from gpu_device_plugin.core.report.gauges import ExtenderMetrics, NodeMetrics
from tests.nodes import node

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGET = frozenset({"node", "pod", "container", "namespace", "job", "instance"})
"""What every series gets beside its own labels, by the operator or by the configuration without it."""

_OTHERS = {
    "up": set[str](),
    # kube-state-metrics, docs/metrics/workload
    "kube_pod_owner": {"namespace", "pod", "uid", "owner_kind", "owner_name", "owner_is_controller"},
    "kube_pod_labels": {"namespace", "pod", "uid", "label_team"},
    "kube_replicaset_owner": {"namespace", "replicaset", "owner_kind", "owner_name", "owner_is_controller"},
}


def labels_by_metric() -> dict[str, set[str]]:
    """Return every metric of both programs and of kube-state-metrics, as Prometheus shows it."""
    read_off = [gauge for state in (NodeMetrics(node(8)), ExtenderMetrics()) for gauge, _ in state.gauges()]
    counts = (*metrics.COUNTS, *metrics.EXTENDER_COUNTS)
    durations = (*metrics.DURATIONS, *metrics.EXTENDER_DURATIONS)
    return {
        **{gauge.name + "_total" * gauge.grows: set(gauge.labels) for gauge in read_off},
        **{count.name: set(count.labels) for count in counts},
        **{f"{duration.name}_bucket": {*duration.labels, "le"} for duration in durations},
        "gpushare_build_info": {"version"},
        **_OTHERS,
    }


@dataclass(frozen=True, slots=True)
class Names:
    """What an expression speaks of."""

    metrics: Mapping[str, frozenset[str]]
    """The labels by which each is selected."""
    groups: tuple[frozenset[str], ...]
    """The labels in each `by`, `on` and `group_left`."""
    made: frozenset[str]
    """Labels that it makes itself."""


_GROUP = re.compile(r"\b(?:by|on|group_left|group_right|ignoring|without) ?\(([\w, ]*)\)")
_WORDS = {"and", "or", "unless", "bool", "offset", "sum", "max", "min", "count", "avg"}


def names_in(expression: str) -> Names:
    """Read the names in an expression: as much of PromQL as the rules and the dashboard make use of."""
    made = frozenset(re.findall(r'"(\w+)", "\$1"|"(\w+)", "Pod"', expression))
    rest = re.sub(r'"[^"]*"', '""', expression)
    rest = re.sub(r"\[[^\]]*\]|\boffset \w+", "", rest)
    groups = tuple(frozenset(filter(None, re.split(r",\s*", each))) for each in _GROUP.findall(rest))
    rest = _GROUP.sub("", rest)
    found: dict[str, frozenset[str]] = {}
    for name, matchers in re.findall(r"([a-z_][\w:]*)\b(?! ?\()(?:{([^}]*)})?", rest):
        if name not in _WORDS:
            labels = frozenset(re.findall(r"(\w+) ?[=!]", matchers))
            found[name] = found.get(name, frozenset()) | labels
    return Names(found, groups, frozenset(label for pair in made for label in pair if label))
