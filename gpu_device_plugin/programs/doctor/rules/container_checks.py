"""Checks of hardware and its condition, and of how containers reach it: driver, GPUs, MIG, runtimes, CDI, cgroups."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.features.history.contract import LAST_HOUR
from gpu_device_plugin.model.contract.keys import MIG_LABEL
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.telemetry import BY_HEAT, Throttle
from gpu_device_plugin.node.rules.container_grants import CONTROL_NODES
from gpu_device_plugin.report.rules.finding import Finding, Severity, Unknown, error, note, ok, warning
from gpu_device_plugin.report.rules.printing import MOST_NAMED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpu_device_plugin.features.history.contract import GpuHistory, NodeHistory
    from gpu_device_plugin.model.gpus import Gpu
    from gpu_device_plugin.model.telemetry import GpuTelemetry
    from gpu_device_plugin.programs.doctor.rules.symptoms import ClusterSymptoms, NodeSymptoms
    from gpu_device_plugin.report.rules.finding import Finding


_GIVEN = {
    MigMode.WHOLE: "pods get them one by one, each profile by its own resource",
    MigMode.SHARE: "pods get their memory in shares",
}
_SEEING = (
    "deploy/patches/mig-agent.yaml (chart: agent.migMonitor) gives the agent NVIDIA_MIG_MONITOR_DEVICES=all and the "
    "capability SYS_ADMIN, without which the driver hides instances from a container"
)
_UNPRIVILEGED = (
    "--devices cdi and accept-nvidia-visible-devices-envvar-when-unprivileged = false in the toolkit's config.toml"
)


UNREAD_ADVICE = "see dmesg, and whether nvidia-smi shows it; reset it or restart the node, then restart the agent"


def name(gpu: Gpu, node: NodeSymptoms) -> str:
    """Return a GPU or an instance with its UUID, as people know it: by its number in the node's list, if it has one."""
    if gpu.instance is not None:
        return f"MIG instance {gpu.label} ({gpu.uuid})"
    listed = () if isinstance(node.api, Unknown) else (*node.api.node.gpus.gpus, *node.api.node.gpus.gone)
    numbers = {each.uuid: each.position for each in listed if each.uuid}
    number = numbers.get(gpu.uuid)
    if number is None and numbers:
        return f"the GPU {gpu.uuid} (nvidia-smi counts it as {gpu.index})"
    return f"GPU {gpu.index if number is None else number} ({gpu.uuid})"


def driver(node: NodeSymptoms) -> Iterator[Finding]:
    """Check that the driver answers, and lists a GPU."""
    if node.driver_problem:
        yield error("driver-unusable", "{problem}", "see also the agent's log", problem=node.driver_problem)
        return
    for why in node.inventory.unread:
        yield error("gpu-unread", "{why}", UNREAD_ADVICE, why=why)
    models = Counter(gpu.product for gpu in node.inventory.gpus if gpu.instance is None)
    version = node.inventory.driver_version or "of an unknown version"
    if not models and node.inventory.unread:
        return
    if not models:
        text = "driver {version} lists no GPU"
        yield error("no-gpu", text, "see nvidia-smi -L on the node, and whether lspci shows the cards", version=version)
        return
    cards = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    invented = " (invented)" if node.invented else ""
    yield ok("driver", "driver {version}, {gpus}", version=version, gpus=f"{cards}{invented}")


def gpus(node: NodeSymptoms) -> Iterator[Finding]:
    """Check that no GPU is out of service."""
    for gpu in node.inventory.gpus:
        if why := node.unhealthy.get(gpu.uuid):
            advice = "docs/operations.md has the remedy (A GPU is out of service)"
            yield error("gpu-unhealthy", "{gpu} is out of service: {why}", advice, gpu=name(gpu, node), why=why)
    if node.inventory.gpus and not node.unhealthy:
        kinds = Counter(gpu.instance is None for gpu in node.inventory.gpus)
        text = "{gpus} healthy" + (", and {instances:MIG instance}" if kinds[False] else "")
        yield ok("gpus-healthy", text, gpus=kinds[True], instances=kinds[False])


# --- MIG --------------------------------------------------------------------------------------------------------------


