"""Audit records: who had how much of which GPU from when to when, as flat attributes of log lines.

The names of attributes are stable. Those that OpenTelemetry's semantic conventions name are named so; the others begin
with ``gpu.`` or ``gpushare.``. A record has neither environments nor annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from gpu_device_plugin.model.pods import Pod

LOGGER = "gpu_device_plugin.audit"
"""The logger of all records; the lines are of the level info."""
VERSION = 1
"""Of the attributes. A minor release may add some, which older readers ignore."""


class AuditKind(StrEnum):
    """What a record says; `AuditRecord.event` names the Event that tells the same, if there is one."""

    STARTED = "started"
    """An agent begins: between `began` and `ended` nothing was recorded on its node. Without `began`: never before."""
    ALIVE = "alive"
    """An agent has recorded everything until `began`; written while there is nothing else to write."""
    OFFERED = "offered"
    """The node has this GPU, or MIG instance, since the agent started or longer."""
    WITHDRAWN = "withdrawn"
    """The node had this GPU, or MIG instance, until `ended`."""
    FOUND = "found"
    """A container had this already when its agent started; or its pod became known by name."""
    GRANTED = "granted"
    RESIZED = "resized"
    """A guarantee has grown, or was returned; `before` are the shares until then (Event GPUMemoryResized)."""
    EVICTED = "evicted"
    """The API server accepted an eviction (Event GPUMemoryEvicted, GPUFailureEvicted, ...)."""
    ENDED = "ended"
    """A container had this from `began` to `ended`."""
    MOVED = "moved"
    """The extender evicted a pod whose replacement is to run on the node `to_node`."""


MESSAGE = "GPU audit: %s"
"""The message of all lines, with the kind; programs read ``event.name``."""


def _named(attribute: str, default: Any = "") -> Any:
    """Return a field of a record, which log lines have by the name of this attribute."""
    return field(default=default, metadata={"attribute": attribute})


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record. Empty texts, None and 0 shares before are left out of its attributes."""

    kind: AuditKind = field(metadata={"attribute": "event.name"})
    node: str = _named("k8s.node.name")
    namespace: str = _named("k8s.namespace.name")
    pod: str = _named("k8s.pod.name")
    """Its name; empty: the agent does not know it, or knows no API."""
    pod_uid: str = _named("k8s.pod.uid")
    """As the kubelet knows the pod."""
    owner_kind: str = _named("gpushare.owner.kind")
    """Of the pod's controller, with `owner`, its name; empty: it has none, or that is not known."""
    owner: str = _named("gpushare.owner.name")
    container: str = _named("k8s.container.name")
    gpu: str = _named("gpu.uuid")
    """The UUID of the GPU or MIG instance."""
    model: str = _named("gpu.model")
    """As NVML names it."""
    gpu_mib: int | None = _named("gpu.memory_mib", None)
    """Memory of the GPU or MIG instance."""
    card: str = _named("gpu.card.uuid")
    """The UUID of the GPU that a MIG instance is a part of."""
    card_mib: int | None = _named("gpu.card.memory_mib", None)
    shares: int | None = _named("gpushare.shares", None)
    share_mib: int | None = _named("gpushare.share_mib", None)
    memory_mib: int | None = _named("gpushare.memory_mib", None)
    """Guaranteed; of a GPU or MIG instance that was given whole all of it."""
    whole: bool | None = _named("gpushare.whole", None)
    before: int | None = _named("gpushare.shares_before", None)
    """Shares, of a resized guarantee."""
    event: str = _named("k8s.event.reason")
    """The reason of the Event that tells the same."""
    to_node: str = _named("gpushare.to_node")
    began: str = _named("gpushare.from")
    """RFC 3339, with `ended`: the time that the record is about. Empty `ended`: it lasts."""
    ended: str = _named("gpushare.to")

    @property
    def place(self) -> tuple[str, str, str]:
        """The container and the GPU."""
        return self.pod_uid, self.container, self.gpu

    def naming(self, pod: Pod) -> AuditRecord:
        """Return it with the names of a pod and of its owner."""
        kind, owner = ("", "") if pod.owner is None else (pod.owner.kind, pod.owner.name)
        return replace(self, namespace=pod.namespace, pod=pod.name, owner_kind=kind, owner=owner)

    def attributes(self) -> Mapping[str, str | int | bool]:
        """Return it as the fields of a log line."""
        values = {_NAMES[each.name]: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in values.items() if value is not None and value != ""}
        return {**given, _NAMES["kind"]: f"{_EVENT}{self.kind}", "gpushare.audit.version": VERSION}

    def write(self, log: Callable[..., None]) -> None:
        """Write it as a line, by the method `info` of `LOGGER`."""
        log(MESSAGE, self.kind, extra=dict(self.attributes()))


_EVENT = "gpushare."
_NAMES: Mapping[str, str] = {each.name: each.metadata["attribute"] for each in fields(AuditRecord)}
