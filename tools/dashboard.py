"""Describe the dashboard of deploy/monitoring: a title, a sentence on how to read it and queries for each panel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools import grafana
from tools.grafana import BYTES, COLUMNS, COUNT, FEW, FULL, NONE, PART, SECONDS, WAIT, bars, lines, stat, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.grafana import Json, Panel

# --- Queries ---------------------------------------------------------------------------------------------------------


def of_model(series: str) -> str:
    """Keep the series of GPUs of the chosen models."""
    return f'({series} and on (gpu) gpushare_gpu_info{{model=~"$model"}})'


def of_card(series: str) -> str:
    """Keep the series of GPUs of the chosen models, by their own UUID where they have MIG instances."""
    whole, instances = 'gpushare_gpu_info{model=~"$model"}', 'gpushare_gpu_info{model=~"$model", parent!=""}'
    return f'({series} and on (gpu) ({whole} or label_replace({instances}, "gpu", "$1", "parent", "(.+)")))'


def gpu(metric: str, *matchers: str) -> str:
    """Select a metric of GPUs, by the chosen nodes and models."""
    chosen = ", ".join(('node=~"$node"', *matchers))
    return of_model(f"{metric}{{{chosen}}}")


def container(metric: str, *matchers: str) -> str:
    """Select a metric of containers, by the chosen nodes, namespaces and models."""
    return gpu(metric, 'namespace=~"$namespace"', *matchers)


def leader(metric: str) -> str:
    """Select a metric of the extender that answers the scheduler; others know the cluster, but not the answers."""
    return f"({metric} and on (job, instance) gpushare_extender_leader == 1)"


def grown(series: str, window: str) -> str:
    """Count what a counter has counted in `window`; a series that began within it began at zero, with its first event.

    increase() sees nothing of the first event, because there is no sample before it.
    """
    return f"(({series} unless {series} offset {window}) or increase({series}[{window}]))"


def none_is_zero(expression: str) -> str:
    """Show 0 where nothing is found, for what is good to be missing."""
    return f"{expression} or vector(0)"


GIVEN, USED = "gpushare_container_gpu_memory_allocated_bytes", "gpushare_container_gpu_memory_used_bytes"
KNOWN_USED = f"({container(USED)} and {container(GIVEN)} > 0)"
KNOWN_GIVEN = f"({container(GIVEN)} > 0 and {container(USED)})"
"""Of the containers whose use is known, on the GPUs that they were given."""
BORROWED = container("gpushare_container_gpu_memory_borrowed_bytes")
LIMIT = container("gpushare_container_gpu_memory_limit_bytes")
_WITHIN = f"({BORROWED} and ignoring (enforcement, state) {LIMIT} >= ignoring (enforcement, state) {container(USED)})"
"""Of the containers that may borrow, those within their limits."""
BEYOND = f"({container(USED)} - {container(GIVEN)} > 0) unless {_WITHIN}"
OVER = f"(({container(USED)} - ({container(GIVEN)} > 0)) > 0 unless {_WITHIN})"
TRESPASS = f"(({container(USED)} > 0) and {container(GIVEN)} == 0)"
NOT_HELD = container("gpushare_container_gpu_memory_limit_bytes", 'state=~"differs|missing"')
XIDS = 'gpushare_xids_total{node=~"$node"}'
WAITING = leader("gpushare_extender_pods_waiting")
OLDEST = f"max({leader('gpushare_extender_pods_waiting_oldest_seconds')})"


def quantile(part: float) -> str:
    """Find the time that this part of the scheduler's calls does not exceed, by verb."""
    rate = "rate(gpushare_extender_verb_duration_seconds_bucket[$__rate_interval])"
    return f"histogram_quantile({part}, sum by (le, verb) ({rate}))"


def by(labels: str, expression: str, how: str = "sum") -> str:
    """Aggregate by labels."""
    return f"{how} by ({labels}) ({expression})"


# --- Panels ----------------------------------------------------------------------------------------------------------

CONTAINER = {"namespace": "Namespace", "pod": "Pod", "container": "Container", "node": "Node", "gpu": "GPU"}
OF_CONTAINER = "namespace, pod, container, node, gpu"

