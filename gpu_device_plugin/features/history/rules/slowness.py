"""Say why a running pod is slow: the causes by how much they explain, or that there is none, and what was looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TypeAlias

from gpu_device_plugin.features.history.contract import NodeHistory, Series, gpu_path, namespace_path
from gpu_device_plugin.features.history.rules.gpu_window import LEAST_S, RECENT_S, GpuWindow, Held, windows
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.telemetry import BY_HEAT, SLOWING, GpuTelemetry, Throttle
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.report.rules.finding import Finding, Parameter, Unknown, few, grouped, lasting, note, warning
from gpu_device_plugin.report.rules.printing import mib, ranges

Cause: TypeAlias = tuple[float, Finding]
"""The part of the pod's speed that something may have cost, 0 to 1: an estimate that orders the causes; and what."""
Verdict: TypeAlias = Cause | Finding | None
"""A cause; None: there is none; or why that is not known, as a clause."""
MaySee: TypeAlias = "Callable[[str], bool]"
"""Says of a namespace whether the reader may see its pods, and of the empty name whether of all namespaces."""

_BUSY_PERCENT = 90
"""Of the multiprocessors: who wants more has to wait. Readings of a busy GPU stay a little below 100."""
_LOADED_PERCENT = 50
"""Of the multiprocessors: a GPU that is this busy has raised its clocks and its link."""
_TAKES_PERCENT = 20
"""Of the multiprocessors: a neighbour that takes less costs less than what varies from step to step."""
_WAITS_PERCENT = 30
"""Of the multiprocessors: a pod that takes more feeds its GPU, whatever its CPU does."""
_FED = 0.1
"""Part of its steps in which a pod used the multiprocessors at all; one that still loads its model does not."""
_CPU_PERCENT = 20
"""Of the CPU's periods in which a container was held back: below, its threads wait for less than they work."""
_AT_LIMIT = 0.97
"""Part of the memory: beyond it allocations of the usual size, 2 MiB to 1 GiB, fail or have to push others out."""
_LEFT = 0.95
"""Part of the memory that a pod was granted: the driver itself may keep the rest of a whole GPU."""
_FALL, _FALLS = 0.02, 3
"""Part of the most: a smaller fall returns a buffer; larger ones, again and again, empty a cache for lack of room."""
_PAGING_PERCENT = 40
"""Of PCIe: more than reading data usually takes. Memory that does not fit moves to the host and back."""
_FULL_PERCENT = 85
"""Of PCIe: headers and acknowledgements take the rest."""
_TRAFFIC_PERCENT = 10
"""Of PCIe: with less traffic a wider link would change nothing that can be measured."""
_FULL_CLOCK, _CAPPED_CLOCK, _LOW_CLOCK = 0.95, 0.55, 0.7
"""Parts of the highest clock. From the first on no reason costs anything. Under full load a T4 or L4 falls towards the
second at its default power limit, other models less. Few models have a base clock below the third."""
_LOWERED = 0.97
"""Part of the default power limit: from there on it is the same but for rounding."""
_MANY_CORRECTED = 100
"""Single memory errors that ECC corrects occur on healthy GPUs and cost nothing."""

_SLOWDOWNS: Mapping[str, tuple[int, str, str]] = {
    "slowed-by-heat": (BY_HEAT, "heat", "Check the node's cooling"),
    "slowed-by-power-brake": (Throttle.POWER_BRAKE, "its machine (power brake)", "Check the node's power supplies"),
    "slowed-by-hardware": (Throttle.HARDWARE, "itself (hardware slowdown)", "Check its power cables and its cooling"),
    "slowed-by-sync": (Throttle.SYNC, "the slowest GPU of its sync boost group", "Find out what slows that one"),
    "slowed-by-power-cap": (
        Throttle.POWER_CAP,
        "its power limit",
        "For NVIDIA GPUs nvidia-smi -q -d POWER shows it, and -pl sets another",
    ),
}
"""By code: bits, words and advice."""
_TOLD_BY_OTHERS: Mapping[int, int] = {Throttle.HARDWARE: Throttle.HARDWARE_HEAT | Throttle.POWER_BRAKE}
"""Bits beside which a bit is only their summary."""
_NO_MEMORY = note("memory-use-unknown", "how much memory is used is not known")
_ASSUMED_LOSS = 0.3
"""Part of the speed that a slowdown costs where the clock is not known."""


