"""The last hour of one GPU as one pod had it, step by step, and for how much of the last minutes something held."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin.features.history.contract import ContainerHistory, GpuHistory, NodeHistory, Series
from gpu_device_plugin.model.telemetry import GpuTelemetry
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.report.rules.finding import Finding, lasting, note

RECENT_S = 15 * 60.0
"""What slows a pod now shows in these last seconds."""
LEAST_S = 120.0
"""What lasts for fewer seconds is a blip."""
_MATTERS = 1 / 3
"""A cause that holds for less of the time in which a pod works explains only a small part of its slowness."""
_WORKS_PERCENT = 5
"""A pod that keeps the multiprocessors busy for less of a step is idle in it: an idle GPU lowers clocks and link."""
_PAUSE_STEPS = 4
"""A cause that pauses for fewer steps goes on."""
_SHORTEST_STEP_S, _LONGEST_STEP_S = 0.1, RECENT_S

_IDLE = note("hardly-busy", "the pod hardly kept the multiprocessors busy")
_UNKNOWN = note("busy-unknown", "how busy the pod kept the multiprocessors is not known")


@dataclass(frozen=True, slots=True)
class Held:
    """Something that held for long enough in the last minutes to be the cause of something."""

    share: float
    """Part of the time in which it could have held, 0 to 1."""
    at: tuple[int, ...]
    """The steps in which it held."""
    period: Finding
    """How long it held, and since when without a pause or until when, as a clause."""


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """One GPU as one pod on it had it. All series have the same length, the newest step last."""

    gpu: GpuHistory
    condition: GpuTelemetry
    own: tuple[ContainerHistory, ...]
    """The pod's containers on this GPU."""
    others: tuple[ContainerHistory, ...]
    """Those of other pods that were there in the last minutes."""
    step_s: float
    at_s: float | None
    """When the newest values were read, seconds since the epoch; None: not known."""
    sm: Series
    """How busy the pod kept the multiprocessors, percent; how busy they were, if it is alone and no more is known."""
    used: Series
    """Memory that the pod used, MiB."""
    present: tuple[bool, ...]
    """Whether the pod was there."""
    recent: range
    """The steps of the last minutes."""

    @property
    def works(self) -> tuple[bool, ...]:
        """Whether the pod wanted the multiprocessors."""
        return tuple(value is not None and value >= _WORKS_PERCENT for value in self.sm)

    @property
    def holders(self) -> tuple[ContainerHistory, ...]:
        """The pod's containers that have what they were granted at the same time.

        A pod that replaces one of its name has its containers again, and an ordinary init container hands on its
        shares: what the earlier ones were granted is no more.
        """
        newest = {each.container: each for each in sorted(self.own, key=_last)}
        steps = len(self.recent)
        active = [each for each in newest.values() if any((*each.used_mib[-steps:], *each.sm_percent[-steps:]))]
        return tuple(active or newest.values())

    @property
    def short(self) -> Finding | None:
        """That the pod has not been there for long enough, as a clause; None: it has."""
        if (seen_s := self.lasted_s(self.present)) >= LEAST_S:
            return None
        text = "its figures cover {seen}, less than {least}"
        return note("history-short", text, seen=lasting(seen_s), least=lasting(LEAST_S))

    @property
    def unready(self) -> Finding | None:
        """Why nothing can be said about the pod's work, as a clause; None: something can."""
        if self.short or self.lasted_s(self.works) >= LEAST_S:
            return self.short
        return _IDLE if self.lasted_s([value is not None for value in self.sm]) >= LEAST_S else _UNKNOWN

    @property
    def untold(self) -> Finding:
        """Why the condition of the GPU lacks something, as a clause."""
        if self.gpu.uuid.startswith("MIG-"):
            return note("condition-of-no-instance", "MIG instances have none of their own")
        return note("condition-untold", "not read, or not reported by the driver")

    def lasted_s(self, flags: Sequence[bool]) -> float:
        """Return for how many of the last seconds a flag was set."""
        return sum(flags[at] for at in self.recent) * self.step_s

    def total(self, *series: Series) -> Series:
        """Return the sum of several series by step, with the length of the window; None where none is known."""
        return _total(series, len(self.sm))

    def held(self, flags: Sequence[bool | None], unknown: Finding, *, idle: bool = False) -> Held | Finding | None:
        """Return whether a flag was set for long enough while the pod worked, or with `idle` while it was there.

        A flag is None where it is not known; a clause says why it is not known for long enough, `unknown` or the pod.
        """
        during = self.present if idle else self.works
        known = [at for at, flag in enumerate(flags) if during[at] and flag is not None]
        of_s = sum(at in self.recent for at in known) * self.step_s
        if of_s < LEAST_S:
            return (self.short if idle else self.unready) or unknown
        steps = tuple(at for at in known if flags[at] and at in self.recent)
        for_s = len(steps) * self.step_s
        if for_s < max(LEAST_S, of_s * _MATTERS):
            return None
        first, pause = steps[-1], 0
        for at in reversed(known[: known.index(first)]):
            first, pause = (at, 0) if flags[at] else (first, pause + 1)
            if pause == _PAUSE_STEPS:
                break
        ended = steps[-1] < len(flags) - _PAUSE_STEPS
        end: Finding | str = ""
        if self.at_s is not None:
            ago = len(flags) - 1 - (steps[-1] if ended else first)
            then = rfc3339(self.at_s - ago * self.step_s)
            end = (
                note("lasted-until", ", until {at}", at=then) if ended else note("lasts-since", ", since {at}", at=then)
            )
        text = "for {part} of the {whole} in which the pod "
        held = note("held-there", f"{text}was there{{end}}", part=lasting(for_s), whole=lasting(of_s), end=end)
        if not idle:
            held = replace(held, code="held-working", text=f"{text}worked{{end}}")
        return Held(for_s / of_s, steps, held)