CLUSTER = (
    stat(
        "GPUs",
        "GPUs that the agents share, of the chosen nodes and models.",
        f"count({gpu('gpushare_gpu_memory_bytes')})",
    ),
    stat(
        "Allocated",
        "How much of the GPUs' memory is allocated to pods. Full is good if it is used; no further pod fits then.",
        f"sum({gpu('gpushare_gpu_memory_allocated_bytes')}) / sum({gpu('gpushare_gpu_memory_bytes')})",
        unit=PART,
    ),
    stat(
        "Used of allocated",
        "How much of the allocated memory pods use. Far below 100 %: pods request more than they need.",
        f"sum({KNOWN_USED}) / sum({KNOWN_GIVEN})",
        unit=PART,
    ),
    stat(
        "Pending pods",
        "Pods that wait for a GPU. `kubectl inspect gpushare why POD` explains why each is pending.",
        f"max({leader('gpushare_extender_pods_pending')})",
        thresholds=FEW,
    ),
    stat(
        "Oldest pending pod",
        "How long the oldest pending pod has waited.",
        OLDEST,
        unit=SECONDS,
        thresholds=WAIT,
    ),
    stat(
        "Unhealthy GPUs",
        "An Event on the node (GPUUnhealthy) says why, and how it ends.",
        none_is_zero(f"count({gpu('gpushare_gpu_healthy')} == 0)"),
        thresholds=NONE,
    ),
    stat(
        "Containers over their limits",
        "Containers that use more memory than they were granted. The agents report those that keep doing so.",
        none_is_zero(f"count({OVER})"),
        thresholds=FEW,
    ),
    stat(
        "On GPUs not assigned to them",
        "Containers that use a GPU that was not assigned to them, mostly by NVIDIA_VISIBLE_DEVICES in their image.",
        none_is_zero(f"count({TRESPASS})"),
        thresholds=NONE,
    ),
    stat(
        "Driver limits that differ",
        "Containers for which the driver has no limit, or not the one that was granted. Events on their pods "
        "(GPULimitNotHeld) say why.",
        none_is_zero('sum(gpushare_limit_states{node=~"$node", state=~"differs|missing"})'),
        thresholds=NONE,
    ),
    stat(
        "Use unknown",
        "Containers whose agent does not see how much memory they use: /readyz says why.",
        none_is_zero(f"count({container(GIVEN)} > 0 unless {container(USED)})"),
        thresholds=FEW,
    ),
    stat(
        "XIDs in 24 h",
        "XID errors that the driver reported; NVIDIA's list says what each means.",
        none_is_zero(f"sum({of_model(grown(XIDS, '24h'))})"),
        thresholds=FEW,
    ),
    stat(
        "Programs not scraped",
        "Programs of this project that Prometheus has found but cannot scrape.",
        none_is_zero('count(up{job=~".+/gpushare"} == 0)'),
        thresholds=NONE,
    ),
    lines(
        "Memory",
        "The memory of all GPUs: what is allocated to pods, what is in use, and what processes outside pods use.",
        {
            "total": f"sum({gpu('gpushare_gpu_memory_bytes')})",
            "allocated": f"sum({gpu('gpushare_gpu_memory_allocated_bytes')})",
            "used": f"sum({gpu('gpushare_gpu_memory_used_bytes')})",
            "used outside pods": f"sum({gpu('gpushare_gpu_memory_unattributed_bytes')})",
        },
        unit=BYTES,
    ),
    lines(
        "Pending pods by reason",
        "not_asked: no scheduler has asked the extender about the pod. no_room: no node has room now. never_fits: no "
        "eviction would help on any node. fits: a GPU has room, and something else delays the pod.",
        {"{{reason}}": by("reason", WAITING, "max")},
        stacked=True,
    ),
    lines(
        "Oldest pending pod over time",
        "How long the oldest pending pod has waited. If the line climbs for hours, look at that pod.",
        {"oldest": OLDEST},
        unit=SECONDS,
    ),
    lines(
        "Limits by enforcement and state",
        "Who holds containers to their limits, and whether limits were read back. differs, missing: the limit does "
        "not hold. unverified: it cannot be read back, as with advisory, where only the container's variables name it.",
        {"{{enforcement}}, {{state}}": by("enforcement, state", LIMIT, "count")},
        stacked=True,
    ),
    lines(
        "Over-use",
        "Memory that pods use above their grants, including on GPUs not assigned to them.",
        {"{{namespace}}/{{pod}}": by("namespace, pod", f"{container(USED)} - {container(GIVEN)} > 0")},
        unit=BYTES,
        stacked=True,
    ),
    lines(
        "Refusals by reason",
        "Containers that agents refused in the last 15 minutes. Many: a scheduler that does not know GPUs places the "
        "pods. memory_limit_not_there, mps_not_ready: the enforcement of limits is not available.",
        {"{{reason}}, {{node}}": by("node, reason", grown('gpushare_refusals_total{node=~"$node"}', "15m"))},
    ),
    lines(
        "Time to answer the scheduler",
        "The 99th percentile and the median of calls, by verb. kube-scheduler gives up after 5 s.",
        {
            "{{verb}}, 99 %": quantile(0.99),
            "{{verb}}, half": quantile(0.5),
        },
        unit=SECONDS,
    ),
    lines(
        "Answers to the scheduler",
        "Outcomes of calls to bind pods, and verdicts on nodes, per second.",
        {
            "bind: {{outcome}}": by("outcome", "rate(gpushare_extender_binds_total[$__rate_interval])"),
            "filter: {{verdict}}": by("verdict", "rate(gpushare_extender_filter_verdicts_total[$__rate_interval])"),
        },
        unit="ops",
    ),
    bars(
        "Fullest nodes",
        "How much of each node's GPU memory is allocated, as the extender counts it; the 20 fullest nodes.",
        {
            "{{node}}": "topk(20, "
            + by("node", 'gpushare_extender_node_memory_allocated_bytes{node=~"$node"}', "max")
            + " / "
            + by("node", 'gpushare_extender_node_memory_bytes{node=~"$node"}', "max")
            + ")"
        },
        unit=PART,
        thresholds=FULL,
        most=1,
    ),
)

