"""The check of GPUs in MIG mode on a node: their instances, and how pods get them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import MIG_LABEL
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.telling.diagnosing import Finding, note, ok, warning
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_device_plugin.core.model.gpus import Gpu
    from gpu_device_plugin.core.telling.node_symptoms import NodeSymptoms

_GIVEN = {
    MigMode.WHOLE: "pods get them one by one, each profile by its own resource",
    MigMode.SHARE: "pods get their memory in shares",
}
_SEEING = (
    "deploy/patches/mig-agent.yaml (chart: agent.migMonitor) gives the agent NVIDIA_MIG_MONITOR_DEVICES=all and the "
    "capability SYS_ADMIN, without which the driver hides instances from a container"
)


def numbers(gpus: Iterable[Gpu]) -> str:
    """Return instances for people, by their numbers: ``0:0 1g.10gb, 0:1 2g.20gb``."""
    return ", ".join(f"{gpu.label} {gpu.instance.profile}" for gpu in gpus if gpu.instance is not None)


def name(gpu: Gpu) -> str:
    """Return a GPU or an instance with its UUID, as people know it."""
    kind = "GPU" if gpu.instance is None else "MIG instance"
    return f"{kind} {gpu.label} ({gpu.uuid})"


def healthy(gpus: Iterable[Gpu]) -> str:
    """Return how many GPUs there are, and MIG instances: ``2 healthy, and 7 MIG instances``."""
    kinds = Counter(gpu.instance is None for gpu in gpus)
    return f"{kinds[True]} healthy" + (f", and {counted(kinds[False], 'MIG instance')}" if kinds[False] else "")


def mig(node: NodeSymptoms) -> Iterator[Finding]:
    """Check each GPU in MIG mode, if the node has one."""
    parents = [gpu for gpu in node.inventory.gpus if gpu.mig]
    if not parents:
        return
    label = node.labels.get(MIG_LABEL, "")
    if label and label not in list(MigMode):
        yield warning(
            f"the node label {MIG_LABEL}={label} is ignored: its value is none of {', '.join(MigMode)}",
            "correct the label, or remove it",
        )
    for parent in parents:
        instances = [gpu for gpu in node.inventory.gpus if gpu.instance is not None and gpu.card == parent.uuid]
        yield from _instances(node, parent, instances) if instances else [_none(node, parent)]


def _instances(node: NodeSymptoms, parent: Gpu, instances: Iterable[Gpu]) -> Iterator[Finding]:
    apart = [gpu for gpu in instances if gpu.instance is not None and gpu.instance.alone]
    if apart:
        found = f"{name(parent)} is in MIG mode: {numbers(apart)}"
        yield _given(node, found)
    for gpu in instances:
        if gpu.instance is not None and not gpu.instance.alone:
            yield note(
                f"{name(gpu)} is a compute instance, {gpu.instance.profile}, which shares the memory of GPU instance "
                f"{gpu.instance.gi} with others, and no pod gets it",
                "make one compute instance of each GPU instance (nvidia-smi mig -cgi PROFILE -C does)",
            )


def _given(node: NodeSymptoms, found: str) -> Finding:
    mode = node.mig_in_force
    if mode is MigMode.OFF:
        return note(
            f"{found}; no pod gets them, as mig is off",
            f"the setting mig, or kubectl label node {node.node_name or 'NODE'} {MIG_LABEL}=..., with whole (one by "
            "one, a resource for each profile) or share (their memory in shares)",
        )
    source = f"the node label {MIG_LABEL}" if node.labels.get(MIG_LABEL) == mode else "the setting mig"
    return ok(f"{found}; {_GIVEN[mode]} ({source}={mode})")


def _none(node: NodeSymptoms, parent: Gpu) -> Finding:
    present = node.mig_present.get(parent.uuid, 0)
    if present:
        return warning(
            f"{name(parent)} is in MIG mode, and none of its {counted(present, 'GPU instance')} can be seen from here",
            _SEEING + "; and see whether they have compute instances: nvidia-smi -L on the node",
        )
    return warning(
        f"{name(parent)} is in MIG mode, and no instance of it can be seen: no pod can use it",
        "create instances (nvidia-mig-parted, or nvidia-smi mig -cgi PROFILE -C), or end MIG mode (nvidia-smi -i "
        f"{parent.index} -mig 0); if nvidia-smi -L on the node lists some, {_SEEING}",
    )