def everyone(_namespace: str) -> bool:
    """Say that the reader may see the pods of all namespaces."""
    return True


def _slowed(code: str, window: GpuWindow, _: MaySee) -> Verdict:
    bits, reason, advice = _SLOWDOWNS[code]
    flags = [
        None if reasons is None else bool(reasons & bits) and not reasons & _TOLD_BY_OTHERS.get(bits, 0)
        for reasons in window.total(window.gpu.throttle)
    ]
    if not isinstance(held := window.held(flags, window.untold), Held):
        return held
    now, (speed, clock) = window.condition, _clock(window.condition)
    capped, current = bits == Throttle.POWER_CAP, bool((now.throttle or 0) & bits)
    limit, default = now.power_limit_mw, now.power_limit_default_mw
    lowered = limit is not None and default is not None and limit < default * _LOWERED
    # The default limit is part of the model. Only the clock tells one that costs much, if both were read at one moment.
    usual = capped and not lowered
    harmless = speed >= (_CAPPED_CLOCK if usual else _FULL_CLOCK) if current else usual and clock
    if harmless:
        return None
    facts = [clock] if current and clock else []
    if capped and now.power_mw is not None and limit is not None:
        facts.append(note("draws", "it draws {watts} of {limit} W", watts=now.power_mw // 1000, limit=limit // 1000))
    if capped and lowered and default is not None:
        facts.append(note("default-limit", "its default limit is {watts} W", watts=default // 1000))
    if bits & Throttle.HEAT and now.temperature_c is not None:
        facts.append(note("is-warm", "it is at {celsius} °C", celsius=now.temperature_c))
    told = "; {facts:+; }" if facts else ""
    text = f"GPU {{gpu}} is slowed by {reason}, {{period}}{told}. {advice}."
    loss = 1 - speed if current and clock else _ASSUMED_LOSS
    return _cause(code, text, window, loss, held, facts=tuple(facts))


def _clocks_low(window: GpuWindow, _: MaySee) -> Verdict:
    speed, clock = _clock(window.condition)
    if window.unready or not clock or window.condition.throttle is None:
        return window.unready or window.untold
    # The clock is known of one moment alone. It has had the time to rise if the GPU has been loaded for a while.
    steps = [at for at in window.recent if at >= len(window.sm) - LEAST_S / window.step_s]
    throttle, busy, works = window.total(window.gpu.throttle), window.total(window.gpu.sm_percent), window.works
    steady = all(works[at] for at in steps) and _mean(busy, steps) >= _LOADED_PERCENT
    told = window.condition.throttle & SLOWING or any((throttle[at] or 0) & SLOWING for at in steps)
    if not steady or told or speed >= _LOW_CLOCK:
        return None
    text = (
        "GPU {gpu} has a low clock, for which its driver gives no reason: {facts}. For NVIDIA GPUs "
        "nvidia-smi -q -d CLOCK shows more."
    )
    return _cause("clocks-low", text, window, 1 - speed, facts=clock)


def _clock(now: GpuTelemetry) -> tuple[float, Finding | None]:
    """Return the part of the highest clock, and a clause with both; 1 and none if it is not known."""
    clock, most = now.sm_clock_mhz, now.sm_clock_max_mhz
    if clock is None or most is None or not 0 < clock <= most:
        return 1.0, None
    text = "its multiprocessors run at {clock} of {most} MHz"
    return clock / most, note("runs-at", text, clock=f"{clock:,}", most=f"{most:,}")


def _neighbours(window: GpuWindow, may_see: MaySee) -> Verdict:
    if not window.others:
        return None
    others = window.total(*(each.sm_percent for each in window.others))
    flags = [
        None if other is None else other >= _TAKES_PERCENT and max(busy or 0, other + (own or 0)) >= _BUSY_PERCENT
        for other, own, busy in zip(others, window.sm, window.total(window.gpu.sm_percent), strict=True)
    ]
    unknown = note("neighbours-unknown", "how busy its neighbours keep the multiprocessors is not known")
    held = window.held(flags, unknown)
    if not isinstance(held, Held):
        return held
    percent = _percent(_mean(others, held.at))
    text = (
        "Neighbours took {percent} % of the multiprocessors' time on GPU {gpu}, {period}: {who}. The pod needs "
        "another GPU, or one of its own."
    )
    who = _largest(window, held, may_see, "sm_percent", lambda mean: f"{_percent(mean)} %")
    return _cause("neighbours-busy", text, window, percent / 100, held, percent=percent, who=who)


def _memory_full(window: GpuWindow, may_see: MaySee) -> Verdict:
    granted, total = sum(each.granted_mib for each in window.holders), window.gpu.total_mib
    pairs = list(zip(window.total(window.gpu.used_mib), window.used, strict=True))
    taken = tuple(None if used is None or own is None else used - own for used, own in pairs)
    flags = [
        None if others is None else (used or 0) >= total * _AT_LIMIT and total - others < granted * _LEFT
        for others, (used, _) in zip(taken, pairs, strict=True)
    ]
    if not isinstance(held := window.held(flags, _NO_MEMORY, idle=True), Held) or granted <= 0:
        return None if isinstance(held, Held) else held
    left = max(0, min(granted, round(total - _mean(taken, held.at))))
    text = "Others left {left} of GPU {gpu} for the {granted} that the pod was granted, {period}: {who}."
    nobody = note("nobodys", "processes outside pods")
    who = _largest(window, held, may_see, "used_mib", lambda mean: mib(round(mean))) or nobody
    loss = 1 - left / granted
    return _cause("memory-full", text, window, loss, held, left=mib(left), granted=mib(granted), who=who)


def _largest(
    window: GpuWindow, held: Held, may_see: MaySee, field: str, shown: Callable[[float], str]
) -> Finding | str:
    """Return the neighbours with the largest means of a series while something held; empty: there are none."""
    hidden = "pods that you may not see"
    by_pod = grouped(
        (f"{each.namespace}/{each.pod}" if may_see(each.namespace) else hidden, getattr(each, field))
        for each in window.others
    )
    means = {name: _mean(window.total(*theirs), held.at) for name, theirs in by_pod.items()}
    order = sorted((name for name in means if means[name] >= 1), key=lambda name: (-means[name], name))
    who: dict[str, str | Finding] = {hidden: note("pods-hidden", hidden)}
    return (
        few([note("has-of", "{pod} {amount}", pod=who.get(name, name), amount=shown(means[name])) for name in order])
        if order
        else ""
    )


def _starved(window: GpuWindow, _: MaySee) -> Verdict:
    cpus = [window.total(each.cpu_throttled_percent) for each in window.own]
    most = [max((one for one in step if one is not None), default=None) for step in zip(*cpus, strict=True)]
    flags = [
        None if sm is None or cpu is None else cpu >= _CPU_PERCENT and sm < _WAITS_PERCENT
        for sm, cpu in zip(window.sm, most, strict=True)
    ]
    unknown = note("cpu-limit-unknown", "how its CPU limit holds it back is not known")
    held = window.held(flags, unknown, idle=True)
    if not isinstance(held, Held):
        return held
    if window.lasted_s([bool(sm) for sm in window.sm]) < window.lasted_s(window.present) * _FED:
        return None
    percent, container = max(
        (_percent(_mean(cpu, held.at)), each.container) for each, cpu in zip(window.own, cpus, strict=True)
    )
    text = (
        "GPU {gpu} waits for its CPU: container {container} was held back by its CPU limit in {percent} % of the "
        "periods, {period}. Raise that limit."
    )
    return _cause("starved-of-cpu", text, window, percent / 100, held, percent=percent, container=repr(container))


def _thrashes(window: GpuWindow, _: MaySee) -> Verdict:
    used, most = window.used, sum(each.most_mib for each in window.holders)
    flags = [None if value is None or most <= 0 else value >= most * _AT_LIMIT for value in used]
    if not isinstance(held := window.held(flags, _NO_MEMORY, idle=True), Held):
        return held
    pairs = [(used[at] or 0, after) for at in held.at if at + 1 < len(used) and (after := used[at + 1]) is not None]
    falls, works = sum(before - after >= most * _FALL for before, after in pairs), window.works
    paging = _percent(_mean(window.total(window.gpu.pcie_percent), [at for at in held.at if works[at]]))
    signs = [note("use-fell", "its use fell {n:time}", n=falls)] * (falls >= _FALLS)
    carried = note("pcie-carried", "PCIe carried {percent} % of what it can", percent=paging)
    signs += [carried] * (paging >= _PAGING_PERCENT)
    if not signs or held.share < 0.5:  # "most of the time": the cache of an allocator may fill it at times
        return None
    text = (
        "The pod has too little memory: it used {used} of at most {most} on GPU {gpu}, {period}; {signs:+ and }. It "
        "needs more, or smaller batches."
    )
    mean = mib(round(_mean(used, held.at)))
    return _cause("memory-thrash", text, window, 0.9, held, used=mean, most=mib(most), signs=tuple(signs))


def _pcie_full(window: GpuWindow, _: MaySee) -> Verdict:
    traffic = window.total(window.gpu.pcie_percent)
    flags = [  # copies beside kernels that keep the GPU busy cost nothing
        None if own is None or percent is None else own > 0 and percent >= _FULL_PERCENT and (busy or 0) < _BUSY_PERCENT
        for own, percent, busy in zip(window.sm, traffic, window.total(window.gpu.sm_percent), strict=True)
    ]
    if not isinstance(held := window.held(flags, window.unready or window.untold, idle=True), Held):
        return held
    percent = _percent(_mean(traffic, held.at))
    text = "The PCIe link of GPU {gpu} is full: it carried {percent} % of what it can, {period}. Copy less at a time."
    return _cause("pcie-saturated", text, window, percent / 200, held, percent=percent)


def _pcie_link(window: GpuWindow, _: MaySee) -> Verdict:
    now = window.condition
    lanes, most = now.pcie_width or 0, now.pcie_width_max or 0
    generation, newest = now.pcie_generation or 0, now.pcie_generation_max or 0
    if window.unready or not ((lanes and most) or (generation and newest)):
        return window.unready or window.untold
    narrow = 0 < lanes < most
    loads = [each for each in (now.sm_percent, window.total(window.gpu.sm_percent)[-1]) if each is not None]
    # A GPU lowers the generation of its link to save power, as soon as it is idle.
    slow = 0 < generation < newest and min(loads, default=0) >= _LOADED_PERCENT
    works, traffic = window.works, window.total(window.gpu.pcie_percent)
    steps = [at for at in window.recent if works[at] and traffic[at] is not None]
    percent = _percent(_mean(traffic, steps)) if steps else _TRAFFIC_PERCENT
    if not (narrow or slow) or percent < _TRAFFIC_PERCENT:
        return None
    links = [note("lanes", "{n} of {most} lanes", n=lanes, most=most)] * narrow
    links += [note("generation", "generation {n} of {newest}", n=generation, newest=newest)] * slow
    also = note("carried", ", and it carried {percent} % of that while the pod worked", percent=percent)
    carried = also if steps else ""
    text = (
        "The PCIe link of GPU {gpu} is slower than it could be: {facts:+ and }{carried}. Reseat the GPU, and check "
        "its slot."
    )
    loss = (1 - (lanes / most if narrow else 1) * (generation / newest if slow else 1)) * percent / 100
    return _cause("pcie-link-slow", text, window, loss, facts=tuple(links), carried=carried)


def _degraded(window: GpuWindow, _: MaySee) -> Verdict:
    now = window.condition
    if all(each is None for each in (now.ecc_uncorrected, now.ecc_corrected, now.repair_pending, now.repair_failed)):
        return window.untold
    corrected, uncorrected = now.ecc_corrected or 0, now.ecc_uncorrected or 0
    facts = [note("uncorrected", "{n:uncorrected error}", n=uncorrected)] * (uncorrected > 0)
    facts += [note("corrected", "{n:corrected error}", n=corrected)] * (corrected >= _MANY_CORRECTED)
    facts += [note("row-not-replaced", "a row that could not be replaced")] * bool(now.repair_failed)
    facts += [note("rows-wait", "rows or pages that wait for replacement")] * bool(now.repair_pending)
    text = "The memory of GPU {gpu} has faults: {facts:+, }. Drain and reset the GPU; replace it if they come back."
    # They end programs more often than they slow them, so other causes come first.
    return _cause("gpu-degraded", text, window, 0.02, facts=tuple(facts)) if facts else None


CHECKS: tuple[tuple[str, Callable[[GpuWindow, MaySee], Verdict]], ...] = (
    *(("slowdowns", partial(_slowed, code)) for code in _SLOWDOWNS),
    ("low clocks", _clocks_low),
    ("busy neighbours", _neighbours),
    ("its CPU limit", _starved),
    ("its memory limit", _thrashes),
    ("memory that others use", _memory_full),
    ("PCIe traffic", _pcie_full),
    ("the PCIe link", _pcie_link),
    ("memory errors", _degraded),
)
"""By the name of what is looked at."""


def _cause(
    code: str, text: str, window: GpuWindow, loss: float, held: Held | None = None, **parameters: Parameter
) -> Cause:
    """Return a cause that costs a part of the speed while it holds; without `held` it is told of one moment."""
    if held is not None:
        loss, parameters = loss * held.share, {**parameters, "share": _percent(100 * held.share), "period": held.period}
    return loss, warning(code, text, gpu=window.gpu.gpu, **parameters)


def _mean(values: Series, at: Iterable[int]) -> float:
    """Return the mean of those of these steps that are known; 0 without any."""
    return fmean([value for step in at if (value := values[step]) is not None] or [0])


def _percent(value: float) -> int:
    return max(0, min(100, round(value)))


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
            text = "The figures of its node's agent are {age} old, too old to tell whether it is slow."
            return (Unknown("history-old", text, age=lasting(now - at_s)),)
        found |= {window.gpu.uuid: window for window in windows(history, namespace, pod, at_s)}
    if not found:
        return (Unknown("history-empty", "Its node's agent has no figures that tell whether it is slow."),)
    # A pod of the same name may have had other GPUs within the hour.
    seen = [window for window in found.values() if any(window.present[at] for at in window.recent)]
    causes: list[Cause] = []
    looked, unlooked, whys = dict[str, None](), dict[str, dict[str, None]](), dict[str, Finding]()
    for window in seen or found.values():
        for name, check in CHECKS:
            match check(window, may_see):
                case None:
                    looked[name] = None
                case Finding() as why:
                    whys[str(why)] = why
                    unlooked.setdefault(str(why), {})[name] = None
                case cause:
                    causes.append(cause)
    findings = [*_merged(causes)]
    if looked and not causes:
        findings.append(_nothing(seen or [*found.values()], _named(looked)))
    text = "Not checked: {checks} ({why})."
    findings += [Unknown("not-looked-at", text, checks=_named(each), why=whys[why]) for why, each in unlooked.items()]
    return tuple(findings)


def _named(checks: Iterable[str]) -> Finding:
    named = (note(f"check-{each.replace(' ', '-')}", each) for each in checks)
    return note("checks", "{checks:+, }", checks=tuple(named))


def _merged(causes: Iterable[Cause]) -> Iterator[Finding]:
    """Yield the causes, the one that explains most first, each of the GPU that it slows most, with the other GPUs."""
    strongest_first = sorted(causes, key=lambda cause: (-cause[0], cause[1].code))
    for strongest, *others in grouped((finding.code, finding) for _, finding in strongest_first).values():
        gpus = ranges(sorted(int(str(each.parameters["gpu"])) for each in others))
        text = f"{strongest.text} Likewise on GPU {{likewise}}." if gpus else strongest.text
        yield replace(strongest, text=text, parameters={**strongest.parameters, "likewise": gpus})


def _nothing(seen: Sequence[GpuWindow], looked: Finding) -> Finding:
    busy = [value for window in seen for at in window.recent if (value := window.sm[at]) is not None]
    period = lasting(max(window.lasted_s(window.present) for window in seen))
    text = "Found nothing that slowed it in the last {period}; checked: {checks}."
    percent = {"percent": max(0, min(100, sum(busy) // len(busy)))} if busy else {}
    text += " It kept the multiprocessors busy for {percent} % of it." if busy else ""
    return note("nothing-slows-it", text, period=period, checks=looked, **percent)


async def histories_of(pod: Pod, read: Callable[[str], Awaitable[NodeHistory]]) -> list[NodeHistory]:
    """Return the history of each GPU that a pod is or was on, with all containers on it, as its node's agent has it."""
    positions = gpus_of(await read(namespace_path(pod.namespace)), pod.namespace, pod.name)
    return [await read(gpu_path(position)) for position in positions]