OF_GPU = "node, gpu"
SERVICE = (
    "max by (node, gpu, index, model, driver, enforcement, profile, parent) "
    '(gpushare_gpu_info{node=~"$node", model=~"$model"} '
    f"* on (node, gpu) group_left () {by(OF_GPU, gpu('gpushare_gpu_healthy'), 'min')})"
)
"""Everything that is known of a GPU as labels; 1 while it is healthy."""
NODE = (
    bars(
        "Allocated, by GPU",
        "How much of each GPU's memory is allocated to pods.",
        {
            "{{node}} {{gpu}}": f"{by(OF_GPU, gpu('gpushare_gpu_memory_allocated_bytes'), 'max')} / "
            + by(OF_GPU, gpu("gpushare_gpu_memory_bytes"), "max")
        },
        unit=PART,
        width=12,
        thresholds=FULL,
        most=1,
    ),
    bars(
        "Used, by GPU",
        "How much of each GPU's memory is in use, by pods and others. Compare with what is allocated, on the left.",
        {
            "{{node}} {{gpu}}": f"{by(OF_GPU, gpu('gpushare_gpu_memory_used_bytes'), 'max')} / "
            + by(OF_GPU, gpu("gpushare_gpu_memory_bytes"), "max")
        },
        unit=PART,
        width=12,
        thresholds=FULL,
        most=1,
    ),
    lines(
        "Allocated and used, by node",
        "Memory allocated to pods on each node, and all memory in use there.",
        {
            "{{node}} allocated": by("node", gpu("gpushare_gpu_memory_allocated_bytes")),
            "{{node}} used": by("node", gpu("gpushare_gpu_memory_used_bytes")),
        },
        unit=BYTES,
    ),
    lines(
        "Utilization, by GPU",
        "How busy the containers of a GPU keep its multiprocessors, together.",
        {"{{node}} {{gpu}}": by(OF_GPU, container("gpushare_container_gpu_utilization_ratio"))},
        unit=PART,
    ),
    lines(
        "Borrowed, by GPU",
        "Memory that containers use beyond their guarantees, and return when it is needed.",
        {"{{node}} {{gpu}}": by(OF_GPU, BORROWED)},
        unit=BYTES,
    ),
    lines(
        "Used outside pods",
        "Memory of processes outside pods, and memory that no listed process owns. Pods cannot use it.",
        {"{{node}} {{gpu}}": by(OF_GPU, gpu("gpushare_gpu_memory_unattributed_bytes"), "max")},
        unit=BYTES,
    ),
    lines(
        "Health",
        "1: healthy. 0: unhealthy; an Event on the node (GPUUnhealthy) says why and how it ends.",
        {"{{node}} {{gpu}}": by(OF_GPU, gpu("gpushare_gpu_healthy"), "min")},
        most=1,
    ),
    lines(
        "XIDs",
        "XID errors of the last hour by code, as the driver reported them. NVIDIA's list says what each means.",
        {"{{node}} {{gpu}}: XID {{code}}": by(f"{OF_GPU}, code", of_model(grown(XIDS, "1h")))},
    ),
    lines(
        "Shares that are not offered",
        "unhealthy: the GPU is unhealthy. fenced: the GPU is in whole use, or its shares are, so it cannot be "
        "allocated the other way.",
        {
            "{{node}} {{gpu}} unhealthy": by(OF_GPU, gpu("gpushare_gpu_shares_unhealthy"), "max"),
            "{{node}} {{gpu}} fenced": by(OF_GPU, gpu("gpushare_gpu_shares_fenced"), "max"),
        },
    ),
    lines(
        "Time to answer the kubelet",
        "The 99th percentile of the kubelet's calls, by node and method.",
        {
            "{{node}} {{method}}": "histogram_quantile(0.99, sum by (le, node, method) "
            '(rate(gpushare_rpc_duration_seconds_bucket{node=~"$node"}[$__rate_interval])))'
        },
        unit=SECONDS,
    ),
    lines(
        "Kubelet's stream",
        "1: the kubelet listens to the agent. 0: the node offers nothing of this resource; /readyz says why.",
        {"{{node}} {{resource}}": 'min by (node, resource) (gpushare_stream_up{node=~"$node"})'},
        most=1,
    ),
    table(
        "GPUs",
        "Every GPU with its memory: allocated to pods, all in use, and in use outside pods.",
        {
            "node": "Node",
            "index": "Position",
            "gpu": "GPU",
            "model": "Model",
            "driver": "Driver",
            "enforcement": "Limits by",
            "profile": "MIG profile",
            "parent": "MIG instance of",
        },
        {
            "Healthy": (
                COUNT,
                SERVICE,
            ),
            "Memory": (BYTES, by(OF_GPU, gpu("gpushare_gpu_memory_bytes"), "max")),
            "Allocated": (BYTES, by(OF_GPU, gpu("gpushare_gpu_memory_allocated_bytes"), "max")),
            "Used": (BYTES, by(OF_GPU, gpu("gpushare_gpu_memory_used_bytes"), "max")),
            "Outside pods": (BYTES, by(OF_GPU, gpu("gpushare_gpu_memory_unattributed_bytes"), "max")),
        },
        width=COLUMNS,
    ),
)

