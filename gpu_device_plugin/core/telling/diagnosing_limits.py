"""The checks of memory limits and of real use, based on the reports of the nodes' agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.nodereport import exceeds, not_held, trespasses
from gpu_device_plugin.core.model.limits import Held, Rung
from gpu_device_plugin.core.telling.diagnosing import Finding, error, note, ok, warning
from gpu_device_plugin.core.telling.diagnosing_mps import asked_of
from gpu_device_plugin.core.telling.poduse import refusals
from gpu_device_plugin.core.telling.printing import MOST_NAMED, counted, listed
from gpu_device_plugin.core.telling.reported import age, container, does_not_hold, uses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpu_device_plugin.core.contract.nodereport import NodeReport, UsedPart
    from gpu_device_plugin.core.telling.cluster_symptoms import ClusterSymptoms

_GUIDE = "docs/guide.md says what each means needs (What holds on my node)"


# --- Limits -----------------------------------------------------------------------------------------------------------


def limits(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check which means of limiting each node has, and whether a node is to have a stronger one."""
    present: dict[tuple[Rung, str], list[str]] = {}
    for node in cluster.nodes:
        reported = node.report.limits
        if reported is None or not node.labelled:
            continue
        refused = refusals(node.report)
        for sentence in refused:
            yield error(
                f"{node.name}: {sentence}",
                f"{_GUIDE}; with limits_fallback: advisory containers start without a limit instead",
            )
        asked = asked_of(node, cluster)
        if asked is not None and not refused and reported.rung.strength < asked.strength:
            yield warning(f"{node.name}: its limits are {reported.rung}: {reported.why}", _GUIDE)
        elif not refused:
            present.setdefault((reported.rung, reported.why), []).append(node.name)
    for (rung, why), names in sorted(present.items()):
        sentence = f"{rung} on {listed(names)}: {why}"
        yield ok(sentence) if rung in {Rung.PARTITION, Rung.DRIVER, Rung.MPS} else note(sentence, _GUIDE)


def held(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the driver has the limits that containers were granted."""
    yield from _summed((_held(node.name, node.report) for node in cluster.nodes), _all_held(cluster))


def _all_held(cluster: ClusterSymptoms) -> list[Finding]:
    parts = (part for node in cluster.nodes for part in node.report.current if part.held is Held.HELD)
    held = [part.rung is Rung.PARTITION for part in parts]
    by_whom = ((held.count(False), "the driver"), (held.count(True), "the hardware (MIG)"))
    return [
        ok(f"{who} holds {counted(number, 'container')} to the granted memory") for number, who in by_whom if number
    ]


def _held(node: str, report: NodeReport) -> Iterator[Finding]:
    if loose := _some(report, not_held, does_not_hold):
        yield warning(
            f"{node}: {loose}",
            "a container keeps the limit that it was started with: correct what the line names, and delete the pod; "
            "docs/guide.md has more (What holds on my node)",
        )
    unread = [part for part in report.current if part.rung is Rung.DRIVER and part.held is Held.UNVERIFIED]
    for why in sorted({part.why for part in unread}):
        names = listed(container(part) for part in unread if part.why == why)
        yield note(f"{node}: whether the limit holds is not known of {names}{f': {why}' if why else ''}")


# --- Use --------------------------------------------------------------------------------------------------------------


def use(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the use of GPU memory is known, and that no container uses more than it was granted."""
    for node in cluster.nodes:
        for problem in node.report_problems:
            found, _, advice = problem.partition("; ")
            yield warning(f"{node.name}: {found}", advice)
    blind: dict[str, list[str]] = {}
    for node in cluster.nodes:
        if node.report.use is not None and node.report.use.blind:
            blind.setdefault(node.report.use.blind, []).append(node.name)
    for why, names in sorted(blind.items()):
        yield _blind(f"on {listed(names)}", why)
    ready = {agent.node for agent in cluster.agents if agent.ready}
    seen = [node for node in cluster.nodes if node.report.use is not None and not node.report.use.blind]
    current = sum(not node.report.stale for node in seen)
    yield from _summed(
        (_used(node.name, node.report, agent_ready=node.name in ready) for node in seen),
        [ok(f"read on {counted(current, 'node')}: every container keeps within its part")] if current else [],
    )


def used_here(name: str, report: NodeReport, problems: Iterable[str]) -> Iterator[Finding]:
    """Check the same on one node, whose agent is not down; and that its limits hold.

    Args:
        name: of the node.
        report: of its agent.
        problems: why a part of it cannot be read.
    """
    for problem in problems:
        found, _, advice = problem.partition("; ")
        yield warning(found, advice)
    if report.use is None:
        return
    if report.use.blind:
        yield _blind("here", report.use.blind)
    findings = [*_held(name, report), *_used(name, report, agent_ready=True)]
    yield from findings
    if not findings and not report.use.blind:
        yield ok(f"{counted(len(report.use.parts), 'container')} on GPUs, each within its part")


def _blind(where: str, why: str) -> Finding:
    return note(
        f"which container uses how much GPU memory is not known {where}: {why}",
        "hostPID: true in the agent's DaemonSet lets NVML name processes of other pods; without it neither over-use "
        "nor trespassing is seen",
    )


def _used(node: str, report: NodeReport, *, agent_ready: bool) -> Iterator[Finding]:
    if report.stale and agent_ready:
        yield warning(
            f"{node}: its agent read last {age(report.use_age_s)} who uses how much GPU memory",
            "see its log; with usage_interval: 0s it does not read it, and a clock that is wrong shows so too",
        )
    strangers = "such a pod is privileged, or sets NVIDIA_VISIBLE_DEVICES itself; have it ask for its GPU memory"
    if many := _some(report, lambda part: trespasses(part) and exceeds(part), uses):
        yield warning(f"{node}: {many}", f"{strangers}; deploy/policies.yaml refuses the variable")
    if few := _some(report, lambda part: trespasses(part) and not exceeds(part), uses):
        yield note(f"{node}: {few}", strangers)
    if over := _some(report, lambda part: exceeds(part) and not trespasses(part), uses):
        yield warning(
            f"{node}: {over}",
            "give its program less memory, or the pod more; with over_use: evict, or evict-when-short, the agent "
            "evicts such pods (docs/guide.md)",
        )


def _some(report: NodeReport, test: Callable[[UsedPart], bool], say: Callable[[UsedPart], str]) -> str:
    """Return a sentence about each container that meets the test, but for some if they are many."""
    parts = [part for part in report.current if test(part)]
    said = "; ".join(f"{container(part)} {say(part)}" for part in parts[:MOST_NAMED])
    return said + (f"; and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else "")


def _summed(by_node: Iterable[Iterable[Finding]], if_none: Iterable[Finding]) -> Iterable[Finding]:
    """Return the findings of all nodes, or others if there are none."""
    return [finding for findings in by_node for finding in findings] or if_none
