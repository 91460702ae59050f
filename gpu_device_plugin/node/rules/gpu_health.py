"""The health of a GPU, how each observation changes it, and the node condition that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from gpu_device_plugin.model.gpus import Gpu
from gpu_device_plugin.node.rules.xids import UNKNOWN, XIDS, Verdict, XidMeaning
from gpu_device_plugin.report.rules.printing import shortened

# The actions that the driver asks for a GPU, by NVML's field 230 (``NVML_FI_DEV_GET_GPU_RECOVERY_ACTION``).
NO_ACTION = 0
# The domain ties nodes together over NVLink; this node's GPUs work without it, so it is only advice.
_ADVICE: Mapping[int, str] = {NO_ACTION: "", 5: "recover the IMEX domain"}
_WANTED: Mapping[int, str] = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "an end of peer-to-peer traffic",
    4: "the GPU to be drained and reset",
    6: "a reset of the GPU's bus",
    7: "a reboot of the whole system",
    # Not NVML's, whose numbers are not below 0: the kernel's WEDGED=vendor-specific, such as a flash of firmware.
    -1: "the recovery that its vendor describes",
}


@dataclass(frozen=True, slots=True)
class Xid:
    """The driver reported an XID for a GPU, or for MIG instances of it."""

    uuid: str
    """A GPU's; or, once `gi` and `ci` are resolved, a MIG instance's."""
    code: int
    gi: int | None = None
    """ID of the GPU instance that it concerns; None: the driver names none, so that it concerns the whole GPU."""
    ci: int | None = None
    """ID of the compute instance; None: it concerns all of the GPU instance."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One reading of a GPU. None means that this driver or GPU does not report the value."""

    uuid: str
    error: str | None = None
    """Why the GPU could not be read, as a clause; the fields below are then meaningless."""
    lost: bool = False
    """The error says that the GPU is gone, not merely that it could not be read."""
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the GPU was last reset (the volatile counter)."""
    remap_pending: bool | None = None
    """A damaged memory row (older GPUs: page) will be replaced at the next reset."""
    remap_failed: bool | None = None
    """A damaged memory row could not be replaced."""
    recovery_action: int | None = None
    """A number that may be one that only a newer driver knows."""
    processes: int | None = None
    """Compute processes that the driver shows us."""
    used_mib: int | None = None
    """Memory in use, without the driver's reserved memory, MiB."""
    mig: bool | None = None
    instances: tuple[str, ...] | None = None
    """The UUIDs of the MIG instances that a GPU in MIG mode has now. None: it is not in MIG mode, or unknown."""
    mig_changed: bool = False
    """The driver reported that the MIG instances of the GPU changed, or may have."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The driver no longer lists a GPU that it listed before."""

    uuid: str


@dataclass(frozen=True, slots=True)
class Unwatched:
    """The state of the GPU is unknown, for a reason outside the GPU."""

    uuid: str
    why: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """An administrator reports that the GPU was serviced; good readings count from here on."""

    uuid: str


Observation: TypeAlias = Xid | Probe | Gone | Unwatched | Cleared


@dataclass(frozen=True, slots=True)
class HealthRules:
    """The configurable rules of health."""

    ignored_xids: frozenset[int] = frozenset()
    """XIDs that never make a GPU unhealthy, in spite of the table."""
    fatal_xids: frozenset[int] = frozenset()
    """XIDs that always make a GPU unhealthy until it is reset, in spite of the table."""

    remap_pending_is_fatal: bool = False
    """Whether a GPU that needs a reset to replace damaged memory takes no new work; otherwise that is only advice."""


_DEFAULT_RULES = HealthRules()
_GOOD_READINGS = 3
"""The number of good readings in a row that ends a problem, if good readings can end it."""


class Cause(StrEnum):
    """Why a GPU is not offered."""

    UNWATCHED = "unwatched"
    LOST = "lost"
    UNREADABLE = "unreadable"
    FATAL_XID = "fatal XID"
    RESET = "reset"
    """It had a fatal XID and was reset since."""
    REMAP_FAILED = "row remap failed"
    REMAP_PENDING = "row remap pending"
    RECOVERY_ACTION = "recovery action"


@dataclass(frozen=True, slots=True)
class _Recovery:
    """The recovery from one cause."""

    until: str
    """The condition of recovery, for people."""
    ended: str
    """The fact that ended the problem, for people."""
    counts: Callable[[Probe], bool] = lambda _: True
    """Whether a good reading counts towards recovery, which takes `_GOOD_READINGS` of them in a row."""
    at_once: bool = False
    """One reading is enough, because the GPU itself never showed a fault."""