NAMESPACE = (
    lines(
        "Allocated and used, by namespace",
        "Memory allocated to the pods of each namespace, and what they use.",
        {
            "{{namespace}} allocated": by("namespace", container(GIVEN)),
            "{{namespace}} used": by("namespace", container(USED)),
        },
        unit=BYTES,
        width=12,
    ),
    bars(
        "Used of allocated, by namespace",
        "Far below 100 %: its pods request more than they need. Containers whose use is unknown are left out.",
        {"{{namespace}}": f"{by('namespace', KNOWN_USED)} / {by('namespace', KNOWN_GIVEN)}"},
        unit=PART,
        width=6,
        most=1,
    ),
    lines(
        "Utilization, by namespace",
        "GPUs that the containers of each namespace keep busy: 1 is one GPU all the time.",
        {"{{namespace}}": by("namespace", container("gpushare_container_gpu_utilization_ratio"))},
        width=6,
    ),
    lines(
        "Idle GPUs, by namespace",
        "GPUs held by containers that have computed next to nothing for 15 minutes; a quarter of a GPU's memory counts "
        "as 0.25. From the recording rules of deploy/monitoring, over all nodes and models.",
        {
            "{{namespace}} held": 'namespace:gpushare_gpus_allocated:sum{namespace=~"$namespace"}',
            "{{namespace}} idle": 'namespace:gpushare_gpus_idle:sum{namespace=~"$namespace"}',
        },
    ),
    bars(
        "GPU-hours of the last hour",
        "What was held, and how much of it was idle. From the recording rules of deploy/monitoring.",
        {
            "{{namespace}} held": 'namespace:gpushare_allocated_gpu_hours:1h{namespace=~"$namespace"}',
            "{{namespace}} idle": 'namespace:gpushare_idle_gpu_hours:1h{namespace=~"$namespace"}',
        },
    ),
    bars(
        "Byte-hours of the last hour",
        "Memory held and memory used, multiplied by time. From the recording rules of deploy/monitoring.",
        {
            "{{namespace}} allocated": 'namespace:gpushare_gpu_memory_allocated_byte_hours:1h{namespace=~"$namespace"}',
            "{{namespace}} used": 'namespace:gpushare_gpu_memory_used_byte_hours:1h{namespace=~"$namespace"}',
        },
        unit=BYTES,
    ),
    table(
        "Containers",
        "Every container on each of its GPUs. Allocated 0: the GPU is not assigned to it. Without a limit: it has a "
        "whole GPU, or its limit is unknown.",
        CONTAINER,
        {
            "Allocated": (BYTES, by(OF_CONTAINER, container(GIVEN), "max")),
            "Used": (BYTES, by(OF_CONTAINER, container(USED), "max")),
            "Borrowed": (BYTES, by(OF_CONTAINER, BORROWED, "max")),
            "Limit": (BYTES, by(OF_CONTAINER, LIMIT, "max")),
            "Utilization": (PART, by(OF_CONTAINER, container("gpushare_container_gpu_utilization_ratio"), "max")),
        },
        width=COLUMNS,
        height=10,
    ),
    table(
        "Over their limits",
        "Containers that use more than they were granted, and by how much, including on GPUs not assigned to them.",
        CONTAINER,
        {"Beyond": (BYTES, f"sort_desc({by(OF_CONTAINER, BEYOND, 'max')})")},
        width=12,
    ),
    table(
        "Driver limits that differ, by container",
        "differs: the driver has the limit shown, which is not the one granted. missing: the driver has none; the "
        "limit shown was granted.",
        {**CONTAINER, "enforcement": "Limits by", "state": "State"},
        {"Limit": (BYTES, by(f"{OF_CONTAINER}, enforcement, state", NOT_HELD, "max"))},
        width=12,
    ),
)

