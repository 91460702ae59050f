"""Explain for one pod what its memory limits and the real use of its GPUs mean to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.finding import Finding, note
from gpu_device_plugin.core.report.text.printing import first
from gpu_device_plugin.core.report.text.use_texts import age, container, does_not_hold, mib, uses
from gpu_device_plugin.features.use.contract import asked_s, exceeds, not_held, trespasses
from gpu_device_plugin.model.contract.keys import OVER_USE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.features.use.contract import ContainerUse, NodeReport
    from gpu_device_plugin.model.contract.nodegpus import ListedGpu
    from gpu_device_plugin.model.pods import Pod

_MOST_OVER_USE = 1000
"""The characters that are shown of the annotation `OVER_USE`, which anybody who may change the pod can write."""


def told_over_use(pod: Pod) -> list[Finding]:
    """Return what the agent wrote on the pod of its over-use, which outlasts an eviction until the pod is gone."""
    written = pod.annotations.get(OVER_USE, "").rstrip(".")[:_MOST_OVER_USE]
    if not written:
        return []
    verb = "used" if pod.ended or pod.deleting else "uses"
    return [note("over-use", f"It {verb} more GPU memory than it was granted: {{written}}.", written=written)]


def of_pod(pod: Pod, node: NodeView, positions: Iterable[int]) -> Iterator[Finding]:
    """Yield findings about a pod on a node: its use, its limits, and neighbours that leave it too little memory."""
    report = node.report
    own = [part for part in report.current if _is(part, pod)]
    if report.stale:
        text = "Its node's agent read last {age} who uses how much, so nothing is said about that."
        yield note("use-outdated", text, age=age(report.use_age_s))
    elif report.use is not None and report.use.blind:
        yield note("use-unknown", "How much it uses is not known: {why}.", why=report.use.blind)
    elif report.old and own:
        yield note("use-old", "Its node's agent wrote these figures {age}:", age=age(report.use_age_s))
    for part in own:
        name = f"Container {part.container!r}" if part.container else "It"
        if exceeds(part) or trespasses(part) or part.used_mib is not None:
            yield note("use", "{container} {use}.", container=name, use=uses(part))
        if not_held(part):
            yield note("limit-not-held", "{container} {why}.", container=name, why=does_not_hold(part))
    yield from lent(pod, report)
    for gpu in node.candidate.gpus.all:
        if gpu.position in set(positions):
            yield from _squeezed(pod, node, gpu)


def lent(pod: Pod, report: NodeReport) -> Iterator[Finding]:
    """Say who borrows the memory that a pod needs now."""
    for part in report.current:
        if part.needed_by == f"{pod.namespace}/{pod.name}":
            yield note(
                "needs-lent-memory",
                "It {verb} {amount} that {borrower} borrows of GPU {gpu}, asked to return it {age}.",
                verb="needs" if pod.running else "waits for",
                amount=mib(part.borrowed_mib),
                borrower=container(part),
                gpu=part.gpu,
                age=age(asked_s(report, part)),
            )


def _is(part: ContainerUse, pod: Pod) -> bool:
    return (part.namespace, part.pod) == (pod.namespace, pod.name)


def _squeezed(pod: Pod, node: NodeView, gpu: ListedGpu) -> Iterator[Finding]:
    """Say that less is left of a GPU than the pod was granted, and who uses more than its own part."""
    parts = [part for part in node.report.current if part.gpu == gpu.position]
    own = [part for part in parts if _is(part, pod)]
    used = node.report.used(gpu.position)
    if gpu.memory_mib is None or used.used_mib is None or any(part.used_mib is None for part in own) or not own:
        return
    granted = sum(part.granted_mib for part in own)
    others_mib = used.used_mib - sum(part.used_mib or 0 for part in own)
    left = max(0, gpu.memory_mib - (gpu.reserved_mib or 0) - others_mib)
    if left >= granted:
        return
    names = _beyond_their_parts([part for part in parts if not _is(part, pod)], used.unattributed_mib or 0)
    yield note(
        "squeezed",
        "GPU {gpu} has only {left} left for the {granted} that the pod was granted" + (": {by}." if names else "."),
        gpu=gpu.position,
        left=mib(left),
        granted=mib(granted),
        by=first(names, separator="; "),
    )


def _beyond_their_parts(parts: Iterable[ContainerUse], unattributed_mib: int) -> list[str]:
    """Return the pods that use more than they were granted, and processes of no pod; the largest excess first."""
    by_pod: dict[str, list[ContainerUse]] = {}
    for part in parts:
        by_pod.setdefault("/".join(filter(None, (part.namespace, part.pod))), []).append(part)
    excess = {f"processes of no pod use {mib(unattributed_mib)}": unattributed_mib}
    for name, theirs in by_pod.items():
        used, granted = sum(part.used_mib or 0 for part in theirs), sum(part.granted_mib for part in theirs)
        given = f"granted {mib(granted)}" if granted else "not given this GPU"
        excess[f"{name} uses {mib(used)} ({given})"] = used - granted
    beyond = [(amount, said) for said, amount in excess.items() if amount > 0]
    return [said for amount, said in sorted(beyond, key=lambda one: (-one[0], one[1]))]


def refusals(report: NodeReport) -> tuple[Finding, ...]:
    """Return why shares of some GPUs of a node are refused, as clauses about the node."""
    by_reason: dict[str, list[int]] = {}
    limits = report.limits
    for position, enforcement in sorted(limits.gpus.items()) if limits is not None else ():
        if enforcement.refusal:
            by_reason.setdefault(enforcement.refusal, []).append(position)
    text = "its agent refuses shares of GPU {gpus}: {why}"
    return tuple(
        note("shares-refused", text, gpus=", ".join(map(str, positions)), why=why)
        for why, positions in by_reason.items()
    )
