"""Explain why one pod waits or is slow, from all that could be read of the cluster, the extender's policy included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.objects.api_objects import ConfigMap, escaped
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind, UnreadableObjectError, decoded
from gpu_device_plugin.model.contract.keys import GPU_POLICY
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.rules.extension import ReportPoints
from gpu_device_plugin.report.rules.finding import Finding, note
from gpu_device_plugin.report.rules.held_instances import asked_by_profile, asked_instances
from gpu_device_plugin.report.rules.node_answers import NodeAnswer, answers, describe
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.pod_causes import Kept, besides, beyond_every_gpu, causes, exclusions
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.knobs import Knob, SettingsError
from gpu_device_plugin.settings.sources import Sources, Text, Texts

if TYPE_CHECKING:
    import msgspec


CONFIGURATION = "gpushare-extender"
"""The ConfigMap of the extender in our manifests; they may be applied in any namespace."""
_FILE = "default.yaml"
_EVENTS, _CONFIGMAPS = ObjectKind("events"), ObjectKind("configmaps")
_MOST_EVENTS = 200


@dataclass(frozen=True, slots=True)
class Policy:
    """A name in `POLICIES`, and its origin."""

    name: str
    assumed: Finding | None = None
    """Why the built-in policy is assumed, as the end of a sentence; None: `name` is configured."""


def assumed(why: Finding | None = None) -> Policy:
    """Return the built-in policy, and why it is assumed, as the end of a sentence."""
    return Policy(ExtenderSettings().gpu_policy, why)


async def policy_of(client: Client, others: tuple[Knob, ...]) -> Policy:
    """Return the policy that the extender's ConfigMap sets; the built-in one if that cannot be read.

    Flags and environment variables of the extender, which take precedence, are not visible here. `others` are the
    settings of its features.
    """
    found: list[ConfigMap] = []
    try:
        async for page in client.pages(_CONFIGMAPS, fields=f"metadata.name={CONFIGURATION}"):
            found += [decoded(raw, ConfigMap) for raw in page.items or ()]
    except (ApiError, UnreadableObjectError) as error:
        text = f"the ConfigMap {CONFIGURATION} cannot be read ({{error}})"
        return assumed(note("config-unreadable", text, error=str(error)))
    if len(found) != 1:
        places = tuple(sorted(one.metadata.namespace for one in found))
        where = "{places:+, }" if places else "no namespace"
        text = f"there is a ConfigMap {CONFIGURATION} in {where}, instead of in one namespace"
        return assumed(note("config-elsewhere" if places else "config-nowhere", text, places=places))
    where = f"{found[0].metadata.namespace}/{CONFIGURATION}, {_FILE}"
    content = Text(where, (found[0].data or {}).get(_FILE, "").encode())
    try:
        return Policy(Sources(ExtenderSettings, {}, {}, others).read(texts=Texts(content)).gpu_policy)
    except SettingsError as error:
        text = f"the ConfigMap {CONFIGURATION} cannot be used ({{error}})"
        return assumed(note("config-unusable", text, error=str(error)))


@dataclass(frozen=True, slots=True)
class Why:
    """Why a pod waits, or where it is."""

    asks: tuple[Finding, ...] = ()
    """The demand of a pod that waits, as ends of a sentence; none: it does not wait for GPUs."""
    facts: tuple[Finding, ...] = ()
    """About the pod itself."""
    answers: tuple[NodeAnswer, ...] = ()
    """Every node that shares GPUs, the nearest to having room first; none: there is nothing to say about nodes."""


def why(
    pod: Pod,
    status: SchedulingStatus,
    resources: Sequence[Resource],
    nodes: Sequence[NodeView] | None,
    *,
    most: int,
    policy: Policy | None = None,
    followed: Mapping[str, Iterable[object]] = MappingProxyType({}),
    features: ReportPoints,
) -> Why:
    """Return why a pod waits, or where it is.

    `nodes` are all that share GPUs; None: they could not be read. `followed` has further objects of its namespace, and
    maybe others, by the plural of their kind; without those that could not be read. Of `most` nodes more is told; see
    `answers`. `policy` is the extender's, where neither the pod nor every node names one.
    """

    def excluded(node: NodeView) -> tuple[Finding, ...]:
        return tuple(exclusions(node, status.terms))

    asked = ask(pod, resources)
    limitless = isinstance(asked, GpuRequest) and not asked.parts
    if status.claims and (limitless or any(not each.entry for each in status.claims)):
        for explain in features.explanations:
            said = explain(pod, status, followed, nodes)
            asked_there = [(node, demand, Kept(excluded(node), more)) for node, demand, more in said.nodes]
            return Why(said.asks, tuple(said.facts), tuple(answers(asked_there, assumed().name, most, features)))
    by_name = None if nodes is None else {node.name: node for node in nodes}
    facts, demand = causes(pod, status, resources, by_name, features)
    of_instances = {} if pod.node_name or pod.ended or pod.deleting else asked_instances(pod)
    if of_instances and nodes is not None and not status.gates:
        # Why no node gives a pod its MIG instances comes first: people look for it.
        kept = {node.name: excluded(node) for node in nodes}
        facts = [*(each for find in features.unoffered for each in find(of_instances, nodes, kept)), *facts]
    if demand is None:
        return Why(asked_by_profile(of_instances), tuple(facts))
    asks = (*describe(demand, resources, nodes or ()), *asked_by_profile(of_instances))
    if nodes is None:
        return Why(asks, tuple(facts))
    if not any(fact.code == "asks-in-mib" for fact in facts):
        facts += beyond_every_gpu(demand, resources, nodes)
    facts += (each for find in features.otherwise for each in find(demand, nodes))
    chosen = policy or assumed()
    if chosen.assumed:
        text = "Nodes that publish no policy are assumed to have the policy {policy}: {why}."
        facts.append(note("policy-assumed", text, policy=chosen.name, why=chosen.assumed))
    asked_of = [(node, demand, Kept(excluded(node), besides(node, demand, resources))) for node in nodes]
    return Why(asks, tuple(facts), tuple(answers(asked_of, chosen.name, most, features)))


def on_gpus(pod: Pod, status: SchedulingStatus, resources: Sequence[Resource]) -> bool:
    """Return whether a pod runs and has asked for GPUs, so that its node's agent may know whether it is slow."""
    asked = ask(pod, resources)
    gpus = bool(status.claims or asked_instances(pod)) or (isinstance(asked, GpuRequest) and bool(asked.parts))
    return gpus and pod.phase == "Running"