CONDITION = (
    lines(
        "Temperature",
        "Temperature of each GPU. Its hardware slows it from 85 or 90 on, by model.",
        {"{{node}} {{gpu}}": by(OF_GPU, of_card('gpushare_gpu_temperature_celsius{node=~"$node"}'), "max")},
        unit="celsius",
    ),
    lines(
        "Power",
        "Power that each GPU draws.",
        {"{{node}} {{gpu}}": by(OF_GPU, of_card('gpushare_gpu_power_watts{node=~"$node"}'), "max")},
        unit="watt",
    ),
    lines(
        "Slowed",
        "Fraction of the time in which the clocks of a GPU were lowered, by reason. power_cap is usual under full "
        "load; heat and power_brake are not.",
        {
            "{{node}} {{gpu}} {{reason}}": by(
                f"{OF_GPU}, reason", of_card('avg_over_time(gpushare_gpu_throttled{node=~"$node"}[5m])'), "max"
            )
        },
        unit=PART,
        most=1,
    ),
    lines(
        "Time with a kernel running",
        "Fraction of the time in which a kernel ran on each GPU, however little of the GPU that kernel used.",
        {"{{node}} {{gpu}}": by(OF_GPU, of_card('gpushare_gpu_utilization_ratio{node=~"$node"}'), "max")},
        unit=PART,
        most=1,
    ),
    lines(
        "PCIe",
        "Bytes a second between host and GPU, by direction. A link of generation 4 with 16 lanes carries some 25 GiB.",
        {
            f"{{{{node}}}} {{{{gpu}}}} {direction}": by(
                OF_GPU,
                of_card(f'rate(gpushare_gpu_pcie_{direction}_bytes_total{{node=~"$node"}}[$__rate_interval])'),
                "max",
            )
            for direction in ("sent", "received")
        },
        unit="binBps",
    ),
    lines(
        "Memory errors",
        "ECC errors of the last hour. After an uncorrected error drain the node and reset the GPU.",
        {
            f"{{{{node}}}} {{{{gpu}}}} {kind}": by(
                OF_GPU, of_card(f'increase(gpushare_gpu_ecc_{kind}_errors_total{{node=~"$node"}}[1h])'), "max"
            )
            for kind in ("corrected", "uncorrected")
        },
    ),
)

