"""Refuse evictions by PodDisruptionBudgets, as the API server does.

The rules are those of Kubernetes 1.36 (pkg/registry/core/pod/storage/eviction.go), observed on a real server.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpu_device_plugin.testing.cluster.cluster_kinds import StatusError
from gpu_device_plugin.testing.cluster.cluster_store import Key, Store
from tests.builders import Json
from tests.cluster_double.kinds import BUDGETS
from tests.cluster_double.selectors import label_selector

_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
_SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_PROCESSING_S = 10
"""The server asks for this patience while it has not yet seen the newest budget."""


def take_from_budget(store: Store, key: Key, found: Json) -> None:
    """Count the eviction of a pod, or raise StatusError: 429 (its budget) or 500 (several budgets)."""
    budgets = list(_budgets(store, key[0], found))
    if len(budgets) > 1:
        raise StatusError(500, "", _SEVERAL)
    for budget in budgets:
        name, status = budget["metadata"]["name"], budget.get("status") or {}
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
            raise _too_many(f"The disruption budget {name} is still being processed by the server.", _PROCESSING_S)
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in found["status"].get("conditions", ()))
        desired, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        if not ready and healthy >= desired > 0:
            continue  # it is none of the healthy pods that the budget counts
        if not status.get("disruptionsAllowed", 0):
            raise _too_many(f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
        store.change(BUDGETS, (key[0], name), _one_less, subresource="status")


def _one_less(budget: Json) -> Json:
    budget["status"]["disruptionsAllowed"] -= 1
    return budget


def _too_many(why: str, retry_after_s: int = 0) -> StatusError:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    return StatusError(429, "TooManyRequests", _VIOLATES, details)


def _budgets(store: Store, namespace: str, found: Json) -> Iterator[Json]:
    for (inside, _), budget in sorted(store.state().objects[BUDGETS].items()):
        selector = budget.get("spec", {}).get("selector")
        if inside == namespace and selector is not None and label_selector(_as_text(selector))(found):
            yield budget


def _as_text(selector: Mapping[str, Any]) -> str:
    """Return a selector of an object in the form of a query."""
    forms = {
        "In": "{key} in ({values})",
        "NotIn": "{key} notin ({values})",
        "Exists": "{key}",
        "DoesNotExist": "!{key}",
    }
    labels = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    rules = [
        forms[each["operator"]].format(key=each["key"], values=",".join(each.get("values") or ()))
        for each in selector.get("matchExpressions") or ()
    ]
    return ",".join([*labels, *rules])