async def events_of(client: Client, namespace: str, uid: str) -> Sequence[msgspec.Raw]:
    """Return the Events about a pod. Raises ApiError."""
    fields = f"involvedObject.uid={escaped(uid)}"
    async for page in client.pages(_EVENTS, namespace=namespace, fields=fields, limit=_MOST_EVENTS):
        return page.items or ()
    return ()


async def explained(
    client: Client,
    pod: Pod,
    status: SchedulingStatus,
    resources: Sequence[Resource],
    nodes: Sequence[NodeView] | None,
    *,
    most: int,
    followed: Mapping[str, Iterable[object]],
    features: ReportPoints,
    settings: tuple[Knob, ...],
    slow: Callable[[], Iterable[Finding]] = tuple,
    shown: Callable[[NodeView], NodeView] = lambda node: node,
) -> tuple[list[Finding], Sequence[NodeAnswer]]:
    """Return why a pod waits, runs where it does or is slow, in sentences, and the answer of each node; see `why`.

    `settings` are those of the extender's features. `slow` returns why a pod that runs `on_gpus` is slow. Nodes are
    told of as they are `shown`. This is done beside the event loop: thousands of nodes take tens of milliseconds.
    """
    # The pod may name a policy, and nodes of our own agent publish theirs.
    named = bool(pod.node_name) or GPU_POLICY in pod.annotations
    silent = not named and any(node.candidate.gpus.policy is None for node in nodes or ())
    policy = await policy_of(client, settings) if silent else None

    def told() -> tuple[list[Finding], Sequence[NodeAnswer]]:
        views = None if nodes is None else [*map(shown, nodes)]
        said = why(pod, status, resources, views, most=most, policy=policy, followed=followed, features=features)
        # What histories tell by another name stays, as it has the newer figures.
        squeezed = any(fact.code == "squeezed" for fact in said.facts)
        facts = [*said.facts, *(each for each in slow() if not (squeezed and each.code == "memory-full"))]
        waits = [note("waits-for", "{pod} waits for {asks:+ and }.", pod=str(pod), asks=said.asks)] if said.asks else []
        return [*waits, *facts], said.answers

    return await asyncio.to_thread(told)
