"""Tell by which means memory limits hold, and whether they do: as states, and as checks of the doctor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_device_plugin.features.limits import LimitSettings
from gpu_device_plugin.features.limits.rules.enforcement import (
    REFUSE,
    Facts,
    asked_of,
    enforcements,
    lacks,
    wanted_enforcement,
)
from gpu_device_plugin.features.use.report import DETAILS, details, does_not_hold
from gpu_device_plugin.model.contract.keys import SET_LIMITS_LABEL
from gpu_device_plugin.model.contract.node_use import ContainerUse, not_held
from gpu_device_plugin.model.contract.variables import DRIVER_LIMIT
from gpu_device_plugin.model.gpus import NVIDIA, Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, LimitStatus, summary
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.node.rules.node_config import ignored_labels
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, grouped, note, ok, warning
from gpu_device_plugin.report.rules.node_view import ExaminedNode, GpuView, NodeView, State
from gpu_device_plugin.report.rules.pod_causes import refusals
from gpu_device_plugin.report.rules.printing import container, mib

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

_GUIDE = "docs/guide.md says what each enforcement needs (How a memory limit is enforced)"
_LIMITING_TOOLKIT = (1, 20, 1)
_DRIVER = wanted_enforcement(Enforcement.DRIVER, {})

_HOLDERS = {
    Enforcement.DRIVER: "the driver",
    Enforcement.DMEM: "the kernel (dmem)",
    Enforcement.PARTITION: "the hardware (MIG)",
}
"""Whose limits can be read back, or need not be."""
_BROKEN = (LimitStatus.DIFFERS, LimitStatus.MISSING)
"""The worse one last."""


def limits_of_gpu(node: NodeView, view: GpuView) -> Iterator[State]:
    """Yield whether shares of a GPU are refused, and whether it has other limits than its node."""
    here, of_node = node.report.enforcement(view.gpu.position), node.report.limits
    if here is None or of_node is None:
        return
    if why := here.refusal:
        yield State(9, "refused", Tone.WARNING, f"shares are refused: {why}", {"why": why})
    # The node's own, which is the weakest, is not looked for where all are the same.
    differs = any(each.enforcement is not here.enforcement for each in of_node.gpus.values())
    if differs and here.enforcement is not of_node.enforcement:
        limits = here.enforcement.value
        yield State(14, "other-limits", Tone.PLAIN, f"limits: {limits}", {"limits": limits})


def not_held_states(_: NodeView, parts: Sequence[ContainerUse]) -> Iterable[State]:
    """Return whether a limit of containers does not hold."""
    broken = [part for part in parts if part.held in _BROKEN]
    if not broken:
        return ()
    worst = max(broken, key=lambda part: _BROKEN.index(part.held))
    by = "kernel" if worst.enforcement is Enforcement.DMEM else "driver"
    found = f"no {by} limit" if worst.found_mib is None else f"{by} limit {mib(worst.found_mib)}"
    text, word = f"{found}, granted {mib(worst.most_mib)}", "limit not as granted"
    said = {"held": f"{worst.held}", "foundMiB": worst.found_mib, "grantedMiB": worst.most_mib}
    return [State(4, "limit-not-held", Tone.BAD, text, said, word, counted=word)]


def limits(nodes: Iterable[ExaminedNode], by_profile: Mapping[str, str]) -> Iterator[Finding]:
    """Check which means of limiting each node has, and whether a node is to have a stronger one; see `asked_of`."""
    present: list[tuple[tuple[Enforcement, str], str]] = []
    for node in nodes:
        reported = node.report.limits
        if reported is None or not node.shares_gpus:
            continue
        refused = refusals(node.report)
        for refusal in refused:
            advice = f"{_GUIDE}; with limits_fallback: advisory containers start without a limit instead"
            yield error(refusal.code, f"{{node}}: {refusal.text}", advice, node=node.name, **refusal.parameters)
        asked = asked_of(node, by_profile)
        if asked is not None and not refused and reported.enforcement.strength < asked.strength:
            text = "{node}: its limits are {limits}: {why}"
            yield warning(
                "limits-too-weak", text, _GUIDE, node=node.name, limits=reported.enforcement, why=reported.why
            )
        elif not refused:
            present.append(((reported.enforcement, reported.why), node.name))
    for (enforcement, why), names in sorted(grouped(present).items()):
        firm = enforcement in {Enforcement.PARTITION, Enforcement.DRIVER, Enforcement.DMEM, Enforcement.MPS}
        text = "{limits} on {nodes}: {why}"
        yield (
            ok("limits", text, limits=enforcement, nodes=names, why=why)
            if firm
            else note("limits-soft", text, _GUIDE, limits=enforcement, nodes=names, why=why)
        )


def limits_here(  # noqa: PLR0917 - what a check reads
    every: NodeSettings,
    labels: Mapping[str, str],
    inventory: Inventory,
    gpus: Sequence[Gpu],
    mode: MigMode,
    mps: Callable[[Gpu], str],
    toolkit: str | Unknown,
    driver_problem: str,
    extra_grant_problem: str,
    invented: bool,  # noqa: FBT001 - as above
    with_driver_limits: tuple[str, ...],
    dmem: Facts,
) -> Iterator[Finding]:
    """Check by which means the memory limits of containers hold on one node, and why.

    `gpus` are the GPUs and MIG instances that pods can get; `mps` says why MPS cannot limit one, and `toolkit` the
    version of NVIDIA's container toolkit; empty: it is not installed.
    """
    if extra_grant_problem:
        text = "the agent does not start: {problem}"
        yield error("extra-grant-unusable", text, "correct it, or empty extra_grant", problem=extra_grant_problem)
        return
    if invented:
        yield ok("invented", "fake GPUs have none")
        return
    if driver_problem:
        yield Unknown("no-driver", "advisory as long as no driver answers")
        return
    settings, given, whole = every.of(LimitSettings), dict(enumerate(gpus)), mode is MigMode.WHOLE
    instances = {position for position, gpu in given.items() if whole and gpu.instance is not None}
    if ignored := ignored_labels(labels).get(SET_LIMITS_LABEL):
        yield warning("label-ignored", "{problem}", "correct the label, or remove it", problem=ignored)
    want, refuse = wanted_enforcement(settings.limits, labels), settings.limits_fallback == REFUSE
    known = lacks(inventory.cgroup, extra_grant=settings.extra_grant is not None, dmem=dmem)
    means = {**known, Enforcement.MPS: mps}
    made, missing = enforcements(given, means, want, refuse=refuse, partitions=instances)
    present, version = {gpu.enforcement for gpu in made.values()}, _version(inventory)
    if missing:
        refused = refuse and want.required
        yield (error if refused else warning)(
            "limits-missing",
            "{missing} (driver {version})",
            "provide what is missing, or choose another enforcement by the setting limits or the node label "
            "gpu-device-plugin/set-limits; limits_fallback: advisory shares without",
            missing=missing,
            version=version,
        )
    elif Enforcement.ADVISORY in present or not given:
        advisory = [given[position] for position, gpu in made.items() if gpu.enforcement is Enforcement.ADVISORY]
        on_instances = bool(advisory) and all(gpu.instance is not None for gpu in advisory)
        no_mps = on_instances or all(gpu.driver != NVIDIA for gpu in advisory)
        yield note(
            "limits-advisory-mig" if on_instances else "limits-advisory",
            "{limits} (driver {version})",
            "a container reads in GPUSHARE_MEMORY_LIMIT_MIB how much memory it may use, and nothing holds it to that"
            + ("" if no_mps else "; NVIDIA's MPS limits each process with this driver too: limits: mps"),
            limits=summary(made) or "there is no GPU",
            version=version,
        )
    elif present - {Enforcement.PARTITION} == {Enforcement.DRIVER}:
        yield _by_the_driver(version, toolkit)
    else:
        soft = Enforcement.CUSTOM in present
        yield (note if soft else ok)("limits-soft" if soft else "limits", "{limits}", limits=summary(made))
    yield from left_from_before(inventory, with_driver_limits, toolkit)


def _by_the_driver(version: str, toolkit: str | Unknown) -> Finding:
    if isinstance(toolkit, Unknown):
        text = "driver {version} can limit memory (cgroup), if nvidia-container-toolkit is 1.20.1 or newer: {why}"
        return Unknown("toolkit-unknown", text, "{advice}", version=version, why=str(toolkit), advice=toolkit.advice)
    if _numbers(toolkit) < _LIMITING_TOOLKIT:
        text = (
            "advisory: driver {version} can limit memory (cgroup), and only nvidia-container-toolkit asks it to, from "
            "1.20.1 on (now {toolkit})"
        )
        advice = "install a newer nvidia-container-toolkit on the node"
        return note("toolkit-too-old", text, advice, version=version, toolkit=toolkit or "none")
    text = "cgroup: driver {version} and nvidia-container-toolkit {toolkit} hold containers to their memory"
    return ok("limits", text, version=version, toolkit=toolkit)


def left_from_before(inventory: Inventory, containers: tuple[str, ...], toolkit: str | Unknown) -> Iterator[Finding]:
    """Find containers that the toolkit's hook keeps from starting again: earlier agents always set its variables.

    `containers` are those with the variables of the driver's limits.
    """
    whole = [gpu for gpu in inventory.gpus if gpu.instance is None]
    fit = [gpu for gpu in whole if not gpu.mig] or whole
    _, unable = enforcements(dict(enumerate(fit)), lacks(inventory.cgroup), _DRIVER, refuse=False)
    old = isinstance(toolkit, str) and _numbers(toolkit) < _LIMITING_TOOLKIT
    if containers and unable and not old:
        yield warning(
            "containers-will-not-restart",
            f"nvidia-container-toolkit {{toolkit}} in its CDI modes does not start containers with {DRIVER_LIMIT} on "
            "this node, and an earlier agent gave it to {containers}: driver {version} has no memory limits, or "
            "cgroups are not of version 2",
            "delete these pods, so that they are made again without it, before a container of theirs restarts",
            toolkit="1.20.1 or newer" if isinstance(toolkit, Unknown) else toolkit,
            containers=containers,
            version=_version(inventory),
        )


def _version(inventory: Inventory) -> str:
    return inventory.driver_version or "of an unknown version"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])


def held(nodes: Sequence[ExaminedNode]) -> Iterator[Finding]:
    """Check that the driver, or the kernel, has the limits that containers were granted."""
    findings: list[Finding] = []
    for node in nodes:
        if broken := [part for part in node.report.current if not_held(part)]:
            advice = (
                "a container keeps the limit that it was started with: correct what the line names, and delete the "
                "pod; docs/guide.md has more (How a memory limit is enforced)"
            )
            findings.append(warning("limits-not-held", DETAILS, advice, **details(node.name, broken, does_not_hold)))
        unread = [
            (part.why, container(part))
            for part in node.report.current
            if part.enforcement in {Enforcement.DRIVER, Enforcement.DMEM} and part.held is LimitStatus.UNVERIFIED
        ]
        for why, names in sorted(grouped(unread).items()):
            text = "{node}: whether the limit holds is not known of {containers}" + (": {why}" if why else "")
            findings.append(note("limits-unverified", text, node=node.name, containers=names, why=why))
    yield from findings
    if findings:
        return
    holding = [part.enforcement for node in nodes for part in node.report.current if part.held is LimitStatus.HELD]
    text = "{by} holds {containers:container} to the granted memory"
    for enforcement, by in _HOLDERS.items():
        if containers := holding.count(enforcement):
            yield ok("limits-held", text, by=by, containers=containers)