_ANSWERS = _Recovery("it returns to service once it answers reliably", "it answers again")
_RECOVERIES: Mapping[Cause, _Recovery] = {
    Cause.UNWATCHED: _Recovery("it returns to service once it can be read", "it is watched again", at_once=True),
    Cause.LOST: _ANSWERS,
    Cause.UNREADABLE: _ANSWERS,
    # A GPU can be read perfectly well after a fatal XID, so that alone proves nothing.
    Cause.FATAL_XID: _Recovery(
        "it returns to service after recovery",
        "the driver no longer asks for a recovery action",
        lambda probe: probe.recovery_action == NO_ACTION,
    ),
    Cause.RESET: _Recovery("it was reset, and returns to service once it answers reliably", "it was reset"),
    Cause.REMAP_FAILED: _Recovery(
        "reset the GPU, and replace it if that does not help",
        "the driver no longer reports a failure",
        lambda probe: probe.remap_failed is False,
    ),
    Cause.REMAP_PENDING: _Recovery(
        "drain the GPU and reset it",
        "no memory row waits for replacement",
        lambda probe: probe.remap_pending is False,
    ),
    Cause.RECOVERY_ACTION: _Recovery(
        "it returns to service after that",
        "the driver no longer asks for a recovery action",
        lambda probe: probe.recovery_action in _ADVICE,
    ),
}
_ORDER = {cause: position for position, cause in enumerate(Cause)}
_CAUSE_OF_XID = {Verdict.LOST: Cause.LOST, Verdict.RESET: Cause.FATAL_XID, Verdict.REBOOT: Cause.FATAL_XID}


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a GPU is not offered."""

    cause: Cause
    what: str
    """The reason as a clause, for people."""
    good: int = 0
    """Good readings in a row that count towards recovery from this problem."""


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """The health of one GPU as last observed."""

    problems: tuple[Problem, ...] = ()
    ecc_uncorrected: int | None = None
    remap_pending: bool = False
    recovery_action: int | None = None

    @property
    def healthy(self) -> bool:
        """Whether new work may be put on the GPU."""
        return not self.problems

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the GPU is unhealthy and what would end that: one clause for each problem; none if it is healthy."""
        return tuple(f"{problem.what}; {self._until(problem)}" for problem in self.problems)

    @property
    def notes(self) -> tuple[str, ...]:
        """Advice on findings that do not make the GPU unhealthy by themselves."""
        notes = []
        if self.remap_pending:
            notes.append("memory rows wait for replacement: drain the GPU and reset it when convenient")
        if self.ecc_uncorrected:
            notes.append(f"{self.ecc_uncorrected} uncorrectable memory errors since the last reset")
        if advice := _ADVICE.get(self.recovery_action or 0):
            notes.append(advice)
        return tuple(notes)

    def _until(self, problem: Problem) -> str:
        if problem.cause is Cause.FATAL_XID and self.recovery_action is None:
            return "this driver does not report its end: reset the GPU, then pause and resume or restart the agent"
        return _RECOVERIES[problem.cause].until


def with_cards(healths: Mapping[str, GpuHealth], gpus: Iterable[Gpu]) -> Mapping[str, GpuHealth]:
    """Return the healths by UUID, those about MIG instances with the problems of their GPUs."""
    of_instances = {
        gpu.uuid: _with_problems(own, {*own.problems, *healths[gpu.card].problems})
        for gpu in gpus
        if gpu.instance is not None and gpu.card in healths and (own := healths.get(gpu.uuid)) is not None
    }
    return {**healths, **of_instances}


def judge(code: int, rules: HealthRules = _DEFAULT_RULES) -> XidMeaning:
    """Return what XID `code` means. A code that is not in the table counts as one that needs a reset."""
    known = XIDS.get(code, UNKNOWN)
    if code in rules.fatal_xids:
        return replace(known, verdict=Verdict.RESET)
    if code in rules.ignored_xids:
        return replace(known, verdict=Verdict.INFORMATION)
    return known


def step(health: GpuHealth, observation: Observation, rules: HealthRules = _DEFAULT_RULES) -> GpuHealth:
    """Return the health of a GPU after one observation of it."""
    match observation:
        case Probe(error=None):
            return _read(health, observation, rules)
        case Probe(error=str(error), lost=lost):
            return _with(_interrupted(health), Problem(Cause.LOST if lost else Cause.UNREADABLE, error))
        case Xid(code=code):
            xid = judge(code, rules)
            cause = _CAUSE_OF_XID.get(xid.verdict)
            return health if cause is None else _with(health, Problem(cause, f"XID {code} ({xid.meaning})"))
        case Gone():
            # A GPU disappears when it is reset, when its machine reboots or when the driver is reloaded.
            return _with(_reset_seen(_interrupted(health)), Problem(Cause.LOST, "the driver no longer finds it"))
        case Unwatched(why=why):
            return _with(health, Problem(Cause.UNWATCHED, why))
        case _:  # Cleared
            return _reset_seen(health)


def change(before: GpuHealth, after: GpuHealth) -> str | None:
    """Return why a GPU became unhealthy or healthy in between, as a sentence; None if neither happened."""
    if before.healthy == after.healthy:
        return None
    if after.healthy:
        ended = (f"{problem.what}: {_RECOVERIES[problem.cause].ended}" for problem in before.problems)
        return f"healthy again ({'; '.join(ended)})"
    return f"unhealthy: {'. '.join(after.reasons)}"


