"""Derive from settings, labels and hardware how a node gives its GPUs to pods: one value, in one order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.cordons import Cordon, cordon_of
from gpu_device_plugin.model.contract.keys import (
    CGPU_DISABLE_LABEL,
    MIG_LABEL,
    PLACEMENT_LABEL,
    SERVE_LABEL,
    SET_LIMITS_LABEL,
)
from gpu_device_plugin.model.contract.nodelabels import NodeLimits
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.limits import LIMITS, LimitMeans, summary
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.placing import FIT, POLICIES
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.model.shares import Shares, TooManySharesError, misread_exclusions, unknown_exclusions
from gpu_device_plugin.node.rules.container_grants import DEVICE_SPECS, ENVVAR, Delivery
from gpu_device_plugin.node.rules.gpu_health import GpuHealth, NodeCondition, gpu_condition, with_cards
from gpu_device_plugin.node.rules.node import OPEN, Block
from gpu_device_plugin.node.rules.serving_mode import SERVING_MODES, Serving, ServingMode, wanted_mode

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

GONE = "the MIG instance no longer exists"
IN_MIG_MODE = "it is in MIG mode now"

_LABEL_VALUES: Mapping[str, Collection[str]] = MappingProxyType(
    {PLACEMENT_LABEL: POLICIES, SET_LIMITS_LABEL: LIMITS, MIG_LABEL: tuple(MigMode), SERVE_LABEL: SERVING_MODES}
)
"""The values of each node label that overrides a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What was observed of a node. Not what often changes without a consequence, as labels and health."""

    cordons: Mapping[str, Cordon] = field(default_factory=dict)
    """By UUID of a GPU, an instance, or a GPU in MIG mode with all its instances."""
    inventory: Inventory = field(default_factory=Inventory)
    """The GPUs that the driver shows, with what the settings say of the machine's memory."""
    started: bool = False
    """The driver has been asked for its GPUs."""
    watched: bool = False
    """The driver answers."""
    sentence: str = ""
    """The state of the driver, for people."""
    serving: Serving = field(default_factory=lambda: Serving(ServingMode.DEVICE_PLUGIN))
    others: tuple[str, ...] = ()
    """Sentences on other programs that hand out GPUs of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """How a node gives its GPUs to pods."""

    facts: NodeFacts = field(default_factory=NodeFacts)
    shares: Shares
    blocks: Mapping[str, Block] = field(default_factory=dict)
    """The GPUs (by UUID) that are closed to somebody."""
    policy: str = FIT
    """By which a GPU is chosen, a key of `POLICIES`."""
    resources: tuple[Resource, ...] = ()
    """Those of GPUs, and one for each MIG profile that the node gives, or has given."""
    delivery: Delivery = field(default_factory=Delivery)
    """How GPUs reach containers."""
    means: LimitMeans = field(default_factory=LimitMeans)
    """What keeps containers within their parts of the GPUs."""
    labelled: bool = False
    """The node's labels are known; until then the settings alone count."""
    wanted_mode: ServingMode = ServingMode.DEVICE_PLUGIN
    """How the administrator wants pods to get the GPUs."""
    claims: bool = False
    """Pods get the GPUs by ResourceClaims."""
    why_not_offered: str = ""
    """Why no GPU is advertised although all may be healthy; empty: they are advertised."""
    why_none: str = ""
    """Why no GPU is shared or watched, for a node without one."""
    condition: NodeCondition | None = None
    """The node condition GPUHealthy; None: there is to be none."""
    remarks: tuple[str, ...] = ()
    """What a person should correct, in sentences: labels, exclusions, GPUs that are not shared."""
    too_many: str = ""
    """Why new GPUs are not shared; empty: they are."""
    undeliverable: str = ""
    """Why containers cannot get the GPUs by their device nodes, as is wanted; empty: they can, or it is not."""

    @property
    def limits(self) -> NodeLimits:
        """What keeps containers within their parts of each GPU, by position."""
        means = self.means.gpus
        present = {shared.position: shared.gpu.uuid for shared in self.shares.gpus if not shared.gone}
        return NodeLimits({position: means[uuid] for position, uuid in present.items() if uuid in means})

    @property
    def limits_summary(self) -> str:
        """The means of limiting with their reasons, in a sentence for people; empty for a node without GPUs."""
        return summary(self.limits.gpus)

    @property
    def notes(self) -> tuple[str, ...]:
        """The same and the remarks, in sentences for readiness."""
        return (*self.remarks, *((f"memory limits: {self.limits_summary}",) if self.limits_summary else ()))


