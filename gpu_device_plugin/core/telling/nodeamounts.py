"""Compare a node's capacity, which its kubelet reports, with the GPUs of its agent or of gpushare's plugin.

A kubelet remembers the resources of a stopped device plugin: for five minutes it keeps writing their capacity, then it
sets it to 0 once and never writes it again (endpointStopGracePeriod, GetCapacity and setters.go in Kubernetes'
pkg/kubelet). The number of GPUs that gpushare's programs use does not come from a device plugin: it is written on the
node once, so that a number written in those five minutes is lost.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.diagnosing import Finding, note, warning
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_device_plugin.core.contract.nodegpus import NodeGpus

_REMEMBERED = "the kubelet keeps the amount of a stopped plugin for five minutes, then sets it to 0"
_LATER = "five minutes after the last plugin that offered it has stopped"


def set_count(node: str, count: str, number: int | str | None) -> str:
    """Return the command that sets the number of GPUs on a node; None removes it."""
    value = "null" if number is None else f'"{number}"'
    patch = f'{{"status":{{"capacity":{{"{count}":{value}}}}}}}'
    return f"kubectl patch node {node} --subresource=status --type=merge -p '{patch}'"


def mismatches(
    node: str, gpus: NodeGpus, capacity: Mapping[str, int], memory: str, count: str, *, counted_on: bool
) -> Iterator[Finding]:
    """Yield the amounts that do not match the GPUs of a node on which an agent is ready.

    Args:
        node: its name.
        gpus: those that the agent wrote on it.
        capacity: of the node.
        memory: the resource that counts shares.
        count: the resource that counts GPUs.
        counted_on: whether pods or schedulers use the number of GPUs, so that 0 is wrong.
    """
    shares, number = sum(gpu.shares for gpu in gpus.gpus), sum(gpu.instance is None for gpu in gpus.gpus)
    # The kubelet keeps the devices of instances that were shared before, and are not now.
    before = sum(gpu.shares for gpu in (*gpus.instances, *gpus.gone))
    if not shares <= capacity.get(memory, shares) <= shares + before:
        yield warning(
            f"{node} has {capacity[memory]} {memory} by its kubelet, but {shares} by its agent",
            "the kubelet updates its node every 10 seconds; if this persists, see the logs of both",
        )
    yield from _instances(node, gpus, capacity)
    said = capacity.get(count, number)
    if said != number and (said or counted_on):
        yield warning(
            f"{node} has {said} {count} by its kubelet, but {counted(number, 'GPU')} by its agent",
            f"where its agent offers {count}, the kubelet corrects it within 10 seconds, or its log says why not; else "
            f"{_LATER} ({_REMEMBERED}): {set_count(node, count, number)}",
        )


def _instances(node: str, gpus: NodeGpus, capacity: Mapping[str, int]) -> Iterator[Finding]:
    """Yield the resources of MIG profiles of which the kubelet knows fewer instances than the agent."""
    listed = Counter(gpu.instance.resource for gpu in gpus.instances if gpu.instance is not None)
    for resource, number in sorted(listed.items()):
        if capacity.get(resource, 0) < number:
            yield warning(
                f"{node} has {capacity.get(resource, 0)} {resource} by its kubelet, but "
                f"{counted(number, 'instance')} by its agent",
                "the kubelet updates its node every 10 seconds; if this persists, see the logs of both",
            )


def unoffered(node: str, capacity: Mapping[str, int], count: str) -> Iterator[Finding]:
    """Yield a note if a node has a number of GPUs, though its agent offers no whole ones."""
    if capacity.get(count):
        yield note(
            f"{node} has {capacity[count]} {count}, and its agent offers none: pods that ask for it get no GPU here",
            "gpushare's own extender needs the number (docs/operations.md); where that does not run, remove it, "
            f"{_LATER}: {set_count(node, count, None)}",
        )


def gpushare_count(
    node: str, capacity: Mapping[str, int], allocatable: Mapping[str, int], memory: str, count: str
) -> Iterator[Finding]:
    """Check the number of GPUs on a node of gpushare's own device plugin; `count` is gpushare's name for it."""
    again = f"{set_count(node, count, 'N')} with N for its number of GPUs, or restart gpushare's plugin there"
    if capacity.get(memory) and not capacity.get(count):
        yield warning(f"{node} has no {count}, without which gpushare's extender finds room on none of its GPUs", again)
    elif capacity.get(count) and allocatable.get(count) == 0:
        yield warning(
            f"{node} has {capacity[count]} {count} only because its kubelet remembers an agent: {_REMEMBERED}",
            f"wait until it is 0, and then {again}",
        )