def mig(node: NodeSymptoms) -> Iterator[Finding]:
    """Check each GPU in MIG mode, if the node has one: its instances, and how pods get them."""
    parents = [gpu for gpu in node.inventory.gpus if gpu.mig]
    label = node.labels.get(MIG_LABEL, "")
    if parents and label and label not in list(MigMode):
        text = "the node label {label} is ignored: its value is none of {modes}"
        advice = "correct the label, or remove it"
        yield warning("mig-label-ignored", text, advice, label=f"{MIG_LABEL}={label}", modes=tuple(MigMode))
    for parent in parents:
        instances = [gpu for gpu in node.inventory.gpus if gpu.instance is not None and gpu.card == parent.uuid]
        yield from _instances(node, parent, instances) if instances else [_no_instance(node, parent)]


def _instances(node: NodeSymptoms, parent: Gpu, instances: Sequence[Gpu]) -> Iterator[Finding]:
    numbers = ", ".join(
        f"{gpu.label} {gpu.instance.profile}" for gpu in instances if gpu.instance is not None and gpu.instance.alone
    )
    mode = node.mig_in_force
    if numbers and mode is MigMode.OFF:
        text = "{gpu} is in MIG mode: {instances}; no pod gets them, as mig is off"
        advice = (
            "the setting mig, or kubectl label node {node} gpu-device-plugin/mig=..., with whole (one by one, a "
            "resource for each profile) or share (their memory in shares)"
        )
        yield note("mig-off", text, advice, gpu=name(parent, node), instances=numbers, node=node.node_name or "NODE")
    elif numbers:
        source = "node label gpu-device-plugin/mig" if node.labels.get(MIG_LABEL) == mode else "setting mig"
        text = f"{{gpu}} is in MIG mode: {{instances}}; {_GIVEN[mode]} (the {{source}}={{mode}})"
        yield ok("mig", text, gpu=name(parent, node), instances=numbers, source=source, mode=mode)
    for gpu in instances:
        if gpu.instance is not None and not gpu.instance.alone:
            yield note(
                "compute-instance",
                "{gpu} is a compute instance, {profile}, which shares the memory of GPU instance {instance} with "
                "others, and no pod gets it",
                "make one compute instance of each GPU instance (nvidia-smi mig -cgi PROFILE -C does)",
                gpu=name(gpu, node),
                profile=gpu.instance.profile,
                instance=gpu.instance.gi,
            )


def _no_instance(node: NodeSymptoms, parent: Gpu) -> Finding:
    if present := node.mig_present.get(parent.uuid, 0):
        text = "{gpu} is in MIG mode, and none of its {instances:GPU instance} can be seen from here"
        advice = f"{_SEEING}; and see whether they have compute instances: nvidia-smi -L on the node"
        return warning("mig-instances-hidden", text, advice, gpu=name(parent, node), instances=present)
    text = "{gpu} is in MIG mode, and no instance of it can be seen: no pod can use it"
    advice = (
        "create instances (nvidia-mig-parted, or nvidia-smi mig -cgi PROFILE -C), or end MIG mode (nvidia-smi -i "
        f"{{index}} -mig 0); if nvidia-smi -L on the node lists some, {_SEEING}"
    )
    return warning("no-mig-instance", text, advice, gpu=name(parent, node), index=parent.index)


# --- Containers -------------------------------------------------------------------------------------------------------


def device_nodes(node: NodeSymptoms) -> Iterator[Finding]:
    """Check the device nodes of the GPUs, and their links for systemd."""
    if node.invented:
        yield ok("invented", "invented GPUs have none")
        return
    wrong = {path: why for path, why in node.device_nodes.items() if why}
    uvm = CONTROL_NODES[1]
    if uvm in wrong and node.in_container:
        # A container with NVIDIA_DRIVER_CAPABILITIES=utility has NVML and not this device node.
        text = "{path} is for CUDA, and this container does not have it"
        yield Unknown("uvm-hidden", text, "run the doctor on the node", path=uvm)
    elif uvm in wrong:
        advice = "nvidia-modprobe -u -c 0 on the node creates it; CUDA containers need it"
        yield error("no-uvm", "{path} {why}", advice, path=uvm, why=wrong[uvm])
    for why in sorted({why for path, why in wrong.items() if path != uvm}):
        yield error(
            "no-device-node",
            "{paths} {why}",
            "nvidia-smi as root on the node creates it, and nvidia-persistenced keeps it",
            paths=", ".join(path for path in wrong if path != uvm and wrong[path] == why),
            why=why,
        )
    if right := [path for path, why in node.device_nodes.items() if not why]:
        yield ok("device-nodes", "{paths}", paths=", ".join(right))
    if node.unlinked_nodes and not {"device-specs", "cdi"} & set(node.devices):
        text = (
            "/dev/char does not lead to {paths}: with systemd cgroups a systemctl daemon-reload takes GPUs from "
            "running containers"
        )
        advice = "nvidia-ctk system create-dev-char-symlinks --create-all on the node, or --devices device-specs or cdi"
        yield warning("device-nodes-unlinked", text, advice, paths=", ".join(node.unlinked_nodes))


