"""Series of a cluster, for tests: GPUs, containers, gaps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpu_device_plugin.features.cost.rules import (
    ALLOCATED,
    BORROWED,
    BUSY,
    GIVEN,
    INFO,
    MEMORY,
    NODE_MEMORY,
    POD_OWNER,
    POWER,
    SHARES,
    STRANDED,
    USED,
    Series,
)

GIB = 1 << 30


def gpu(
    uuid: str,
    times: Iterable[int],
    gib: int = 16,
    *,
    node: str = "n1",
    model: str = "T4",
    parent: str = "",
    shares: int | None = None,
    allocated: float | None = None,
) -> list[Series]:
    """Return the series of a GPU, or of a MIG instance of `parent`, at these times. Prometheus keeps no empty label."""
    place, times = {"node": node, "gpu": uuid}, list(times)
    info = {"gpu": uuid, "model": model, "share_bytes": str(GIB)} | ({"parent": parent} if parent else {})
    found = [
        Series(MEMORY, place, dict.fromkeys(times, float(gib * GIB))),
        Series(INFO, info, dict.fromkeys(times, 1.0)),
    ]
    if shares is not None:
        found.append(Series(SHARES, place, dict.fromkeys(times, float(shares))))
    if allocated is not None:
        found.append(Series(ALLOCATED, place, dict.fromkeys(times, allocated * GIB)))
    return found


def container(
    uuid: str,
    pod: str,
    times: Iterable[int],
    given: float,
    *,
    used: float | None = None,
    borrowed: float | None = None,
    busy: float | None = None,
    namespace: str = "ml",
) -> list[Series]:
    """Return the series of a container on a GPU, in GiB."""
    place = {"namespace": namespace, "pod": pod, "container": "main", "gpu": uuid}
    values = {GIVEN: given * GIB, USED: used and used * GIB, BORROWED: borrowed and borrowed * GIB, BUSY: busy}
    times = list(times)
    return [Series(name, place, dict.fromkeys(times, value)) for name, value in values.items() if value is not None]


def on_node(name: str, node: str, values: Mapping[int, float]) -> Series:
    """Return a series of the extender about a node, in GiB."""
    return Series(name, {"node": node}, {at: value * GIB for at, value in values.items()})


def watts(uuid: str, values: Mapping[int, float]) -> Series:
    """Return the power of a GPU."""
    return Series(POWER, {"gpu": uuid}, values)


def owner(pod: str, kind: str, name: str, namespace: str = "ml") -> Series:
    """Return what kube-state-metrics says of the owner of a pod."""
    return Series(POD_OWNER, {"namespace": namespace, "pod": pod, "owner_kind": kind, "owner_name": name}, {0: 1.0})


@dataclass
class History:
    """A random history, by card, GPU or instance, container and time; amounts in bytes."""

    memory: dict[str, int] = field(default_factory=dict)
    card_of: dict[str, str] = field(default_factory=dict)
    observed: dict[str, set[int]] = field(default_factory=dict)
    given: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    """By GPU and pod."""
    used: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    stranded: dict[int, int] = field(default_factory=dict)
    listed: set[int] = field(default_factory=set)
    """When the extender listed nodes, and not this one."""

    def series(self) -> list[Series]:
        """Return it as Prometheus has it."""
        found = []
        for uuid, memory in self.memory.items():
            card = self.card_of[uuid]
            place = {"node": "n1", "gpu": uuid}
            found.append(Series(MEMORY, place, dict.fromkeys(self.observed[uuid], float(memory))))
            parent = {} if card == uuid else {"parent": card}
            found.append(Series(INFO, {"gpu": uuid, "model": card[:1], **parent}, {0: 1.0}))
        for name, amounts in ((GIVEN, self.given), (USED, self.used)):
            for (uuid, pod), values in amounts.items():
                labels = {"namespace": pod[:1], "pod": pod, "container": "main", "gpu": uuid}
                found.append(Series(name, labels, {at: float(value) for at, value in values.items()}))
        found.append(Series(STRANDED, {"node": "n1"}, {at: float(value) for at, value in self.stranded.items()}))
        found.append(Series(NODE_MEMORY, {"node": "other"}, dict.fromkeys(self.listed, 1.0)))
        return found