def _read(health: GpuHealth, probe: Probe, rules: HealthRules) -> GpuHealth:
    was, now = health.ecc_uncorrected, probe.ecc_uncorrected
    if was is not None and now is not None and now < was:  # only a reset of the GPU clears this counter
        health = _reset_seen(health)
    read = GpuHealth(tuple(_remaining(health, probe)), now, bool(probe.remap_pending), probe.recovery_action)
    for problem in _shown(probe, rules):
        read = _with(read, problem)
    return read


def _remaining(health: GpuHealth, probe: Probe) -> Iterator[Problem]:
    """Yield the problems that a good reading does not end."""
    returned = any(problem.cause is Cause.LOST for problem in health.problems)
    for problem in health.problems:
        recovery = _RECOVERIES[problem.cause]
        # A driver that tells only by events which recovery it asks for has lost the GPU while it was recovered.
        silent = problem.cause is Cause.RECOVERY_ACTION and probe.recovery_action is None and returned
        good = problem.good + 1 if silent or recovery.counts(probe) else 0
        if good < (1 if recovery.at_once else _GOOD_READINGS):
            yield replace(problem, good=good)


def _shown(probe: Probe, rules: HealthRules) -> Iterator[Problem]:
    """Yield the problems that a reading shows by itself."""
    if probe.remap_failed:
        yield Problem(Cause.REMAP_FAILED, "a damaged memory row could not be replaced")
    if probe.remap_pending and rules.remap_pending_is_fatal:
        yield Problem(Cause.REMAP_PENDING, "damaged memory rows wait for replacement")
    if (action := probe.recovery_action) is not None and action not in _ADVICE:
        wanted = _WANTED.get(action, f"recovery action {action}")
        yield Problem(Cause.RECOVERY_ACTION, f"the driver asks for {wanted}")


def _with(health: GpuHealth, problem: Problem) -> GpuHealth:
    """Add a problem, or restart it: there is one for each cause, and one for each fatal XID."""
    return _with_problems(health, (*(p for p in health.problems if _which(p) != _which(problem)), problem))


def _which(problem: Problem) -> str:
    return problem.what if problem.cause in {Cause.FATAL_XID, Cause.RESET} else problem.cause


def _interrupted(health: GpuHealth) -> GpuHealth:
    """Restart the count of good readings."""
    return _with_problems(health, (replace(problem, good=0) for problem in health.problems))


def _reset_seen(health: GpuHealth) -> GpuHealth:
    """Let good readings, from here on, end the problems that a reset cures."""
    return _with_problems(
        health, (replace(p, cause=Cause.RESET) if p.cause is Cause.FATAL_XID else p for p in health.problems)
    )


def _with_problems(health: GpuHealth, problems: Iterable[Problem]) -> GpuHealth:
    # Sorted, so that the health does not depend on the order in which two problems were observed.
    ordered = sorted(problems, key=lambda problem: (_ORDER[problem.cause], problem.what))
    return replace(health, problems=tuple(ordered))


# --- The node condition GPUHealthy, by which tools that repair nodes see failed GPUs ----------------------------------

OWN_CAUSES = frozenset(Cause) - {Cause.UNWATCHED, Cause.RESET}
"""The causes that lie in the GPU itself and last."""


def failure(health: GpuHealth) -> str:
    """Return why a GPU has failed, as a clause; empty if it has not, or if that is not known."""
    if any(problem.cause is Cause.UNWATCHED for problem in health.problems):
        return ""
    return "; ".join(problem.what for problem in health.problems if problem.cause in OWN_CAUSES)


MOST_MESSAGE = 1024
"""Characters of the message. The API has no limit of its own."""


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """The condition's value."""

    status: str
    """``True``, ``False``, or ``Unknown``, which no tool repairs a node for."""
    reason: str
    message: str


def gpu_condition(gpus: Iterable[tuple[int, GpuHealth]], *, watched: bool, sentence: str) -> NodeCondition:
    """Return the condition of a node with these shared GPUs, by position; `watched`: the driver answers.

    `sentence` is the message while no GPU is shared or watched.
    """
    gpus = tuple(gpus)
    if not watched:
        return _of("Unknown", "NotWatched", sentence)
    if not gpus:
        return _of("Unknown", "NoGPU", sentence)
    failed = [f"GPU {position}: {why}" for position, health in gpus if (why := failure(health))]
    if failed:
        return _of("False", "GPUUnhealthy", ". ".join(failed))
    unsure = [f"GPU {position}: {'; '.join(health.reasons)}" for position, health in gpus if not health.healthy]
    if unsure:
        return _of("Unknown", "NotWatched", ". ".join(unsure))
    return _of("True", "GPUsHealthy", f"{len(gpus)} of {len(gpus)} GPUs are healthy")


def _of(status: str, reason: str, message: str) -> NodeCondition:
    return NodeCondition(status, reason, shortened(message, MOST_MESSAGE))
