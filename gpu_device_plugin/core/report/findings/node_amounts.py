"""Compare a node's capacity, which its kubelet reports, with the GPUs of its agent or of gpushare's plugin.

A kubelet remembers the resources of a stopped device plugin: for five minutes it keeps writing their capacity, then it
sets it to 0 once and never writes it again (endpointStopGracePeriod, GetCapacity and setters.go in Kubernetes'
pkg/kubelet). The number of GPUs that gpushare's programs use does not come from a device plugin: it is written on the
node once, so that a number written in those five minutes is lost.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.finding import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpu_device_plugin.model.contract.nodegpus import NodeGpus

_REMEMBERED = "the kubelet keeps the amount of a stopped plugin for five minutes, then sets it to 0"
_LATER = "five minutes after the last plugin that offered it has stopped"
_SOON = "the kubelet updates its node every 10 seconds; if this persists, see the logs of both"
_WHERE_OFFERED = (
    "where its agent offers it, the kubelet corrects it within 10 seconds, or its log says why not; else "
    f"{_LATER} ({_REMEMBERED}): {{command}}"
)


def set_count(node: str, count: str, number: int | str | None) -> str:
    """Return the command that sets the number of GPUs on a node; None removes it."""
    value = "null" if number is None else f'"{number}"'
    patch = f'{{"status":{{"capacity":{{"{count}":{value}}}}}}}'
    return f"kubectl patch node {node} --subresource=status --type=merge -p '{patch}'"


def mismatches(
    node: str, gpus: NodeGpus, capacity: Mapping[str, int], memory: str, count: str, *, counted_on: bool
) -> Iterator[Finding]:
    """Yield the amounts that do not match the GPUs of a node on which an agent is ready.

    `memory` and `count` name the resources of shares and of GPUs. 0 GPUs are wrong only if pods or schedulers use that
    number (`counted_on`).
    """
    shares, number = sum(gpu.shares for gpu in gpus.gpus), sum(gpu.instance is None for gpu in gpus.gpus)
    # The kubelet keeps the devices of instances that were shared before, and are not now.
    before = sum(gpu.shares for gpu in (*gpus.instances, *gpus.gone))
    if not shares <= capacity.get(memory, shares) <= shares + before:
        yield _differs(node, memory, capacity[memory], shares)
    instances = Counter(gpu.instance.resource for gpu in gpus.instances if gpu.instance is not None)
    for resource, listed in sorted(instances.items()):
        if capacity.get(resource, 0) < listed:
            yield _differs(node, resource, capacity.get(resource, 0), listed)
    reported = capacity.get(count, number)
    if reported != number and (reported or counted_on):
        yield _differs(node, count, reported, number, set_count(node, count, number))


def _differs(node: str, resource: str, kubelet: int, agent: int, command: str = "") -> Finding:
    return warning(
        "capacity-differs",
        "{node} has {kubelet} {resource} by its kubelet, but {agent} by its agent",
        _WHERE_OFFERED if command else _SOON,
        node=node,
        resource=resource,
        kubelet=kubelet,
        agent=agent,
        command=command,
    )


def unoffered(node: str, capacity: Mapping[str, int], count: str) -> Iterator[Finding]:
    """Yield a note if a node has a number of GPUs, though its agent offers no whole ones."""
    if capacity.get(count):
        yield note(
            "count-not-offered",
            "{node} has {kubelet} {resource}, and its agent offers none: pods that ask for it get no GPU here",
            "gpushare's own extender needs the number (docs/operations.md); where that does not run, remove it, "
            f"{_LATER}: {{command}}",
            node=node,
            resource=count,
            kubelet=capacity[count],
            command=set_count(node, count, None),
        )


def gpushare_count(
    node: str, capacity: Mapping[str, int], allocatable: Mapping[str, int], memory: str, count: str
) -> Iterator[Finding]:
    """Check the number of GPUs on a node of gpushare's own device plugin; `count` is gpushare's name for it."""
    again = "{command} with N for its number of GPUs, or restart gpushare's plugin there"
    command = set_count(node, count, "N")
    if capacity.get(memory) and not capacity.get(count):
        text = "{node} has no {resource}, without which gpushare's extender finds room on none of its GPUs"
        yield warning("no-count", text, again, node=node, resource=count, command=command)
    elif capacity.get(count) and allocatable.get(count) == 0:
        yield warning(
            "count-remembered",
            f"{{node}} has {{kubelet}} {{resource}} only because its kubelet remembers an agent: {_REMEMBERED}",
            f"wait until it is 0, and then {again}",
            node=node,
            resource=count,
            kubelet=capacity[count],
            command=command,
        )
