"""Say why a running pod is slow: the causes by how much they explain, or that there is none, and what was looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.history import everyone
from gpu_device_plugin.core.model.times import epoch_s
from gpu_device_plugin.core.report.finding import Unknown, note
from gpu_device_plugin.core.report.text.printing import ranges
from gpu_device_plugin.core.report.text.use_texts import duration
from gpu_device_plugin.core.report.why.gpu_window import RECENT_S, windows
from gpu_device_plugin.core.report.why.slow_causes import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpu_device_plugin.core.contract.history import MaySee, NodeHistory
    from gpu_device_plugin.core.report.finding import Finding
    from gpu_device_plugin.core.report.why.gpu_window import GpuWindow
    from gpu_device_plugin.core.report.why.slow_causes import Cause

_DAY_S = 86_400.0
"""No clocks differ by more: a later time is none."""


def gpus_of(history: NodeHistory, namespace: str, pod: str) -> tuple[int, ...]:
    """Return the positions of the GPUs that a pod is or was on."""
    return tuple(sorted({each.gpu for each in history.containers if (each.namespace, each.pod) == (namespace, pod)}))


def slowness(
    histories: Iterable[NodeHistory],
    namespace: str,
    pod: str,
    now: float,
    may_see: MaySee = everyone,
) -> tuple[Finding, ...]:
    """Return what slows a running pod, or that nothing was found; at the end what could not be looked at.

    Args:
        histories: for each GPU that the pod is on that GPU with all containers on it.
        namespace: of the pod.
        pod: its name.
        now: seconds since the epoch. Figures that are older than the minutes that are judged say nothing of today.
        may_see: whether the reader may see the pods of a namespace; others are summed up without names.
    """
    found: dict[str, GpuWindow] = {}
    for history in histories:
        at_s = epoch_s(history.at)
        if at_s is not None and at_s > now + _DAY_S:
            at_s = None
        if at_s is not None and now - at_s > RECENT_S:
            text = "The figures of its node's agent are {age} old, so they do not tell whether it is slow."
            return (Unknown("history-old", text, age=duration(now - at_s)),)
        found |= {window.gpu.uuid: window for window in windows(history, namespace, pod, at_s)}
    if not found:
        return (Unknown("history-empty", "Its node's agent has no figures of it that tell whether it is slow."),)
    # A pod of the same name may have had other GPUs within the hour.
    seen = [window for window in found.values() if any(window.present[at] for at in window.recent)]
    causes: list[Cause] = []
    looked, unlooked = dict[str, None](), dict[str, dict[str, None]]()
    for window in seen or found.values():
        for name, check in CHECKS:
            match check(window, may_see):
                case None:
                    looked[name] = None
                case str() as why:
                    unlooked.setdefault(why, {})[name] = None
                case cause:
                    causes.append(cause)
    findings = [*_merged(causes)]
    if looked and not causes:
        findings.append(_nothing(seen or [*found.values()], ", ".join(looked)))
    text = "Not looked at: {checks} ({why})."
    findings += [Unknown("not-looked-at", text, checks=", ".join(each), why=why) for why, each in unlooked.items()]
    return tuple(findings)


def _merged(causes: Iterable[Cause]) -> Iterator[Finding]:
    """Yield the causes, the one that explains most first, each of the GPU that it slows most, with the other GPUs."""
    by_code: dict[str, list[Finding]] = {}
    for _, finding in sorted(causes, key=lambda cause: (-cause[0], cause[1].code)):
        by_code.setdefault(finding.code, []).append(finding)
    for strongest, *others in by_code.values():
        gpus = ranges(sorted(int(str(each.parameters["gpu"])) for each in others))
        text = f"{strongest.text} Likewise on GPU {{likewise}}." if gpus else strongest.text
        yield replace(strongest, text=text, parameters={**strongest.parameters, "likewise": gpus})


def _nothing(seen: Sequence[GpuWindow], looked: str) -> Finding:
    busy = [value for window in seen for at in window.recent if (value := window.sm[at]) is not None]
    period = duration(max(window.lasted_s(window.present) for window in seen))
    text = "Nothing was found that slowed it in the last {period}; looked at: {checks}."
    if not busy:
        return note("nothing-slows-it", text, period=period, checks=looked)
    text += " It kept the multiprocessors busy for {percent} % of it."
    percent = max(0, min(100, sum(busy) // len(busy)))
    return note("nothing-slows-it", text, period=period, checks=looked, percent=percent)
