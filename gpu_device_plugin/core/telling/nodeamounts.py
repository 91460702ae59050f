"""Whether what the kubelet says of a node's resources goes with what the node's agent, or gpushare's plugin, gives.

A kubelet remembers the resources of a device plugin that has ended: for five minutes it writes their capacity again and
again, then it sets it to 0 once, and lets it alone from there on (endpointStopGracePeriod, GetCapacity and
setters.go in Kubernetes' pkg/kubelet). The number of GPUs that gpushare's programs go by is no device plugin's but
written on the node once, so that a number written in those five minutes is gone later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.diagnosing import Finding, note, warning
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus

_REMEMBERED = "the amount of a plugin that has ended stays for five minutes, and is 0 then"
_LATER = "five minutes after the end of the last plugin that offered it"


def set_count(node: str, count: str, number: int | str | None) -> str:
    """Return the command that writes so many GPUs on a node; None removes the number."""
    value = "null" if number is None else f'"{number}"'
    patch = f'{{"status":{{"capacity":{{"{count}":{value}}}}}}}'
    return f"kubectl patch node {node} --subresource=status --type=merge -p '{patch}'"


def amiss(
    node: str, gpus: NodeGpus, capacity: Mapping[str, int], memory: str, count: str, *, counted_on: bool
) -> Iterator[Finding]:
    """Say which amounts of a node, on which an agent of ours is ready, are not those of its GPUs.

    Args:
        node: its name.
        gpus: those that the agent wrote on it.
        capacity: of the node.
        memory: the resource that counts shares.
        count: the resource that counts GPUs.
        counted_on: pods or schedulers go by the number of GPUs, so that 0 is wrong.
    """
    shares, number = sum(gpu.shares for gpu in gpus.gpus), len(gpus.gpus)
    if capacity.get(memory, shares) != shares:
        yield warning(
            f"{node} has {capacity[memory]} {memory} by its kubelet, and {shares} by its agent",
            "the kubelet writes its node every 10 seconds; if it stays so, see the logs of both",
        )
    said = capacity.get(count, number)
    if said != number and (said or counted_on):
        yield warning(
            f"{node} has {said} {count} by its kubelet, and {counted(number, 'GPU')} by its agent",
            f"where its agent offers {count}, it is mended within 10 seconds, or the kubelet's log says why not; else "
            f"{_LATER} ({_REMEMBERED}): {set_count(node, count, number)}",
        )


def unoffered(node: str, capacity: Mapping[str, int], count: str) -> Iterator[Finding]:
    """Say that a node, whose agent offers no whole GPUs, has a number of them."""
    if capacity.get(count):
        yield note(
            f"{node} has {capacity[count]} {count}, and its agent offers none: pods that ask for it get no GPU here",
            "gpushare's own extender needs the number (docs/operations.md); where that does not run, remove it, "
            f"{_LATER}: {set_count(node, count, None)}",
        )


def of_gpushare(
    node: str, capacity: Mapping[str, int], allocatable: Mapping[str, int], memory: str, count: str
) -> Iterator[Finding]:
    """Judge the number of GPUs of a node on which gpushare's own device plugin runs; `count` is gpushare's name."""
    again = f"{set_count(node, count, 'N')} with N for its number of GPUs, or start gpushare's plugin there anew"
    if capacity.get(memory) and not capacity.get(count):
        yield warning(f"{node} has no {count}, without which gpushare's extender finds room on none of its GPUs", again)
    elif capacity.get(count) and allocatable.get(count) == 0:
        yield warning(
            f"{node} has {capacity[count]} {count} only because its kubelet remembers an agent: {_REMEMBERED}",
            f"wait until it is 0, and then {again}",
        )
