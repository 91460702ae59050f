"""Ask the API server to evict a pod, and tell what came of it.

An eviction is a deletion that the pod's PodDisruptionBudget may refuse. It names the pod's uid, so that it can be
repeated after a lost answer, and never ends another pod of the same name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
)
from gpu_device_plugin.kubernetes.objects.decoding import PODS
from gpu_device_plugin.model.pods import Pod

_BUDGET_CAUSE = "DisruptionBudget"
"""policy/v1, DisruptionBudgetCause: tells a budget's 429 from that of an API server that sheds load."""


class EvictionOutcome(StrEnum):
    """What came of an eviction."""

    EVICTED = "evicted"
    """The pod is being deleted."""
    GONE = "gone"
    """There is no such pod any more, or another one has its name."""
    BLOCKED = "blocked"
    """A PodDisruptionBudget allows no disruption now."""
    FORBIDDEN = "forbidden"
    """The account has no right to evict pods, or an admission policy refused it."""
    FAILED = "failed"
    """The API server did not do it, or its answer was lost."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """The outcome of one attempt."""

    outcome: EvictionOutcome
    why: str = ""
    """Why the pod is not evicted, as a clause; empty if it is, or is gone."""
    retry_after_s: float = 0.0
    """The patience that the API server asks for."""


async def evict(
    client: Client,
    pod: Pod,
    *,
    most_grace_s: int,
    timeout_s: float = math.inf,
    manifest: str = "deploy/optional/evict.yaml (chart: agent.evict)",
) -> Eviction:
    """Evict a pod. One attempt; a failure of the API is an outcome, not an error. `manifest` grants the right.

    The pod has its own time to end, but no more than `most_grace_s` seconds: its owner may have written any number, and
    a pod that ignores SIGTERM runs until then. The deletion of a pod with a longer time is shortened to that, too.
    """
    options: dict[str, object] = {"preconditions": {"uid": pod.uid}}
    if pod.grace_s > most_grace_s:  # otherwise it would get more than it has
        options["gracePeriodSeconds"] = most_grace_s
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": options,
    }
    try:
        await client.create(
            PODS, body, namespace=pod.namespace, name=pod.name, subresource="eviction", timeout_s=timeout_s
        )
    except ApiError as error:
        return _refused(error, manifest)
    return Eviction(EvictionOutcome.EVICTED)


def _refused(error: ApiError, manifest: str) -> Eviction:
    match error:
        case NotFoundError() | ConflictError():
            return Eviction(EvictionOutcome.GONE)
        case TooManyRequestsError() if _BUDGET_CAUSE in error.causes:
            return Eviction(
                EvictionOutcome.BLOCKED, "its PodDisruptionBudget allows no disruption now", error.retry_after_s
            )
        case ForbiddenError():
            why = str(error) if error.denied else f"{error}; apply {manifest}, which grants it"
            return Eviction(EvictionOutcome.FORBIDDEN, why)
        case _:
            return Eviction(EvictionOutcome.FAILED, str(error), error.retry_after_s)