def derive(
    settings: NodeSettings,
    facts: NodeFacts,
    before: NodeConfig,
    *,
    labels: Mapping[str, str] | None = None,
    health: Mapping[str, GpuHealth] = MappingProxyType({}),
    means: Callable[[Shares, int | None, Mapping[str, str]], LimitMeans] = lambda *_: LimitMeans(),
) -> NodeConfig:
    """Return the configuration of a node. The GPUs are cut into shares anew only for another listing or use of MIG.

    `labels` are the node's; None: it was not read yet, or there is no API, and the settings alone count. `health` is by
    the GPU's UUID. `means` chooses what keeps containers within their parts, by the shares, the node's cgroup version
    and its labels.

    Raises:
        TooManySharesError: the first GPUs are cut into more shares than a kubelet can handle; or only a new process
            can share the present ones.
    """
    labelled, labels, inventory = labels is not None, labels or {}, facts.inventory
    mig = mig_mode(settings.mig, labels.get(MIG_LABEL, ""))
    shares, too_many = before.shares, before.too_many
    if (inventory, mig) != (before.facts.inventory, shares.mig):
        shares, too_many = _cut(shares, inventory, settings.exclude_gpus, mig)

    gpus = [shared.gpu for shared in shares.gpus if shared.listed and not shared.gone]
    delivery = Delivery(frozenset(settings.devices), settings.cdi_kind, labels.get(CGPU_DISABLE_LABEL) == "true")
    undeliverable = delivery.why_not(gpus)
    if undeliverable:
        delivery = replace(delivery, methods=delivery.methods - {DEVICE_SPECS} or frozenset({ENVVAR}))
    limits = means(shares, inventory.cgroup, labels)
    failed = out_of_service({uuid: state.reasons for uuid, state in health.items()}, shares)
    why_none = (facts.watched and shares.why_none) or facts.sentence
    return NodeConfig(
        facts=facts,
        shares=shares,
        blocks=_blocks(shares, failed, facts.cordons, limits.closed),
        policy=label if (label := labels.get(PLACEMENT_LABEL, "")) in POLICIES else settings.policy,
        resources=(*settings.offered, *(Resource.of_profile(name, settings.domain_of_mig) for name in shares.profiles)),
        delivery=delivery,
        means=limits,
        labelled=labelled,
        wanted_mode=wanted_mode(settings.serve, labels),
        claims=facts.serving.mode is ServingMode.DRA,
        why_not_offered="; ".join(facts.others) or facts.serving.waits,
        why_none=why_none,
        condition=_condition(facts, health, shares, why_none) if settings.node_condition and facts.started else None,
        remarks=(
            *ignored_labels(labels).values(),
            *inventory.unread,
            *filter(
                None,
                (
                    unknown_exclusions(settings.exclude_gpus, inventory),
                    misread_exclusions(settings.exclude_gpus, inventory, shares),
                    shares.why_none,
                    undeliverable,
                ),
            ),
        ),
        too_many=too_many,
        undeliverable=undeliverable,
    )


def ignored_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the node labels with a value that nobody knows, each with a sentence on it without a full stop."""
    return {
        label: f"the node label {label}={value} is ignored: its value is none of {', '.join(known)}"
        for label, known in _LABEL_VALUES.items()
        if (value := labels.get(label, "")) and value not in known
    }


def mig_mode(setting: str, label: str) -> MigMode:
    """Return how pods get MIG instances: by the node's label if its value is a mode, otherwise by the setting."""
    return MigMode(label if label in list(MigMode) else setting)


def share_size(wanted: int, before: int | None, holders: Collection[str] | None, ended: Collection[str]) -> int:
    """Return the share size in MiB: that of the previous agent as long as a container holds shares of that size.

    Under another size the held shares would mean another amount of memory, part of which could be allocated twice.
    `before` is the share size of the previous agent, None if unknown; `holders` are the UIDs of the pods for which the
    kubelet's checkpoint shows shares, None if it cannot be read; `ended` those that the previous agent saw end.
    """
    held = holders is None or not set(holders) <= set(ended)
    return before if held and before is not None else wanted


def out_of_service(reasons: Mapping[str, Sequence[str]], shares: Shares) -> Mapping[str, str]:
    """Return the reason for each GPU (by UUID) out of service; `reasons` are those of health.

    What is wrong with a GPU is wrong with its MIG instances.
    """
    failed = {uuid: "; ".join(why) for uuid, why in reasons.items() if why}
    unhealthy = dict(failed)
    for shared in shares.gpus:
        gpu = shared.gpu
        if shared.vacant:
            continue
        if shared.gone:
            unhealthy[gpu.uuid] = IN_MIG_MODE if gpu.instance is None else GONE
        elif gpu.mig:
            unhealthy.setdefault(gpu.uuid, IN_MIG_MODE)
        elif gpu.card in failed and gpu.instance is not None:
            own, of_card = failed.get(gpu.uuid), failed[gpu.card]
            why = f"its GPU is unhealthy: {of_card}"
            unhealthy[gpu.uuid] = f"{own}; {why}" if own and own != of_card else why
    return unhealthy


def _blocks(
    shares: Shares, failed: Mapping[str, str], cordons: Mapping[str, Cordon], undivided: Mapping[str, str]
) -> Mapping[str, Block]:
    """Return whom the GPUs (by UUID) are closed to, with reasons by UUID."""
    found: dict[str, Block] = {}
    for gpu in (shared.gpu for shared in shares.gpus):
        cordon = cordon_of(cordons, gpu.uuid, gpu.card)
        found[gpu.uuid] = Block(failed.get(gpu.uuid, ""), str(cordon or ""), undivided.get(gpu.uuid, ""))
    return {uuid: block for uuid, block in found.items() if block != OPEN}


def _cut(before: Shares, inventory: Inventory, excluded: Iterable[str], mig: MigMode) -> tuple[Shares, str]:
    """Return the shares of the present GPUs; of those alone that are known, if all are too many, and why."""
    try:
        return before.with_inventory(inventory, excluded, mig=mig), ""
    except TooManySharesError as error:
        if not before.gpus or error.restart_helps:
            raise
        why = str(error)
    known = {shared.gpu.uuid for shared in before.gpus}
    present = replace(inventory, gpus=tuple(gpu for gpu in inventory.gpus if gpu.uuid in known))
    no_limit = sys.maxsize  # the known ones are in the list already
    return before.with_inventory(present, excluded, no_limit, mig=before.mig), why


def _condition(facts: NodeFacts, health: Mapping[str, GpuHealth], shares: Shares, sentence: str) -> NodeCondition:
    known = with_cards(health, facts.inventory.gpus)
    gpus = ((shared.position, known.get(shared.gpu.uuid, GpuHealth())) for shared in shares.gpus if not shared.gone)
    return gpu_condition(gpus, watched=facts.watched, sentence=sentence)
