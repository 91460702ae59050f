"""Explain pods that get their GPUs through ResourceClaims, and show claims in tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_device_plugin.features.claims.claimed_gpus import (
    ask_of_claims,
    asks_for_instances,
    asks_for_ours,
    for_claims,
    free_instances,
    label,
    pools,
    taken,
    waits_for_ours,
)
from gpu_device_plugin.features.claims.contract import (
    DRIVER,
    MIG_CLASS,
    RESOURCE_CLAIMS,
    SHARED_CLASS,
    WHOLE_CLASS,
    Claim,
    Device,
    DeviceRequest,
    parse_device_name,
)
from gpu_device_plugin.features.claims.rules.pool import Present
from gpu_device_plugin.features.use.report import lent
from gpu_device_plugin.model.contract.keys import SERVE_LABEL
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.model.pods import Pod, PodClaim
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.columns import Tone
from gpu_device_plugin.report.rules.extension import Explanation
from gpu_device_plugin.report.rules.finding import Finding, Unknown, error, few, grouped, note, ok, warning
from gpu_device_plugin.report.rules.node_answers import memory_of, whole_gpus
from gpu_device_plugin.report.rules.node_view import ExaminedNode, NodeView, State
from gpu_device_plugin.report.rules.pod_causes import (
    being_deleted,
    events_told,
    gated,
    has_ended,
    on_node,
    refusals,
    scheduler_says,
    status_says,
)
from gpu_device_plugin.report.rules.printing import gib
from gpu_device_plugin.report.rules.terminal_tables import PodRow, row_waiting
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

CLAIMS = "claims"
"""The word for a node whose GPUs are given to ResourceClaims."""


def claim_causes(
    pod: Pod, status: SchedulingStatus, claims: Mapping[str, Claim] | None, nodes: Mapping[str, NodeView] | None
) -> tuple[list[Finding], tuple[Claim, ...]]:
    """Return the causes, and the claims that wait for GPUs of ours, if nodes should be explained as well.

    `claims` has the ResourceClaims of the pod's namespace, `nodes` every node that shares GPUs, by name; None: unknown.
    """
    if pod.ended:
        return [has_ended(pod, status), *events_told(status)], ()
    if pod.deleting and not pod.node_name:
        return [being_deleted(pod), *events_told(status)], ()
    own = [claims[each.claim] for each in status.claims if claims and each.claim in claims]
    waiting = tuple(filter(waits_for_ours, own))
    states = [finding for each in status.claims for finding in _claim(each, pod.namespace, claims, nodes)]
    if pod.node_name:
        if pod.phase == "Pending" and not pod.running and not pod.deleting:
            # The kubelet prepares claims before it starts containers.
            text = "Its node prepares its claims before its containers start"
            told = "; its Events say why not:" if status.events else ", and no Event reports a problem."
            states.append(note("preparing-fails" if status.events else "preparing", f"{text}{told}"))
        if nodes is not None and pod.node_name in nodes:
            states += lent(pod, nodes[pod.node_name].report)
        return [on_node(pod), *status_says(status), *states, *events_told(status)], ()
    free = _instances(waiting, nodes)
    return [*gated(status), *states, *free, *scheduler_says(status), *events_told(status)], waiting


def _claim(
    each: PodClaim, namespace: str, claims: Mapping[str, Claim] | None, nodes: Mapping[str, NodeView] | None
) -> Iterator[Finding]:
    if not each.claim and each.template:
        text = (
            "No ResourceClaim exists yet for its entry {entry}: kube-controller-manager makes it from the template "
            "{template}; see kubectl -n {namespace} get resourceclaimtemplate {template}."
        )
        yield note("claim-not-made", text, entry=each.entry, template=each.template, namespace=namespace)
    elif not each.claim:
        entry = each.entry or "(extended resource)"
        yield note("entry-without-claim", "Its entry {entry} has no ResourceClaim.", entry=entry)
    elif claims is None:
        yield note("claim-unknown", "ResourceClaim {claim} is not known here.", claim=each.claim)
    elif each.claim not in claims:
        text = "There is no ResourceClaim {claim} in the namespace {namespace}."
        yield note("no-such-claim", text, claim=each.claim, namespace=namespace)
    else:
        yield from _state(claims[each.claim], nodes)


def _state(claim: Claim, nodes: Mapping[str, NodeView] | None) -> Iterator[Finding]:
    name = claim.name
    if not claim.allocated:
        asks = tuple(map(_asked, claim.requests)) or (note("nothing", "nothing"),)
        text = "ResourceClaim {claim} is not allocated yet; it asks for {amount}."
        yield note("claim-not-allocated", text, claim=name, amount=note("asks", "{asks:+ and }", asks=asks))
        return
    for device in taken(claim):
        yield note("claim-has", "ResourceClaim {claim} has {device}.", claim=name, device=_had(device, nodes))
    if any(device.admin for device in claim.devices_of(DRIVER)):
        text = "ResourceClaim {claim} has admin access to GPUs that others hold."
        yield note("claim-has-access", text, claim=name)
    if not claim.devices_of(DRIVER):
        yield note("claim-of-others", f"ResourceClaim {{claim}} is allocated, with no device of {DRIVER}.", claim=name)


def _instances(waiting: Iterable[Claim], nodes: Mapping[str, NodeView] | None) -> Iterator[Finding]:
    """Yield which MIG instances are free, if a claim waits for one: its selectors decide which of them will do."""
    if not nodes or not any(asks_for_instances(request) for claim in waiting for request in claim.requests):
        return
    free = [
        note(
            "has-instances",
            "{node} has {instances:+, }",
            node=name,
            instances=tuple(f"{profile} ({count})" for profile, count in sorted(instances.items())),
        )
        for name, node in sorted(nodes.items())
        if node.candidate.gpus.claims and (instances := free_instances(node))
    ]
    if free:
        text = (
            "Whole MIG instances that no claim has: {instances}. The selectors of the request decide which of them "
            "will do."
        )
        yield note("instances-free", text, instances=few(free, "; "))
    else:
        text = "No node that serves claims has a healthy MIG instance that no claim holds."
        yield note("no-instance-free", text)


def _had(device: Device, nodes: Mapping[str, NodeView] | None) -> Finding:
    node = (nodes or {}).get(device.pool)
    uuid = parse_device_name(device.name)
    listed = () if node is None else (*node.candidate.gpus.all, *node.candidate.gpus.gone)
    gpu = next((gpu for gpu in listed if gpu.uuid.lower() == uuid.lower() and uuid), None)
    return note(
        "device",
        "{amount} of GPU {gpu}" + ("" if gpu is None else " ({facts:+, })") + " on node {node}",
        amount=note("all", "all") if device.whole else format_mib(device.memory_mib or 0),
        gpu=device.name if gpu is None else gpu.position,
        facts=() if gpu is None else (gpu.model, gpu.uuid),
        node=device.pool,
    )


def _asked(request: DeviceRequest) -> Finding:  # noqa: PLR0911
    """Return what a request asks for, as the end of a sentence."""
    if request.admin:
        return note("admin-access", "admin access to GPUs that others hold")
    if not asks_for_ours(request):
        text = (
            f"devices of the class {{name}}, which is not one of ours ({SHARED_CLASS}, {WHOLE_CLASS}, {MIG_CLASS}), so "
            "that its nodes are not explained here"
        )
        return note("devices-of-others", text, name=request.device_class)
    count = request.count
    if asks_for_instances(request):
        if not count:
            return note("every-instance", "every MIG instance that matches")
        return note("whole-instances", "one whole MIG instance" if count == 1 else "{n} whole MIG instances", n=count)
    if request.device_class == WHOLE_CLASS:
        return whole_gpus(count) if count else note("every-gpu", "every GPU that matches")
    smallest = note("smallest-part", "the smallest amount")
    memory = smallest if request.memory_mib is None else format_mib(request.memory_mib)
    if count == 1:
        return memory_of(memory, 1)
    several = "memory-of-each-gpu", "{memory} of each of {n} GPUs"
    return note(
        *(several if count else ("memory-of-every-gpu", "{memory} of every GPU that matches")), memory=memory, n=count
    )


def asked_by_claims(claims: Iterable[Claim]) -> Finding:
    """Return what claims wait for, as the end of a sentence."""
    asked = tuple(each for claim in claims for each in asked_amounts(claim))
    return note("through-claims", "{asks:+ and }, through ResourceClaims", asks=asked)


def asked_amounts(claim: Claim) -> tuple[Finding, ...]:
    """Return what a claim asks for of our devices."""
    return tuple(_asked(request) for request in claim.requests if asks_for_ours(request))


def by_claim_instead(asked: GpuRequest, nodes: Sequence[NodeView]) -> Iterator[Finding]:
    """Yield how to ask for memory where every node that shares GPUs gives them to claims."""
    memory = [part.demand for part in asked.parts if part.demand.kind is Kind.MEMORY]
    if not memory or not nodes or not all(node.candidate.gpus.claims for node in nodes):
        return
    sizes = {node.candidate.gpus.share_mib for node in nodes}
    mib = (sizes.pop() or MIB_PER_GIB) * (memory[0].amount // memory[0].gpus) if len(sizes) == 1 else None
    unknown = note("the-amount", "the amount")
    amount = unknown if mib is None else f"{mib // MIB_PER_GIB}Gi" if mib % MIB_PER_GIB == 0 else f"{mib}Mi"
    text = (
        "Every node that shares GPUs allocates them through ResourceClaims (DRA), and none through limits: have the "
        f"pod name a ResourceClaimTemplate of the DeviceClass {SHARED_CLASS} with the capacity memory: {{amount}} "
        "(docs/dra.md)."
    )
    yield note("ask-by-claim", text, amount=amount)


def rows_claimed(claims: Iterable[Claim]) -> list[PodRow]:
    """Return the pods of claims of which no node is known, with what they have of GPUs that only have names."""
    return [
        PodRow(
            f"{claim.namespace}/{label(claim)}",
            device.pool,
            "?",
            "whole" if device.memory_mib is None else gib(device.memory_mib),
            device.memory_mib or 0,
            state=CLAIMS,
        )
        for claim in claims
        for device in taken(claim)
    ]


def claims_waiting(claims: Iterable[Claim]) -> list[PodRow]:
    """Return claims that wait for GPUs with what they ask for. Kube-scheduler names their pods only afterwards."""
    asking = filter(waits_for_ours, claims)
    asks = ((f"{each.namespace}/{label(each)}", " and ".join(map(str, asked_amounts(each)))) for each in asking)
    return [row_waiting(name, amounts) for name, amounts in asks]


def claims_state(node: NodeView) -> Iterator[State]:
    """Yield that a node gives its GPUs to claims."""
    if node.candidate.gpus.claims:
        yield State(14, "claims", Tone.PLAIN, "its GPUs are allocated through ResourceClaims", word=CLAIMS)


def explanation(
    pod: Pod, status: SchedulingStatus, followed: Mapping[str, Iterable[Any]], nodes: Sequence[NodeView] | None
) -> Explanation:
    """Explain a pod that names ResourceClaims."""
    claims: Iterable[Claim] | None = followed.get(RESOURCE_CLAIMS)
    by_name = None if nodes is None else {node.name: node for node in nodes}
    own = None if claims is None else {each.name: each for each in claims if each.namespace == pod.namespace}
    facts, waiting = claim_causes(pod, status, own, by_name)
    asks = (asked_by_claims(waiting),) if waiting else ()
    shown = map(for_claims, nodes or ()) if ask_of_claims(waiting, None).parts else ()
    amounts = [(node, ask_of_claims(waiting, node.candidate.gpus.share_mib), refusals(node.report)) for node in shown]
    return Explanation(asks, facts, amounts)


# --- The doctor -------------------------------------------------------------------------------------------------------

_CLASSES = frozenset({SHARED_CLASS, WHOLE_CLASS, MIG_CLASS})
BY_CLAIMS = "dra"
"""The value of `SERVE_LABEL` that has a node give its GPUs to claims."""
_CONTAINERD = re.compile(r"containerd://v?(\d+)\.(\d+)\.(\d+)", re.ASCII)
_FIRST_WITH_CDI = (1, 7, 2)
_FIRST_WITH_CDI_ON = (2, 0, 0)
_LOG = "see the log of its agent"


def claims(  # noqa: PLR0917 - what a check reads
    nodes: Sequence[ExaminedNode],
    present: Sequence[Claim] | Unknown,
    slices: Sequence[Present] | Unknown,
    classes: Mapping[str, str] | Unknown,
    memory: str,
    count: str,
    version: str | Unknown,
) -> Iterator[Finding]:
    """Yield what keeps claims from being served.

    `slices` are those of our driver: its pools have the names of their nodes, and of each the newest generation is
    valid. `classes` has the extended resource of each DeviceClass, empty if it has none; `memory` and `count` name
    the resources, and `version` is that of the API server.
    """
    serving = [node for node in nodes if node.gpus.claims]
    asked_to = [node for node in nodes if node.labels.get(SERVE_LABEL) == BY_CLAIMS]
    if not_yet := tuple(node.name for node in asked_to if not node.gpus.claims):
        text = f"{{nodes}}: labelled {SERVE_LABEL}={BY_CLAIMS}, and no claims are served yet"
        advice = "an agent changes over when no pod of its node holds a GPU by its limits; its log names those that do"
        yield warning("not-serving-yet", text, advice, nodes=not_yet)
    yield from _orphans(present, {node.name for node in serving})
    known = () if isinstance(present, Unknown) else present
    known_version = "" if isinstance(version, Unknown) else version
    ours = [claim for claim in known if any(request.device_class in _CLASSES for request in claim.requests)]
    if pending := tuple(str(claim) for claim in ours if not claim.allocated):
        text = "{claims:ResourceClaim waits|ResourceClaims wait} for GPUs: {claims}"
        advice = (
            "kubectl inspect gpushare why POD, with a pod that uses it, names the reason; without a pod it stays so"
        )
        yield note("claims-pending", text, advice, claims=pending)
    if not serving:
        return
    found = [
        *([slices] if isinstance(slices, Unknown) else _slices(slices, serving, known_version)),
        *([classes] if isinstance(classes, Unknown) else _classes(classes, serving, count)),
        *_runtimes(serving),
        *_remembered(serving, memory, count),
    ]
    yield from found
    if not found:
        yield ok("claims", "{nodes:node serves|nodes serve} claims, with complete ResourceSlices", nodes=len(serving))


def _slices(present: Iterable[Present], serving: Sequence[ExaminedNode], version: str) -> Iterator[Finding]:
    by_pool = grouped((each.pool, each) for each in present)
    if missing := tuple(node.name for node in serving if node.name not in by_pool):
        text = f"{{nodes}}: no ResourceSlice of {DRIVER}, so kube-scheduler knows none of the GPUs"
        advice = f"{_LOG}: it publishes them within seconds, unless a right of deploy/optional/dra.yaml is missing"
        yield error("no-slices", text, advice, nodes=missing)
    cut: list[str] = []
    for node in serving:
        slices = by_pool.get(node.name, ())
        newest = max((each.generation for each in slices), default=0)
        current = [each for each in slices if each.generation == newest]
        offered = [device for each in current for device in each.content["devices"]]
        wanted = max((each.count for each in current), default=0)
        if len(current) != wanted:
            yield error(
                "slices-incomplete",
                "{node}: {slices} of {of} ResourceSlices of generation {generation}, and kube-scheduler allocates "
                "nothing of a pool that is not complete",
                _LOG,
                node=node.name,
                slices=len(current),
                of=wanted,
                generation=newest,
            )
        elif node.gpus.gpus and offered and not any(device.get("allowMultipleAllocations") for device in offered):
            cut.append(node.name)
    if cut:
        text = "{nodes}: no ResourceSlice has devices that claims can share, so there are only whole GPUs"
        advice = (
            "an API server older than 1.36, or without the feature gate DRAConsumableCapacity, drops what makes a "
            f"device shared{' (this one is {version})' if version else ''}; to share GPUs, use limits of pods "
            f"({SERVE_LABEL}=device-plugin)"
        )
        yield warning("devices-not-shared", text, advice, nodes=tuple(cut), version=version)


def _classes(known: Mapping[str, str], serving: Iterable[ExaminedNode], count: str) -> Iterator[Finding]:
    instances = any(gpu.instance is not None for node in serving for gpu in node.gpus.all)
    wanted = (SHARED_CLASS, WHOLE_CLASS, *([MIG_CLASS] if instances else ()))
    if missing := tuple(name for name in wanted if name not in known):
        text = "{classes:DeviceClass is|DeviceClasses are} missing: {classes}"
        yield error("no-device-class", text, "kubectl apply -f deploy/optional/dra.yaml", classes=missing)
    elif known[WHOLE_CLASS] != count:
        text = (
            f"the DeviceClass {WHOLE_CLASS} does not serve {{resource}}: pods that ask for it by their limits get no "
            "GPU on nodes that serve claims"
        )
        advice = "its extendedResourceName would have to be {resource}; API servers older than 1.36 drop it"
        yield note("class-without-resource", text, advice, resource=count)


def _runtimes(serving: Iterable[ExaminedNode]) -> Iterator[Finding]:
    for runtime, names in sorted(grouped((node.runtime, node.name) for node in serving).items()):
        release = _CONTAINERD.match(runtime)
        version = tuple(map(int, release.groups())) if release else _FIRST_WITH_CDI_ON
        if version < _FIRST_WITH_CDI:
            text = "{nodes}: {runtime} knows no CDI, so containers with claims get neither GPU nor variables"
            advice = "upgrade containerd to 1.7.2 with enable_cdi = true, or to 2.0"
            yield error("runtime-without-cdi", text, advice, nodes=names, runtime=runtime)
        elif version < _FIRST_WITH_CDI_ON:
            text = "{nodes}: {runtime} has CDI only with enable_cdi = true in its configuration"
            yield note("runtime-cdi-optional", text, nodes=names, runtime=runtime)


def _remembered(serving: Iterable[ExaminedNode], memory: str, count: str) -> Iterator[Finding]:
    """Yield the nodes whose kubelets still know a resource of a device plugin (Kubernetes' pull request 141426).

    That is no fault where the agent itself was that plugin: its last registration keeps containers from failing.
    """
    if remembering := tuple(node.name for node in serving if not {memory, count}.isdisjoint(node.capacity)):
        yield note(
            "kubelet-remembers-plugin",
            "{nodes}: the kubelet has known {memory} or {count} of a device plugin: if containers with {count} do not "
            "start there (no devices found allocated in local cache), it still does",
            "drain the node, and 5 minutes after the plugin has ended restart its kubelet (1.36.3 and older)",
            nodes=remembering,
            memory=memory,
            count=count,
        )


def _orphans(present: Sequence[Claim] | Unknown, serving: set[str]) -> Iterator[Finding]:
    """Yield the claims with devices of nodes that do not serve claims (any more)."""
    if isinstance(present, Unknown):
        if serving:
            yield present
        return
    left = grouped((node, str(claim)) for claim in present for node in pools(claim) - serving)
    for node, names in sorted(left.items()):
        text = "{claims:ResourceClaim has|ResourceClaims have} GPUs of {node}, which serves no claims: {claims}"
        advice = "no other agent there can prepare or release them: end their pods, and delete claims that stay"
        yield error("claims-orphaned", text, advice, claims=names, node=node)
