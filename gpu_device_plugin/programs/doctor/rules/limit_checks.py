"""The checks of memory limits, of the MPS supervisor, and of real use: in a cluster, and on one node."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from gpu_device_plugin.features.elastic.contract import MemoryRequests, is_elastic
from gpu_device_plugin.features.elastic.report import why_not
from gpu_device_plugin.features.elastic.rules.promising import sizes
from gpu_device_plugin.features.limits.rules.enforcement import REFUSE, Lacks, enforcements, lacks, wanted_enforcement
from gpu_device_plugin.features.mps.contract import MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import lack
from gpu_device_plugin.features.use.report import does_not_hold, uses
from gpu_device_plugin.model.contract.keys import CONFIG_LABEL, DEFAULT_PROFILE, RESIZE_BOUND, SET_LIMITS_LABEL
from gpu_device_plugin.model.contract.node_use import asked_s, exceeds, not_held, trespasses
from gpu_device_plugin.model.contract.variables import DRIVER_LIMIT
from gpu_device_plugin.model.limits import AUTO, Enforcement, LimitStatus, summary
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.node.rules.node_config import ignored_labels
from gpu_device_plugin.programs.doctor.rules.container_checks import name
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, grouped, note, ok, warning
from gpu_device_plugin.report.rules.pod_causes import refusals
from gpu_device_plugin.report.rules.printing import age, container, first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpu_device_plugin.model.contract.node_use import ContainerUse, NodeReport
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms, NodeSeen, NodeSymptoms
    from gpu_device_plugin.report.rules.finding import Parameter

_GUIDE = "docs/guide.md says what each enforcement needs (How a memory limit is enforced)"
_START_MPS = (
    "kubectl apply -f deploy/optional/mps.yaml, patch the agents with deploy/patches/mps-agent.yaml, and see "
    "kubectl -n gpushare get pods -l app.kubernetes.io/component=mps -o wide"
)
_LIMITING_TOOLKIT = (1, 20, 1)
_DRIVER = wanted_enforcement(Enforcement.DRIVER, {})
_DETAILS = "{node}: {details}"
_RETURN_S = 120.0
"""A container that is asked to return memory for longer does not do it by itself."""
_SELF_GIVEN = "such a pod is privileged, or sets NVIDIA_VISIBLE_DEVICES itself; have it ask for its GPU memory"


# --- Limits -----------------------------------------------------------------------------------------------------------


def asked_enforcement(labels: Mapping[str, str], setting: str) -> Enforcement | None:
    """Return the weakest means that a node's labels, or else the setting `limits`, accept; None: any."""
    accepted = wanted_enforcement(setting if setting in set(Enforcement) else AUTO, labels).enforcements
    return accepted[-1] if accepted else None


def _asked_of(node: NodeSeen, cluster: ClusterSymptoms) -> Enforcement | None:
    """Return the same for a node of the cluster, by its settings profile."""
    by_profile, profile = cluster.limits_by_profile, node.labels.get(CONFIG_LABEL, "")
    return asked_enforcement(node.labels, by_profile.get(profile, by_profile.get(DEFAULT_PROFILE, "")))