def runtime(node: NodeSymptoms) -> Iterator[Finding]:
    """Check that the container runtime that the kubelet uses is configured with NVIDIA's."""
    if isinstance(node.runtimes, Unknown):
        if node.in_container and not node.driver_problem and not node.invented:
            yield ok("runtime-gave-driver", "it gave this container the driver")
        else:
            yield node.runtimes
        return
    if node.invented:
        yield ok("invented", "invented GPUs need none")
        return
    fit = [runtime for runtime in node.runtimes if runtime.handlers]
    for runtime in fit:
        how = "is its default" if runtime.default else "needs runtimeClassName: {handler} on every GPU pod"
        yield ok(
            "runtime-default" if runtime.default else "runtime-by-class",
            f"{{engine}} knows NVIDIA's runtime as {{handler}}, which {how} ({{path}})",
            engine=runtime.engine,
            handler=runtime.handlers[0],
            path=runtime.path,
        )
    if fit or "envvar" not in node.devices:
        return
    if files := tuple(path for runtime in node.runtimes for path in runtime.without_effect):
        text = "containerd does not read NVIDIA's runtime from {paths} (its configuration is {path})"
        advice = (
            'other files count if its own imports them (imports = ["/etc/containerd/conf.d/*.toml"]); containerd 1 '
            "takes all of a plugin from the last file that has it, and version = 3 has other names of plugins. "
            "containerd config dump on the node shows what counts; restart it after a change"
        )
        yield error("runtime-without-effect", text, advice, paths=files, path=node.runtimes[0].path)
    else:
        present = tuple(f"{runtime.engine} ({runtime.path})" for runtime in node.runtimes)
        text = "the container runtime that the kubelet uses does not know NVIDIA's: {runtimes}"
        advice = (
            "install nvidia-container-toolkit, nvidia-ctk runtime configure --runtime=containerd (docker, crio), and "
            "restart that; or --devices cdi"
        )
        yield error("no-nvidia-runtime", text, advice, runtimes=present or "no container runtime")


def cdi(node: NodeSymptoms) -> Iterator[Finding]:
    """Compare the CDI files with the GPUs, if `--devices` includes cdi."""
    if "cdi" not in node.devices:
        if not isinstance(node.cdi_devices, Unknown):
            text = "{devices:device} in CDI files; without cdi in --devices none is requested"
            yield note("cdi-unused", text, devices=len(node.cdi_devices))
        return
    if isinstance(node.cdi_devices, Unknown):
        yield node.cdi_devices
        return
    wanted = [f"{node.cdi_kind}={gpu.uuid}" for gpu in node.given]
    if missing := tuple(device for device in wanted if device not in node.cdi_devices):
        advice = (
            "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml, and once more after "
            "every change of cards or driver; --cdi-kind sets the kind that is requested"
        )
        yield error("cdi-devices-missing", "no CDI file names {devices}", advice, devices=missing)
    else:
        yield ok(
            "cdi", "CDI files name {devices:GPU or MIG instance|GPUs and MIG instances} by UUID", devices=len(wanted)
        )
    if not isinstance(node.runtimes, Unknown) and not any(runtime.cdi for runtime in node.runtimes):
        yield warning(
            "no-runtime-with-cdi",
            "the container runtime that the kubelet uses does not use CDI",
            "containerd before 2.0: enable_cdi = true; Docker: the feature cdi; CRI-O and containerd 2 need nothing",
        )


def images(node: NodeSymptoms, obeyed: bool) -> Iterator[Finding]:  # noqa: FBT001 - a field of the symptoms
    """Check whether an image can get GPUs by its own environment variables."""
    if not obeyed:
        text = "NVIDIA_VISIBLE_DEVICES of images and pods counts for privileged containers only"
        yield ok("variables-privileged-only", text)
    elif isinstance(node.runtimes, Unknown) or not any(runtime.default for runtime in node.runtimes):
        yield note(
            "images-see-gpus-with-class",
            "a container that is run with NVIDIA's runtime and asks for no GPU sees every GPU, if its image or pod "
            "sets NVIDIA_VISIBLE_DEVICES=all",
            f"deploy/policies.yaml refuses it in pods; against images help {_UNPRIVILEGED}",
        )
    else:
        yield warning(
            "images-see-gpus",
            "NVIDIA's runtime is the default here, so every container of an image with NVIDIA_VISIBLE_DEVICES=all (all "
            "of CUDA's) sees every GPU, also if it asks for none",
            f"do not make it the default and use runtimeClassName: nvidia; or {_UNPRIVILEGED}",
        )