def windows(history: NodeHistory, namespace: str, pod: str, at_s: float | None) -> Iterator[GpuWindow]:
    """Yield the GPUs that a pod is on; none of a history whose steps have no usable length.

    `at_s` says when the newest values were read.
    """
    if not _SHORTEST_STEP_S <= history.step_s <= _LONGEST_STEP_S:
        return
    for gpu in history.gpus:
        there = [each for each in history.containers if each.gpu == gpu.gpu]
        there.sort(key=lambda each: (each.namespace, each.pod, each.container))
        own = tuple(each for each in there if (each.namespace, each.pod) == (namespace, pod))
        if not own:
            continue
        steps = int(RECENT_S / history.step_s)
        others = tuple(
            each
            for each in there
            if (each.namespace, each.pod) != (namespace, pod)
            and any(value is not None for value in (*each.used_mib[-steps:], *each.sm_percent[-steps:]))
        )
        all_series = [gpu.used_mib, gpu.sm_percent, gpu.throttle, gpu.pcie_percent]
        all_series += [one for each in there for one in (each.used_mib, each.sm_percent, each.cpu_throttled_percent)]
        length = max(map(len, all_series))
        used, sm = (_total([getattr(each, name) for each in own], length) for name in ("used_mib", "sm_percent"))
        present = tuple(memory is not None or busy is not None for memory, busy in zip(used, sm, strict=True))
        if not others and not any(value is not None for value in sm):
            whole = _total([gpu.sm_percent], length)
            sm = tuple(value if here else None for value, here in zip(whole, present, strict=True))
        recent = range(max(0, length - steps), length)
        now = gpu.condition or GpuTelemetry(gpu.uuid)
        yield GpuWindow(gpu, now, own, others, history.step_s, at_s, sm, used, present, recent)


def _last(container: ContainerHistory) -> int:
    """Return the last step in which a container was there, counted from the newest one, which is -1."""
    both = container.used_mib, container.sm_percent
    known = (at for values in both for at, value in enumerate(values, -len(values)) if value is not None)
    return max(known, default=-sys.maxsize)


def _total(series: Iterable[Series], length: int) -> Series:
    total: list[int | None] = [None] * length
    for values in series:
        for at, value in enumerate(values, length - len(values)):
            if value is not None:
                total[at] = value + (total[at] or 0)
    return tuple(total)
