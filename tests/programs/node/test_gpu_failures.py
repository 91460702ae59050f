"""Pods leave a GPU that failed, one after the other, and the node's condition names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.programs.node.cluster_harness import NODE, RIGHTS, Cluster
from tests.programs.node.harness import T4

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL = {*RIGHTS, ("create", "pods/eviction"), ("patch", "nodes/status")}
FAILING = {**T4, "lost": True}


def condition(it: Cluster) -> dict[str, Any]:
    """Return the node's condition; empty if it has none."""
    found = it.api.get("nodes", NODE)["status"]["conditions"]
    return next((dict(one) for one in found if one["type"] == "GPUHealthy"), {})


def going(it: Cluster, names: Iterable[str] = ("one", "two", "far")) -> list[str]:
    there = {found["metadata"]["name"]: found for found in it.api.all("pods")}
    return [name for name in names if name in there and "deletionTimestamp" in there[name]["metadata"]]