def limits(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check which means of limiting each node has, and whether a node is to have a stronger one."""
    present: list[tuple[tuple[Enforcement, str], str]] = []
    for node in cluster.nodes:
        reported = node.report.limits
        if reported is None or not node.shares_gpus:
            continue
        refused = refusals(node.report)
        for refusal in refused:
            advice = f"{_GUIDE}; with limits_fallback: advisory containers start without a limit instead"
            yield error(refusal.code, f"{{node}}: {refusal.text}", advice, node=node.name, **refusal.parameters)
        asked = _asked_of(node, cluster)
        if asked is not None and not refused and reported.enforcement.strength < asked.strength:
            text = "{node}: its limits are {limits}: {why}"
            yield warning(
                "limits-too-weak", text, _GUIDE, node=node.name, limits=reported.enforcement, why=reported.why
            )
        elif not refused:
            present.append(((reported.enforcement, reported.why), node.name))
    for (enforcement, why), nodes in sorted(grouped(present).items()):
        firm = enforcement in {Enforcement.PARTITION, Enforcement.DRIVER, Enforcement.MPS}
        text = "{limits} on {nodes}: {why}"
        yield (
            ok("limits", text, limits=enforcement, nodes=nodes, why=why)
            if firm
            else note("limits-soft", text, _GUIDE, limits=enforcement, nodes=nodes, why=why)
        )


def limits_here(node: NodeSymptoms) -> Iterator[Finding]:
    """Check by which means the memory limits of containers hold on one node, and why."""
    if node.extra_grant_problem:
        text = "the agent does not start: {problem}"
        yield error("extra-grant-unusable", text, "correct it, or empty extra_grant", problem=node.extra_grant_problem)
        return
    if node.invented:
        yield ok("invented", "invented GPUs have none")
        return
    if node.driver_problem:
        yield Unknown("no-driver", "advisory as long as no driver answers")
        return
    want = wanted_enforcement(node.limits, node.labels)
    if ignored := ignored_labels(node.labels).get(SET_LIMITS_LABEL):
        yield warning("label-ignored", "{problem}", "correct the label, or remove it", problem=ignored)
    gpus = dict(enumerate(node.given))
    given_whole = {n for n, gpu in gpus.items() if gpu.instance is not None and node.mig_in_force is MigMode.WHOLE}
    own = lacks(node.inventory.cgroup, extra_grant=node.extra_grant)
    means: Lacks = {**own, Enforcement.MPS: partial(lack, node.mps)}
    made, missing = enforcements(gpus, means, want, refuse=node.limits_fallback == REFUSE, partitions=given_whole)
    present = {gpu.enforcement for gpu in made.values()}
    version = node.inventory.driver_version or "of an unknown version"
    if missing:
        refused = node.limits_fallback == REFUSE and want.required
        yield (error if refused else warning)(
            "limits-missing",
            "{missing} (driver {version})",
            "provide what is missing, or ask for other means by the setting limits or the node label "
            "gpu-device-plugin/set-limits; limits_fallback: advisory shares without",
            missing=missing,
            version=version,
        )
    elif Enforcement.ADVISORY in present or not gpus:
        advisory = [gpus[position] for position, gpu in made.items() if gpu.enforcement is Enforcement.ADVISORY]
        on_instances = bool(advisory) and all(gpu.instance is not None for gpu in advisory)
        yield note(
            "limits-advisory-mig" if on_instances else "limits-advisory",
            "{limits} (driver {version})",
            "a container reads in GPUSHARE_MEMORY_LIMIT_MIB how much memory it may use, and nothing holds it to that"
            + ("" if on_instances else "; NVIDIA's MPS limits each process with this driver too: limits: mps"),
            limits=summary(made) or "there is no GPU",
            version=version,
        )
    elif present - {Enforcement.PARTITION} == {Enforcement.DRIVER}:
        yield _by_the_driver(version, node.toolkit)
    else:
        soft = Enforcement.CUSTOM in present
        yield (note if soft else ok)("limits-soft" if soft else "limits", "{limits}", limits=summary(made))
    yield from _left_from_before(node, version)


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


def _left_from_before(node: NodeSymptoms, version: str) -> Iterator[Finding]:
    """Find containers that the toolkit's hook keeps from starting again: earlier agents always set its variables."""
    whole = [gpu for gpu in node.inventory.gpus if gpu.instance is None]
    fit = [gpu for gpu in whole if not gpu.mig] or whole
    _, unable = enforcements(dict(enumerate(fit)), lacks(node.inventory.cgroup), _DRIVER, refuse=False)
    toolkit = node.toolkit
    old = isinstance(toolkit, str) and _numbers(toolkit) < _LIMITING_TOOLKIT
    if node.with_driver_limits and unable and not old:
        yield warning(
            "containers-will-not-restart",
            f"nvidia-container-toolkit {{toolkit}} in its CDI modes does not start containers with {DRIVER_LIMIT} on "
            "this node, and an earlier agent gave it to {containers}: driver {version} has no memory limits, or "
            "cgroups are not of version 2",
            "delete these pods, so that they are made again without it, before a container of theirs restarts",
            toolkit="1.20.1 or newer" if isinstance(toolkit, Unknown) else toolkit,
            containers=node.with_driver_limits,
            version=version,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", version)[:3])


# --- The MPS supervisor -----------------------------------------------------------------------------------------------


def supervisors(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that a supervisor is ready on each node whose limits are to be those of MPS."""
    ready = {part.node for part in cluster.supervisors if part.ready}
    wanting = set[str]()
    for node in cluster.nodes:
        present = None if node.report.limits is None else node.report.limits.enforcement
        # ACK's label cgpu prefers the driver's limits.
        asked = _asked_of(node, cluster) is Enforcement.MPS and present is not Enforcement.DRIVER
        if node.shares_gpus and (asked or present is Enforcement.MPS):
            wanting.add(node.name)
    if missing := wanting - ready:
        text = "no MPS supervisor is ready on {nodes}, whose limits are to be those of MPS"
        yield error("no-supervisor", text, _START_MPS, nodes=tuple(missing))
    elif wanting:
        yield ok("supervisors", "a supervisor is ready on {nodes:node}", nodes=len(wanting))


def supervisor(node: NodeSymptoms) -> Iterator[Finding]:
    """Check the supervisor of this node, and its daemon on each GPU."""
    names = {gpu.uuid: name(gpu, node) for gpu in node.inventory.gpus}
    if asked_enforcement(node.labels, node.limits) is not Enforcement.MPS:
        for uuid in node.mps_left:
            yield warning(
                "mps-left",
                "{gpu} was run by an MPS supervisor that is gone, and may still be in the compute mode "
                "EXCLUSIVE_PROCESS, in which a second program fails",
                "nvidia-smi -i {uuid} -c DEFAULT; then remove {file}",
                gpu=names.get(uuid, f"GPU ? ({uuid})"),
                uuid=uuid,
                file=node.mps_state_file,
            )
        return
    if isinstance(node.mps, str):
        yield error("no-supervisor", "the limits are to be those of MPS, and {why}", _START_MPS, why=node.mps)
        return
    ill = {uuid: gpu for uuid, gpu in node.mps.items() if gpu.status in {MpsStatus.FAULT, MpsStatus.FAILED}}
    for uuid, gpu in sorted(ill.items()):
        yield warning(
            f"mps-{gpu.status}",
            "the MPS daemon of {gpu} is in the state {state}",
            "a daemon in FAULT serves again once its clients have ended, and one that failed is started again; see "
            "the supervisor's log",
            gpu=names.get(uuid, f"GPU ? ({uuid})"),
            state=": ".join(filter(None, (gpu.status, gpu.why))),
        )
    if not ill:
        yield ok("supervisor", "the supervisor runs, with {gpus:GPU}", gpus=len(node.mps))


# --- Use --------------------------------------------------------------------------------------------------------------


def held(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the driver has the limits that containers were granted."""
    findings: list[Finding] = []
    for node in cluster.nodes:
        if broken := [part for part in node.report.current if not_held(part)]:
            advice = (
                "a container keeps the limit that it was started with: correct what the line names, and delete the "
                "pod; docs/guide.md has more (How a memory limit is enforced)"
            )
            findings.append(warning("limits-not-held", _DETAILS, advice, **_details(node.name, broken, does_not_hold)))
        unread = [
            (part.why, container(part))
            for part in node.report.current
            if part.enforcement is Enforcement.DRIVER and part.held is LimitStatus.UNVERIFIED
        ]
        for why, names in sorted(grouped(unread).items()):
            text = "{node}: whether the limit holds is not known of {containers}" + (": {why}" if why else "")
            findings.append(note("limits-unverified", text, node=node.name, containers=names, why=why))
    yield from findings
    if findings:
        return
    holding = [
        part.enforcement for node in cluster.nodes for part in node.report.current if part.held is LimitStatus.HELD
    ]
    instances = holding.count(Enforcement.PARTITION)
    text = "{by} holds {containers:container} to the granted memory"
    if by_driver := len(holding) - instances:
        yield ok("limits-held", text, by="the driver", containers=by_driver)
    if instances:
        yield ok("limits-held", text, by="the hardware (MIG)", containers=instances)


def wishes(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the memory which owners want for running pods can be given, and is."""
    resources = (Resource(Kind.MEMORY, cluster.memory_resource),)
    shares = {(node.name, gpu.position): gpu.shares for node in cluster.nodes for gpu in node.gpus.gpus}
    pods = [seen.elastic for seen in cluster.pods if seen.elastic is not None and is_elastic(seen.elastic.annotations)]
    findings = [finding for pod in pods for finding in _unfulfilled(pod, resources, shares)]
    yield from findings
    if pods and not findings:
        yield ok("wishes", "{pods:pod} with a guarantee or a limit of their owners, as these want it", pods=len(pods))


def _unfulfilled(pod: Pod, resources: Sequence[Resource], shares: Mapping[tuple[str, int], int]) -> Iterator[Finding]:
    name, again = f"{pod.namespace}/{pod.name}", f"kubectl inspect gpushare resize {pod.name} -n {pod.namespace}"
    requests = MemoryRequests.of(pod.annotations)
    for problem in requests.malformed:
        yield warning("wish-malformed", "{pod}: {problem}", f"{again} AMOUNT", pod=name, problem=problem)
    for size in sizes(pod, resources):
        most = shares.get((pod.node_name, size.gpu))
        wanted = max(requests.limit.of(size.container) or 0, size.wish or 0)
        if most is not None and wanted > most:
            text = "{pod}: {wanted} units for container {container} are more than its GPU has, {most}"
            yield warning("wish-too-large", text, f"{again} AMOUNT --limit {most}", pod=name, wanted=wanted,
                          container=size.container, most=most)  # fmt: skip
        elif pod.running and (why := why_not(pod, size)):
            bound = (
                f"kubectl label namespace {pod.namespace} --overwrite {RESIZE_BOUND}=N, the sum of units that its pods "
                "may have beyond their requests"
            )
            advice = bound if RESIZE_BOUND in why else f"{again} AMOUNT; with --clear it stays as it is"
            text = "{pod}: container {container} is guaranteed {held} units instead of {target}: {why}"
            yield note("resize-waits", text, advice, pod=name, container=size.container, held=size.held,
                       target=size.target, why=why)  # fmt: skip


def use(cluster: ClusterSymptoms) -> Iterator[Finding]:
    """Check that the use of GPU memory is known, and that no container uses more than it was granted."""
    for node in cluster.nodes:
        for problem in node.report_problems:
            advice = "upgrade the older of agent and reader"
            yield warning("report-unreadable", "{node}: {problem}", advice, node=node.name, problem=problem)
    reading = [(use, node) for node in cluster.nodes if (use := node.report.use) is not None]
    for why, names in sorted(grouped((use.blind, node.name) for use, node in reading if use.blind).items()):
        text = "which container uses how much GPU memory is not known on {nodes}: {why}"
        advice = (
            "hostPID: true in the agent's DaemonSet lets NVML name processes of other pods; without it neither "
            "over-use nor trespassing is seen"
        )
        yield note("use-unknown", text, advice, nodes=names, why=why)
    seeing = [node for use, node in reading if not use.blind]
    findings = [
        finding for node in seeing for finding in _used(node.name, node.report, agent_ready=node.name in cluster.ready)
    ]
    yield from findings
    current = sum(not node.report.stale for node in seeing)
    if current and not findings:
        yield ok("use", "read on {nodes:node}: every container keeps within its part", nodes=current)


def _used(node: str, report: NodeReport, *, agent_ready: bool) -> Iterator[Finding]:
    if report.stale and agent_ready:
        text = "{node}: its agent read last {age} who uses how much GPU memory"
        advice = "see its log; with usage_interval: 0s it does not read it, and a clock that is wrong shows so too"
        yield warning("use-outdated", text, advice, node=node, age=age(report.use_age_s))
    strangers = [part for part in report.current if trespasses(part)]
    if many := [part for part in strangers if exceeds(part)]:
        advice = f"{_SELF_GIVEN}; deploy/policies.yaml refuses the variable"
        yield warning("trespassing", _DETAILS, advice, **_details(node, many, uses))
    if few := [part for part in strangers if not exceeds(part)]:
        yield note("trespassing-little", _DETAILS, _SELF_GIVEN, **_details(node, few, uses))
    if kept := [part for part in report.current if (asked_s(report, part) or 0.0) > _RETURN_S]:
        advice = (
            "its program should follow its memory file (docs/elastic.md), or end; with borrowers: evict the agent "
            "evicts such pods"
        )
        yield warning("memory-not-returned", _DETAILS, advice, **_details(node, kept, uses))
    if over := [part for part in report.current if exceeds(part) and not trespasses(part)]:
        advice = (
            "give its program less memory, or the pod more; with over_use: evict, or evict-when-short, the agent "
            "evicts such pods (docs/guide.md)"
        )
        yield warning("over-use", _DETAILS, advice, **_details(node, over, uses))


def _details(node: str, parts: Sequence[ContainerUse], say: Callable[[ContainerUse], str]) -> dict[str, Parameter]:
    """Return the parameters of a finding about containers of a node; of many the first ones are told in full."""
    details = first([f"{container(part)} {say(part)}" for part in parts], separator="; ")
    return {"node": node, "containers": tuple(map(container, parts)), "details": details}