def cgroups(_: NodeSymptoms, version: int) -> Iterator[Finding]:
    """Check the version of control groups."""
    if version == 2:
        yield ok("cgroup-v2", "version 2")
    else:
        text = (
            "version {version}: no memory limits of the driver, and kubelets from 1.35 on do not start on it unless "
            "failCgroupV1 is false"
        )
        yield warning("cgroup-v1", text, "boot with systemd.unified_cgroup_hierarchy=1", version=version)


LONG_S = 600.0
"""A GPU that is slowed for most of this time is not slowed by chance."""
_MOSTLY = 0.8
"""What counts as most of it: the driver's reasons come and go with the clocks."""
_MANY_LINK_ERRORS = 6000
"""A minute of 100 a second, the rate from which on NVIDIA's DCGM takes CRC errors of an NVLink for a fault."""
_LOADED_PERCENT = 20
"""With this load a GPU has no reason to save power on its link."""

_COOL = "see to its cooling: fans, dust, the air or water that reaches it"
_SUPPLY = "see whether the machine's power supplies work and suffice (its management controller knows)"
_PROTECTION = "see nvidia-smi -q -d PERFORMANCE,POWER on the node, and whether its power cables fit"
_LINK = "nvidia-smi nvlink -e tells the link; if this goes on, have its GPU and bridge or baseboard seen to"
# The first that applies is told. Hardware slowdown alone may be a change of clocks (nvml.h), unless it lasts.
_SLOWED = (
    (BY_HEAT, "slowed-by-heat", "by heat", _COOL),
    (Throttle.POWER_BRAKE, "slowed-by-power-brake", "by the machine's power supply", _SUPPLY),
    (Throttle.HARDWARE, "slowed-by-hardware", "by its own protection", _PROTECTION),
)
# By field of GpuHistory: code, words, from how many within the hour on it is a warning, and advice.
_GROWING = (
    ("ecc_errors", "ecc-growing", "{errors:memory error}", 1, "if this goes on, have the GPU replaced"),
    ("nvlink_errors", "nvlink-growing", "{errors:NVLink error}", _MANY_LINK_ERRORS, _LINK),
)
_RESET = "drain the node and reset the GPU (docs/operations.md, A GPU is out of service)"


def condition_here(node: NodeSymptoms, telemetry: Sequence[GpuTelemetry]) -> Iterator[Finding]:
    """Check the condition of a node's GPUs, as its driver tells it now."""
    names = {gpu.uuid: name(gpu, node) for gpu in node.inventory.gpus}
    named = [(names.get(gpu.uuid, gpu.uuid), gpu) for gpu in telemetry]
    findings = [finding for each, gpu in named for finding in (*_slowed_now(each, gpu), *_faults(each, gpu))]
    yield from findings
    if without := tuple(each for each, gpu in named if gpu.persistence is False):
        text = "persistence mode is off on {gpus:GPU}: while neither agent nor pod uses them, the driver unloads"
        yield note("persistence-off", text, "run nvidia-persistenced on the node (or nvidia-smi -pm 1)", gpus=without)
    if named and not findings:
        yield ok("condition", "{gpus:GPU}, none of them slowed or damaged", gpus=len(named))


def condition_seen(_: ClusterSymptoms, histories: Mapping[str, NodeHistory | str]) -> Iterator[Finding]:
    """Check the condition of the GPUs of a cluster, as the agents saw it in the last hour."""
    read = {node: history for node, history in histories.items() if not isinstance(history, str)}
    findings = [
        finding
        for node, history in read.items()
        for gpu in history.gpus
        for finding in _seen(f"GPU {gpu.gpu} of {node}", history.step_s, gpu)
    ]
    findings.sort(key=lambda finding: finding.severity is not Severity.WARNING)
    yield from findings[:MOST_NAMED]
    if (more := len(findings) - MOST_NAMED) > 0:
        text = "{findings:more finding|more findings} about the condition of GPUs"
        yield note("more-conditions", text, "begin with the first", findings=more)
    if silent := {node: why for node, why in histories.items() if isinstance(why, str)}:
        text = "the history of the GPUs of {nodes:node} cannot be read: {why}"
        yield Unknown("no-history", text, nodes=tuple(silent), why=next(iter(silent.values())))
    if read and not findings:
        yield ok("condition", "the GPUs of {nodes:node}, none of them slowed or damaged", nodes=len(read))