HELD = (
    f"(clamp_max({container(GIVEN)} / on (gpu) group_left () {by('gpu', gpu('gpushare_gpu_memory_bytes'), 'max')}, 1))"
)
"""The part of its GPU that each container holds; of MIG instances the part of the instance."""
USED_PART = (
    f"(({container(USED)} < {container(GIVEN)} or {container(GIVEN)} and {container(USED)})"
    f" / on (gpu) group_left () {by('gpu', gpu('gpushare_gpu_memory_bytes'), 'max')})"
)
"""What each container uses of its GPU, no more than it was given; its use is known."""
STRANDED = 'gpushare_extender_node_memory_stranded_bytes{node=~"$node"}'
SPAN = "[$__range:5m]) / 12"
"""Sums the samples of every five minutes of the time that is shown, in hours."""


def hours(expression: str, labels: str = "namespace") -> str:
    """Sum GPUs over the time that is shown, in GPU-hours."""
    return by(labels, f"sum_over_time({expression}{SPAN}")


ALLOCATION = (
    lines(
        "GPUs allocated, free and stranded",
        "Stranded: free memory that no pod of your usual mix can use. It is included in free, and 0 until the "
        "extender has learned the mix.",
        {
            "allocated": f"sum({HELD})",
            "free": f"sum(1 - {gpu('gpushare_gpu_memory_allocated_bytes')} / {gpu('gpushare_gpu_memory_bytes')})",
            "stranded": none_is_zero(
                f"sum({by('node', STRANDED, 'max')}) / avg({gpu('gpushare_gpu_memory_bytes')})",
            ),
        },
        width=12,
    ),
    bars(
        "GPU-hours allocated, by namespace",
        "In the time shown. `gpu-device-plugin cost` divides it to the cent, with owners and gaps.",
        {"{{namespace}}": hours(HELD)},
        width=6,
    ),
    bars(
        "GPU-hours used, by namespace",
        "By memory, in the time shown: how much of their allocation containers used.",
        {"{{namespace}}": hours(USED_PART)},
        width=6,
    ),
)

ROWS: Mapping[str, Sequence[Panel]] = {
    "Cluster": CLUSTER,
    "Nodes: $node": NODE,
    "Condition of GPUs: $node": CONDITION,
    "Namespaces: $namespace": NAMESPACE,
    "Allocation and cost": ALLOCATION,
}

VARIABLES: Mapping[str, tuple[str, str]] = {
    "node": ("Node", "label_values(gpushare_gpu_memory_bytes, node)"),
    "namespace": ("Namespace", "label_values(gpushare_container_gpu_memory_allocated_bytes, namespace)"),
    "model": ("GPU model", "label_values(gpushare_gpu_info, model)"),
}
"""What one can choose: its label, and the query that finds the values. All of them by default."""


def dashboard() -> Json:
    """Return the dashboard as Grafana imports it."""
    return grafana.dashboard(
        "gpushare",
        "GPU sharing",
        "GPUs shared by memory: what is allocated, what is used, who is over the limit, who is pending.",
        rows=ROWS,
        variables=VARIABLES,
        tags=("gpu", "gpushare", "kubernetes"),
    )
