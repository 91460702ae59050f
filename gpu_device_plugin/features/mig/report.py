"""The doctor's check of the GPUs of a node in MIG mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import MIG_LABEL
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.report.rules.finding import Finding, note, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpu_device_plugin.model.gpus import Gpu

_GIVEN = {
    MigMode.WHOLE: "pods get them one by one, each profile by its own resource",
    MigMode.SHARE: "pods get their memory in shares",
}
_SEEING = (
    "deploy/patches/mig-agent.yaml (chart: agent.migMonitor) gives the agent NVIDIA_MIG_MONITOR_DEVICES=all and the "
    "capability SYS_ADMIN, without which the driver hides instances from a container"
)


def mig(
    gpus: Sequence[Gpu], names: Mapping[str, str], label: str, mode: MigMode, *, node: str, present: Mapping[str, int]
) -> Iterator[Finding]:
    """Check each GPU of a node in MIG mode, if it has one: its instances, and how pods get them.

    `names` are those of GPUs and instances for people, by UUID; `label` is the value of the node's label for MIG, and
    `mode` what is in force; the kernel module lists to everybody how many GPU instances are `present` on each GPU.
    """
    parents = [gpu for gpu in gpus if gpu.mig]
    if parents and label and label not in list(MigMode):
        text = "the node label {label} is ignored: its value is none of {modes}"
        advice = "correct the label, or remove it"
        yield warning("mig-label-ignored", text, advice, label=f"{MIG_LABEL}={label}", modes=tuple(MigMode))
    for parent in parents:
        instances = [gpu for gpu in gpus if gpu.instance is not None and gpu.card == parent.uuid]
        if instances:
            yield from _instances(parent, instances, names, label, mode, node=node)
        else:
            yield _no_instance(names[parent.uuid], parent.index, present.get(parent.uuid, 0))


def _instances(
    parent: Gpu, instances: Sequence[Gpu], names: Mapping[str, str], label: str, mode: MigMode, *, node: str
) -> Iterator[Finding]:
    numbers = ", ".join(
        f"{gpu.label} {gpu.instance.profile}" for gpu in instances if gpu.instance is not None and gpu.instance.alone
    )
    if numbers and mode is MigMode.OFF:
        text = "{gpu} is in MIG mode: {instances}; no pod gets them, as mig is off"
        advice = (
            "the setting mig, or kubectl label node {node} gpu-device-plugin/mig=..., with whole (one by one, a "
            "resource for each profile) or share (their memory in shares)"
        )
        yield note("mig-off", text, advice, gpu=names[parent.uuid], instances=numbers, node=node or "NODE")
    elif numbers:
        source = "node label gpu-device-plugin/mig" if label == mode else "setting mig"
        text = f"{{gpu}} is in MIG mode: {{instances}}; {_GIVEN[mode]} (the {{source}}={{mode}})"
        yield ok("mig", text, gpu=names[parent.uuid], instances=numbers, source=source, mode=mode)
    for gpu in instances:
        if gpu.instance is not None and not gpu.instance.alone:
            yield note(
                "compute-instance",
                "{gpu} is a compute instance, {profile}, which shares the memory of GPU instance {instance} with "
                "others, and no pod gets it",
                "make one compute instance of each GPU instance (nvidia-smi mig -cgi PROFILE -C does)",
                gpu=names[gpu.uuid],
                profile=gpu.instance.profile,
                instance=gpu.instance.gi,
            )


def _no_instance(name: str, index: int, present: int) -> Finding:
    if present:
        text = "{gpu} is in MIG mode, and none of its {instances:GPU instance} can be seen from here"
        advice = f"{_SEEING}; and see whether they have compute instances: nvidia-smi -L on the node"
        return warning("mig-instances-hidden", text, advice, gpu=name, instances=present)
    text = "{gpu} is in MIG mode, and no instance of it can be seen: no pod can use it"
    advice = (
        "create instances (nvidia-mig-parted, or nvidia-smi mig -cgi PROFILE -C), or end MIG mode (nvidia-smi -i "
        f"{{index}} -mig 0); if nvidia-smi -L on the node lists some, {_SEEING}"
    )
    return warning("no-mig-instance", text, advice, gpu=name, index=index)