def _seen(gpu_name: str, step_s: float, gpu: GpuHistory) -> Iterator[Finding]:
    steps = max(1, round(LONG_S / max(step_s, 1.0)))
    bits = [value or 0 for value in gpu.throttle[-steps:]]
    for reasons, code, why, advice in _SLOWED:
        if sum(bool(value & reasons) for value in bits) >= _MOSTLY * steps:
            text = f"{{gpu}} was slowed {why} for most of the last {{minutes}} minutes"
            yield warning(code, text, advice, gpu=gpu_name, minutes=round(LONG_S / 60))
            break
    for field, code, words, many, advice in _GROWING:
        counts = [value for value in getattr(gpu, field) if value is not None]
        if counts and (grown := counts[-1] - counts[0]) > 0:
            severity, text = warning if grown >= many else note, f"{{gpu}} had {words} within {LAST_HOUR}"
            yield severity(code, text, advice, gpu=gpu_name, errors=grown)
    if (now := gpu.condition) is not None:
        # Old errors of links are harmless, unless they are of an agent that does not tell whether they grow.
        yield from _faults(gpu_name, replace(now, nvlink_errors=None) if gpu.nvlink_errors else now)


def _slowed_now(gpu_name: str, gpu: GpuTelemetry) -> Iterator[Finding]:
    temperature, limit = gpu.temperature_c, gpu.slowdown_c
    for reasons, code, why, advice in _SLOWED:
        if (gpu.throttle or 0) & reasons:
            severity = note if reasons is Throttle.HARDWARE else warning
            at = "" if temperature is None else " ({temperature} °C)"
            yield severity(code, f"{{gpu}} is slowed {why}{at}", advice, gpu=gpu_name, temperature=temperature or 0)
            return
    if temperature is not None and limit is not None and temperature >= limit:
        text = "{gpu} is at {temperature} °C, and its hardware slows it from {limit} °C on"
        yield warning("too-hot", text, _COOL, gpu=gpu_name, temperature=temperature, limit=limit)


def _faults(gpu_name: str, gpu: GpuTelemetry) -> Iterator[Finding]:
    """Yield what is wrong with a GPU for longer than a moment."""
    if _less(gpu.pcie_width, gpu.pcie_width_max):
        text = "{gpu} has {lanes} of the {most} PCIe lanes that it and its slot can have"
        advice = "seat it and its riser anew, and see the firmware's settings of the slot; copies to it are slower"
        yield warning(
            "pcie-narrow", text, advice, gpu=gpu_name, lanes=gpu.pcie_width or 0, most=gpu.pcie_width_max or 0
        )
    if (gpu.sm_percent or 0) >= _LOADED_PERCENT and _less(gpu.pcie_generation, gpu.pcie_generation_max):
        text = "{gpu} is busy, and its PCIe link is of generation {now}, where {most} is possible"
        advice = "see the firmware's settings of the slot, and lspci -vv for errors of the link"
        now, most = gpu.pcie_generation or 0, gpu.pcie_generation_max or 0
        yield warning("pcie-slow", text, advice, gpu=gpu_name, now=now, most=most)
    if gpu.ecc_uncorrected:
        text = "{gpu} has had {errors:uncorrected memory error} since the driver was loaded"
        advice = f"{_RESET}; if there are more afterwards, have it replaced"
        yield warning("ecc-uncorrected", text, advice, gpu=gpu_name, errors=gpu.ecc_uncorrected)
    if gpu.repair_failed:
        text = "{gpu} has no spare rows for damaged memory"
        yield warning("memory-not-repaired", text, "have it replaced", gpu=gpu_name)
    elif gpu.repair_pending:
        yield warning("memory-repair-pending", "{gpu} needs a reset to replace damaged memory", _RESET, gpu=gpu_name)
    if gpu.nvlink_errors:
        text = "{gpu} has counted {errors:NVLink error} since the driver was loaded"
        advice = "a few are harmless; if they grow (gpushare_gpu_nvlink_errors_total), see nvidia-smi nvlink -e"
        yield note("nvlink-errors", text, advice, gpu=gpu_name, errors=gpu.nvlink_errors)


def _less(now: int | None, most: int | None) -> bool:
    return now is not None and most is not None and now < most
